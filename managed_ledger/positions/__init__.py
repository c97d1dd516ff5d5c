"""Positions in a log, and the types of values that all rooms share. This sub-room imports nothing of Postdate.

`snapshot_storage` and `tracker` know it and `managed_ledger.rocksdb_store`, and nothing else of this room.
"""
