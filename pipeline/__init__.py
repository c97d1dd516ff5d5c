"""The delayed index in bulk, on Spark: what takes one broker minutes, on as many machines as Spark has.

- `planning`: which ledgers make a bucket, as the live tracker would have sealed them. Pure, without Spark.
- `bucket_rows`: from one bucket's columns to its snapshot: what a task does. Pure, without Spark.
- `rebuild`: the job: headers of messages in, encoded snapshots out, and a way to store them.
- `session`: a Spark session on this machine, or a clear word on what is missing.

A job holds no second definition of the index. It calls the functions that the live tracker calls, so that its bytes
are the same. PySpark is needed by `rebuild` and `session` alone, and only when they are imported.
"""
