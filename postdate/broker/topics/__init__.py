"""Topics and subscriptions, with their producers, consumers, policies and limits."""
