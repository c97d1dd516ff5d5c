"""What one task does with its part: count, build, merge, compare, cancel. Without Spark."""
