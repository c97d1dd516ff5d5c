"""One RocksDB folder of snapshots, with blocking calls that any thread may make.

`layout` has the keys and values, `opening` opens a folder and puts a damaged one aside. A snapshot is one synced batch:
header, entries and the next id together. No other Python thread runs while RocksDB takes a batch, so a snapshot that
outgrows a MiB goes in several:

1. batches of segments, not synced, with the key that says "not whole";
2. one synced batch with the metadata and the header, which also takes that key away. Its sync covers step 1, as the log
   is one.

The entries that a crash leaves of step 1 are found by that key and removed when the folder is opened.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

from managed_ledger.rocksdb_store.disk_room import has_room_to_open
from managed_ledger.rocksdb_store.failures import Translated
from managed_ledger.rocksdb_store.opening import DEFAULT_FAMILY
from managed_ledger.rocksdb_store.store import LISTED_AT_ONCE, StoreBatch
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageAccessError,
    StorageCorruptedError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.failures import error_of
from snapshot_storage.rocksdb.layout import (
    BUCKET_ID_RANGE,
    ENTRY_MAX,
    HEADERS,
    NEXT_ID_KEY,
    UNFINISHED,
    bucket_id_in,
    checked_entries,
    decode_header,
    encode_header,
    entry_key,
    entry_keys,
    entry_range,
    header_key,
    index_key,
    index_range,
    indexed_id,
    unfinished_key,
    with_checksum,
)
from snapshot_storage.rocksdb.lock import LOCK_FILE
from snapshot_storage.rocksdb.opening import OpenDatabase, open_to_read, open_to_write
from snapshot_storage.storage import (
    FIRST_SEGMENT_ENTRY,
    METADATA_ENTRY,
    BucketSnapshotHead,
    BucketSnapshotInfo,
    first_bucket_id,
)
from snapshot_storage.threaded import BlockingSnapshots

logger = logging.getLogger(__name__)

P = ParamSpec("P")
_Result = TypeVar("_Result")

BATCH_BYTES_MAX: Final = 2**20
"""More than a usual snapshot has: 50,000 rows are 0.7 to 0.9 MiB."""

DELETED_ONE_BY_ONE_MAX: Final = 100
"""A snapshot with fewer segments is deleted entry by entry, a larger one as one range.

RocksDB keeps each deleted range in memory, some 200 bytes under no limit, while an open table has it, and a read
compares with all those in the write buffer. To write and delete a snapshot of four entries takes 0.10 ms of the
processor's time instead of 0.22.
"""


class RocksDBFolder(BlockingSnapshots):
    """An open folder. Reads run side by side, writes one after the other."""

    def __init__(self, opened: OpenDatabase, *, is_read_only: bool) -> None:
        """Take over a database that was checked."""
        self._opened = opened
        self._path = opened.path
        self._store = opened.store
        self._is_read_only = is_read_only
        # Guards the next id, and with it the order of batches: the id that a batch stores never goes back.
        self._write_lock = threading.Lock()
        stored = self._store.get(DEFAULT_FAMILY, NEXT_ID_KEY)
        # A folder that was put back from a backup, or lost the end of its log, knows nothing of ids that were given
        # later.
        self._next_bucket_id = max(first_bucket_id(), 0 if stored is None else int.from_bytes(stored))
        self.damage: str | None = None
        """The damage of the folder as a whole, because of which it is to be put aside; None while none is known."""
        self._is_stuck = False
        self._is_gone = False

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        memory: RocksDBMemory,
        is_read_only: bool,
        damage: str | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> Self:
        """Open the folder; create it unless it is only to be read: see `opening` for both and for errors."""
        if is_read_only:
            return cls(open_to_read(path, memory=memory, pause=pause), is_read_only=True)
        folder = cls(open_to_write(path, memory=memory, damage=damage), is_read_only=False)
        try:
            for key, _ in list(folder._store.scan(DEFAULT_FAMILY, *UNFINISHED)):
                folder._remove(bucket_id_in(key))
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def needs_reopening(self) -> bool:
        """Whether it takes no more writes, and will when it is opened again."""
        return self._is_stuck or self.damage is not None

    def close(self) -> None:
        """Let go of the folder; no other call may be running or follow."""
        if not self._is_read_only:
            try:
                if self._is_in_place():
                    # A flush leaves the next start nothing to replay. It is not for safety: the log has all messages.
                    self._store.flush()
            except SnapshotStorageError as error:
                # The text of RocksDB may have several lines. The next start sees to the damage, so there is no advice.
                reason = " ".join((error.reason if isinstance(error, StorageCorruptedError) else str(error)).split())
                logger.warning(
                    "the snapshots in %s were closed without a last flush, and the next start sees to it: %s",
                    self._path,
                    reason,
                )
        self._opened.close()

    def _check_writable(self, operation: str) -> None:
        """Refuse a write to a folder that is open to read.

        Raises:
            StorageReadOnlyError: The folder is open to read only.
        """
        if self._is_read_only:
            raise StorageReadOnlyError(operation)

    def _is_in_place(self) -> bool:
        """Notice that the folder was removed or replaced: RocksDB goes on to write to files that no start will find.

        Raises:
            SnapshotStorageError: The system refuses to tell.
        """
        with Translated(error_of, self._path, "look at the folder of the snapshots"):
            is_in_place = self._opened.is_in_place()
        if not is_in_place and not self._is_gone:
            self._is_gone = True
            logger.error(
                "the snapshots in %s were removed or replaced while they were in use: the folder is opened again, and "
                "the rest of the index is read again from the log",
                self._path,
            )
        return is_in_place

    def create(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its id."""
        self._check_writable("create a snapshot")
        length_bytes = len(metadata) + sum(map(len, segments))
        info = BucketSnapshotInfo(
            self._new_bucket_id(), bucket_key, topic_name, cursor_name, len(segments), length_bytes
        )
        try:
            self._write_snapshot(info, metadata, segments)
        except BaseException:
            try:
                # A write that fails may have taken effect.
                self._remove(info.bucket_id, info)
            except SnapshotStorageError as error:
                # The caller has to know the first error.
                logger.warning("a part of a snapshot could not be removed: %s", error)
            raise
        return info.bucket_id

    def _new_bucket_id(self) -> int:
        with self._write_lock:
            bucket_id = self._next_bucket_id
            self._next_bucket_id += 1
            return bucket_id

    def _write_snapshot(self, info: BucketSnapshotInfo, metadata: bytes, segments: Sequence[bytes]) -> None:
        batch, batch_bytes = self._store.new_batch(), 0
        for entry, payload in (*enumerate(segments, FIRST_SEGMENT_ENTRY), (METADATA_ENTRY, metadata)):
            if batch_bytes and batch_bytes + len(payload) > BATCH_BYTES_MAX:
                # 1. The entries so far are written without the header, so that no reader sees them.
                batch.put(DEFAULT_FAMILY, unfinished_key(info.bucket_id), b"")
                self._write(batch, is_synced=False)
                batch, batch_bytes = self._store.new_batch(), 0
            key = entry_key(info.bucket_id, entry)
            batch.put(DEFAULT_FAMILY, key, with_checksum(key, payload))
            batch_bytes += len(payload)
        # 2. The header makes the whole snapshot visible.
        batch.put(DEFAULT_FAMILY, header_key(info.bucket_id), encode_header(info))
        batch.put(DEFAULT_FAMILY, index_key(info), b"")
        batch.delete(DEFAULT_FAMILY, unfinished_key(info.bucket_id))
        self._write(batch, is_synced=True)

    def _remove(self, bucket_id: int, info: BucketSnapshotInfo | None = None) -> None:
        """Remove every trace of a snapshot; `info` is None where its header does not say."""
        batch = self._store.new_batch()
        batch.delete(DEFAULT_FAMILY, header_key(bucket_id))
        batch.delete(DEFAULT_FAMILY, unfinished_key(bucket_id))
        if info is not None and info.segment_count < DELETED_ONE_BY_ONE_MAX:
            for key in entry_keys(bucket_id, METADATA_ENTRY, info.segment_count):
                batch.delete(DEFAULT_FAMILY, key)
        else:
            batch.delete_range(
                DEFAULT_FAMILY, entry_key(bucket_id, METADATA_ENTRY), entry_key(bucket_id + 1, METADATA_ENTRY)
            )
        for key in self._index_keys_of(bucket_id) if info is None else [index_key(info)]:
            batch.delete(DEFAULT_FAMILY, key)
        self._write(batch, is_synced=True)

    def _index_keys_of(self, bucket_id: int) -> list[bytes]:
        keys = (key for key, _ in self._store.scan(DEFAULT_FAMILY, *index_range(None, None)))
        return [key for key in keys if indexed_id(key) == bucket_id]

    def _write(self, batch: StoreBatch, *, is_synced: bool) -> None:
        """Return when the batch is in the log, and on the disk if it is synced."""
        try:
            with self._write_lock:
                if not self._is_in_place():
                    raise StorageUnavailableError(f"cannot write: {self._path} was removed or replaced")
                batch.put(DEFAULT_FAMILY, NEXT_ID_KEY, self._next_bucket_id.to_bytes(8))
                self._store.write(batch, sync=is_synced)
            self._is_stuck = False
        except StorageCorruptedError as error:
            # A compaction met a damaged block, and the next one would meet it again.
            self.damage = error.reason
            raise
        except (StorageAccessError, StorageUnavailableError):
            # Writes stay refused after a full disk until the folder is opened again. It is opened only where there is
            # room: without room it could not be read either. A folder that is gone is made anew.
            self._is_stuck = self._is_gone or has_room_to_open(self._path)
            raise

    def read_head(self, bucket_id: int) -> BucketSnapshotHead:
        """Return header and metadata."""
        return BucketSnapshotHead(self.info(bucket_id), self.read_metadata(bucket_id))

    def read_metadata(self, bucket_id: int) -> bytes:
        """Return entry 0."""
        return self._read_entries(bucket_id, METADATA_ENTRY, METADATA_ENTRY)[0]

    def read_segments(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the segments of this range that exist."""
        assert first_entry >= FIRST_SEGMENT_ENTRY
        if first_entry > ENTRY_MAX:
            # There is nothing to read, but the database is asked whether the snapshot exists.
            self.info(bucket_id)
            return []
        return self._read_entries(bucket_id, first_entry, min(last_entry, ENTRY_MAX))

    def _read_entries(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the entries of this range that exist; the header is looked at only where one is missing."""
        if bucket_id not in BUCKET_ID_RANGE:
            raise BucketNotFoundError(bucket_id)
        try:
            stored = self._store.listed(DEFAULT_FAMILY, *entry_range(bucket_id, first_entry, last_entry))
        except StorageCorruptedError as error:
            raise SnapshotCorruptedError(error.reason, bucket_id=bucket_id, entry=first_entry) from error
        keys = entry_keys(bucket_id, first_entry, last_entry)
        payloads = checked_entries([row for row, key in zip(stored, keys, strict=False) if row[0] == key])
        missing = first_entry + len(payloads)
        # The snapshot ends there, or it was deleted, which `info` raises, or it is damaged, where a list ends too.
        if missing <= last_entry and missing <= self.info(bucket_id).segment_count:
            raise SnapshotCorruptedError("it is missing or damaged", bucket_id=bucket_id, entry=missing)
        return payloads

    def info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Return what the header says.

        Raises:
            BucketNotFoundError: There is none.
            SnapshotCorruptedError: It cannot be read.
        """
        if bucket_id not in BUCKET_ID_RANGE:
            raise BucketNotFoundError(bucket_id)
        try:
            stored = self._store.get(DEFAULT_FAMILY, header_key(bucket_id))
        except StorageCorruptedError as error:
            raise SnapshotCorruptedError(error.reason, bucket_id=bucket_id) from error
        if stored is None:
            raise BucketNotFoundError(bucket_id)
        return decode_header(bucket_id, stored)

    def delete(self, bucket_id: int) -> None:
        """Delete a snapshot if it is there; also one whose header is damaged."""
        self._check_writable("delete a snapshot")
        info: BucketSnapshotInfo | None = None
        try:
            info = self.info(bucket_id)
        except BucketNotFoundError:
            return
        except SnapshotCorruptedError as error:
            logger.warning("deleting a snapshot that is damaged: %s", error)
        self._remove(bucket_id, info)

    def list(self, topic_name: str | None, cursor_name: str | None) -> list[BucketSnapshotInfo]:
        """Return what the headers of this topic and cursor say, in order of id, without those that are damaged."""
        try:
            infos, damage = self._infos(topic_name, cursor_name)
        except StorageCorruptedError as error:
            if not self._is_read_only:
                self.damage = error.reason
            raise
        for one in damage:
            logger.warning("left out of a list of snapshots: %s", one)
        return sorted(info for info in infos if info.belongs_to(topic_name, cursor_name))

    def header_damage(self) -> Sequence[SnapshotStorageError]:
        """Return the faults of headers."""
        try:
            return self._infos(None, None)[1]
        except StorageCorruptedError as error:
            return [error]

    def _infos(
        self, topic_name: str | None, cursor_name: str | None
    ) -> tuple[Sequence[BucketSnapshotInfo], Sequence[SnapshotCorruptedError]]:
        infos: list[BucketSnapshotInfo] = []
        damage: list[SnapshotCorruptedError] = []
        for bucket_id, stored in self._stored_headers(topic_name, cursor_name):
            try:
                infos.append(decode_header(bucket_id, stored))
            except SnapshotCorruptedError as error:
                damage.append(error)
        return infos, damage

    def _stored_headers(self, topic_name: str | None, cursor_name: str | None) -> Iterator[tuple[int, bytes]]:
        if topic_name is None:
            for key, stored in self._store.scan(DEFAULT_FAMILY, *HEADERS):
                yield bucket_id_in(key), stored
            return
        keys = (key for key, _ in self._store.scan(DEFAULT_FAMILY, *index_range(topic_name, cursor_name)))
        while bucket_ids := [indexed_id(key) for key in islice(keys, LISTED_AT_ONCE)]:
            headers = self._store.get_all(DEFAULT_FAMILY, [header_key(one) for one in bucket_ids])
            for bucket_id, header in zip(bucket_ids, headers, strict=True):
                if header is not None:
                    yield bucket_id, header

    def checkpoint(self, path: Path) -> None:
        """Make a folder that holds what this one holds now; files are shared by hard links where possible.

        Raises:
            StorageAccessError: The folder exists already.
            StorageUnavailableError: The disk refuses.
        """
        self._check_writable("make a checkpoint")
        if path.exists():
            raise StorageAccessError(f"cannot make a checkpoint in {path}: it exists already")
        try:
            # RocksDB makes the folder itself, and its errors do not tell that a folder cannot be made there.
            path.mkdir(parents=True)
            path.rmdir()
        except OSError as error:
            raise StorageUnavailableError(f"cannot make a checkpoint in {path}: {error}") from error
        self._store.checkpoint(path)
        # A writer knows it as a folder of snapshots by this.
        with Translated(error_of, path, "make a checkpoint"):
            (path / LOCK_FILE).touch()
