"""The web port: health, metrics, and Pulsar's admin paths."""
