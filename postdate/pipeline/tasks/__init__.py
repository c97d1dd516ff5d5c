"""The work of one task on its part: count, build, merge, compare, cancel. Without Spark."""
