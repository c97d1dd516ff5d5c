"""Topics and subscriptions, with their policies and limits."""
