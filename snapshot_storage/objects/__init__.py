"""A snapshot as one run of bytes, and a folder of such files."""
