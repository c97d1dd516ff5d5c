"""The storages that the contract suite runs over, each with a probe that looks behind the interface.

A probe reads what is stored without the class under test, so that a storage which writes and reads wrongly
alike is found out.
"""

import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c
from rocksdict import AccessType, Options, Rdict

from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.storages.s3_servers import BUCKET, S3Server


class Backend(ABC):
    """A place where snapshots are kept, which outlives the storages over it."""

    @abstractmethod
    def storage(self) -> BucketSnapshotStorage:
        """Return a storage over the place, not started."""

    @abstractmethod
    def entries(self, bucket_id: int) -> list[bytes] | None:
        """Return the entries that are really there, or None if there is no trace of the snapshot."""

    @abstractmethod
    def ids(self) -> set[int]:
        """Return the ids of which there is any trace, finished or not."""

    def flip(self, bucket_id: int, entries: Iterable[int]) -> None:
        """Change one bit of each of these stored entries, which are not empty; no storage may be open."""
        raise NotImplementedError


class MemoryBackend(Backend):
    """The place is the object, so there is one storage."""

    def __init__(self, path: Path) -> None:
        self._storage = MemoryBucketSnapshotStorage()

    def storage(self) -> BucketSnapshotStorage:
        return self._storage

    def entries(self, bucket_id: int) -> list[bytes] | None:
        stored = self._storage.snapshots.get(bucket_id)
        return None if stored is None else [stored.metadata, *stored.segments]

    def ids(self) -> set[int]:
        return set(self._storage.snapshots)


class RocksDBBackend(Backend):
    """The place is a folder, whose keys are read with rocksdict alone."""

    def __init__(self, path: Path) -> None:
        self._path = path / "snapshots"

    def storage(self) -> BucketSnapshotStorage:
        return RocksDBBucketSnapshotStorage(self._path)

    def entries(self, bucket_id: int) -> list[bytes] | None:
        # A flush between two steps of the opening hides entries that it moves from the log into a table.
        for _ in range(3):
            with suppress(AssertionError):
                return self._entries(bucket_id)
        return self._entries(bucket_id)

    def _entries(self, bucket_id: int) -> list[bytes] | None:
        found: list[bytes] = []
        items = self._items()
        for key, value in items:
            if key[:9] == b"e" + struct.pack(">Q", bucket_id):
                assert struct.unpack(">I", key[9:]) == (len(found),)
                assert value[-4:] == struct.pack(">I", google_crc32c.value(key + value[:-4]))
                found.append(value[:-4])
        assert (b"h" + struct.pack(">Q", bucket_id) in dict(items)) == bool(found)
        return found or None

    def ids(self) -> set[int]:
        return {struct.unpack_from(">Q", key, 1)[0] for key, _ in self._items() if key[:1] in b"hew"}

    def flip(self, bucket_id: int, entries: Iterable[int]) -> None:
        database = Rdict(str(self._path), Options(raw_mode=True))
        try:
            for entry in entries:
                key = b"e" + struct.pack(">QI", bucket_id, entry)
                value = bytearray(database[key])
                value[0] ^= 1
                database[key] = bytes(value)
        finally:
            database.close()

    def _opened_for_reading(self) -> Rdict:
        """Open the folder, once more where the storage has compacted tables away between two steps of the opening."""
        for tries_left in reversed(range(10)):
            try:
                return Rdict(str(self._path), Options(raw_mode=True), access_type=AccessType.read_only(False))
            except Exception as error:
                if "No such file" not in str(error) or not tries_left:
                    raise
        raise AssertionError("unreachable")

    def _items(self) -> list[tuple[bytes, bytes]]:
        # Read-only sees the folder as it is at this moment, also beside an open storage.
        database = self._opened_for_reading()
        try:
            return [(key, value) for key, value in database.items() if key not in (b"format", b"next")]
        finally:
            database.close()


def _object_entries(data: bytes) -> list[bytes]:
    names_bytes, entry_count = struct.unpack_from(">II", data, 12)
    table = 28 + names_bytes + 4
    start = table + 8 * entry_count + 4
    found: list[bytes] = []
    for length, checksum in struct.iter_unpack(">II", data[table : table + 8 * entry_count]):
        found.append(data[start : start + length])
        assert google_crc32c.value(found[-1]) == checksum
        start += length
    assert start == len(data)
    return found


def _flipped(data: bytes, entries: Iterable[int]) -> bytes:
    stored = _object_entries(data)
    changed = bytearray(data)
    for entry in entries:
        changed[len(data) - len(b"".join(stored[entry:]))] ^= 1
    return bytes(changed)


class S3Backend(Backend):
    """The place is a prefix of a bucket, whose objects are read with boto3 and taken apart by hand."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.prefix = f"tests/{uuid.uuid4().hex}"
        self._client = server.client

    def storage(self, **changes: Any) -> S3BucketSnapshotStorage:
        return S3BucketSnapshotStorage(self._server.config(self.prefix, **changes))

    def entries(self, bucket_id: int) -> list[bytes] | None:
        if bucket_id not in self.keys():
            return None
        return _object_entries(self._client.get_object(Bucket=BUCKET, Key=self.keys()[bucket_id])["Body"].read())

    def ids(self) -> set[int]:
        return set(self.keys()) | set(range(-len(self.uploads()), 0))

    def flip(self, bucket_id: int, entries: Iterable[int]) -> None:
        key = self.keys()[bucket_id]
        body = self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        self._client.put_object(Bucket=BUCKET, Key=key, Body=_flipped(body, entries))

    def keys(self) -> dict[int, str]:
        """Return the keys of all objects by bucket id."""
        keys = [key for key in self._keys("/") if not key.startswith(f"{self.prefix}/uploads/")]
        return {int(key.removeprefix(self.prefix).replace("/", ""), 16): key for key in keys}

    def _keys(self, begin: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self.prefix}{begin}")
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    def uploads(self) -> list[str]:
        """Return the keys of unfinished uploads, and of marks of uploads."""
        page = self._client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{self.prefix}/")
        return [found["Key"] for found in page.get("Uploads", [])] + self._keys("/uploads/")

    def uploads_of(self, bucket_id: int) -> list[str]:
        """Return the ids of unfinished uploads of one snapshot, which MinIO lists by the whole key only."""
        digits = f"{bucket_id:016x}"
        key = f"{self.prefix}/{digits[:4]}/{digits[4]}/{digits[5:]}"
        page = self._client.list_multipart_uploads(Bucket=BUCKET, Prefix=key)
        return [found["UploadId"] for found in page.get("Uploads", [])]
