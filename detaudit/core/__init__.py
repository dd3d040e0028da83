"""Words everything else is written in: errors, settings, records, names. Imports nothing of the package."""
