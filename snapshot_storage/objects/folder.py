"""Snapshots as plain files: the objects of a prefix on S3, in a folder, so that either can be copied to the other.

    <folder>/1234/5/00000000abc     one file a snapshot: `objects.format`, under the key of its id (`objects.keys`)
    <folder>/uploads/<nonce>        unfinished snapshots; never read

For bulk jobs, backups and snapshots from other programs: any number of processes may use a folder at a time. A service
has RocksDB, which reads and lists faster. A file gets its name when all of it is on the disk, by a link that fails
where the name is taken.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from managed_ledger.rocksdb_store.files import is_misplaced, sync_folder
from snapshot_storage.errors import StorageAccessError, StorageUnavailableError
from snapshot_storage.objects.format import ObjectHead, SnapshotNames, encode_object_head, table_of
from snapshot_storage.objects.keys import bucket_id_for, marks_prefix, object_key
from snapshot_storage.objects.snapshots import ObjectPiece, ObjectSnapshots
from snapshot_storage.objects.storage import ObjectBucketSnapshotStorage

_HEAD_BYTES: Final = 2**17
_TABLE_CACHE_BYTES: Final = 4 * 2**20
_ABANDONED_AGE_S_MIN: Final = 24 * 3600.0
_THREADS_MAX: Final = 8


class ObjectFolderBucketSnapshotStorage(ObjectBucketSnapshotStorage):
    """Keeps snapshots as files of a folder; `start` makes it, unless it is only read."""

    def __init__(self, path: str | os.PathLike[str], *, is_read_only: bool = False) -> None:
        """Remember where."""
        super().__init__(threads_max=_THREADS_MAX)
        self._path = Path(path)
        self._is_read_only = is_read_only

    def _open_snapshots(self) -> "ObjectFolder":
        return ObjectFolder(Files(self._path, is_read_only=self._is_read_only), is_read_only=self._is_read_only)


class ObjectFolder(ObjectSnapshots):
    """An open folder."""

    def __init__(self, files: "Files", *, is_read_only: bool) -> None:
        super().__init__(
            files, "", is_read_only=is_read_only, head_bytes=_HEAD_BYTES, table_cache_bytes=_TABLE_CACHE_BYTES
        )
        self._files = files

    def _write(self, names: SnapshotNames, metadata: bytes, segments: Sequence[bytes]) -> tuple[int, ObjectHead]:
        table = table_of([metadata, *segments])
        encoded = encode_object_head(names, table)
        while True:
            bucket_id = bucket_id_for(names.topic_name, names.cursor_name, serial=self._serials.next())
            if self._files.create(object_key("", bucket_id), (encoded, metadata, *segments)):
                return bucket_id, ObjectHead(names, table, len(encoded))


class Files:
    """The files of a folder as objects: a key is a path below it."""

    def __init__(self, folder: Path, *, is_read_only: bool) -> None:
        """Open the folder; to write, remove unfinished files that are a day old.

        Raises:
            StorageAccessError: It is to be read, and there is none.
            StorageUnavailableError: The disk refuses.
        """
        self._folder = folder
        self._unfinished = self._path_of(marks_prefix(""))
        if is_read_only and not folder.is_dir():
            raise StorageAccessError(f"there is no folder {folder} of snapshots")
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

    def _path_of(self, key: str) -> Path:
        return self._folder / key.strip("/")

    def close(self) -> None:
        """There is nothing to let go of."""

    def read(self, key: str, start: int, end: int) -> ObjectPiece | None:
        """Return the bytes from `start` to before `end`; None where there is no file. What is none has no bytes."""
        path = self._path_of(key)
        with _mapped("read a snapshot"):
            if is_misplaced(path):
                return ObjectPiece(b"", 0)
            try:
                file = path.open("rb")
            except FileNotFoundError:
                return None
            with file:
                file.seek(start)
                return ObjectPiece(file.read(end - start), os.fstat(file.fileno()).st_size)

    def create(self, key: str, pieces: Sequence[bytes]) -> bool:
        """Write a file that no reader sees until all of it is on the disk; False where there is one already."""
        unfinished = self._unfinished / secrets.token_hex(8)
        with _mapped("create a snapshot"):
            try:
                with unfinished.open("xb") as file:
                    file.writelines(pieces)
                    file.flush()
                    os.fsync(file.fileno())
                return self._is_linked(unfinished, self._path_of(key))
            finally:
                with suppress(OSError):
                    # Another start removes it.
                    unfinished.unlink(missing_ok=True)

    def _is_linked(self, unfinished: Path, path: Path) -> bool:
        """Give the file its name, durably; False where it is taken."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return False
        try:
            for folder in (path.parent, path.parent.parent, self._folder):
                sync_folder(folder)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return True

    def delete(self, key: str) -> None:
        """Delete a file if there is one."""
        path = self._path_of(key)
        with _mapped("delete a snapshot"), suppress(FileNotFoundError):
            path.unlink()
            sync_folder(path.parent)

    def list(self, prefix: str) -> Iterator[str]:
        """Give all keys with a prefix, which is a folder."""
        with _mapped("list snapshots"):
            for path in self._path_of(prefix).rglob("*"):
                yield f"/{path.relative_to(self._folder).as_posix()}"


@contextmanager
def _mapped(operation: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise StorageAccessError(f"cannot {operation}: {error}") from error
    except OSError as error:
        raise StorageUnavailableError(f"cannot {operation}: {error}") from error
