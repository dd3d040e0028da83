"""Says why two runs part: the evidence of a drill-down, of toggles, and of dumped buffers."""
