"""Zero-code injection: this directory goes on PYTHONPATH, and Python imports its `sitecustomize` at start."""
