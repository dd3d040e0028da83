"""Presenters: one verdict in, text out. Equal input gives equal bytes. Knows only `core`."""
