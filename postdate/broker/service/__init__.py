"""The state that all connections share: the log, the snapshot storage, open and resting topics, and periodic jobs."""
