"""Postdate and a real Pulsar as processes of their own, and clients in three languages."""
