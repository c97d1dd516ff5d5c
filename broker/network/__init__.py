"""The ports of the service: listening, TLS, and what a connection is before anything is spoken on it."""
