"""One RocksDB folder of snapshots, with blocking calls that any thread may make.

The layout is in `rocksdb_layout`, how a snapshot comes to be in `rocksdb_writing`, and what rocksdict does to
whoever trusts it in `rocksdb_database`. A damaged manifest can open as an empty database without an error:
the format key is the proof that this did not happen.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rocksdict import Checkpoint, Rdict, WriteBatch, WriteOptions

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotVersionError,
    StorageAccessError,
    StorageCorruptedError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb_database import BLOCK_BYTES, RocksDBMemory, mapped, open_database, scan
from snapshot_storage.rocksdb_layout import (
    BUCKET_ID_RANGE,
    FORMAT,
    FORMAT_KEY,
    FORMATS_READ,
    NEXT_ID_KEY,
    StoredHeader,
    bucket_id_in,
    checked_entry,
    decode_header,
    entry_key,
    header_key,
)
from snapshot_storage.rocksdb_writing import SnapshotWriting, put_removal
from snapshot_storage.storage import (
    FIRST_SEGMENT_ENTRY,
    METADATA_ENTRY,
    BucketSnapshotHead,
    BucketSnapshotInfo,
    first_bucket_id,
)

log = logging.getLogger(__name__)


class RocksDBFolder:
    """An open folder. Reads run side by side, writes one after the other."""

    def __init__(self, path: Path, database: Rdict, *, is_read_only: bool) -> None:
        """Take over a database that `open` has checked."""
        self._path = path
        self._database = database
        self._is_read_only = is_read_only
        self._synced = WriteOptions()
        self._synced.sync = True
        # Guards the next id, and with it the order of batches: the id that a batch stores never goes back.
        self._write_lock = threading.Lock()
        self._next_bucket_id = first_bucket_id()

    @classmethod
    def open(cls, path: Path, *, memory: RocksDBMemory, is_read_only: bool) -> Self:
        """Open the folder; create it unless it is only to be read.

        Raises:
            StorageLockedError: It is in use by another writer.
            SnapshotVersionError: Its layout is another one.
            StorageCorruptedError: It is damaged.
            StorageAccessError: It is only to be read, and there is none.
            StorageUnavailableError: The disk refuses.
        """
        try:
            if is_read_only and not (path / "CURRENT").exists():
                raise StorageAccessError(
                    f"there are no snapshots in {path}: name the folder that a service has written"
                )
            if not is_read_only:
                path.mkdir(parents=True, exist_ok=True)
            has_tables = any(path.glob("*.sst"))
        except OSError as error:
            raise StorageUnavailableError(f"cannot use the folder {path}: {error}") from error

        with mapped("open the snapshots", path):
            database = open_database(path, memory=memory, is_read_only=is_read_only)
            folder = cls(path, database, is_read_only=is_read_only)
        try:
            with mapped("open the snapshots", path):
                folder._check_format(has_tables)
                if not is_read_only:
                    folder._load_next_bucket_id()
                    folder._remove_unfinished()
        except BaseException:
            folder.close()
            raise
        return folder

    def _check_format(self, has_tables: bool) -> None:
        found = self._database.get(FORMAT_KEY)
        if found is not None and found not in FORMATS_READ:
            supported = " or ".join(known.decode() for known in FORMATS_READ)
            raise SnapshotVersionError(str(self._path), found=found.decode(errors="replace"), supported=supported)
        if found is None and has_tables:
            raise StorageCorruptedError(str(self._path), "there are tables, but the database came up empty")
        if found != FORMAT and not self._is_read_only:
            self._database.put(FORMAT_KEY, FORMAT, self._synced)

    def _load_next_bucket_id(self) -> None:
        stored = self._database.get(NEXT_ID_KEY)
        if stored is not None:
            self._next_bucket_id = int.from_bytes(stored)

    def _remove_unfinished(self) -> None:
        for key, _ in list(scan(self._database, b"w", b"x")):
            self._remove(bucket_id_in(key))

    def close(self) -> None:
        """Let go of the folder; no other call may be running or follow."""
        # RocksDB keeps its log at close: a flush is not for safety, but the next start then has nothing to
        # replay.
        steps = (self._database.close,) if self._is_read_only else (self._database.flush, self._database.close)
        for step in steps:
            try:
                with mapped("close the snapshots", self._path):
                    step()
            except SnapshotStorageError:
                # Whatever was acknowledged is in the log. A close that fails would help no one.
                log.warning("closing the snapshots in %s", self._path, exc_info=True)

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
        writing.add(segments)
        return writing.commit(metadata)

    def writing(self, *, bucket_key: str, topic_name: str, cursor_name: str) -> SnapshotWriting:
        """Begin a snapshot that comes piece by piece."""
        self._check_writable("create a snapshot")
        return SnapshotWriting(
            self._write, self._new_bucket_id, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
        )

    def _new_bucket_id(self) -> int:
        with self._write_lock:
            bucket_id = self._next_bucket_id
            self._next_bucket_id += 1
            return bucket_id

    def _write(self, batch: WriteBatch, *, is_synced: bool) -> None:
        with self._write_lock, mapped("write", self._path):
            batch.put(NEXT_ID_KEY, self._next_bucket_id.to_bytes(8))
            # In two calls: while rocksdict writes no other Python thread runs, while it flushes they do.
            self._database.write(batch)
            if is_synced:
                self._database.flush_wal(sync=True)

    def read_head(self, bucket_id: int) -> BucketSnapshotHead:
        """Return header and metadata; a snapshot that fits one block comes whole, as it is read whole."""
        header = self._header(bucket_id)
        last_entry = header.info.segment_count if header.info.length_bytes <= BLOCK_BYTES else METADATA_ENTRY
        metadata, *segments = self._read_entries(header, METADATA_ENTRY, last_entry)
        return BucketSnapshotHead(header.info, metadata, segments)

    def read_metadata(self, bucket_id: int) -> bytes:
        """Return entry 0."""
        return self._read_entries(self._header(bucket_id), METADATA_ENTRY, METADATA_ENTRY)[0]

    def read_segments(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the segments of this range that exist."""
        header = self._header(bucket_id)
        last_entry = min(last_entry, header.info.segment_count)
        if first_entry > last_entry:
            return []
        assert first_entry >= FIRST_SEGMENT_ENTRY
        return self._read_entries(header, first_entry, last_entry)

    def _read_entries(self, header: StoredHeader, first_entry: int, last_entry: int) -> list[bytes]:
        """Return entries that the header says are there."""
        bucket_id = header.info.bucket_id
        begin, end = entry_key(bucket_id, first_entry), entry_key(bucket_id, last_entry + 1)
        payloads: list[bytes] = []
        with mapped("read a snapshot", self._path, bucket_id=bucket_id, entry=first_entry) as place:
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

    def _header(self, bucket_id: int) -> StoredHeader:
        stored = None
        if bucket_id in BUCKET_ID_RANGE:
            with mapped("read a snapshot", self._path, bucket_id=bucket_id):
                stored = self._database.get(header_key(bucket_id))
        if stored is None:
            raise BucketNotFoundError(bucket_id)
        return decode_header(bucket_id, stored)

    def delete(self, bucket_id: int) -> None:
        """Delete a snapshot if it is there; also one whose header is damaged."""
        self._check_writable("delete a snapshot")
        if bucket_id not in BUCKET_ID_RANGE:
            return
        with mapped("delete a snapshot", self._path, bucket_id=bucket_id):
            if self._database.get(header_key(bucket_id)) is None:
                return
        self._remove(bucket_id)

    def _remove(self, bucket_id: int) -> None:
        batch = WriteBatch(raw_mode=True)
        put_removal(batch, bucket_id)
        self._write(batch, is_synced=True)

    def list(self, topic_name: str | None, cursor_name: str | None) -> list[BucketSnapshotInfo]:
        """Return what the headers of this topic and cursor say, in order of id."""
        with mapped("list snapshots", self._path):
            headers = [decode_header(bucket_id_in(key), header) for key, header in scan(self._database, b"h", b"i")]
        return [header.info for header in headers if header.info.belongs_to(topic_name, cursor_name)]

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
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageUnavailableError(f"cannot make a checkpoint in {path}: {error}") from error
        with mapped("make a checkpoint", path):
            Checkpoint(self._database).create_checkpoint(str(path))
