"""The log: ledgers of entries on RocksDB, and per subscription a cursor. Everything else is derived from it.

Start at `ledger_store.LedgerStore`. `rocksdb_store/` is the one adapter of RocksDB, which the snapshots use too;
`repair/` verifies a damaged log and writes what is whole of it to a new one. This package imports nothing here, so that
modules that need only `managed_ledger.position` do not load RocksDB.
"""
