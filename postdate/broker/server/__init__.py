"""The process: its start, its ports, its supervisor, and an orderly end."""
