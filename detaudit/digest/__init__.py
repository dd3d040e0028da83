"""The digest of a leaf: 64 bits over dtype, shape and raw bytes, the same on every device."""
