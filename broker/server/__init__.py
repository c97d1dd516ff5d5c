"""The process and its wiring: start, ports, periodic jobs, the snapshot storage, and an orderly end."""
