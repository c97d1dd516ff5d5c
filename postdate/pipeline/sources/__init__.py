"""Spark's data sources: a log's headers and an index's rows as DataFrames, and a session that knows them."""
