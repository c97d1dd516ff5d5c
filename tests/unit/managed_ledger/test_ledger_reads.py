"""Reading: reads at the tail need no database, trimmed entries are left out, and lost ones are an error."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from pyroaring import BitMap

from managed_ledger.disk.keys import Family, block_key
from managed_ledger.entries.blocks import HeaderBlock, rows_at
from managed_ledger.entries.headers import PACK_ROW, EntryHeaders
from managed_ledger.errors import (
    EntriesDamagedError,
    EntriesUnreadableError,
    LedgerError,
    StoreCorruptedError,
    StoreUnavailableError,
)
from managed_ledger.positions.position import Position
from managed_ledger.reading.selection import HeadersRead
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase, MemoryRows, append_all, open_store
from tests.helpers.log_reading import read_entries


def _without_suspending(coroutine: Coroutine[object, None, object]) -> object:
    """Run a coroutine that must not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value
    raise AssertionError("the coroutine suspended")


def test_a_reader_at_the_tail_never_waits() -> None:
    """Entries that were just committed are in memory: neither a thread nor the database is asked."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, entries_per_ledger_max=300)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"x" * 100] * 1000)

        read = _without_suspending(read_entries(ledger, ledger.first_position, entries_max=1000))
        headers = _without_suspending(ledger.read_headers_at([1, 4, 2], [299, 0, 5]))

        assert len(read.payloads) == 1000  # type: ignore[attr-defined]  # an EntriesRead
        assert isinstance(headers, EntryHeaders)
        assert len(headers) == 3
        assert database.rows_read == 0
        await store.close()

    asyncio.run(scenario())


def test_skipping_much_reads_only_the_blocks_that_are_left() -> None:
    """Ten wanted entries in 100,000: ten header blocks of a thousand, and no payload."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, entries_per_ledger_max=100_000, cache_bytes_max=0)
        ledger = await store.open_managed_ledger("orders")
        for _ in range(100):
            for _ in range(1000):
                ledger.append_nowait(b"", publish_time_ms=1)
            await ledger.committed()
        wanted = list(range(5_000, 100_000, 10_000))
        skipped = BitMap()
        skipped.add_range(0, 100_000)
        skipped -= BitMap(wanted)

        read = await ledger.read_headers(ledger.first_position, entries_max=100, skip=lambda _ledger_id: skipped)

        assert read.headers.entry_ids.tolist() == wanted
        assert database.rows_read == 10
        assert database.bytes_read == 10 * 1000 * 32
        await store.close()

    asyncio.run(scenario())


def test_headers_are_read_without_payloads_and_together() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, entries_per_ledger_max=100)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"x" * 1000] * 250)
        await store.close()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        database.bytes_read = 0

        read = await ledger.read_headers(ledger.first_position, entries_max=1000)

        assert len(read.headers) == 250
        assert read.next_position == Position(3, 50)
        assert database.bytes_read == 250 * 32
        again = await ledger.read_headers(ledger.first_position, entries_max=1000)
        assert len(again.headers) == 250
        assert database.bytes_read == 250 * 32
        await store.close()

    asyncio.run(scenario())


def test_a_scan_larger_than_the_cache_leaves_it_alone() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, cache_bytes_max=256 * 1024)
        ledger = await store.open_managed_ledger("orders")
        for _ in range(5):
            await append_all(ledger, [b""] * 1000)
        tail = Position(1, 4900)

        await ledger.read_headers(ledger.first_position, entries_max=4000)

        read = _without_suspending(ledger.read_headers(tail, entries_max=100))

        assert isinstance(read, HeadersRead)
        assert (len(read.headers), read.next_position) == (100, Position(1, 5000))
        await store.close()

    asyncio.run(scenario())


def test_a_position_is_found_by_its_publish_time() -> None:
    """Also where clients' clocks make times go back and forth."""

    async def scenario() -> None:
        store = await open_store(MemoryDatabase(), entries_per_ledger_max=3)
        ledger = await store.open_managed_ledger("orders")
        for publish_time_ms in (10, 30, 20, 15, 12, 11, 40, 5, 50):
            ledger.append_nowait(b"", publish_time_ms=publish_time_ms)
        await ledger.committed()

        found = [await ledger.find_position_at_or_after_publish_time(time) for time in (0, 10, 25, 31, 45, 51)]

        assert found == [
            Position(1, 0),
            Position(1, 0),
            Position(1, 1),
            Position(3, 0),
            Position(3, 2),
            Position(4, 0),
        ]
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("family", [Family.HEADERS, Family.PAYLOADS])
def test_an_entry_that_the_log_has_lost_is_an_error(family: Family) -> None:
    """Its record counts it, so leaving it out would lose a message silently."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, cache_bytes_max=0)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"a"])
        await append_all(ledger, [b"b"])
        del database.tables[family][max(database.tables[family])]

        with pytest.raises(StoreCorruptedError, match="the log is damaged at 1:1"):
            await read_entries(ledger, ledger.first_position, entries_max=10)
        await store.close()

    asyncio.run(scenario())


def test_a_read_that_a_trim_overtakes_leaves_out_what_is_gone() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database, entries_per_ledger_max=2, cache_bytes_max=0)
        ledger = await store.open_managed_ledger("orders")
        positions = await append_all(ledger, [b"a", b"b", b"c"])
        ids = [p.ledger_id for p in positions], [p.entry_id for p in positions]

        reading = asyncio.ensure_future(ledger.read_payloads(*ids))
        assert await ledger.trim() == 1

        assert (await reading)[2] == b"c"
        assert await ledger.read_payloads(*ids) == [None, None, b"c"]
        assert (await ledger.read_headers_at(*ids)).entry_ids.tolist() == [0]
        assert ledger.first_position == Position(2, 0)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("spans", [[(8, 23), (20, 24)], [(8, 24), (12, 14)], [(8, 12), (9, 12), (12, 24)], [(8, 24)]])
@pytest.mark.parametrize("entry_ids", [range(9, 24), [9, 11, 13, 19, 22, 23], [23]])
def test_blocks_that_overlap_give_each_entry_its_own_header(
    spans: list[tuple[int, int]], entry_ids: Sequence[int]
) -> None:
    """The cache has some entries of a stored block, which is read whole where others of it are missing."""
    rows = [PACK_ROW(entry_id, 0, 0, 0, 1, 0) for entry_id in range(24)]
    blocks = [HeaderBlock(first, b"".join(rows[first:end])) for first, end in spans]

    found = rows_at(blocks, np.array(entry_ids, dtype=np.int64))

    assert found[:, 0].tolist() == list(entry_ids)


class _UnreadableDatabase(MemoryDatabase):
    """A database of which some values of payloads cannot be read."""

    def __init__(self, error: type[LedgerError]) -> None:
        super().__init__()
        self.unreadable: set[bytes] = set()
        self._error = error

    def get(self, family: Family, key: bytes) -> bytes | None:
        self._check(family, [key])
        return super().get(family, key)

    @contextmanager
    def rows(self, family: Family) -> Iterator[MemoryRows]:
        with super().rows(family) as rows:
            value = rows.value
            rows.value = lambda: self._check(family, [rows.key()]) or value()  # type: ignore[method-assign]
            yield rows

    def listed(self, family: Family, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        found = list(MemoryDatabase.scan(self, family, start, end))
        self._check(family, [key for key, _ in found])
        return found

    def _check(self, family: Family, keys: list[bytes]) -> bytes:
        """Raise for an unreadable value; return nothing that would stand for one."""
        if family is Family.PAYLOADS and self.unreadable.intersection(keys):
            raise self._error("the disk says no")
        return b""


@pytest.mark.parametrize(
    ("kind", "told"),
    [(StoreCorruptedError, EntriesDamagedError), (StoreUnavailableError, EntriesUnreadableError)],
)
def test_an_unreadable_value_takes_its_own_entries_with_it_and_no_others(
    kind: type[LedgerError], told: type[EntriesDamagedError] | type[EntriesUnreadableError]
) -> None:
    async def scenario() -> None:
        database = _UnreadableDatabase(kind)
        store = await open_store(database, cache_bytes_max=0)
        ledger = await store.open_managed_ledger("orders")
        for begin in (0, 3, 6):
            await append_all(ledger, [b"%d" % number for number in range(begin, begin + 3)])
        database.unreadable.add(block_key(1, 3))

        with pytest.raises(told) as caught:
            await ledger.read_payloads([1] * 9, range(9))
        assert caught.value.entries == {1: BitMap([3, 4, 5])}
        with pytest.raises(told) as caught:
            await ledger.read_payloads([1, 1], [5, 8])
        assert caught.value.entries == {1: BitMap([5])}
        assert await ledger.read_payloads([1] * 6, [0, 1, 2, 6, 7, 8]) == [b"0", b"1", b"2", b"6", b"7", b"8"]
        if kind is StoreCorruptedError:
            payloads, damaged = await ledger.read_intact_payloads([1] * 9, range(9))
            assert payloads == [b"0", b"1", b"2", None, None, None, b"6", b"7", b"8"]
            assert damaged == {1: BitMap([3, 4, 5])}
        await store.close()

    asyncio.run(scenario())
