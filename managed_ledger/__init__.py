"""The log: ledgers of entries on RocksDB, and per subscription a cursor. Everything else is derived from it.

Start at `ledger_store.LedgerStore`. This package imports nothing here, so that modules that need only
`managed_ledger.position` do not load RocksDB.
"""
