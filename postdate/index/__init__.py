"""The index of a log on disk: where it is, whose it is, how it is copied, checked and replaced. Without Spark.

- `location`: the one notation of a place; `opening`: an index with the cursors that name its snapshots.
- `log_folder`, `ledger_ranges`: the log as a tool reads it; `entry_format`: the bytes of its entries.
- `cursor_log`, `acknowledged`, `selection`: cursors, what they have acknowledged, and which of them are meant.
- `staging`, `publishing`, `batch_mark`: the one step that makes new snapshots an index.
- `index_copy`: a copy, or a move, to another place.
- `checking`, `comparing`: whether snapshots are whole, and whether they have what the log has.

`postdate snapshots` and `postdate check` stand on it, and so does the pipeline.
"""
