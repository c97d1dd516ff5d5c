"""Spark's data sources: a log's headers and an index's rows as DataFrames."""
