"""Spark itself: Java, workers, and planned tasks run one to a partition."""
