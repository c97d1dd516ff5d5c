"""The jobs: rebuild, merge, cancel, ingest, audit and forecast, and the tasks of a copy, on Spark."""
