"""A snapshot as one run of bytes, the key that its id gives, and a folder of such files."""
