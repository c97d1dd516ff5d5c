"""Every decision about buckets: synchronous, deterministic, without a clock, a storage or an event loop."""
