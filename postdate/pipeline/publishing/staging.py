"""Staging: tasks put snapshots into a folder of the job until the driver publishes them, a file for each attempt.

    <index>.staging/<job>/task-<partition>-<attempt>.snapshots       objects of `objects.format`, one after the other

A task may run twice, side by side or after a failure. Each attempt has a file of its own, and the driver takes only the
files whose attempts it was told to have succeeded; so nothing depends on which one wins. A RocksDB folder has one
writer, the driver, and nothing else than its commit touches it. On several machines the folder must be a shared one.

A job that ends, either way, removes its folder. A job that is killed leaves it, with a lock that is free: the next job
sweeps it. A job that can hold no lock is taken for dead after a day.
"""

import asyncio
import fcntl
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

from snapshot_storage.objects.format import DecodedObject, decode_object, encode_object
from snapshot_storage.storage import BucketSnapshotStorage

_LOCK_FILE = "lock"
_UNLOCKED_SECONDS_MAX = 24 * 3600.0


class StagedSnapshot(NamedTuple):
    """The facts about a snapshot in a staging folder that a task gives to the driver."""

    topic: str
    cursor: str
    bucket_key: str
    row_count: int
    path: str
    offset: int
    length: int

    async def read(self, storage: BucketSnapshotStorage) -> DecodedObject:  # noqa: ARG002 - it is not there yet
        """Read it, checked.

        Raises:
            OSError: The file is not there.
            SnapshotCorruptedError: Its bytes are not those that were written.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> DecodedObject:
        with Path(self.path).open("rb") as file:
            file.seek(self.offset)
            return decode_object(file.read(self.length))


class StagingWriter:
    """The file of one attempt of a task; a context manager."""

    def __init__(self, folder: Path, task: str) -> None:
        """Begin an empty file; files that an earlier attempt of the same name left are gone."""
        self._path = folder / f"task-{task}.snapshots"
        self._file: IO[bytes] | None = None
        self._offset = 0

    def put(
        self,
        metadata: bytes,
        segments: list[bytes],
        *,
        topic: str,
        cursor: str,
        bucket_key: str,
        row_count: int,
        named_id: int | None = None,  # noqa: ARG002 - the driver compares when it stores
    ) -> StagedSnapshot:
        """Append a snapshot."""
        data = encode_object(metadata, segments, bucket_key=bucket_key, topic_name=topic, cursor_name=cursor)
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(data)
        staged = StagedSnapshot(topic, cursor, bucket_key, row_count, str(self._path), self._offset, len(data))
        self._offset += len(data)
        return staged

    def flush(self) -> None:
        """Let other processes read the snapshots so far."""
        if self._file is not None:
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._file is not None:
            self._file.close()
        if error is not None:
            self._path.unlink(missing_ok=True)


def staging_root(index: Path) -> Path:
    """Return where the jobs over an index have their folders: beside it, so on the same disk.

    >>> str(staging_root(Path("data/snapshots")))
    'data/snapshots.staging'
    """
    return index.with_name(index.name + ".staging")


class StagingFolder:
    """The folder of one job. Its maker removes it; a context manager."""

    def __init__(self, root: Path, job: str) -> None:
        """Make the folder and hold its lock, after what killed jobs have left is swept."""
        self.path = new_staging(root, job)
        self._lock = (self.path / _LOCK_FILE).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove it with all that is in it, and its root if that is empty then. Idempotent."""
        self._lock.close()
        remove_staging(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def new_staging(root: Path, job: str) -> Path:
    """Make the folder of a job, without a lock, after what killed jobs have left is swept."""
    folder = root / job
    folder.mkdir(parents=True)
    for other in root.iterdir():
        if other != folder and _is_abandoned(other, folder.stat().st_mtime):
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _is_abandoned(folder: Path, now_s: float) -> bool:
    try:
        with (folder / _LOCK_FILE).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        # Spark's own write protocol has no process that could hold a lock from its begin to its end.
        return folder.is_dir() and now_s - folder.stat().st_mtime > _UNLOCKED_SECONDS_MAX
    return True


def remove_staging(folder: Path) -> None:
    """Remove a job's folder, and the root if it was the last one."""
    shutil.rmtree(folder, ignore_errors=True)
    # The root stays while other jobs have folders in it.
    with suppress(OSError):
        folder.parent.rmdir()
