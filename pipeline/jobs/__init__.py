"""The jobs: rebuild, merge, migrate, cancel, ingest, audit and forecast, on Spark."""
