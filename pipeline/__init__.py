"""The delayed index in bulk, on Spark: what takes one broker minutes, on as many machines as Spark has.

What a job reads and writes:

- `header_log`, `log_folder`, `parquet_log`, `open_logs`: headers of messages, from a service's folder or an export.
- `index_place`, `s3_location`, `readable_index`, `cursor_log`: where snapshots are, and the cursors whose properties
  name them.
- `ledger_source`, `index_source`, `index_writer`: the same as Spark's data sources.

What it does, without Spark:

- `planning`, `log_plan`: which ledgers make a bucket, as the live tracker would have sealed them, and which tasks.
- `row_checks`, `bucket_rows`, `log_tasks`: from headers to the snapshot of a bucket: what a task does.
- `staging`, `publishing`: from staged snapshots to the index, in one step that a crash cannot tear.

- `merge_rows`: one bucket made of several.
- `cancel_rows`: positions as bitmaps, and a bucket without some of its rows.
- `message_metadata`: properties and keys, from what stands before a payload.
- `batch_mark`: which batch of a stream an index has already.
- `number_columns`, `ledger_splits`: what a column of somebody else's DataFrame may be, and where a large ledger is cut.

And on Spark: `log_rebuild` for a log, `rebuild` for any DataFrame, `merge` for too many buckets, `migrate` for
another storage, `cancel` for messages that must not be delivered (`find_messages` by time, key or property), `ingest`
for a stream; `spark_tasks`, `session` and `worker_daemon` under them.

What is wrong: `audit`, and `audit_rows` for what its tasks compare.
What is ahead: `forecast`, and `forecast_charts` for pictures of it.

A job holds no second definition of the index. It calls the functions that the live tracker calls, so that its bytes
are the same.
"""
