"""Snapshots in a RocksDB folder: the storage of a single machine."""
