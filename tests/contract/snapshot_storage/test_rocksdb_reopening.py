"""A RocksDB folder that is opened again, or whose opening or closing is interrupted: no failure may last."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from managed_ledger.rocksdb_store.failures import Translated
from snapshot_storage.errors import StorageAccessError, StorageClosedError, StorageUnavailableError
from snapshot_storage.rocksdb.failures import error_of
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import first_bucket_id
from tests.helpers.small_disk import fill_up, small_disk
from tests.helpers.storages.rocksdict_edge import replace_rocksdict
from tests.helpers.storages.snapshot_backends import RocksDBBackend

DAMAGE = "Corruption: block checksum mismatch"
FULL = "IO error: No space left on device"
READ_ONLY = "IO error: Read-only file system"
WAIT_S = 60


class _FailingWrites:
    """A database that fails some of its writes."""

    def __init__(self, database: object, reasons: list[str | None]) -> None:
        self._database = database
        self._reasons = reasons

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def write(self, *args: object) -> None:
        reason = self._reasons.pop(0) if self._reasons else None
        if reason is not None:
            raise Exception(reason)
        self._database.write(*args)  # type: ignore[attr-defined]


class _Storage(RocksDBBucketSnapshotStorage):
    """One whose folder fails writes, and opening, as often as it is told."""

    def __init__(
        self,
        path: Path,
        *,
        writes: list[str | None] | None = None,
        openings: int = 0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path, clock_s=clock_s)
        self._writes = writes if writes is not None else []
        self.failing_openings = openings
        self.openings = 0
        self.is_opening = threading.Event()
        self.may_open = threading.Event()
        self.may_open.set()

    def _open_snapshots(self) -> RocksDBFolder:
        self.is_opening.set()
        assert self.may_open.wait(WAIT_S)
        self.openings += 1
        if self.openings > 1 and self.failing_openings:
            self.failing_openings -= 1
            raise StorageUnavailableError("No space left on device")
        folder = super()._open_snapshots()
        replace_rocksdict(folder, lambda database: _FailingWrites(database, self._writes))
        return folder


async def _create(storage: RocksDBBucketSnapshotStorage, segments: list[bytes] | None = None) -> int:
    names = {"bucket_key": "k", "topic_name": "t", "cursor_name": "c"}
    return await storage.create_bucket_snapshot(b"metadata", segments or [], **names)


def test_a_folder_that_stays_refused_is_tried_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a quota, say: each call tried, without end. It is told once, and goes on when the quota is lifted."""
    now_s = [100.0]

    async def scenario() -> None:
        storage = _Storage(tmp_path, writes=[DAMAGE, DAMAGE], openings=10**6, clock_s=lambda: now_s[0])
        async with storage:
            for _ in range(6_000):
                with pytest.raises(StorageUnavailableError, match="No space left"):
                    await _create(storage)
                now_s[0] += 0.1
            # At the start, for the damage, then after 1, 2, 4, 8, 16, 32, and each 60 seconds more, in 600 seconds.
            assert storage.openings == 2 + 6 + 8
            assert sum("closed until it can be opened again" in record.message for record in caplog.records) == 1
            storage.failing_openings = 0
            now_s[0] += 60
            kept = await _create(storage)
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [kept]
        with pytest.raises(StorageClosedError):
            await _create(storage)

    asyncio.run(scenario())


def test_a_cancelled_start_leaves_the_folder_free(tmp_path: Path) -> None:
    """The thread went on and kept the lock, so that the next start said that another process has it."""

    async def scenario() -> None:
        storage = _Storage(tmp_path)
        storage.may_open.clear()
        start = asyncio.create_task(storage.start())
        await asyncio.to_thread(storage.is_opening.wait, WAIT_S)
        start.cancel()
        await asyncio.sleep(0)
        storage.may_open.set()
        with pytest.raises(asyncio.CancelledError):
            await start
        async with RocksDBBucketSnapshotStorage(tmp_path) as other:
            await _create(other)
        async with storage:
            assert len(await storage.list_bucket_snapshots()) == 1

    asyncio.run(scenario())


def test_a_cancelled_close_closes(tmp_path: Path) -> None:
    """Cancelled again and again, and then started at once."""

    async def scenario() -> None:
        storage = RocksDBBucketSnapshotStorage(tmp_path)
        for _ in range(3):
            await storage.start()
            await _create(storage)
            close = asyncio.create_task(storage.close())
            await asyncio.sleep(0)
            for _ in range(3):
                close.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await close
        async with RocksDBBucketSnapshotStorage(tmp_path) as other:
            assert len(await other.list_bucket_snapshots()) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("refusal", [FULL, READ_ONLY])
def test_writes_go_on_after_the_disk_refused_one(tmp_path: Path, refusal: str) -> None:
    """RocksDB takes none until it is opened again, which is done every few seconds at most."""
    now_s = [100.0]

    async def scenario() -> None:
        # Each create that fails tries to remove what there is of it.
        writes = [refusal, refusal, None, refusal, refusal, refusal, refusal]
        storage = _Storage(tmp_path, writes=writes, clock_s=lambda: now_s[0])
        async with storage:
            for is_opened_again in (True, False, True):
                expected = StorageUnavailableError if is_opened_again or refusal == FULL else StorageAccessError
                with pytest.raises(expected, match="try again" if is_opened_again else refusal):
                    await _create(storage)
                await _create(storage) if is_opened_again else None
                now_s[0] += 3
            assert storage.openings == 3
            assert len(await storage.list_bucket_snapshots()) == 2

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_disk_that_has_room_again_is_written_again(tmp_path: Path) -> None:
    """While the disk is full all snapshots can be read; then the storage goes on without a restart."""
    now_s = [100.0]

    async def scenario(disk: Path) -> None:
        async with RocksDBBucketSnapshotStorage(disk / "snapshots", clock_s=lambda: now_s[0]) as storage:
            kept = await _create(storage, [b"kept"])
            ballast = fill_up(disk)
            for _ in range(2):
                with pytest.raises(StorageUnavailableError):
                    await _create(storage, [os.urandom(2**20) for _ in range(4)])
                assert await storage.get_bucket_snapshot_segment(kept, 1, 1) == [b"kept"]
                now_s[0] += 60
            ballast.unlink()
            with pytest.raises(StorageUnavailableError, match="was opened again; try again"):
                await _create(storage)
            other = await _create(storage)
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [kept, other]

    with small_disk(tmp_path / "disk", mib=6) as disk:
        asyncio.run(scenario(disk))


def test_a_failed_create_leaves_nothing(tmp_path: Path) -> None:
    """Of a large snapshot some batches are written before the one that fails: they stayed until a restart."""

    async def scenario() -> None:
        async with _Storage(tmp_path / "snapshots", writes=[None, FULL]) as storage:
            with pytest.raises(StorageUnavailableError, match="No space left"):
                await _create(storage, [bytes(2**20)] * 5)
            assert storage.openings == 1
            assert RocksDBBackend(tmp_path).ids() == set()

    asyncio.run(scenario())


def test_a_backup_that_is_put_back_gives_no_id_again(tmp_path: Path) -> None:
    """A cursor may still name one that was given after the backup, and must not find another snapshot under it."""

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path / "snapshots") as storage:
            await _create(storage)
            await storage.checkpoint(tmp_path / "backup")
            given = await _create(storage)
        deadline_s = time.monotonic() + WAIT_S
        while first_bucket_id() <= given and time.monotonic() < deadline_s:
            time.sleep(0.001)  # noqa: ASYNC251 - ids are of the wall clock
        async with RocksDBBucketSnapshotStorage(tmp_path / "backup") as storage:
            assert await _create(storage) > given

    asyncio.run(scenario())


def test_what_the_system_refuses_is_our_error_with_the_path(tmp_path: Path) -> None:
    """Rights are for an operator, room may come."""
    for error, expected in (
        (PermissionError("Permission denied (os error 13)"), StorageAccessError),
        (OSError("Read-only file system (os error 30)"), StorageAccessError),
        (OSError("No space left on device (os error 28)"), StorageUnavailableError),
        # RocksDB's own, of files that it writes later: an operator was never told, and each was tried for ever.
        (Exception("IO error: While open a file for appending: /x.log: Permission denied"), StorageAccessError),
        (Exception("IO error: Operation not permitted: While pwrite: /x.log"), StorageAccessError),
        (Exception("IO error: Read-only file system: While fdatasync: /x.log"), StorageAccessError),
        (Exception("IO error: No space left on device: While appending: /x.log"), StorageUnavailableError),
        (Exception("IO error: Disk quota exceeded: While appending: /x.log"), StorageUnavailableError),
        (Exception("IO error: Input/output error: While fdatasync: 000012.log"), StorageUnavailableError),
    ):
        advice = "mend that first" if expected is StorageAccessError else "make room, and it goes on"
        advice = "the disk fails, .* stop the service and move it away" if "Input/output" in str(error) else advice
        text = f"cannot open in {tmp_path}: .*{advice}"
        with pytest.raises(expected, match=text) as raised, Translated(error_of, tmp_path, "open"):
            raise error
        assert raised.value.__cause__ is error
