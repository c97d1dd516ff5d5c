"""The repair of a damaged log: its whole entries are found, named and written to a new folder (`postdate ledger`).

`rocksdb_store.damaged_folder` reads what RocksDB can still read. `survey` brings it together, `findings` says what of
it is a log, `rewriting` makes the new folder, and `repairing` puts it in the place of the old one.
"""
