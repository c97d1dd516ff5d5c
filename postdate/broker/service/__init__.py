"""The state that all connections share: the log, the snapshot storage, the life of topics, and periodic jobs."""
