"""The log on the disk: the folder with its marker, the keys in it, and its opening again after RocksDB refused writes.

The settings and errors of the log meet the adapter of rocksdict here (`rocksdb_edge.py`).
"""
