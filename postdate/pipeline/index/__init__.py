"""The place of an index, its owners, the step that makes staged snapshots the index, and its copy. Without Spark."""
