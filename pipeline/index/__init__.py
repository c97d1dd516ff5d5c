"""Where an index is, whose it is, and how staged snapshots become it in one step. Without Spark."""
