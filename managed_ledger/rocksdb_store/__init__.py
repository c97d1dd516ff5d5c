"""The one place that knows rocksdict: a RocksDB folder, opened strictly and written in batches; scans tell damage.

The log (`managed_ledger`) and the snapshots on one machine (`snapshot_storage/rocksdb`) each have such a folder. Its
content, the meaning of damage and the errors that a caller sees are theirs. Here are the traps of rocksdict 0.3.29,
each of them met; `docs/rocksdict-reports.md` has those that are rocksdict's own, as reports with a program to see them.

* **Errors.** Every failure is a plain `Exception` with a text, or an `OSError` without a path. `failures` tells
  them apart by the text, in one function.
* **Scans.** `items()` and `keys()` end silently at a damaged block. Scans use `iter()` and ask for its status.
* **Locks.** The folder stays locked while an iterator, a column family or a handle of one lives, also after `close()`,
  and an exception's traceback keeps them alive. Every one is let go in a `finally`.
* **The interpreter.** No other Python thread runs during `write`, also while it syncs; during `flush_wal` they do. So a
  synced write is two calls: a second thread was held for 2 % of the time instead of 80 % (commits of 1 KB), and at
  worst for 7 ms instead of 60 (of 1 MB).
* **Raw mode.** Databases and batches must agree on it, or keys are pickled. Both are made here, raw.
* **Readers write.** Also a database that is opened to read writes a configuration and a diary beside the data. So
  readers open a view, a temporary folder of links (`folder_view`), in both rooms.
* **Families.** By itself rocksdict opens the families that a file without a checksum lists. So all are named here.

And those of RocksDB:

* In its default recovery mode, a flipped byte in the middle of the write-ahead log silently drops all that is behind
  it. Here a cut tail is a normal crash, and damage before it refuses.
* A folder whose `CURRENT` is gone opens as an empty one, and so can one whose newest log is gone, with what older files
  have. The owner of a folder asks for a key that must be there, and has a record elsewhere of what must be in it.
* After a write, a flush or a compaction that failed no write succeeds before the folder is opened again.
"""
