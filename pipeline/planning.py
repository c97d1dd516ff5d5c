"""Decide which ledgers make a bucket, from nothing but how many delayed messages each ledger has.

The live tracker seals a bucket when it holds enough messages and the next ledger begins. That depends on the messages
before it, so it looks like work for one machine after all. But it needs only the counts, a few numbers per ledger
where a ledger has 50,000 messages: they are counted in parallel, planned here in one pass, and the buckets are then
built in parallel.

    ledger    1      2      3      4      6          rows_per_bucket_min = 50,000
    rows      30,000 30,000 50,000 20,000 10,000
    bucket    [----------]  [---]  [--------]        the last one is not full: see `last_bucket_rows_min`

Pure: no Spark, no clock, no storage.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from snapshot_storage.bucket_key import LedgerRange, bucket_key


class LedgerCount(NamedTuple):
    """How many delayed messages a ledger of a topic has."""

    topic: str
    ledger_id: int
    row_count: int


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """A bucket to be: ledgers in between that have no delayed message are not listed."""

    topic: str
    ledger_ids: tuple[int, ...]
    row_count: int

    @property
    def ledgers(self) -> LedgerRange:
        """The range that the bucket covers."""
        return LedgerRange(self.ledger_ids[0], self.ledger_ids[-1])

    @property
    def bucket_key(self) -> str:
        """The cursor property that will point to the bucket."""
        return bucket_key(*self.ledgers)


def plan_buckets(
    counts: Iterable[LedgerCount], *, rows_per_bucket_min: int, last_bucket_rows_min: int = 1
) -> list[PlannedBucket]:
    """Return the buckets of all topics, by topic and then by ledger.

    >>> counts = [LedgerCount("t", ledger, 30) for ledger in (1, 2, 3)]
    >>> [bucket.ledgers[:] for bucket in plan_buckets(counts, rows_per_bucket_min=50)]
    [(1, 2), (3, 3)]

    Args:
        counts: In any order; each ledger of a topic at most once.
        rows_per_bucket_min: A bucket ends with the ledger that brings it to this many rows, as live
            (`delayedDeliveryMinIndexCountPerBucket`). 1 makes a bucket of each ledger.
        last_bucket_rows_min: What is left of a topic becomes a bucket if it has this many rows
            (`delayedDeliveryMinIndexCountAtClose` is what a tracker does at close).
    """
    assert rows_per_bucket_min > 0
    assert last_bucket_rows_min > 0

    in_order = sorted(count for count in counts if count.row_count)
    return [
        bucket
        for _, of_topic in groupby(in_order, attrgetter("topic"))
        for bucket in _plan_topic(of_topic, rows_per_bucket_min, last_bucket_rows_min)
    ]


def _plan_topic(
    counts: Iterable[LedgerCount], rows_per_bucket_min: int, last_bucket_rows_min: int
) -> Iterator[PlannedBucket]:
    topic, ledger_ids, row_count = "", list[int](), 0
    for topic, ledger_id, rows in counts:
        assert not ledger_ids or ledger_id > ledger_ids[-1], f"ledger {ledger_id} of {topic} was counted twice"
        ledger_ids.append(ledger_id)
        row_count += rows
        if row_count >= rows_per_bucket_min:
            yield PlannedBucket(topic, tuple(ledger_ids), row_count)
            ledger_ids, row_count = [], 0
    if row_count >= last_bucket_rows_min:
        yield PlannedBucket(topic, tuple(ledger_ids), row_count)
