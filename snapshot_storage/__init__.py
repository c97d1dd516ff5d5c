"""Bucket snapshots: how a part of the delayed index becomes bytes, and where the bytes are kept.

A snapshot is the index of one bucket (a closed range of ledgers): one metadata entry, then its segments in
order of delivery time, in PIP-195's own bytes. Two halves that do not know each other:

- `encoding`: pure functions over arrays: `columns` (rows), `segmenter` (where to cut), `codec` (bytes), `snapshot`
  (all of it at once, for live sealing, merging and Spark).
- `storage`: the interface that moves entries, with `memory`, `rocksdb` and `s3` behind it; on S3 a snapshot is one of
  the `objects`.

The package knows no tracker, no topic's log and no clock. Every error that leaves the package is a
`SnapshotStorageError`; arguments that no caller may pass raise `ValueError`.
"""
