"""Snapshots as plain files: the objects of a prefix on S3, in a folder, so that either can be copied to the other.

    <folder>/1234/5/00000000abc     one file a snapshot: `objects.format`, under the key of its id (`objects.keys`)
    <folder>/uploads/<nonce>        unfinished snapshots; never read

For bulk jobs, backups and snapshots from other programs: any number of processes may use a folder at a time. A service
has RocksDB, which reads and lists faster. A file gets its name when all of it is on the disk, by a link that fails
where the name is taken.
"""

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from managed_ledger.rocksdb_store.files import is_misplaced, sync_folder
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageAccessError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from snapshot_storage.objects.format import (
    FRONT_BYTES,
    ObjectHead,
    SnapshotNames,
    checked_entries,
    decode_object_head,
    decode_object_info,
    encode_object_head,
    object_extent,
    table_of,
)
from snapshot_storage.objects.keys import Serials, bucket_id_for, bucket_id_of, list_prefix, marks_prefix, object_key
from snapshot_storage.storage import METADATA_ENTRY, BucketSnapshotHead, BucketSnapshotInfo
from snapshot_storage.threaded import BlockingSnapshots, ThreadedBucketSnapshotStorage

logger = logging.getLogger(__name__)

_BUCKET_IDS = range(2**63)
_ABANDONED_AGE_S_MIN = 24 * 3600.0
_THREADS_MAX = 8


class ObjectFolderBucketSnapshotStorage(ThreadedBucketSnapshotStorage["ObjectFolder"]):
    """Keeps snapshots as files of a folder; `start` makes it, unless it is only read."""

    def __init__(self, path: str | os.PathLike[str], *, is_read_only: bool = False) -> None:
        """Remember where."""
        super().__init__(threads_max=_THREADS_MAX)
        self._path = Path(path)
        self._is_read_only = is_read_only

    def _open_snapshots(self) -> "ObjectFolder":
        return ObjectFolder(self._path, is_read_only=self._is_read_only)

    async def find_damage(self) -> list[SnapshotStorageError]:
        """Check the header of every file."""
        return list(await self._run("check the headers", lambda folder: folder.damage()))


class ObjectFolder(BlockingSnapshots):
    """An open folder, with blocking calls that any thread may make."""

    def __init__(self, path: Path, *, is_read_only: bool) -> None:
        """Open it; to write, remove unfinished snapshots that are a day old.

        Raises:
            StorageAccessError: It is to be read, and there is none.
            StorageUnavailableError: The disk refuses.
        """
        self._path = path
        self._is_read_only = is_read_only
        self._serials = Serials()
        if is_read_only and not path.is_dir():
            raise StorageAccessError(f"there is no folder {path} of snapshots")
        if not is_read_only:
            with _mapped("open the folder"):
                self._unfinished.mkdir(parents=True, exist_ok=True)
                self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        # The file system's own clock, which may be another machine's.
        os.utime(self._unfinished)
        now_s = self._unfinished.stat().st_mtime
        for left in self._unfinished.iterdir():
            with suppress(FileNotFoundError):
                if now_s - left.stat().st_mtime > _ABANDONED_AGE_S_MIN:
                    left.unlink()

    @property
    def _unfinished(self) -> Path:
        return self._path / marks_prefix("").strip("/")

    def close(self) -> None:
        """There is nothing to let go of."""

    def create(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Write a file that no reader sees yet, and give it its name when all of it is on the disk."""
        if self._is_read_only:
            raise StorageReadOnlyError("create a snapshot")
        names = SnapshotNames(bucket_key, topic_name, cursor_name)
        head = encode_object_head(names, table_of([metadata, *segments]))
        unfinished = self._unfinished / secrets.token_hex(8)
        with _mapped("create a snapshot"):
            try:
                with unfinished.open("xb") as file:
                    file.writelines((head, metadata, *segments))
                    file.flush()
                    os.fsync(file.fileno())
                return self._linked(unfinished, names)
            finally:
                with suppress(OSError):
                    # Another start removes it.
                    unfinished.unlink(missing_ok=True)

    def _linked(self, unfinished: Path, names: SnapshotNames) -> int:
        """Give the file its name, durably, and return its id."""
        while True:
            bucket_id = bucket_id_for(names.topic_name, names.cursor_name, serial=self._serials.next())
            path = _file_of(self._path, bucket_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.link(unfinished, path)
                break
        try:
            for folder in (path.parent, path.parent.parent, self._path):
                sync_folder(folder)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return bucket_id

    def read_head(self, bucket_id: int) -> BucketSnapshotHead:
        with self._opened(bucket_id) as (file, size):
            head = _head_of(file, size, bucket_id)
            data = file.read(int(head.table["length"][METADATA_ENTRY]))
        metadata = checked_entries(head, METADATA_ENTRY, data, bucket_id=bucket_id)[0]
        return BucketSnapshotHead(head.info(bucket_id), metadata)

    def read_metadata(self, bucket_id: int) -> bytes:
        with self._opened(bucket_id) as (file, size):
            head = _head_of(file, size, bucket_id)
            data = file.read(int(head.table["length"][METADATA_ENTRY]))
        return checked_entries(head, METADATA_ENTRY, data, bucket_id=bucket_id)[METADATA_ENTRY]

    def read_segments(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        with self._opened(bucket_id) as (file, size):
            head = _head_of(file, size, bucket_id)
            starts = head.starts()
            end_entry = min(last_entry, head.segment_count) + 1
            if first_entry >= end_entry:
                return []
            file.seek(int(starts[first_entry]))
            data = file.read(int(starts[end_entry] - starts[first_entry]))
        return checked_entries(head, first_entry, data, bucket_id=bucket_id)[: end_entry - first_entry]

    def info(self, bucket_id: int) -> BucketSnapshotInfo:
        with self._opened(bucket_id) as (file, size):
            front = file.read(FRONT_BYTES)
            extent = object_extent(front, object_bytes=size, bucket_id=bucket_id)
            data = front + file.read(extent.names_end - len(front))
        return decode_object_info(data, object_bytes=size, bucket_id=bucket_id)

    def delete(self, bucket_id: int) -> None:
        if self._is_read_only:
            raise StorageReadOnlyError("delete a snapshot")
        if bucket_id in _BUCKET_IDS:
            path = _file_of(self._path, bucket_id)
            with _mapped("delete a snapshot"), suppress(FileNotFoundError):
                path.unlink()
                sync_folder(path.parent)

    def list(self, topic_name: str | None, cursor_name: str | None) -> list[BucketSnapshotInfo]:
        """List snapshots without the damaged ones, which are logged; `damage` names them."""
        infos, damage = self._infos(topic_name, cursor_name)
        for error in damage:
            logger.warning("left out of a list of snapshots: %s", error)
        return [info for info in infos if info.belongs_to(topic_name, cursor_name)]

    def damage(self) -> Sequence[SnapshotCorruptedError]:
        """Return the faults of headers."""
        return self._infos(None, None)[1]

    def _infos(
        self, topic_name: str | None, cursor_name: str | None
    ) -> tuple[Sequence[BucketSnapshotInfo], Sequence[SnapshotCorruptedError]]:
        """Return what the files of a topic and cursor, and of some others, say of themselves; and the damaged ones."""
        infos, errors = [], []
        for bucket_id in self._ids(list_prefix("", topic_name, cursor_name)):
            try:
                infos.append(self.info(bucket_id))
            except BucketNotFoundError:
                continue
            except SnapshotCorruptedError as error:
                errors.append(error)
        return infos, errors

    def _ids(self, prefix: str) -> Sequence[int]:
        with _mapped("list snapshots"):
            paths = (self._path / prefix.strip("/")).rglob("*")
            found = (bucket_id_of("", f"/{path.relative_to(self._path).as_posix()}") for path in paths)
            return sorted(bucket_id for bucket_id in found if bucket_id is not None)

    @contextmanager
    def _opened(self, bucket_id: int) -> Iterator[tuple[IO[bytes], int]]:
        if bucket_id not in _BUCKET_IDS:
            raise BucketNotFoundError(bucket_id)
        path = _file_of(self._path, bucket_id)
        with _mapped("read a snapshot"):
            if is_misplaced(path):
                raise SnapshotCorruptedError("it is no file", bucket_id=bucket_id)
            try:
                file = path.open("rb")
            except FileNotFoundError:
                raise BucketNotFoundError(bucket_id) from None
            with file:
                yield file, os.fstat(file.fileno()).st_size


def _file_of(folder: Path, bucket_id: int) -> Path:
    return folder / object_key("", bucket_id).strip("/")


def _head_of(file: IO[bytes], size: int, bucket_id: int) -> ObjectHead:
    """Read the head of a file, before the entries; the file is at the first of them then."""
    front = file.read(FRONT_BYTES)
    extent = object_extent(front, object_bytes=size, bucket_id=bucket_id)
    data = front + file.read(extent.head_end - len(front))
    return decode_object_head(data, object_bytes=size, bucket_id=bucket_id)


@contextmanager
def _mapped(operation: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise StorageAccessError(f"cannot {operation}: {error}") from error
    except OSError as error:
        raise StorageUnavailableError(f"cannot {operation}: {error}") from error
