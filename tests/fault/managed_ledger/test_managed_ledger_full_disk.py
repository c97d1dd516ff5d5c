"""A log on a disk that is really full: the refused calls, the calls that still work, and the recovery by itself."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family, ledger_range
from managed_ledger.errors import AppendRefusedError, LedgerError, LedgerWriteError, StoreFullError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from tests.helpers.deleted_ledgers import write_deleted_ledger
from tests.helpers.log_reading import read_entries
from tests.helpers.small_disk import fill_up, free_bytes, small_disk

DISK_MIB = 32
PAYLOAD_BYTES = 20_000
CONFIG = ManagedLedgerConfig(entries_per_ledger_max=100)
WAIT_SECONDS = 60


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is filled within a second."""
    with small_disk(tmp_path / "disk", mib=DISK_MIB) as mounted:
        yield mounted


@asynccontextmanager
async def _opened(disk: Path) -> AsyncIterator[LedgerStore]:
    store = await LedgerStore.open(disk / "log", CONFIG, now_ms=lambda: time.time_ns() // 10**6)
    try:
        yield store
    finally:
        await store.close()


async def _fill(ledger: ManagedLedger, *, entries_max: int) -> list[bytes]:
    """Append one by one until that is refused, or so many; returns what is durable."""
    kept: list[bytes] = []
    while len(kept) < entries_max:
        payload = os.urandom(PAYLOAD_BYTES)
        try:
            await ledger.append(payload, publish_time_ms=len(kept))
        except (AppendRefusedError, LedgerWriteError):
            break
        kept.append(payload)
    return kept


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(WAIT_SECONDS * 20):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def _payloads(ledger: ManagedLedger) -> list[bytes]:
    read = await read_entries(ledger, Position(0, 0), entries_max=10_000)
    return read.payloads


def test_a_log_that_fills_its_disk_keeps_room_to_be_emptied(disk: Path) -> None:
    """Entries are refused before the last byte, so that acknowledgements make room, also of the open ledger."""

    async def scenario() -> None:
        async with _opened(disk) as store:
            ledger = await store.open_managed_ledger("orders")
            cursor = await ledger.open_cursor("subscription")
            kept = await _fill(ledger, entries_max=10_000)

            assert len(kept) * PAYLOAD_BYTES > DISK_MIB * 2**20 * 0.6, "the disk was not nearly full"
            # A table that is being written takes some of it for a moment.
            await _until(lambda: free_bytes(disk) > 2**19)
            assert not store.is_failing
            assert store.failed is None
            assert await _payloads(ledger) == kept
            with pytest.raises(AppendRefusedError, match="MiB"):
                ledger.append_nowait(b"one more", publish_time_ms=1)

            cursor.acknowledge_cumulative(ledger.last_confirmed_position)
            await cursor.flush()
            assert ledger.roll_over_if_passed()
            assert await ledger.trim() > 1
            store.compact_trimmed()
            await _until(lambda: store.refusal is None)
            assert await ledger.append(b"one more", publish_time_ms=1) > cursor.mark_delete_position
            await _until(lambda: free_bytes(disk) > DISK_MIB * 2**20 * 0.8)

    asyncio.run(scenario())


def test_a_deleted_ledger_gives_its_space_back_on_a_disk_with_almost_no_room(disk: Path) -> None:
    """Neither the tables of cursors nor the deletion itself count as tables that a compaction would write anew."""
    database = RocksDatabase.open(disk / "log", write_buffer_bytes=2**20)
    write_deleted_ledger(database, Family.PAYLOADS, 7, [os.urandom(PAYLOAD_BYTES) for _ in range(200)])
    ballast = fill_up(disk)
    os.truncate(ballast, ballast.stat().st_size - 2**18)
    before_bytes = free_bytes(disk)

    database.compact(Family.PAYLOADS, *ledger_range(7))

    assert free_bytes(disk) > before_bytes + 200 * PAYLOAD_BYTES * 0.9
    database.close()


def test_a_disk_that_others_fill_costs_nothing(disk: Path) -> None:
    """RocksDB takes no more writes then until it is opened again, which happens while the log is in use."""

    async def scenario() -> None:
        async with _opened(disk) as store:
            ledger = await store.open_managed_ledger("orders")
            cursor = await ledger.open_cursor("subscription")
            kept = await _fill(ledger, entries_max=100)
            ballast = fill_up(disk)
            lost = await _fill(ledger, entries_max=1_000)

            assert store.is_failing
            assert "No space left on device" in str(store.refusal)
            assert await _payloads(ledger) == kept + lost
            cursor.acknowledge([ledger.first_position.ledger_id] * 3, [0, 1, 2])
            assert cursor.backlog == len(kept) + len(lost) - 3
            with pytest.raises(LedgerError):
                await cursor.flush()

            ballast.unlink()
            await _until(lambda: store.refusal is None)
            await cursor.flush()
            kept += [*lost, *await _fill(ledger, entries_max=10)]
            assert await _payloads(ledger) == kept
        async with _opened(disk) as store:
            ledger = await store.open_managed_ledger("orders")
            assert await _payloads(ledger) == kept
            assert ledger.cursors["subscription"].backlog == len(kept) - 3

    asyncio.run(scenario())


def test_acknowledgements_on_a_disk_without_a_free_byte_are_forgotten_by_a_crash(disk: Path, tmp_path: Path) -> None:
    """They are in memory until there is room, so their messages are delivered again, and none is lost."""

    async def scenario() -> None:
        async with _opened(disk) as store:
            ledger = await store.open_managed_ledger("orders")
            cursor = await ledger.open_cursor("subscription")
            kept = await _fill(ledger, entries_max=100)
            ballast = fill_up(disk)
            kept += await _fill(ledger, entries_max=1_000)
            cursor.acknowledge_cumulative(ledger.last_confirmed_position)
            with pytest.raises(LedgerError):
                await cursor.flush()
            # As a process leaves it that is killed.
            await asyncio.to_thread(shutil.copytree, disk / "log", tmp_path / "killed" / "log")
            backlog = cursor.backlog
            ballast.unlink()
            await _until(lambda: store.refusal is None)
        assert backlog == 0
        async with _opened(tmp_path / "killed") as store:
            ledger = await store.open_managed_ledger("orders")
            assert await _payloads(ledger) == kept
            assert ledger.cursors["subscription"].backlog == len(kept)

    asyncio.run(scenario())


def test_a_log_on_a_full_disk_closes_and_opens_again(disk: Path) -> None:
    async def scenario() -> None:
        async with _opened(disk) as store:
            ledger = await store.open_managed_ledger("orders")
            kept = await _fill(ledger, entries_max=100)
            ballast = fill_up(disk)
            kept += await _fill(ledger, entries_max=1_000)
            # Closing cannot write either, and lets go of the folder all the same.
            with pytest.raises(LedgerError, match="Cannot sync the log"):
                await store.close()
        with pytest.raises(LedgerError, match="free space"):
            async with _opened(disk):
                raise AssertionError("a full disk took a new log")
        ballast.unlink()
        async with _opened(disk) as store:
            assert await _payloads(await store.open_managed_ledger("orders")) == kept

    asyncio.run(scenario())


def test_a_start_on_a_full_disk_says_what_it_needs_and_takes_nothing_of_it(disk: Path) -> None:
    """A supervisor tries again and again: the space that a start needs does not grow. With it all entries are there."""

    async def scenario() -> None:
        async with _opened(disk) as store:
            kept = await _fill(await store.open_managed_ledger("orders"), entries_max=20)
            # As a process leaves it that is killed.
            await asyncio.to_thread(shutil.copytree, disk / "log", disk / "killed")
        shutil.rmtree(disk / "log")
        (disk / "killed").rename(disk / "log")
        before = sorted(path.name for path in (disk / "log").iterdir())
        wanted_bytes = sum(path.stat().st_size for path in (disk / "log").glob("*.log")) + 2**19
        ballast = fill_up(disk)

        for _ in range(5):
            with pytest.raises(StoreFullError, match=rf"{wanted_bytes / 2**20:.1f} MiB of free space.*Nothing is lost"):
                await LedgerStore.open(disk / "log", CONFIG, now_ms=lambda: 1)
        assert sorted(path.name for path in (disk / "log").iterdir()) == before

        os.truncate(ballast, ballast.stat().st_size - wanted_bytes - 2**13)
        async with _opened(disk) as store:
            assert await _payloads(await store.open_managed_ledger("orders")) == kept

    asyncio.run(scenario())
