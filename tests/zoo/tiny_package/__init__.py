"""A package run as `python -m tiny_package`."""
