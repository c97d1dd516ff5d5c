"""Authentication: providers that turn a client's credentials into a role, and the keys of tokens."""
