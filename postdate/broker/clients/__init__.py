"""One client's connection: its requests, the messages that it publishes, and those that it acknowledges."""
