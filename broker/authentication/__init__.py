"""Who a client is: providers that turn what it shows into a role, and the keys that configure them."""
