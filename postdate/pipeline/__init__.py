"""The delayed index in bulk, on Spark: work that takes one broker minutes, on as many machines as Spark has.

- `logs`: headers of messages, from a service's folder or an export.
- `index`: where snapshots are, the cursors whose properties name them, the one step that makes staged snapshots an
  index, and the plan of a copy (`postdate snapshots copy` has it too).
- `planning`: the ledgers that make a bucket, as the live tracker would have sealed them, and the task that builds it.
- `tasks`: the work of one task, without Spark: from headers to the snapshot of a bucket, merging, comparing,
  cancelling.
- `sources`: logs and indexes as Spark's data sources, and the session that knows them.
- `jobs`: the jobs themselves: `log_rebuild` for a log, `rebuild` for any DataFrame, `merge` for too many buckets,
  `cancel` for messages that must not be delivered, `ingest` for a stream, `audit` and `forecast`; `copies` has the
  tasks of a copy.
- `spark`: Java, workers, and tasks one to a partition. `cli`: the commands.

A job holds no second definition of the index. It calls the functions that the live tracker calls, so that its bytes
are the same.
"""
