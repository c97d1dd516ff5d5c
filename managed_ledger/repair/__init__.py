"""The repair of a damaged log: its whole entries are found, named and written to a new folder (`postdate ledger`).

`tables` and `wal` read RocksDB's files without RocksDB, which refuses a whole file, or everything behind a place, for
one wrong bit. `survey` brings together what they find, `findings` says what of it is a log, `rewriting` makes the new
folder and puts it in the place of the old one.
"""
