"""The configuration: keys and values, their sources, and the handling of keys that are not read."""
