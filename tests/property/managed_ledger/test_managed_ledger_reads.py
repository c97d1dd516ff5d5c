"""Discontinuous reads against a list: any start, end, limit and skipped set, with blocks in memory and without."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from managed_ledger.disk.keys import Family, block_key
from managed_ledger.entries.blocks import cut_payloads, encode_payloads, payload_at, payload_count
from managed_ledger.entries.headers import PACK_ROW
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from managed_ledger.reading.log_reader import LogReader, Need
from managed_ledger.reading.shared_calls import SharedCalls
from tests.helpers.fakes.managed_ledger_fakes import START_MS, MemoryDatabase, open_store
from tests.helpers.log_reading import read_entries

Entry = tuple[Position, bytes]

commits = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=6), max_size=25)
places = st.integers(-2, 90)
skipped_sets = st.one_of(st.none(), st.sets(st.integers(0, 80)), st.just(set(range(80))))


async def _filled(database: MemoryDatabase, chosen: list[list[bytes]], **limits: int) -> list[Entry]:
    """Write commits, close, and return what was written."""
    store = await open_store(database, **limits)
    ledger = await store.open_managed_ledger("orders")
    entries = []
    for commit in chosen:
        for payload in commit:
            position = ledger.append_nowait(
                payload, publish_time_ms=START_MS + len(entries), sticky_hash=len(entries) * 7919
            )
            entries.append((position, payload))
        await ledger.committed()
    await store.close()
    return entries


async def _check_headers(ledger: ManagedLedger, entries: list[Entry], headers_of: list[int]) -> None:
    """Headers of these indices of `entries`, asked for by position."""
    positions = [entries[index][0] for index in headers_of]
    headers = await ledger.read_headers_at([p.ledger_id for p in positions], [p.entry_id for p in positions])
    assert list(zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True)) == positions
    assert headers.publish_time_ms.tolist() == [START_MS + index for index in headers_of]
    assert headers.sticky_hashes.tolist() == [index * 7919 for index in headers_of]
    assert headers.sizes.tolist() == [len(entries[index][1]) for index in headers_of]
    each = await ledger.read_each_header({*positions, Position(10**6, 0), Position(0, 10**6)})
    assert {at: (one.publish_time_ms, one.sticky_hash, one.size) for at, one in each.items()} == {
        entries[index][0]: (START_MS + index, index * 7919, len(entries[index][1])) for index in headers_of
    }


def _place(entries: list[Entry], index: int) -> Position:
    """A position before, at, between or behind entries."""
    if 0 <= index < len(entries):
        return entries[index][0]
    return Position(0, 0) if index < 0 else Position(index // 7, index)


def _skip(skipped: set[int] | None) -> Callable[[int], BitMap | None]:
    return lambda ledger_id: None if skipped is None or ledger_id % 3 == 0 else BitMap(skipped)


@given(
    chosen=commits,
    cache=st.sampled_from([0, 2000, 1 << 20]),
    first=places,
    last=st.one_of(st.none(), places),
    skipped=skipped_sets,
    entries_max=st.integers(1, 40),
)
def test_reading_on_gives_what_is_not_skipped(
    chosen: list[list[bytes]],
    cache: int,
    first: int,
    last: int | None,
    skipped: set[int] | None,
    entries_max: int,
) -> None:
    """Read by read, a reader sees each wanted entry once, in order, and stops behind the last."""

    async def scenario() -> None:
        database = MemoryDatabase()
        entries = await _filled(database, chosen, entries_per_ledger_max=17)
        store = await open_store(database, entries_per_ledger_max=17, cache_bytes_max=cache)
        ledger = await store.open_managed_ledger("orders")
        start, skip = _place(entries, first), _skip(skipped)
        through = None if last is None else _place(entries, last)
        wanted = [
            (position, payload)
            for position, payload in entries
            if position >= start
            and (through is None or position <= through)
            and position.entry_id not in (skip(position.ledger_id) or ())
        ]

        seen: list[Entry] = []
        position = start
        while True:
            read = await read_entries(ledger, position, entries_max=entries_max, skip=skip, through=through)
            pairs = zip(read.headers.ledger_ids.tolist(), read.headers.entry_ids.tolist(), strict=True)
            got = [(Position(*pair), payload) for pair, payload in zip(pairs, read.payloads, strict=True)]
            assert len(got) <= entries_max
            seen += got
            assert read.next_position >= position or not got
            position = read.next_position
            if not got:
                break

        assert seen == wanted
        await store.close()

    asyncio.run(scenario())


@given(
    chosen=commits,
    cache=st.sampled_from([0, 2000, 1 << 20]),
    picks=st.lists(st.lists(st.integers(0, 200), max_size=30), max_size=3),
)
def test_reading_by_position_gives_the_order_asked_for(
    chosen: list[list[bytes]], cache: int, picks: list[list[int]]
) -> None:
    """Any positions, repeated and unknown ones too, in any order."""

    async def scenario() -> None:
        database = MemoryDatabase()
        entries = await _filled(database, chosen, entries_per_ledger_max=17)
        store = await open_store(database, entries_per_ledger_max=17, cache_bytes_max=cache)
        ledger = await store.open_managed_ledger("orders")
        for asked in picks:
            known = [index for index in asked if index < len(entries)]
            await _check_headers(ledger, entries, known)
            positions = [entries[i][0] if i < len(entries) else Position(77, i) for i in asked]
            payloads = await ledger.read_payloads([p.ledger_id for p in positions], [p.entry_id for p in positions])
            assert payloads == [entries[index][1] if index < len(entries) else None for index in asked]
        await store.close()

    asyncio.run(scenario())


@given(st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 40_000).map(bytes)), min_size=1, max_size=40))
def test_blocks_hold_every_payload_and_stay_small(payloads: list[bytes]) -> None:
    """Cut and encoded payloads come back, and only a single payload makes a block large."""
    ends = cut_payloads(payloads)

    assert ends[-1] == len(payloads)
    start = 0
    for end in ends:
        block = encode_payloads(payloads[start:end])
        assert payload_count(block) == end - start
        assert [payload_at(block, index) for index in range(end - start)] == payloads[start:end]
        filled = [payload for payload in payloads[start:end] if payload]
        assert len(filled) <= 1 or sum(map(len, filled)) <= 16 * 1024
        start = end


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    cache_blocks=st.integers(0, 12),
    reads=st.lists(st.sets(st.integers(0, 150), min_size=1), min_size=1, max_size=6),
)
def test_the_cache_changes_nothing_but_speed(sizes: list[int], cache_blocks: int, reads: list[set[int]]) -> None:
    """Sparse reads over many small blocks, some of them in memory, give the rows of the entries asked for."""

    async def scenario(executor: ThreadPoolExecutor) -> None:
        database = MemoryDatabase()
        batch, first = database.new_batch(), 0
        for size in sizes:
            rows = b"".join(PACK_ROW(entry, 0, 0, 0, 0, 0) for entry in range(first, first + size))
            batch.put(Family.HEADERS, block_key(7, first), rows)
            first += size
        database.write(batch, sync=True)
        # A quarter of the cache is for headers; an unjoined block costs at most this.
        reader = LogReader(database, SharedCalls(executor, 1), 4 * 360 * cache_blocks)
        for read in reads:
            wanted = sorted(entry for entry in read if entry < first)
            if not wanted:
                continue
            (rows,) = await reader.read_rows([Need(7, np.array(wanted, dtype=np.int64))])
            assert rows is not None
            # The first word of a row is its delivery time.
            assert rows[:, 0].tolist() == wanted

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(scenario(executor))
