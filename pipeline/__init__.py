"""The delayed index in bulk, on Spark: what takes one broker minutes, on as many machines as Spark has.

- `logs`: headers of messages, from a service's folder or an export.
- `index`: where snapshots are, the cursors whose properties name them, and the one step that makes staged snapshots
  an index.
- `planning`: which ledgers make a bucket, as the live tracker would have sealed them, and which task builds it.
- `tasks`: what one task does, without Spark: from headers to the snapshot of a bucket, merging, comparing, cancelling.
- `sources`: logs and indexes as Spark's data sources.
- `jobs`: what is asked for: `log_rebuild` for a log, `rebuild` for any DataFrame, `merge` for too many buckets,
  `migrate` for another storage, `cancel` for messages that must not be delivered, `ingest` for a stream, `audit` and
  `forecast`.
- `spark`: sessions, Java and workers. `cli`: the commands.

A job holds no second definition of the index. It calls the functions that the live tracker calls, so that its bytes
are the same.
"""
