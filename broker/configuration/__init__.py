"""The configuration: keys and values, where they were given, and which promises they make."""
