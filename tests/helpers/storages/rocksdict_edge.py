"""Rocksdict's object behind an open folder: tests put its failures in here.

Rocksdict cannot be told to fail, and a disk that refuses one write of many needs root. So a test has to reach behind
our adapters, and does it through these functions alone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from managed_ledger.disk.database import RocksDatabase
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage

T = TypeVar("T")


def replace_rocksdict(
    opened: RocksDBBucketSnapshotStorage | RocksDBFolder | RocksDatabase, wrap: Callable[[Any], T]
) -> T:
    """Put another object into the place of rocksdict's, which is made of it; return the new one."""
    if isinstance(opened, RocksDBBucketSnapshotStorage):
        assert opened._open is not None
        opened = opened._open.snapshots
    holder: Any = opened._store if isinstance(opened, RocksDBFolder) else opened
    holder._database = wrapped = wrap(holder._database)
    return wrapped
