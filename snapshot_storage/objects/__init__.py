"""A snapshot as one run of bytes, and the key that its id gives it on S3."""
