"""Raw bytes of chosen leaves at chosen steps, off unless asked for: gate and writer in the run, reader after it."""
