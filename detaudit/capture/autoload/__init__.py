"""Zero-code injection: the directory `injected` goes on PYTHONPATH, and Python imports its `sitecustomize` at start.

The directory holds that one file, so that no module of the user's can be hidden by one of ours.
"""
