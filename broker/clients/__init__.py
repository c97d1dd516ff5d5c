"""One client's connection: its requests, the messages it publishes, and the consumers and producers it has."""
