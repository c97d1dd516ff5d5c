"""Who owns which bundle: the protocol, the one process that owns all, and services of a prefix."""
