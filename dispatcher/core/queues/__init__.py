"""Entries of a core that no consumer has: waiting by slot, parked far back, coming back, or held by time."""
