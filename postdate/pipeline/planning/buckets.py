"""Decide which rows make a bucket, from nothing but how many rows each ledger has for the index.

The live tracker seals a bucket when it holds enough messages and the next ledger begins, or when it is full. That
depends on the messages before it, so it looks like work for one machine after all. But it needs only the counts, a
few numbers per ledger where a ledger has 50,000 messages: they are counted in parallel, planned here in one pass, and
the buckets are then built in parallel.

    ledger    1      2      3      4      6          rows_per_bucket_min = 50,000
    rows      30,000 30,000 50,000 20,000 10,000
    bucket    [----------]  [---]  [--------]        the last one is not full: see `last_bucket_rows_min`

Pure: no Spark, no clock, no storage.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from snapshot_storage.bucket_key import LedgerRange
from tracker.bucket_properties import free_key


class LedgerCount(NamedTuple):
    """How many rows a ledger has for the index of one subscription."""

    topic: str
    cursor: str
    ledger_id: int
    row_count: int


class LedgerPiece(NamedTuple):
    """Consecutive rows of one ledger: `first` says how many of its rows for the index come before them."""

    ledger_id: int
    first: int
    row_count: int


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """A bucket to be: ledgers in between that have no rows are not listed."""

    topic: str
    cursor: str
    bucket_key: str
    """The cursor property that will point to the bucket; as live, wider than the rows if it was taken."""
    pieces: tuple[LedgerPiece, ...]
    number: int
    """Its place among the subscription's buckets, from 1."""

    @property
    def ledgers(self) -> LedgerRange:
        """The range of the rows' ledgers."""
        return LedgerRange(self.pieces[0].ledger_id, self.pieces[-1].ledger_id)

    @property
    def row_count(self) -> int:
        """How many rows it will have."""
        return sum(piece.row_count for piece in self.pieces)


def plan_buckets(
    counts: Iterable[LedgerCount],
    *,
    rows_per_bucket_min: int,
    rows_per_bucket_max: int | None = None,
    last_bucket_rows_min: int = 1,
) -> list[PlannedBucket]:
    """Return the buckets of all subscriptions, by topic, by cursor, and then by ledger.

    >>> counts = [LedgerCount("t", "c", ledger, 30) for ledger in (1, 2, 3)]
    >>> [bucket.ledgers[:] for bucket in plan_buckets(counts, rows_per_bucket_min=50)]
    [(1, 2), (3, 3)]

    Args:
        counts: In any order; each ledger of a subscription at most once.
        rows_per_bucket_min: A bucket ends with the ledger that brings it to this many rows, as live
            (`delayedDeliveryMinIndexCountPerBucket`). 1 makes a bucket of each ledger.
        rows_per_bucket_max: A bucket ends with this many rows even in the middle of a ledger, as live
            (`delayedDeliveryMaxIndexCountPerBucket`). None is no limit.
        last_bucket_rows_min: The last rows of a subscription become a bucket if there are so many
            (`delayedDeliveryMinIndexCountAtClose` is what a tracker does at close).
    """
    assert rows_per_bucket_min > 0
    assert rows_per_bucket_max is None or rows_per_bucket_max >= rows_per_bucket_min
    assert last_bucket_rows_min > 0

    in_order = sorted(count for count in counts if count.row_count)
    planned = []
    for (topic, cursor), of_cursor in groupby(in_order, lambda count: (count.topic, count.cursor)):
        keys: set[str] = set()
        cut = _cut(of_cursor, rows_per_bucket_min, rows_per_bucket_max, last_bucket_rows_min)
        for number, pieces in enumerate(cut, start=1):
            key = free_key(LedgerRange(pieces[0].ledger_id, pieces[-1].ledger_id), keys)
            keys.add(key)
            planned.append(PlannedBucket(topic, cursor, key, tuple(pieces), number))
    return planned


def _cut(
    counts: Iterable[LedgerCount], rows_min: int, rows_max: int | None, last_rows_min: int
) -> Iterator[list[LedgerPiece]]:
    """Give the pieces of each bucket, by the rule of `TrackerCore`."""
    pieces: list[LedgerPiece] = []
    room = rows_max
    row_count = 0
    for count in counts:
        assert not pieces or count.ledger_id > pieces[-1].ledger_id, f"{count} was counted twice"
        if row_count >= rows_min:
            yield pieces
            pieces, room, row_count = [], rows_max, 0
        first = 0
        while first < count.row_count:
            if room == 0:
                yield pieces
                pieces, room, row_count = [], rows_max, 0
            taken = count.row_count - first if room is None else min(room, count.row_count - first)
            pieces.append(LedgerPiece(count.ledger_id, first, taken))
            first += taken
            row_count += taken
            room = None if room is None else room - taken
    if row_count >= last_rows_min:
        yield pieces
