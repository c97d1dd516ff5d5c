"""The jobs on Spark: rebuild, merge, cancel, ingest and forecast."""
