"""Where two runs first differ. Loads no torch."""
