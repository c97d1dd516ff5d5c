"""What a RocksDB folder knows of its snapshots without their entries: headers, and what is kept of the whole folder.

All of it is there twice, in two column families and so in different blocks (`layout`). Either is enough: where
one is damaged, the other is read and a warning is logged, so a flipped bit among headers costs nothing. `damage` tells
of it. Blocking; any thread may call.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from rocksdict import ColumnFamily, Rdict, WriteBatch

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageCorruptedError,
)
from snapshot_storage.rocksdb.database import column_family, mapped, scan
from snapshot_storage.rocksdb.layout import (
    FORMAT,
    FORMAT_KEY,
    INDEX_FAMILY,
    NEXT_ID_KEY,
    StoredHeader,
    bucket_id_in,
    decode_header,
    encode_header,
    entry_key,
    header_key,
    index_key,
    index_range,
    indexed_id,
    unfinished_key,
)
from snapshot_storage.storage import METADATA_ENTRY, BucketSnapshotInfo

log = logging.getLogger(__name__)

Damage = SnapshotCorruptedError | StorageCorruptedError


class RocksDBHeaders:
    """Headers of an open folder; `close` before the database is closed."""

    def __init__(self, path: Path, database: Rdict, *, is_read_only: bool) -> None:
        """Find the index, which a folder of an older layout that is only read does not have."""
        self._path = path
        self._database = database
        self._is_read_only = is_read_only
        self._index: Rdict | None = column_family(database, INDEX_FAMILY)
        self._handle: ColumnFamily | None = None
        if self._index is not None and not is_read_only:
            self._handle = database.get_column_family_handle(INDEX_FAMILY)

    def close(self) -> None:
        """Let go of the index: a living handle keeps the folder locked."""
        try:
            if self._index is not None:
                if not self._is_read_only:
                    self._index.flush()
                self._index.close()
        finally:
            self._index = self._handle = None
            del self._database

    def format(self) -> bytes | None:
        """Return the version of the layout."""
        return self._read_twice(FORMAT_KEY)

    def next_bucket_id(self) -> int | None:
        """Return the next id, None where none was ever given or it cannot be read."""
        try:
            stored = self._read_twice(NEXT_ID_KEY)
        except StorageCorruptedError as error:
            log.warning("the next bucket id is made from the clock, as for a new folder: %s", error)
            return None
        return None if stored is None else int.from_bytes(stored)

    def _read_twice(self, key: bytes) -> bytes | None:
        try:
            value = self._read(self._database, key)
        except StorageCorruptedError as error:
            if self._index is None:
                raise
            log.warning("reading from the index what cannot be read: %s", error)
            value = None
        return value if value is not None or self._index is None else self._read(self._index, key)

    def _read(self, family: Rdict, key: bytes) -> bytes | None:
        with mapped("read the snapshots", self._path, is_shared=self._is_read_only):
            value: bytes | None = family.get(key)
            return value

    def get(self, bucket_id: int) -> StoredHeader:
        """Return the header of a snapshot.

        Raises:
            BucketNotFoundError: There is none.
            SnapshotCorruptedError: Neither copy can be read.
        """
        try:
            with mapped("read a snapshot", self._path, bucket_id=bucket_id, is_shared=self._is_read_only):
                stored = self._database.get(header_key(bucket_id))
            if stored is None:
                raise BucketNotFoundError(bucket_id)
            return decode_header(bucket_id, stored)
        except SnapshotCorruptedError as error:
            found, _ = self._listed(self._indexed())
            if bucket_id not in found:
                raise
            log.warning("reading a header from the index: %s", error)
            return found[bucket_id]

    def infos(self, topic_name: str | None, cursor_name: str | None) -> list[BucketSnapshotInfo]:
        """Return what the headers of this topic and cursor say, in order of id.

        Raises:
            SnapshotCorruptedError: Neither copy of a header can be read.
            StorageCorruptedError: Both copies of many are damaged, so some may be missing.
        """
        sources = [self._plain(), self._indexed(topic_name, cursor_name)]
        if topic_name is not None and self._index is not None:
            sources.reverse()
        found, damage = self._listed(sources[0])
        if damage:
            others, other_damage = self._listed(sources[1])
            found = others | found
            self._check_all_found(found, damage, other_damage)
        infos = [found[bucket_id].info for bucket_id in sorted(found)]
        return [info for info in infos if info.belongs_to(topic_name, cursor_name)]

    def _check_all_found(
        self, found: dict[int, StoredHeader], damage: list[Damage], other_damage: list[Damage]
    ) -> None:
        for error in (*damage, *other_damage):
            if isinstance(error, SnapshotCorruptedError) and error.bucket_id not in found:
                raise error
        stops = [any(isinstance(error, StorageCorruptedError) for error in errors) for errors in (damage, other_damage)]
        if all(stops) or (self._index is None and any(stops)):
            raise damage[-1]
        log.warning("a list of snapshots is whole thanks to its second copy: %s", damage[0])

    def damage(self) -> list[Damage]:
        """Read both copies of all headers, and return what is wrong with either."""
        return [error for source in (self._plain(), self._indexed()) for error in self._listed(source)[1]]

    def _plain(self) -> Iterator[tuple[int, bytes]]:
        return ((bucket_id_in(key), header) for key, header in scan(self._database, b"h", b"i"))

    def _indexed(self, topic_name: str | None = None, cursor_name: str | None = None) -> Iterator[tuple[int, bytes]]:
        if self._index is not None:
            for key, header in scan(self._index, *index_range(topic_name, cursor_name)):
                yield indexed_id(key), header

    def _listed(self, source: Iterator[tuple[int, bytes]]) -> tuple[dict[int, StoredHeader], list[Damage]]:
        """Return what can be read of a source, and what cannot."""
        found: dict[int, StoredHeader] = {}
        damage: list[Damage] = []
        try:
            with mapped("list snapshots", self._path, is_shared=self._is_read_only):
                for bucket_id, header in source:
                    try:
                        found[bucket_id] = decode_header(bucket_id, header)
                    except SnapshotCorruptedError as error:
                        damage.append(error)
        except StorageCorruptedError as error:
            damage.append(error)
        return found, damage

    def unfinished(self) -> list[int]:
        """Return the ids of snapshots that a crash left unfinished, as far as they can be read."""
        found: list[int] = []
        try:
            with mapped("list snapshots", self._path):
                for key, _ in scan(self._database, b"w", b"x"):
                    found.append(bucket_id_in(key))
        except StorageCorruptedError as error:
            log.warning("what a crash left of unfinished snapshots may stay: %s", error)
        return found

    def put_format(self, batch: WriteBatch) -> None:
        """Add the version of the layout to a batch, and all headers to the index."""
        headers, damage = self._listed(self._plain())
        for error in damage:
            log.warning("a snapshot does not get into the index: %s", error)
        for header in headers.values():
            stored = self._database.get(header_key(header.info.bucket_id))
            batch.put(index_key(header.info), stored, self._handle)
        self._put_twice(batch, FORMAT_KEY, FORMAT)

    def put_next_bucket_id(self, batch: WriteBatch, bucket_id: int) -> None:
        """Add the next id to a batch."""
        self._put_twice(batch, NEXT_ID_KEY, bucket_id.to_bytes(8))

    def _put_twice(self, batch: WriteBatch, key: bytes, value: bytes) -> None:
        batch.put(key, value)
        batch.put(key, value, self._handle)

    def put(self, batch: WriteBatch, info: BucketSnapshotInfo) -> None:
        """Add a header to a batch."""
        header = encode_header(info)
        batch.put(header_key(info.bucket_id), header)
        batch.put(index_key(info), header, self._handle)

    def put_removal(self, batch: WriteBatch, bucket_id: int, info: BucketSnapshotInfo | None) -> None:
        """Add to a batch what removes every trace of a snapshot; `info` is None where it is not known."""
        batch.delete(header_key(bucket_id))
        batch.delete(unfinished_key(bucket_id))
        batch.delete_range(entry_key(bucket_id, METADATA_ENTRY), entry_key(bucket_id + 1, METADATA_ENTRY))
        for key in self._keys_in_index(bucket_id) if info is None else [index_key(info)]:
            batch.delete(key, self._handle)

    def _keys_in_index(self, bucket_id: int) -> list[bytes]:
        assert self._index is not None
        try:
            with mapped("look for a snapshot", self._path):
                keys = scan(self._index, *index_range(None, None))
                return [key for key, _ in keys if indexed_id(key) == bucket_id]
        except SnapshotStorageError:
            return []
