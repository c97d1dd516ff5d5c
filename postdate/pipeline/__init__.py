"""The delayed index in bulk, on Spark: work that takes one broker minutes, on as many machines as Spark has.

- `logs`: headers of messages, from a service's folder or an export.
- `planning`: the ledgers that make a bucket, as the live tracker would have sealed them, and the task that builds it.
- `tasks`: the work of one task, without Spark: from headers to the snapshot of a bucket, merging, cancelling.
- `sources`: logs and indexes as Spark's data sources, and the session that knows them.
- `jobs`: the jobs themselves: `log_rebuild` for a log, `rebuild` for any DataFrame, `merge` for too many buckets,
  `cancel` for messages that must not be delivered, `ingest` for a stream, and `forecast`.
- `spark`: Java, workers, tasks one to a partition, and the index that they open. `cli`: the commands.
- `publishing`: the one step that makes new snapshots the index of their cursors, which a crash leaves undone or done.

Where an index is, whose it is and whether it is whole is known to the room `index`.

A job holds no second definition of the index. It calls the functions that the live tracker calls, so that its bytes
are the same.
"""
