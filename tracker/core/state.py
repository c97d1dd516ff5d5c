"""All that a tracker's core knows, in one place, and what follows from it."""

import heapq
from collections.abc import Callable
from random import Random

import numpy as np
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.row_order import LATEST_MS, RowKey
from tracker.columns.row_queue import RowQueue
from tracker.config import UNLIMITED, TrackerConfig
from tracker.core.bucket import NO_BARRIER, NO_LEDGER, ImmutableBucket, LastMutableBucket, Phase
from tracker.core.lanes import Lane, RetryWait


class TrackerState:
    """Everything that one tracker's core knows."""

    def __init__(self, config: TrackerConfig, *, acknowledged_in: Callable[[int], BitMap], rng: Random) -> None:
        self.config = config
        self.acknowledged_in = acknowledged_in
        self.now_ms = -1
        """The time that was seen last."""
        self.lead_ms = 0 if config.is_deliver_at_time_strict else config.tick_time_ms
        """How early messages may be handed out: the tick, or 0 where times are strict."""
        self.first_ledger_id = NO_LEDGER
        """Ledgers below it are passed by the cursor."""
        self._tracked = PositionSet()
        self.gone = PositionSet()
        """Handed out or refused while a bucket that may name them too is RECOVERING: its head must not bring them."""
        self.to_read_again = PositionSet()
        """Were tracked, and lost their row with a snapshot: the log has them."""
        row_count_max = config.index_count_per_bucket_max
        if row_count_max == UNLIMITED:
            # The limit of rows without a snapshot holds for a ledger that never ends, too.
            row_count_max = max(config.index_count_per_bucket_min, config.unsealed_row_count_max)
        self.added = LastMutableBucket(row_count_max)
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
        self.reads = Lane((Phase.RECOVERING, Phase.SEALED), self.buckets, RetryWait(config, rng))
        writing = (Phase.SEALING, Phase.MERGING, Phase.DELETING)
        self.writes = Lane(writing, self.buckets, RetryWait(config, rng))
        self.cursor = Lane((Phase.NAMING, Phase.UNNAMING), self.buckets, RetryWait(config, rng))
        self.lanes = (self.reads, self.writes, self.cursor)
        self.lane_of = {phase: lane for lane in self.lanes for phase in lane.phases}
        """Where a bucket waits for the call of its phase."""
        self.merge_target = 0
        """The serial of the last merge's target."""
        self.merge_wait = RetryWait(config)
        """Before the next merge, after one that failed."""
        self.losses: list[tuple[str, str]] = []
        """Key and reason of buckets that were given up, for the log."""

    @property
    def tracked(self) -> PositionSet:
        """Whether a message is tracked: the truth for every question, the count, and hand-out."""
        added = self.added
        if added.bit_count < len(added.entry_ids):
            self._tracked.unite(added.ledger_id, BitMap(added.entry_ids[added.bit_count :]))
            added.bit_count = len(added.entry_ids)
        return self._tracked

    def added_rows(self) -> RowQueue:
        """Return the rows of the mutable bucket, with those of messages that were added one by one."""
        added = self.added
        if added.times:
            self._tracked.unite(added.ledger_id, BitMap(added.entry_ids[added.bit_count :]))
            ledger_ids = np.full(len(added.times), added.ledger_id)
            added.rows.push_rows(DelayedIndexes.of(added.times, ledger_ids, added.entry_ids))
            added.times, added.entry_ids, added.bit_count = [], [], 0
        added.room = 0
        return added.rows

    @property
    def queues(self) -> list[RowQueue]:
        """Every queue of rows in memory."""
        sealing = [bucket.rows for bucket in self.with_rows.values() if bucket.rows is not None]
        return [self.loaded, self.added_rows(), *sealing]

    @property
    def bucket_total(self) -> int:
        """How many buckets there are, with the mutable one."""
        return 1 + sum(bucket.is_served for bucket in self.buckets.values())

    def due_through_ms(self, now_ms: int, ahead_ms: int = 0) -> int:
        """Return the last time that counts as due, now or so long ahead of now."""
        return min(now_ms + self.lead_ms + ahead_ms, LATEST_MS)

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


def new_bucket(state: TrackerState, ledgers: LedgerRange, key: str, phase: Phase) -> ImmutableBucket:
    """Make a bucket and queue it for its call."""
    state.last_serial += 1
    bucket = state.buckets[state.last_serial] = ImmutableBucket(state.last_serial, ledgers, key, phase)
    if phase is Phase.RECOVERING:
        state.recovering[bucket.serial] = bucket
    state.keys.add(key)
    queue_call(state, bucket)
    return bucket


def move(state: TrackerState, bucket: ImmutableBucket, phase: Phase) -> None:
    """Move a bucket to a phase, whose call starts afresh; a call in flight counts no more."""
    state.recovering.pop(bucket.serial, None)
    if not state.recovering and state.gone:
        state.gone = PositionSet()
    bucket.phase, bucket.call, bucket.failures, bucket.is_unwanted = phase, None, 0, False
    bucket.wanted_since_ms = None
    queue_call(state, bucket)


def queue_call(state: TrackerState, bucket: ImmutableBucket) -> None:
    """Queue a bucket for its next call, and hold up hand-out at its barrier; one that is loaded just waits to end."""
    state.waived.discard(bucket.serial)
    bucket.update_barrier()
    if bucket.barrier != NO_BARRIER:
        heapq.heappush(state.ahead, (bucket.barrier, bucket.serial))
    elif bucket.phase is Phase.SEALED:
        assert bucket.table is not None
        last_ms = int(bucket.table.last_times[-1]) if len(bucket.table) else -1
        heapq.heappush(state.ending, (last_ms, bucket.serial))
        return
    state.lane_of[bucket.phase].want(bucket)
