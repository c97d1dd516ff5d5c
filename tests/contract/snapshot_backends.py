"""The storages that the contract suite runs over, each with a probe that looks behind the interface.

A probe reads what is stored without the class under test, so that a storage which writes and reads wrongly
alike is found out.
"""

import struct
from abc import ABC, abstractmethod
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.rocksdb import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage


class Backend(ABC):
    """A place where snapshots are kept, which outlives the storages over it."""

    @abstractmethod
    def storage(self) -> BucketSnapshotStorage:
        """Return a storage over the place, not started."""

    @abstractmethod
    def entries(self, bucket_id: int) -> list[bytes] | None:
        """Return the entries that are really there, or None if there is no trace of the snapshot."""


class MemoryBackend(Backend):
    """The place is the object, so there is one storage."""

    def __init__(self, path: Path) -> None:
        self._storage = MemoryBucketSnapshotStorage()

    def storage(self) -> BucketSnapshotStorage:
        return self._storage

    def entries(self, bucket_id: int) -> list[bytes] | None:
        stored = self._storage._snapshots.get(bucket_id)
        return None if stored is None else [stored.metadata, *stored.segments]


class RocksDBBackend(Backend):
    """The place is a folder, whose keys are read with rocksdict alone."""

    def __init__(self, path: Path) -> None:
        self._path = path / "snapshots"

    def storage(self) -> BucketSnapshotStorage:
        return RocksDBBucketSnapshotStorage(self._path)

    def entries(self, bucket_id: int) -> list[bytes] | None:
        # Read-only sees the folder as it is at this moment, also beside an open storage.
        database = Rdict(str(self._path), Options(raw_mode=True), access_type=AccessType.read_only(False))
        try:
            found: list[bytes] = []
            for key, value in database.items():
                if key[:9] == b"e" + struct.pack(">Q", bucket_id):
                    assert struct.unpack(">I", key[9:]) == (len(found),)
                    found.append(value)
            has_header = b"h" + struct.pack(">Q", bucket_id) in database
        finally:
            database.close()
        assert has_header == bool(found)
        return found or None


BACKENDS = [MemoryBackend, RocksDBBackend]
