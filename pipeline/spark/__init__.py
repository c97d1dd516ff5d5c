"""Spark itself: Java, sessions, workers, and planned tasks run one to a partition."""
