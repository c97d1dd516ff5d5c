"""The log: ledgers of entries on RocksDB, and per subscription a cursor. Everything else is derived from it.

Start at `ledger_store.LedgerStore`, which opens topics (`managed_ledger.py`). The sub-rooms, of which each may import
those below it:

- `objects`: checkpoints as objects in a folder or on S3, for backups, of one bundle or all of them.
- `repair`: verifies a damaged log and writes what is whole of it to a new one.
- `cursors`: the acknowledgements of subscriptions, and their records.
- `writing`: appends, and the group commit of all topics.
- `reading`: reads of headers and payloads, through the cache.
- `disk`: the folder, its keys, and the second copies.
- `entries`: headers, blocks and metadata, as bytes and columns.
- `rocksdb_store`: the one adapter of RocksDB, which the snapshots use too.
- `positions`: the places of entries, and the types of values that all rooms share.

This package imports nothing here, so that modules that need only `managed_ledger.positions` do not load RocksDB.
"""
