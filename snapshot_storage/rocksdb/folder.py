"""One RocksDB folder of snapshots, with blocking calls that any thread may make.

The layout is in `layout`, how a folder is opened in `opening`, headers are read and written in
`headers`, how a snapshot comes to be in `writing`, and what rocksdict does to whoever trusts it in
`database`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from rocksdict import Checkpoint, WriteBatch

from managed_ledger.disk_room import has_room_to_open
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageAccessError,
    StorageCorruptedError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from snapshot_storage.recently_used import RecentlyUsed
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.database import (
    BLOCK_BYTES,
    disk_refused,
    mapped,
    scan,
    stop_compacting,
)
from snapshot_storage.rocksdb.headers import Damage
from snapshot_storage.rocksdb.layout import BUCKET_ID_RANGE, StoredHeader, checked_entry, entry_key
from snapshot_storage.rocksdb.opening import OpenDatabase, open_to_read, open_to_write
from snapshot_storage.rocksdb.reached import Reached, ReachedFile
from snapshot_storage.rocksdb.writing import SnapshotWriting
from snapshot_storage.storage import (
    FIRST_SEGMENT_ENTRY,
    METADATA_ENTRY,
    BucketSnapshotHead,
    BucketSnapshotInfo,
    first_bucket_id,
)

log = logging.getLogger(__name__)

# Of headers that were read, so that a segment is one read. Some 300 bytes, with Python's objects for them 600.
_HEADER_CACHE_BYTES: Final = 2**20
_HEADER_BYTES: Final = 600


class RocksDBFolder:
    """An open folder. Reads run side by side, writes one after the other."""

    def __init__(self, opened: OpenDatabase, *, is_read_only: bool) -> None:
        """Take over a database that was checked.

        Raises:
            OSError: The system refuses.
        """
        self._opened = opened
        self._path = opened.path
        self._database = opened.database
        self._is_read_only = is_read_only
        self._headers = opened.headers
        self._lost = opened.lost
        self._known = RecentlyUsed[StoredHeader](_HEADER_CACHE_BYTES, lambda _: _HEADER_BYTES)
        # Guards the next id, and with it the order of batches: the id that a batch stores never goes back.
        self._write_lock = threading.Lock()
        # A backup that was put back knows nothing of the ids that were given after it was made.
        self._first_bucket_id = self._next_bucket_id = max(opened.next_bucket_id, first_bucket_id())
        self._reached: ReachedFile | None = None
        if not is_read_only:
            self._reached = ReachedFile(opened.path, self._has_reached())
        self._is_closed = False
        self.needs_reopening = False
        """Whether it takes no more writes, and will when it is opened again."""

    @classmethod
    def open(
        cls, path: Path, *, memory: RocksDBMemory, is_read_only: bool, pause: Callable[[float], None] = time.sleep
    ) -> Self:
        """Open the folder; create it unless it is only to be read: see `opening` for both and for errors."""
        if is_read_only:
            return cls(open_to_read(path, memory=memory, pause=pause), is_read_only=True)
        opened = open_to_write(path, memory=memory)
        try:
            folder = cls(opened, is_read_only=False)
        except OSError as error:
            opened.close()
            raise disk_refused("write", path, error) from error
        try:
            for bucket_id in folder._headers.unfinished():
                folder._remove(bucket_id)
        except BaseException:
            folder.close()
            raise
        return folder

    def close(self) -> None:
        """Let go of the folder; no other call may be running or follow."""
        # RocksDB keeps its log at close: a flush is not for safety, but the next start then has nothing to
        # replay.
        steps = [self._headers.close, self._database.close]
        if self._reached is not None:
            steps = [self._database.flush, *steps, self._reached.close]
        for step in steps:
            try:
                with mapped("close the snapshots", self._path):
                    step()
            except SnapshotStorageError:
                # Whatever was acknowledged is in the log. A close that fails would help no one.
                log.warning("closing the snapshots in %s", self._path, exc_info=True)
        # A close that fails, as it does after damage ended all writes, leaves the folder locked while this lives.
        with self._write_lock:
            self._is_closed = True
            self._opened.close_beside()
            del self._database, self._opened

    def _check_writable(self, operation: str) -> None:
        """Refuse what would write to a folder that was opened to read.

        Raises:
            StorageReadOnlyError: It was.
        """
        if self._is_read_only:
            raise StorageReadOnlyError(operation)

    def create(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its id."""
        writing = self.writing(bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name)
        try:
            writing.add(segments)
            return writing.commit(metadata)
        except SnapshotStorageError:
            try:
                writing.abort()
            except SnapshotStorageError as error:
                # What was wrong first is what the caller has to know.
                log.warning("what there is of a snapshot is removed at a later start: %s", error)
            raise

    def writing(self, *, bucket_key: str, topic_name: str, cursor_name: str) -> SnapshotWriting:
        """Begin a snapshot that comes piece by piece."""
        self._check_writable("create a snapshot")
        return SnapshotWriting(
            self._write,
            self._headers.put,
            self._headers.put_removal,
            self._new_bucket_id,
            bucket_key=bucket_key,
            topic_name=topic_name,
            cursor_name=cursor_name,
        )

    def _new_bucket_id(self) -> int:
        with self._write_lock:
            bucket_id = self._next_bucket_id
            self._next_bucket_id += 1
            return bucket_id

    def _write(self, batch: WriteBatch, *, is_synced: bool) -> None:
        try:
            with self._write_lock, mapped("write", self._path):
                if self._is_closed:
                    # A snapshot that was begun before: what there was of it is removed at opening.
                    raise StorageUnavailableError(f"cannot write: {self._path} was opened again; begin again")
                self._headers.put_next_bucket_id(batch, self._next_bucket_id)
                # In two calls: while rocksdict writes no other Python thread runs, while it flushes they do.
                self._database.write(batch)
                if is_synced:
                    self._database.flush_wal(sync=True)
                    assert self._reached is not None
                    self._reached.put(self._has_reached())
            self.needs_reopening = False
        except StorageCorruptedError:
            # A compaction met a damaged block, and RocksDB takes no more writes until it is opened again.
            self.needs_reopening = True
            stop_compacting(self._path)
            raise
        except (StorageAccessError, StorageUnavailableError):
            # After a full disk, too, though there is room again. Not before: without room it could not be read either.
            self.needs_reopening = not self._is_closed and has_room_to_open(self._path)
            raise

    def _has_reached(self) -> Reached:
        return Reached(self._database.latest_sequence_number(), self._first_bucket_id, self._next_bucket_id)

    def read_head(self, bucket_id: int) -> BucketSnapshotHead:
        """Return header and metadata; a snapshot that fits one block comes whole, as far as it is undamaged."""
        header = self._known_header(bucket_id)
        last_entry = header.info.segment_count if header.info.length_bytes <= BLOCK_BYTES else METADATA_ENTRY
        while True:
            try:
                metadata, *segments = self._read_entries(header, METADATA_ENTRY, last_entry)
            except SnapshotCorruptedError as error:
                if last_entry == METADATA_ENTRY:
                    raise
                # What is before the damage; entry 0 by itself is judged by its own checksum alone.
                last_entry = max(METADATA_ENTRY, min(last_entry, error.entry or METADATA_ENTRY) - 1)
            else:
                return BucketSnapshotHead(header.info, metadata, segments)

    def read_metadata(self, bucket_id: int) -> bytes:
        """Return entry 0."""
        return self._read_entries(self._known_header(bucket_id), METADATA_ENTRY, METADATA_ENTRY)[0]

    def read_segments(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the segments of this range that exist."""
        header = self._known_header(bucket_id)
        last_entry = min(last_entry, header.info.segment_count)
        if first_entry > last_entry:
            # No bytes to read, but whether there still is such a snapshot is a question for the database.
            self._header(bucket_id)
            return []
        assert first_entry >= FIRST_SEGMENT_ENTRY
        return self._read_entries(header, first_entry, last_entry)

    def _read_entries(self, header: StoredHeader, first_entry: int, last_entry: int) -> list[bytes]:
        """Return entries that the header says are there."""
        bucket_id = header.info.bucket_id
        begin, end = entry_key(bucket_id, first_entry), entry_key(bucket_id, last_entry + 1)
        payloads: list[bytes] = []
        with mapped(
            "read a snapshot", self._path, bucket_id=bucket_id, entry=first_entry, is_shared=self._is_read_only
        ) as place:
            for key, stored in self._get(begin) if first_entry == last_entry else scan(self._database, begin, end):
                expected = entry_key(bucket_id, first_entry + len(payloads))
                if key != expected:
                    break
                payloads.append(checked_entry(key, stored, has_checksums=header.has_checksums))
                place.entry = first_entry + len(payloads)

        if len(payloads) != last_entry - first_entry + 1:
            # Deleted since the header was read, or else damaged.
            self._header(bucket_id)
            raise SnapshotCorruptedError("it is missing", bucket_id=bucket_id, entry=first_entry + len(payloads))
        return payloads

    def _get(self, key: bytes) -> list[tuple[bytes, bytes]]:
        stored = self._database.get(key)
        return [] if stored is None else [(key, stored)]

    def info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Return what the header says."""
        return self._header(bucket_id).info

    def _known_header(self, bucket_id: int) -> StoredHeader:
        """Return the header, from memory where it was read before; reading entries finds out if they are gone."""
        return self._known.get(bucket_id) or self._header(bucket_id)

    def _header(self, bucket_id: int) -> StoredHeader:
        self._known.drop(bucket_id)
        if bucket_id not in BUCKET_ID_RANGE:
            raise BucketNotFoundError(bucket_id)
        header = self._headers.get(bucket_id)
        self._known.put(bucket_id, header)
        return header

    def delete(self, bucket_id: int) -> None:
        """Delete a snapshot if it is there; also one whose header is damaged."""
        self._check_writable("delete a snapshot")
        if bucket_id not in BUCKET_ID_RANGE:
            return
        info: BucketSnapshotInfo | None = None
        try:
            info = self._headers.get(bucket_id).info
        except BucketNotFoundError:
            return
        except SnapshotCorruptedError as error:
            log.warning("deleting a snapshot that is damaged: %s", error)
        self._remove(bucket_id, info)
        self._known.drop(bucket_id)

    def _remove(self, bucket_id: int, info: BucketSnapshotInfo | None = None) -> None:
        batch = WriteBatch(raw_mode=True)
        self._headers.put_removal(batch, bucket_id, info)
        self._write(batch, is_synced=True)

    def list(self, topic_name: str | None, cursor_name: str | None) -> list[BucketSnapshotInfo]:
        """Return what the headers of this topic and cursor say, in order of id."""
        return self._headers.infos(topic_name, cursor_name)

    def header_damage(self) -> Sequence[Damage]:
        """Return what is wrong with headers, also where a second copy of them is read instead."""
        return [*self._lost, *self._headers.damage()]

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
            # RocksDB makes it anew, and its errors do not tell a place where there can be none.
            path.mkdir(parents=True)
            path.rmdir()
        except OSError as error:
            raise StorageUnavailableError(f"cannot make a checkpoint in {path}: {error}") from error
        with mapped("make a checkpoint", path, is_shared=True):
            Checkpoint(self._database).create_checkpoint(str(path))
