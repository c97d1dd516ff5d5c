"""Plans: the ledgers of each bucket, as the live tracker would have sealed them, and the tasks. Without Spark."""
