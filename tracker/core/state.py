"""All that a tracker's core knows, in one place, and what follows from it."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.bucket_properties import free_key_or_none
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import LATEST_MS, RowKey
from tracker.columns.row_queue import RowQueue
from tracker.columns.segment_table import segment_row_count_max
from tracker.config import UNLIMITED, TrackerConfig
from tracker.core.actions import ListSnapshots
from tracker.core.bucket import AT_ONCE, NO_LEDGER, ImmutableBucket, LastMutableBucket, Phase
from tracker.core.lanes import Lane


@dataclass(slots=True)
class OrphanSearch:
    """The search for snapshots that no property names, once in a tracker's life."""

    is_wanted: bool = False
    call: ListSnapshots | None = None
    failures: int = 0
    at_ms: int = -1
    """Not before then."""
    malformed_ids: frozenset[int] = frozenset()
    """Snapshots that malformed properties seem to name; they are never deleted."""


@dataclass(slots=True)
class Merging:
    """The merge that is under way, and when the next may be."""

    target: int = 0
    """The serial of the last merge's target."""
    failures: int = 0
    at_ms: int = -1


class TrackerState:
    """Everything that one tracker's core knows.

    Args:
        config: How buckets are sealed, cut, loaded and merged.
        acknowledged_in: Gives the acknowledged entries of a ledger.
        rng: For the jitter of retries.
    """

    def __init__(self, config: TrackerConfig, *, acknowledged_in: Callable[[int], BitMap], rng: Random) -> None:
        self.config = config
        self.acknowledged_in = acknowledged_in
        self.now_ms = -1
        """The time that was seen last."""
        self.lead_ms = 0
        """How early rows count as due."""
        self.first_ledger_id = NO_LEDGER
        """Ledgers below it are passed by the cursor."""
        self.tracked = PositionSet()
        """Whether a message is tracked: the truth for every question, the count, and hand-out."""
        self.gone = PositionSet()
        """Handed out or refused while a bucket that may name them too is RECOVERING: its head must not bring them."""
        self.to_read_again = PositionSet()
        """Were tracked, and lost their row with a snapshot: the log has them."""
        self.added = LastMutableBucket(row_count_max(config))
        self.loaded = RowQueue()
        """Rows of segments, and what stayed of sealed buckets."""
        self.rows_in_flight = 0
        """How many rows the loads in flight bring."""
        self.buckets: dict[int, ImmutableBucket] = {}
        """Every bucket that is not gone, by serial."""
        self.recovering: dict[int, ImmutableBucket] = {}
        """Those that are RECOVERING."""
        self.with_rows: dict[int, ImmutableBucket] = {}
        """Those whose rows are in memory."""
        self.last_serial = 0
        self.keys: set[str] = set()
        """The property keys that no new bucket may have."""
        self.ahead: list[tuple[RowKey, int]] = []
        """A heap of barriers and serials: how far hand-out may go. An entry that is not its bucket's barrier is old."""
        self.waived: set[int] = set()
        """Buckets that hold up nothing, as they could not be read for so long."""
        self.ending: list[tuple[int, int]] = []
        """A heap of buckets that are loaded: when the last row is due, and the serial."""
        self.reads, self.writes, self.cursor = (Lane(config, rng) for _ in range(3))
        self.merging = Merging()
        self.orphans = OrphanSearch()
        self.losses: list[tuple[str, str]] = []
        """Key and reason of buckets that were given up, for the log."""

    @property
    def lanes(self) -> tuple[Lane, Lane, Lane]:
        """All lanes."""
        return self.reads, self.writes, self.cursor

    @property
    def queues(self) -> list[RowQueue]:
        """Every queue of rows in memory."""
        sealing = [bucket.rows for bucket in self.with_rows.values() if bucket.rows is not None]
        return [self.loaded, self.added.queue(), *sealing]

    @property
    def unsealed_row_count(self) -> int:
        """How many rows are in memory because their snapshot is not durable, beside the mutable bucket's."""
        return sum(len(bucket.rows) for bucket in self.with_rows.values() if bucket.rows is not None)

    def due_through_ms(self, now_ms: int, ahead_ms: int = 0) -> int:
        """Return the last time that counts as due, now or so long ahead of now."""
        return min(now_ms + self.lead_ms + ahead_ms, LATEST_MS)

    def next_row_deliver_at_ms(self) -> int:
        """Return when the next row in memory is due, `NEVER` if there is none; some may not be tracked any more."""
        return min(queue.next_deliver_at_ms for queue in self.queues)

    def is_recovering(self, ledger_id: int) -> bool:
        """Whether a bucket of which nothing is known yet may name positions of a ledger."""
        covers = (bucket.ledgers for bucket in self.recovering.values())
        return any(first <= ledger_id <= last for first, last in covers)

    def tracked_ledgers(self, ledgers: LedgerRange) -> list[int]:
        """Return the ledgers of a range in which something is tracked."""
        first, last = ledgers
        bitmaps = self.tracked.bitmaps
        if last - first < len(bitmaps):
            return [ledger_id for ledger_id in range(first, last + 1) if ledger_id in bitmaps]
        return [ledger_id for ledger_id in bitmaps if first <= ledger_id <= last]

    def tracked_in(self, ledgers: LedgerRange) -> dict[int, BitMap]:
        """Return copies of the bitmaps of a range of ledgers."""
        return {ledger_id: self.tracked.bitmaps[ledger_id].copy() for ledger_id in self.tracked_ledgers(ledgers)}

    def lane_of(self, phase: Phase) -> Lane:
        """Return where a bucket waits for the call of its phase."""
        match phase:
            case Phase.RECOVERING | Phase.SEALED:
                return self.reads
            case Phase.NAMING | Phase.UNNAMING:
                return self.cursor
            case _:
                return self.writes


def row_count_max(config: TrackerConfig) -> int:
    """Return how many rows the mutable bucket may have."""
    if config.index_count_per_bucket_max != UNLIMITED:
        return config.index_count_per_bucket_max
    # The limit of rows without a snapshot holds for a ledger that never ends, too.
    return max(config.index_count_per_bucket_min, config.unsealed_row_count_max)


def free_name(state: TrackerState, ledgers: LedgerRange) -> str | None:
    """Return a property key for a range that no other bucket has, None where all are taken."""
    return free_key_or_none(ledgers, state.keys)


def rows_a_segment(state: TrackerState, buckets_more: int) -> int:
    """Return how many rows a segment of a snapshot may have, where there are so many buckets more with it."""
    served_count = sum(bucket.is_served for bucket in state.buckets.values())
    return segment_row_count_max(state.config.segment_row_count_max, served_count + buckets_more)


def new_bucket(state: TrackerState, ledgers: LedgerRange, key: str, phase: Phase) -> ImmutableBucket:
    """Make a bucket and queue it for its call."""
    state.last_serial += 1
    bucket = state.buckets[state.last_serial] = ImmutableBucket(state.last_serial, ledgers, key, phase)
    if phase is Phase.RECOVERING:
        state.recovering[bucket.serial] = bucket
    state.keys.add(key)
    want_call(state, bucket)
    return bucket


def want_call(state: TrackerState, bucket: ImmutableBucket) -> None:
    """Queue a bucket for the call of its phase."""
    key = bucket.barrier if bucket.phase is Phase.SEALED else AT_ONCE
    state.lane_of(bucket.phase).want(bucket.serial, key, bucket.failures)


def move(state: TrackerState, bucket: ImmutableBucket, phase: Phase) -> None:
    """Move a bucket to a phase, whose call starts afresh; a call in flight counts no more."""
    state.recovering.pop(bucket.serial, None)
    bucket.phase, bucket.call, bucket.failures, bucket.is_unwanted = phase, None, 0, False
    bucket.wanted_since_ms = None
    if phase is Phase.SEALED:
        progressed(state, bucket)
    else:
        want_call(state, bucket)


def progressed(state: TrackerState, bucket: ImmutableBucket) -> None:
    """Let a bucket hold up hand-out at its barrier as it is now, or end when all of it is loaded."""
    state.waived.discard(bucket.serial)
    if bucket.holds_up:
        heapq.heappush(state.ahead, (bucket.barrier, bucket.serial))
        if bucket.phase is Phase.SEALED:
            want_call(state, bucket)
    elif bucket.phase is Phase.SEALED:
        heapq.heappush(state.ending, (bucket.last_ms, bucket.serial))
