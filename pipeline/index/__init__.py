"""The place of an index, its owners, and the one step that makes staged snapshots the index. Without Spark."""
