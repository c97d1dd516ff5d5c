"""One RocksDB folder of snapshots, with blocking calls that any thread may make.

    format              the version of this layout
    next                the next bucket id, as 8 bytes
    h id                a snapshot's header, JSON: it exists when the key does
    e id entry          an entry, as it was given
    w id                a large snapshot is being written: what is there of it is not whole

Ids are 8 bytes and entries 4, big endian, so that one range scan reads a bucket in order.

A snapshot is one synced batch: header, entries and the next id together. A large one goes in several batches,
so that it is not in memory twice; only the last one has the header and is synced, which syncs what was
written before. What a crash leaves of it is found by its `w` key and removed at the next start.

RocksDB checks a checksum for each block it reads, and for each record of its log; the header says how many
entries there must be. Compression was chosen by measurement (four delay laws, 50,000 rows, bytes per row at
rest):

                    protobuf    snappy    lz4    zstd
    one instant         15.4       5.0    4.0     1.1
    fixed delay         15.4       5.3    4.5     1.3
    exponential         17.5      12.3   13.2     9.7
    over a week         19.8      14.5   14.6    11.0

and zstd still reads a bucket of 50,000 rows in 0.5 to 2.5 ms.

Traps of rocksdict 0.3.29 that shape the code: iterators stop silently at a damaged block unless `status()` is
asked; a living iterator keeps the folder locked after `close()`; every failure is a plain `Exception` with a
text; and a damaged manifest can open as an empty database without an error.
"""

import json
import logging
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Self

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotVersionError,
    StorageClosedError,
    StorageCorruptedError,
    StorageLockedError,
    StorageUnavailableError,
)
from snapshot_storage.storage import FIRST_SEGMENT_ENTRY, METADATA_ENTRY, BucketSnapshotInfo, first_bucket_id

log = logging.getLogger(__name__)

_FORMAT_KEY = b"format"
_FORMAT = b"postdate snapshots 1"
_NEXT_ID_KEY = b"next"
_BUCKET_ID_MAX = 2**63 - 1

# More than any usual snapshot has, and little beside what the caller holds in memory already.
_BATCH_BYTES_MAX = 32 * 2**20

# A block is the unit of compression and of reading: below 16 KiB tiny segments compress worse, above it
# nothing is won.
_BLOCK_BYTES = 16 * 2**10
_CACHE_BYTES = 16 * 2**20


class RocksDBFolder:
    """An open folder. Reads run side by side, writes one after the other."""

    def __init__(self, path: Path, database: Rdict, *, is_read_only: bool = False) -> None:
        """Take over a database that `open` has checked."""
        self._path = path
        self._is_read_only = is_read_only
        self._database = database
        self._synced = WriteOptions()
        self._synced.sync = True
        # Guards the next id, and with it the order of batches: the id that a batch stores never goes back.
        self._write_lock = threading.Lock()
        self._next_bucket_id = first_bucket_id()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder, or create it.

        Raises:
            StorageLockedError: It is in use.
            SnapshotVersionError: Its layout is another one.
            StorageCorruptedError: It is damaged.
            StorageUnavailableError: The disk refuses.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            has_tables = any(path.glob("*.sst"))
        except OSError as error:
            raise StorageUnavailableError(f"cannot use the folder {path}: {error}") from error

        with _mapped("open the snapshots", path):
            folder = cls(path, Rdict(str(path), _options()))
        try:
            with _mapped("open the snapshots", path):
                folder._check_format(has_tables)
                folder._load_next_bucket_id()
                folder._remove_unfinished()
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open_read_only(cls, path: Path) -> Self:
        """Open the folder to read what is in it now; it may be in use, and nothing in it changes.

        Raises:
            SnapshotVersionError: Its layout is another one.
            StorageCorruptedError: It is damaged.
            StorageUnavailableError: There is none, or the disk refuses.
        """
        if not (path / "CURRENT").exists():
            raise StorageUnavailableError(f"there are no snapshots in the folder {path}")
        with _mapped("read the snapshots", path):
            options = _options()
            options.create_if_missing(False)
            folder = cls(path, Rdict(str(path), options, access_type=AccessType.read_only()), is_read_only=True)
        try:
            with _mapped("read the snapshots", path):
                folder._check_format(has_tables=True)
        except BaseException:
            folder.close()
            raise
        return folder

    def _check_format(self, has_tables: bool) -> None:
        found = self._database.get(_FORMAT_KEY)
        if found == _FORMAT:
            return
        if found is not None:
            name = found.decode(errors="replace")
            raise SnapshotVersionError(str(self._path), found=name, supported=_FORMAT.decode())
        if has_tables:
            raise StorageCorruptedError(str(self._path), "there are tables, but the database came up empty")
        self._database.put(_FORMAT_KEY, _FORMAT, self._synced)

    def _load_next_bucket_id(self) -> None:
        stored = self._database.get(_NEXT_ID_KEY)
        if stored is not None:
            self._next_bucket_id = int.from_bytes(stored)

    def _remove_unfinished(self) -> None:
        for key, _ in list(self._scan(b"w", b"x")):
            self._remove(int.from_bytes(key[1:]))

    def close(self) -> None:
        """Let go of the folder; no other call may be running or follow."""
        # RocksDB keeps its log at close: a flush is not for safety, but the next start then has nothing to
        # replay.
        steps = (self._database.close,) if self._is_read_only else (self._database.flush, self._database.close)
        for step in steps:
            try:
                with _mapped("close the snapshots", self._path):
                    step()
            except SnapshotStorageError:
                # Whatever was acknowledged is in the log. A close that fails would help no one.
                log.warning("closing the snapshots in %s", self._path, exc_info=True)

    def create(
        self,
        metadata: bytes,
        segments: Sequence[bytes],
        *,
        bucket_key: str,
        topic_name: str,
        cursor_name: str,
    ) -> int:
        """Store a snapshot and return its id."""
        with self._write_lock:
            bucket_id = self._next_bucket_id
            self._next_bucket_id += 1

        with _mapped("create a snapshot", self._path):
            # 1. What does not fit one batch, without the header, so that no one sees it.
            batch = WriteBatch(raw_mode=True)
            batch_bytes = length_bytes = 0
            for entry, payload in enumerate(chain((metadata,), segments)):
                if batch_bytes > _BATCH_BYTES_MAX:
                    batch.put(_unfinished_key(bucket_id), b"")
                    self._write(batch, is_synced=False)
                    batch, batch_bytes = WriteBatch(raw_mode=True), 0
                batch.put(_entry_key(bucket_id, entry), bytes(payload))
                batch_bytes += len(payload)
                length_bytes += len(payload)
            # 2. The rest with the header. Its sync covers step 1, as the log is one.
            info = BucketSnapshotInfo(bucket_id, bucket_key, topic_name, cursor_name, len(segments), length_bytes)
            batch.put(_header_key(bucket_id), _encode_header(info))
            batch.delete(_unfinished_key(bucket_id))
            self._write(batch, is_synced=True)
        return bucket_id

    def _write(self, batch: WriteBatch, *, is_synced: bool) -> None:
        with self._write_lock:
            batch.put(_NEXT_ID_KEY, self._next_bucket_id.to_bytes(8))
            if is_synced:
                self._database.write(batch, self._synced)
            else:
                self._database.write(batch)

    def read_metadata(self, bucket_id: int) -> bytes:
        """Return entry 0."""
        self.info(bucket_id)
        return self._read_entries(bucket_id, METADATA_ENTRY, METADATA_ENTRY)[0]

    def read_segments(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the segments of this range that exist."""
        last_entry = min(last_entry, self.info(bucket_id).segment_count)
        if first_entry > last_entry:
            return []
        assert first_entry >= FIRST_SEGMENT_ENTRY
        return self._read_entries(bucket_id, first_entry, last_entry)

    def _read_entries(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return entries that the header says are there."""
        with _mapped("read a snapshot", self._path, bucket_id=bucket_id, entry=first_entry):
            if first_entry == last_entry:
                payload = self._database.get(_entry_key(bucket_id, first_entry))
                payloads = [] if payload is None else [payload]
            else:
                begin, end = _entry_key(bucket_id, first_entry), _entry_key(bucket_id, last_entry + 1)
                payloads = [payload for _, payload in self._scan(begin, end)]

        count = last_entry - first_entry + 1
        if len(payloads) != count:
            # Deleted since the header was read, or else damaged.
            self.info(bucket_id)
            raise SnapshotCorruptedError(
                f"{len(payloads)} of {count} entries are there", bucket_id=bucket_id, entry=first_entry
            )
        return payloads

    def info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Return what the header says."""
        header = None
        if 0 <= bucket_id <= _BUCKET_ID_MAX:
            with _mapped("read a snapshot", self._path, bucket_id=bucket_id):
                header = self._database.get(_header_key(bucket_id))
        if header is None:
            raise BucketNotFoundError(bucket_id)
        return _decode_header(bucket_id, header)

    def delete(self, bucket_id: int) -> None:
        """Delete a snapshot if it is there."""
        try:
            self.info(bucket_id)
        except BucketNotFoundError:
            return
        with _mapped("delete a snapshot", self._path, bucket_id=bucket_id):
            self._remove(bucket_id)

    def _remove(self, bucket_id: int) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.delete(_header_key(bucket_id))
        batch.delete(_unfinished_key(bucket_id))
        batch.delete_range(_entry_key(bucket_id, 0), _entry_key(bucket_id + 1, 0))
        self._write(batch, is_synced=True)

    def list(self) -> list[BucketSnapshotInfo]:
        """Return what all headers say, in order of id."""
        with _mapped("list snapshots", self._path):
            return [_decode_header(int.from_bytes(key[1:]), header) for key, header in self._scan(b"h", b"i")]

    def _scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Give keys from `begin` to before `end`, with their values; raises rather than stop short."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(end)
        iterator = self._database.iter(bounds)
        try:
            iterator.seek(begin)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            # A damaged block ends the iteration like the end of the range does.
            iterator.status()
        finally:
            # The traceback of an error keeps this frame, and a living iterator keeps the folder locked.
            del iterator


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.zstd())
    # A cut last record is what a crash leaves and is dropped; damage before it is an error, not a loss in
    # silence.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_keep_log_file_num(2)
    blocks = BlockBasedOptions()
    blocks.set_block_size(_BLOCK_BYTES)
    blocks.set_block_cache(Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    return options


def _header_key(bucket_id: int) -> bytes:
    return b"h" + bucket_id.to_bytes(8)


def _unfinished_key(bucket_id: int) -> bytes:
    return b"w" + bucket_id.to_bytes(8)


def _entry_key(bucket_id: int, entry: int) -> bytes:
    return struct.pack(">cQI", b"e", bucket_id, entry)


def _encode_header(info: BucketSnapshotInfo) -> bytes:
    return json.dumps(
        {
            "bucket_key": info.bucket_key,
            "topic_name": info.topic_name,
            "cursor_name": info.cursor_name,
            "segment_count": info.segment_count,
            "length_bytes": info.length_bytes,
        }
    ).encode()


def _decode_header(bucket_id: int, header: bytes) -> BucketSnapshotInfo:
    try:
        return BucketSnapshotInfo(bucket_id=bucket_id, **json.loads(header))
    except (TypeError, ValueError) as error:
        raise SnapshotCorruptedError(f"its header is not readable: {error}", bucket_id=bucket_id) from error


@contextmanager
def _mapped(operation: str, path: Path, *, bucket_id: int | None = None, entry: int | None = None) -> Iterator[None]:
    """Turn what rocksdict raises into our errors, with what was being done."""
    try:
        yield
    except DbClosedError as error:
        raise StorageClosedError(operation) from error
    except Exception as error:
        # Rocksdict raises plain exceptions, and only their text tells them apart. Any subclass is not
        # RocksDB's.
        if type(error) is not Exception:
            raise
        reason = str(error)
        if "lock hold by current process" in reason or "Resource temporarily unavailable" in reason:
            raise StorageLockedError(str(path)) from error
        if not reason.startswith("Corruption"):
            raise StorageUnavailableError(f"cannot {operation} in {path}: {reason}") from error
        if bucket_id is None:
            raise StorageCorruptedError(str(path), reason) from error
        raise SnapshotCorruptedError(reason, bucket_id=bucket_id, entry=entry) from error
