"""The small parts: the database and its fake alike, the cache, the committer, configuration, errors."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import Batch, Database, RocksDatabase, rewritten_bytes
from managed_ledger.disk.keys import FIRST_KEY, Family, block_key, ledger_range
from managed_ledger.entries.blocks import FreshPayloads, HeaderBlock, PayloadBlock
from managed_ledger.entries.headers import ROW_BYTES
from managed_ledger.errors import LedgerWriteError, StoreClosedError
from managed_ledger.reading.block_cache import BlockCache
from managed_ledger.rocksdb_store.store import LISTED_AT_ONCE
from managed_ledger.writing.committer import Committer
from tests.helpers.deleted_ledgers import write_deleted_ledger
from tests.helpers.fakes.life_loop import LoopExecutor
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.helpers.fakes.virtual_time import SimulationLoop, run

PARTICIPANTS_MAX = 32


def _committer(database: MemoryDatabase, **options: Any) -> Committer:
    return Committer(database, stamp=lambda batch: None, participants_max=PARTICIPANTS_MAX, **options)


@pytest.fixture(params=["rocksdb", "memory"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The real one and the fake: promises of the fake must be true of the real one."""
    opened: Database
    if request.param == "rocksdb":
        opened = RocksDatabase.open(tmp_path, write_buffer_bytes=2**20)
    else:
        opened = MemoryDatabase()
    yield opened
    opened.close()


def test_a_batch_is_applied_in_order(database: Database) -> None:
    """A range deletion takes what is there before it, also from its own batch, and nothing put after it."""
    batch = database.new_batch()
    for entry_id in (0, 5, 9):
        batch.put(Family.HEADERS, block_key(7, entry_id), b"old")
    batch.put(Family.HEADERS, block_key(8, 0), b"other")
    database.write(batch, sync=True)
    batch = database.new_batch()
    batch.put(Family.HEADERS, block_key(7, 1), b"gone at once")
    batch.delete_range(Family.HEADERS, *ledger_range(7))
    batch.put(Family.HEADERS, block_key(7, 5), b"new")
    batch.delete(Family.HEADERS, block_key(6, 0))
    database.write(batch, sync=False)

    rows = list(database.scan(Family.HEADERS, block_key(1, 0), block_key(99, 0)))

    assert rows == [(block_key(7, 5), b"new"), (block_key(8, 0), b"other")]
    assert database.get(Family.HEADERS, block_key(7, 0)) is None
    assert list(database.scan(Family.HEADERS, block_key(7, 0), block_key(7, 5))) == []


def test_rows_are_found_from_both_sides(database: Database) -> None:
    batch = database.new_batch()
    for entry_id in (0, 5, 9):
        batch.put(Family.PAYLOADS, block_key(7, entry_id), b"%d" % entry_id)
    database.write(batch, sync=True)

    with database.rows(Family.PAYLOADS) as rows:
        rows.seek_for_prev(block_key(7, 8))
        assert (rows.key(), rows.value()) == (block_key(7, 5), b"5")
        rows.next()
        assert rows.key() == block_key(7, 9)
        rows.next()
        assert not rows.valid()
        rows.seek_for_prev(block_key(6, 99))
        assert not rows.valid() or rows.key() == FIRST_KEY


def test_a_list_has_the_rows_of_a_scan(database: Database) -> None:
    batch = database.new_batch()
    for entry_id in range(LISTED_AT_ONCE + 10):
        batch.put(Family.PAYLOADS, block_key(7, entry_id), b"%d" % entry_id)
    batch.put(Family.PAYLOADS, block_key(8, 0), b"other")
    database.write(batch, sync=True)

    for bounds in (ledger_range(7), (block_key(7, 3), block_key(7, 5)), (block_key(7, 5), block_key(7, 5))):
        assert database.listed(Family.PAYLOADS, *bounds) == list(database.scan(Family.PAYLOADS, *bounds))


def test_a_compaction_is_judged_by_the_tables_of_its_family_that_reach_beyond_the_deleted_range(tmp_path: Path) -> None:
    """The deletion of the range is a table of its own, which ends where the range does and goes with it."""
    database = RocksDatabase.open(tmp_path / "ledgers", write_buffer_bytes=2**20)
    write_deleted_ledger(database, Family.HEADERS, 7, [b"row"] * 3)

    tables = [table for table in database.tables(Family.HEADERS) if table.first_key != FIRST_KEY]
    database.close()

    assert sorted((table.first_key, table.last_key) for table in tables) == [
        (block_key(7, 0), block_key(7, 2)),
        ledger_range(7),
    ]
    assert all(table.size_bytes > 0 for table in tables)
    assert rewritten_bytes(tables, *ledger_range(7)) == 0
    assert rewritten_bytes(tables, block_key(7, 1), block_key(7, 2)) == sum(table.size_bytes for table in tables)


def _block(first: int, entries: int) -> HeaderBlock:
    return HeaderBlock(first, bytes(ROW_BYTES * entries))


def test_the_cache_drops_what_was_not_used_for_longest() -> None:
    cost = _block(0, 2).cost
    cache: BlockCache[HeaderBlock] = BlockCache(3 * cost)
    for first in (0, 2, 4):
        cache.add(1, _block(first, 2))
    used = cache.find(1, 1)

    cache.add(2, _block(0, 2))

    assert used is cache.find(1, 0)
    assert cache.find(1, 2) is None
    assert cache.find(1, 5) is not None
    assert cache.bytes_used == 3 * cost
    cache.drop_ledger(1)
    assert len(cache) == 1
    assert cache.bytes_used == cost


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=40), bytes_max=st.sampled_from([0, 2_000, 10**6]))
def test_small_commits_are_joined_and_each_entry_is_found_as_it_was_committed(sizes: list[int], bytes_max: int) -> None:
    """Joined or not, an entry has its own header and payload, and nothing counts that is not kept."""
    headers: BlockCache[HeaderBlock] = BlockCache(bytes_max)
    payloads: BlockCache[PayloadBlock] = BlockCache(bytes_max)
    first = 0
    for size in sizes:
        entry_ids = range(first, first + size)
        headers.add_next(
            7, HeaderBlock(first, b"".join(entry_id.to_bytes(ROW_BYTES, "little") for entry_id in entry_ids))
        )
        written = [b"%d" % entry_id for entry_id in entry_ids]
        payloads.add_next(7, FreshPayloads(first, written, sum(map(len, written))))
        first += size

    for entry_id in range(first):
        header_block, payload_block = headers.find(7, entry_id), payloads.find(7, entry_id)
        if header_block is not None:
            at = (entry_id - header_block.first) * ROW_BYTES
            assert header_block.rows[at : at + ROW_BYTES] == entry_id.to_bytes(ROW_BYTES, "little")
        if payload_block is not None:
            assert payload_block.payload(entry_id) == b"%d" % entry_id
        is_kept = header_block is not None and payload_block is not None
        assert is_kept or bytes_max < 10**6
    kept = {block.first: block for entry_id in range(first) if (block := headers.find(7, entry_id)) is not None}
    assert headers.bytes_used == sum(block.cost for block in kept.values()) <= bytes_max
    assert len(headers) == len(kept)


class _Broken:
    """A participant that cannot say all it wants to write, and whose listener fails as well."""

    def __init__(self) -> None:
        self.outcomes: list[LedgerWriteError | None] = []

    def fill(self, batch: Batch) -> None:
        batch.put(Family.META, b"half", b"v")
        raise ValueError("a bug")

    def settle(self, error: LedgerWriteError | None) -> None:
        self.outcomes.append(error)
        raise ValueError("another bug")


def test_a_participant_that_fails_fails_alone() -> None:
    async def scenario() -> None:
        database = MemoryDatabase()
        committer = _committer(database)
        broken = _Broken()
        committer.request(broken, sync=True)

        await committer.write(lambda batch: batch.put(Family.META, b"k", b"v"))

        assert database.tables[Family.META] == {b"k": b"v"}
        assert [str(outcome) for outcome in broken.outcomes] == ["A commit of 2 participants failed: a bug"]
        await committer.close()
        with pytest.raises(StoreClosedError):
            committer.request(broken, sync=True)

    asyncio.run(scenario())


def test_no_round_is_of_more_topics_than_a_turn_of_the_loop_should_take() -> None:
    """An earlier request is in an earlier round or the same one; a round is synced if one of its requests asked so."""

    async def scenario() -> None:
        database = MemoryDatabase()
        committer = _committer(database)
        rounds: list[int] = []

        async def write(number: int) -> None:
            sync = number == 2 * PARTICIPANTS_MAX
            await committer.write(lambda batch: batch.put(Family.META, b"%d" % number, b"v"), sync=sync)
            rounds.append(committer.rounds)

        await asyncio.gather(*(write(number) for number in range(2 * PARTICIPANTS_MAX + 1)))

        assert committer.rounds == 3
        assert committer.synced_rounds == 1
        assert rounds == sorted(rounds)
        assert len(database.tables[Family.META]) == 2 * PARTICIPANTS_MAX + 1
        await committer.close()

    asyncio.run(scenario())


def test_a_log_is_marked_once_a_second_and_never_while_nothing_is_written() -> None:
    """Also after the last round; rounds that were not synced promise nothing, so they are not marked."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        database = MemoryDatabase()
        committer = Committer(
            database,
            stamp=lambda batch: None,
            participants_max=PARTICIPANTS_MAX,
            executor=LoopExecutor(loop, 1, lambda: 0.001),
        )

        async def write(*, sync: bool = True) -> None:
            await committer.write(lambda batch: batch.put(Family.META, b"k", b"v"), sync=sync)

        for _ in range(300):
            await write()
        assert database.marks == 0
        await asyncio.sleep(1.0)
        assert database.marks == 1
        await write(sync=False)
        await asyncio.sleep(3600)
        assert database.marks == 1
        began_s = loop.time()
        while loop.time() < began_s + 10:
            await write()
        assert 9 <= database.marks - 1 <= 10
        await committer.close()
        marks = database.marks
        await asyncio.sleep(10)
        assert database.marks == marks

    run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entries_per_ledger_max", 0),
        ("entries_per_ledger_max", 2**31),
        ("ledger_bytes_max", 0),
        ("rollover_time_ms", 0),
        ("cache_bytes_max", -1),
        ("write_buffer_bytes", 1000),
        ("ack_flush_interval_ms", -1),
        ("compact_bytes_min", 0),
    ],
)
def test_a_bad_limit_is_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*, but is {value}"):
        ManagedLedgerConfig(**{name: value})
