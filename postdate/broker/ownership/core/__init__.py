"""The decisions of services that share a prefix: who lives, whose a bundle is, and what to do about it. Pure."""
