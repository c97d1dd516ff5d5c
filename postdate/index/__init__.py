"""The index of a log on disk: where it is, whose it is, how it is copied and checked. Without Spark.

- `location`: the one notation of a place; `opening`: an index with the cursors that name its snapshots.
- `log_folder`, `ledger_ranges`: the log as a tool reads it; `entry_format`: the bytes of its entries.
- `acknowledged`: what cursors have acknowledged.
- `index_copy`: a copy, or a move, to another place.
- `checking`, `comparing`: whether snapshots are whole, and whether they have what the log has.

`postdate snapshots` and `postdate check` stand on it, and so does the pipeline.
"""
