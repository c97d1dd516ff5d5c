"""Reads blocks of headers and payloads: from memory where they are, else from RocksDB in one hop to a thread.

Entries in the cache are served without suspending the caller, so a consumer at the tail of the log never waits for a
thread. Other entries are collected first, over all ledgers of a call, and read together. Where that fails, they are
read value by value, so that the answer says which of them cannot be read, and why.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from managed_ledger.disk import keys
from managed_ledger.disk.database import Database
from managed_ledger.disk.keys import Family
from managed_ledger.entries.blocks import (
    HEADER_BLOCK_ROWS,
    JOINED_ENTRIES_MAX,
    JOINED_PAYLOAD_BYTES,
    HeaderBlock,
    PayloadBlock,
    payload_count,
    row_count,
    rows_at,
    stored_payloads,
)
from managed_ledger.entries.headers import Rows
from managed_ledger.errors import LedgerError, StoreClosedError, StoreCorruptedError
from managed_ledger.reading.block_cache import BlockCache, CachedBlock
from managed_ledger.reading.shared_calls import SharedCalls
from managed_ledger.rocksdb_store.store import RowIterator

Block = TypeVar("Block", bound=CachedBlock)
T = TypeVar("T")

VALUE_ENTRIES_MAX: Final = HEADER_BLOCK_ROWS
"""Most entries of a value; those of payloads have fewer, as no entry of a client is shorter than 16 bytes."""


class Need(NamedTuple):
    """Entries of one ledger that a reader asks for, ascending and without duplicates."""

    ledger_id: int
    entry_ids: NDArray[np.int64]


class Kind(NamedTuple, Generic[Block]):
    """A kind of stored blocks."""

    family: Family
    count: Callable[[bytes], int]
    """The number of entries in a stored value."""
    make: Callable[[int, Sequence[bytes]], Block]
    """Makes one block, given its first entry, of stored values in a row."""


HEADERS: Final = Kind(Family.HEADERS, row_count, lambda first, values: HeaderBlock(first, b"".join(values)))
PAYLOADS: Final = Kind(Family.PAYLOADS, payload_count, stored_payloads)


class Covered(NamedTuple, Generic[Block]):
    """The blocks that a read found of a need."""

    blocks: list[Block]
    """Ascending; with `unread` they cover the need."""
    unread: Mapping[int, LedgerError | None] = MappingProxyType({})
    """The other entries, with the error of each; None where the log has none."""


class Unread(NamedTuple):
    """A need that could not be read whole."""

    errors: Mapping[int, LedgerError | None]
    """The entries that were not read, with the error of each; None where the log has none."""


class LogReader:
    """The caches of a store, and the reads of missing blocks; belongs to one event loop."""

    def __init__(self, database: Database, calls: SharedCalls, cache_bytes_max: int) -> None:
        self.headers: BlockCache[HeaderBlock] = BlockCache(cache_bytes_max // 4)
        self.payloads: BlockCache[PayloadBlock] = BlockCache(cache_bytes_max - cache_bytes_max // 4)
        self._database = database
        self._calls = calls

    async def read_rows(self, needs: Sequence[Need]) -> list[Rows | Unread]:
        """Header rows, per need."""
        covered = await self._cover(self.headers, HEADERS, needs)
        return [
            Unread(unread) if unread else rows_at(blocks, need.entry_ids)
            for need, (blocks, unread) in zip(needs, covered, strict=True)
        ]

    def cached_payloads(
        self, ledger_ids: Sequence[int], entry_ids: Sequence[int]
    ) -> tuple[list[bytes | None], list[int]]:
        """Payloads that are in memory, in the order given, and the indices of the others."""
        payloads: list[bytes | None] = []
        missing = []
        block: PayloadBlock | None = None
        known_id = -1
        for index, (ledger_id, entry_id) in enumerate(zip(ledger_ids, entry_ids, strict=True)):
            if block is None or ledger_id != known_id or not block.first <= entry_id < block.end:
                block, known_id = self.payloads.find(ledger_id, entry_id), ledger_id
            payloads.append(None if block is None else block.payload(entry_id))
            if block is None:
                missing.append(index)
        return payloads, missing

    async def read_payloads(self, needs: Sequence[Need]) -> list[dict[int, bytes] | Unread]:
        """Payloads by entry id, per need."""
        covered = await self._cover(self.payloads, PAYLOADS, needs)
        return [
            Unread(unread) if unread else _payloads_at(blocks, need.entry_ids.tolist())
            for need, (blocks, unread) in zip(needs, covered, strict=True)
        ]

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget a trimmed ledger."""
        self.headers.drop_ledger(ledger_id)
        self.payloads.drop_ledger(ledger_id)

    async def _cover(self, cache: BlockCache[Block], kind: Kind[Block], needs: Sequence[Need]) -> list[Covered[Block]]:
        covered: list[Covered[Block]] = []
        misses: list[Need] = []
        missed: list[int] = []
        for index, need in enumerate(needs):
            blocks, missing = _cached(cache, need)
            covered.append(Covered(blocks))
            if len(missing):
                missed.append(index)
                misses.append(Need(need.ledger_id, missing))
        if not misses:
            return covered

        read = await self._calls.run(partial(read_blocks, self._database, kind, misses))
        # A scan of much more than the cache holds would only push out what others use.
        keep = sum(block.cost for found in read for block in found.blocks) <= cache.bytes_max // 4
        for index, need, found in zip(missed, misses, read, strict=True):
            if keep:
                for block in found.blocks:
                    cache.add(need.ledger_id, block)
            blocks = sorted([*covered[index].blocks, *found.blocks], key=attrgetter("first"))
            covered[index] = Covered(blocks, found.unread)
        return covered


def read_blocks(database: Database, kind: Kind[Block], needs: Iterable[Need]) -> list[Covered[Block]]:
    """Read the blocks that cover the needs, per need."""
    return [_read_need(database, kind, need) for need in needs]


def _read_need(database: Database, kind: Kind[Block], need: Need) -> Covered[Block]:
    try:
        blocks = _read_run(database, kind, need) or _read_parts(database, kind, need)
    except StoreClosedError:
        raise
    except LedgerError:
        blocks = None
    return Covered(blocks) if blocks is not None else _read_each(database, kind, need)


def _read_run(database: Database, kind: Kind[Block], need: Need) -> list[Block] | None:
    """Read a need without gaps that begins where a value does; None for any other, and where a value is missing.

    PERFORMANCE: after a restart each value may be one entry, of a hundred that are read. `_read_parts` takes three
    times as long, in a thread that holds the interpreter meanwhile.
    """
    ledger_id, entry_ids = need
    first, last = int(entry_ids[0]), int(entry_ids[-1])
    if last - first + 1 != len(entry_ids):
        return None
    rows = database.listed(kind.family, keys.block_key(ledger_id, first), keys.block_key(ledger_id, last + 1))
    values = [value for _, value in rows]
    firsts = list(accumulate(map(kind.count, values), initial=first))
    wanted = list(map(keys.block_key, repeat(ledger_id), firsts[:-1]))
    return _joined(kind, firsts, values) if firsts[-1] > last and wanted == [key for key, _ in rows] else None


def _joined(kind: Kind[Block], firsts: Sequence[int], values: Sequence[bytes]) -> list[Block]:
    """Make blocks of neighbours, small ones together; `firsts` has their first entries and, last, where they end."""
    found: list[Block] = []
    begin = size = 0
    for index, value in enumerate(values):
        size += len(value)
        if begin < index and (firsts[index + 1] - firsts[begin] > JOINED_ENTRIES_MAX or size > JOINED_PAYLOAD_BYTES):
            found.append(kind.make(firsts[begin], values[begin:index]))
            begin, size = index, len(value)
    found.append(kind.make(firsts[begin], values[begin:]))
    return found


def _read_each(database: Database, kind: Kind[Block], need: Need) -> Covered[Block]:
    """Read a need value by value, so that what cannot be read takes as little else with it as RocksDB allows.

    A value is asked for by its key: RocksDB then looks into the newest table first, and into no other one once it has
    found it. A search for the value before a place asks all tables, and fails if one is damaged near that place.
    """
    ledger_id, entry_ids = need
    found: list[Block] = []
    unread: dict[int, LedgerError | None] = {}
    end = 0
    for entry_id in entry_ids.tolist():
        if entry_id < end:
            continue
        value, error = _tried(lambda key: database.get(kind.family, key), keys.block_key(ledger_id, entry_id))
        first = entry_id
        if value is None and entry_id - 1 in unread:
            # Only a value of its own could hold it without the entry before it.
            error = error or unread[entry_id - 1]
        elif value is None:
            first, value, error = _value_around(database, kind, ledger_id, entry_id, end)
        if value is None:
            unread[entry_id] = error
            continue
        found.append(kind.make(first, [value]))
        end = found[-1].end
    return Covered(found, unread)


def _value_around(
    database: Database, kind: Kind[Block], ledger_id: int, entry_id: int, known_end: int
) -> tuple[int, bytes | None, LedgerError | None]:
    """Return the value that has an entry behind its first one, with that; or no value, and why."""

    def before(key: bytes) -> tuple[int, bytes] | None:
        with database.rows(kind.family) as rows:
            rows.seek_for_prev(key)
            return _value_here(rows, kind, ledger_id, entry_id)

    value, error = _tried(before, keys.block_key(ledger_id, entry_id))
    if value is not None:
        return (*value, None)
    if isinstance(error, StoreCorruptedError):
        for first in range(entry_id - 1, max(known_end, entry_id - VALUE_ENTRIES_MAX) - 1, -1):
            stored, _ = _tried(lambda key: database.get(kind.family, key), keys.block_key(ledger_id, first))
            if stored is not None:
                is_there = entry_id < first + kind.count(stored)
                return first, stored if is_there else None, error
    return entry_id, None, error


def _tried(read: Callable[[bytes], T | None], key: bytes) -> tuple[T | None, LedgerError | None]:
    """Return what a read gives, or its error."""
    try:
        return read(key), None
    except LedgerError as error:
        # A traceback keeps the iterator of rows, which keeps the folder locked.
        return None, error.with_traceback(None)


def _value_here(rows: RowIterator, kind: Kind[Block], ledger_id: int, entry_id: int) -> tuple[int, bytes] | None:
    if not rows.valid():
        return None
    block_ledger_id, first = keys.pair.unpack(rows.key())
    value = rows.value()
    return (first, value) if block_ledger_id == ledger_id and first <= entry_id < first + kind.count(value) else None


def _read_parts(database: Database, kind: Kind[Block], need: Need) -> list[Block] | None:
    with database.rows(kind.family) as rows:
        return _read_values(rows, kind, need)


def _read_values(rows: RowIterator, kind: Kind[Block], need: Need) -> list[Block] | None:
    """Go from value to value, neighbours by the next row, others by a seek; small neighbours become one block."""
    found: list[Block] = []
    firsts: list[int] = []
    values: list[bytes] = []
    """Neighbours that are not in blocks yet."""
    end = -1
    ledger_id, entry_ids = need
    index = 0
    while index < len(entry_ids):
        entry_id = int(entry_ids[index])
        is_next = end == entry_id
        if is_next:
            rows.next()
        if not is_next or not rows.valid():
            rows.seek_for_prev(keys.block_key(ledger_id, entry_id))
        if not rows.valid():
            return None
        block_ledger_id, first = keys.pair.unpack(rows.key())
        value = rows.value()
        count = kind.count(value)
        if block_ledger_id != ledger_id or not first <= entry_id < first + count:
            return None
        if first != end and values:
            found += _joined(kind, [*firsts, end], values)
            firsts, values = [], []
        firsts.append(first)
        values.append(value)
        end = first + count
        index = _index_after(entry_ids, index, end)
    return found + _joined(kind, [*firsts, end], values)


def _index_after(entry_ids: NDArray[np.int64], index: int, end: int) -> int:
    """Index of the first entry at or behind `end`, from an index before it.

    >>> _index_after(np.array([3, 4, 5, 9]), 0, 5), _index_after(np.array([3, 4, 5, 9]), 1, 9)
    (2, 3)
    """
    # Usually there is no gap, and the distance of the ids is that of the places.
    straight = index + end - int(entry_ids[index])
    if straight >= len(entry_ids):
        straight = len(entry_ids)
        if entry_ids[-1] < end:
            return straight
    elif entry_ids[straight] == end:
        return straight
    return index + int(np.searchsorted(entry_ids[index:], end))


def _cached(cache: BlockCache[Block], need: Need) -> tuple[list[Block], NDArray[np.int64]]:
    """Return the entries of a need that are in memory, and the ids of those that are not."""
    ledger_id, entry_ids = need
    found: list[Block] = []
    missing: list[NDArray[np.int64]] = []
    index = 0
    while index < len(entry_ids):
        entry_id = int(entry_ids[index])
        block = cache.find(ledger_id, entry_id)
        if block is not None:
            found.append(block)
            index = _index_after(entry_ids, index, block.end)
            continue
        following = cache.next_first(ledger_id, entry_id)
        start = index
        index = len(entry_ids) if following is None else _index_after(entry_ids, index, following)
        missing.append(entry_ids[start:index])
    return found, np.concatenate(missing) if missing else _NOTHING


def _payloads_at(blocks: Sequence[PayloadBlock], entry_ids: Iterable[int]) -> dict[int, bytes]:
    """Payloads of ascending entries in ascending blocks that cover them."""
    payloads: dict[int, bytes] = {}
    following = iter(blocks)
    block = next(following)
    for entry_id in entry_ids:
        while entry_id >= block.end:
            block = next(following)
        payloads[entry_id] = block.payload(entry_id)
    return payloads


_NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)
