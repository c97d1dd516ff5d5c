"""What is left of a damaged log: found, named, and written to a new folder, for `postdate ledger verify` and `repair`.

`tables` and `wal` read RocksDB's files without RocksDB, which refuses a whole file, or everything behind a place, for
one wrong bit. `survey` brings together what they find, `findings` says what of it is a log, `rewriting` makes the new
folder and puts it in the place of the old one.
"""
