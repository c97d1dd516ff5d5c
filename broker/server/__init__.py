"""The process and its wiring: start, serve, periodic jobs, the snapshot storage, and an orderly end."""
