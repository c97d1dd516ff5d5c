"""A RocksDB folder that is opened again, or whose opening or closing is interrupted: no failure may last."""

import asyncio
import threading
from pathlib import Path

import pytest

from snapshot_storage.errors import StorageClosedError, StorageUnavailableError
from snapshot_storage.rocksdb import RocksDBBucketSnapshotStorage
from snapshot_storage.rocksdb_folder import RocksDBFolder

DAMAGE = "Corruption: block checksum mismatch"
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

    def __init__(self, path: Path, *, writes: list[str | None] | None = None, openings: int = 0) -> None:
        super().__init__(path)
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
        folder._database = _FailingWrites(folder._database, self._writes)  # type: ignore[assignment]
        return folder


async def _create(storage: RocksDBBucketSnapshotStorage, segments: list[bytes] | None = None) -> int:
    names = {"bucket_key": "k", "topic_name": "t", "cursor_name": "c"}
    return await storage.create_bucket_snapshot(b"metadata", segments or [], **names)


def test_a_folder_that_cannot_be_opened_again_at_once_is_tried_at_the_next_call(tmp_path: Path) -> None:
    """It was closed for ever: every call after it failed with an error that no one repeats."""

    async def scenario() -> None:
        storage = _Storage(tmp_path, writes=[DAMAGE], openings=2)
        await storage.start()
        for _ in range(2):
            with pytest.raises(StorageUnavailableError):
                await _create(storage)
        kept = await _create(storage)
        assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [kept]
        await storage.close()
        with pytest.raises(StorageClosedError):
            await _create(storage)

    asyncio.run(scenario())


def test_a_writer_makes_it_open_again_too(tmp_path: Path) -> None:
    """A caller that only begins snapshots must not wait for one that reads."""

    async def scenario() -> None:
        async with _Storage(tmp_path, writes=[DAMAGE], openings=1) as storage:
            lost = storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c")
            with pytest.raises(StorageUnavailableError):
                await _create(storage)
            with pytest.raises(StorageUnavailableError, match="try again"):
                storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c")
            assert storage._behind is not None
            await storage._behind
            with pytest.raises(StorageUnavailableError, match="opened again"):
                await lost.commit(b"metadata")
            await lost.abort()
            writer = storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c")
            await writer.commit(b"metadata")
            assert len(await storage.list_bucket_snapshots()) == 1

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
