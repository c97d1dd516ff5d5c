"""One index for all subscriptions of a topic (PIP-195, optional part)."""
