"""Topics and subscriptions: what the service has for a name, with the policies and limits that hold for it."""
