"""The ports of the service: listening, TLS, and the admission of a connection before its first frame."""
