"""Which ledgers make a bucket, as the live tracker would have sealed them, and which task does what. Without Spark."""
