"""The trail: the append-only file that one rank of one run leaves behind. Loads neither torch nor numpy at import."""
