"""Listening, TLS, and the admission of a connection before its first frame."""
