"""The immutable buckets of a tracker: how they come and go, and how far hand-out may go.

Everything that may be started follows from the buckets' states: `bucket_plan` looks at them and gives actions,
`bucket_events` takes the answers. So a retry is nothing special (the state still wants its action), and no chain of
callbacks has to survive a failure.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.bucket_properties import SnapshotProperty
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.row_queue import NEVER, RowKey, last_key_at
from tracker.config import UNLIMITED, TrackerConfig
from tracker.core.actions import ListSnapshots
from tracker.core.bucket import NOT_SERVED, Bucket, BucketState, free_key
from tracker.core.circuit_breakers import Lanes
from tracker.core.frontier import Frontier
from tracker.core.holding import Holding
from tracker.core.index import Index
from tracker.core.loads import Loads
from tracker.core.overlaps import Doubts
from tracker.core.position_cache import Questions
from tracker.core.retry import Retry

_STATE_IS_IDLE = frozenset({BucketState.SEALED, BucketState.GONE})


class BucketSet:
    """Decides for all buckets; `lead_ms` is how early rows count as due."""

    def __init__(self, config: TrackerConfig, index: Index, rng: Random, *, keeps_positions: bool) -> None:
        self.config = config
        self.index = index
        self.rng = rng
        self.lanes = Lanes(config, rng)
        self.buckets: dict[int, Bucket] = {}
        """Every bucket that is not gone, by serial."""
        self.ranges = LedgerRanges()
        """The ranges of the buckets that count, by serial."""
        self.doubts = Doubts(index)
        self.questions = Questions(keeps_all=keeps_positions)
        self.frontier = Frontier(self.buckets, self._waived_at_ms)
        self.loads = Loads(self.buckets, self.lanes.loads)
        self.ending: list[tuple[int, int]] = []
        """Of sealed buckets whose rows are all in memory, a heap of when the last one is due, and the serial."""
        self.lead_ms = 0
        self.is_dirty = False
        """Whether `plan` may have something to do."""
        self.untracked: dict[int, BitMap] = {}
        """What a lost bucket tracked, until someone takes it over for reading it again."""
        self.untracked_ranges: list[LedgerRange] = []
        """The ranges of lost buckets of which that is not known, likewise."""
        self.losses: list[tuple[str, str]] = []
        """Key and reason of buckets that were given up, until someone reports them."""
        self.is_merge_wanted = True
        """Whether a merge may be due that was not when it was last looked."""
        self.merge_target: Bucket | None = None
        """What was merged last, or is being merged: then it has sources."""
        self.merges_planned: list[list[int]] = []
        """The serials of buckets that are to be merged after those, where many merges were decided on together."""
        self.merge_retry = Retry()
        self.is_sweep_wanted = False
        self.late_sweep_at_ms = NEVER
        """When to look again for snapshots without a property: a create that failed may take effect until then."""
        self.sweep: ListSnapshots | None = None
        self.sweep_retry = Retry()
        self.foreign_ids: frozenset[int] = frozenset()
        self.keys: set[str] = set()
        """The property keys that no new bucket may have."""
        self._serial = 0
        self._last_now_ms = -1
        self.quiet_until_ms = -1
        """Before this time, only something that makes it dirty gives `plan` anything to do."""
        self.next_load_ms = NEVER
        self.next_exhaustion_ms = NEVER
        self._has_room_below = 0
        self._blocked_at: RowKey | None = None
        self._barrier: RowKey | None = None
        self._barrier_until_ms = NEVER
        self._unread_count: int | None = None
        self._held_rows: dict[int, int] = {}

    # What the rest of the core asks.

    def due_through_ms(self, now_ms: int, ahead_ms: int = 0) -> int:
        """Return the last time that counts as due, now or so long ahead of now."""
        return min(now_ms + self.lead_ms + ahead_ms, NEVER - 1)

    def served(self) -> Iterator[Bucket]:
        """Yield the buckets that count: all but those that are being deleted, and merges that are not done."""
        return (
            bucket
            for bucket in self.buckets.values()
            if bucket.state not in NOT_SERVED and not bucket.sources and not bucket.is_doomed
        )

    def covering(self, ledger_id: int) -> list[Bucket]:
        """Return the buckets that count and whose range holds a ledger."""
        return [self.buckets[serial] for serial in self.ranges.covering(ledger_id)]

    def is_recovering(self, ledger_id: int) -> bool:
        """Whether it is not known which positions of a ledger are tracked; asking makes it known before long."""
        # All of them are asked, whatever the first one says.
        are_known = [self._ask(bucket) for bucket in self.covering(ledger_id)]
        return not all(are_known)

    def bitmaps_of(self, ledger_id: int) -> list[BitMap]:
        """Return the positions of a ledger in segments that are not loaded, as far as they are known, and ask."""
        known = self._known_of(ledger_id)
        settled = self.index.settled.get(ledger_id)
        if settled is None:
            return known
        return [left for bitmap in known if (left := bitmap - settled)]

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is in a segment that is not loaded, as far as that is known, and ask."""
        for bitmap in self._known_of(ledger_id):
            if entry_id in bitmap:
                settled = self.index.settled.get(ledger_id)
                return settled is None or entry_id not in settled
        return False

    def _known_of(self, ledger_id: int) -> list[BitMap]:
        """Return what is known of a ledger's positions in segments that are not loaded, and ask for the rest."""
        bitmaps: list[BitMap] = []
        for serial in self.ranges.covering(ledger_id):
            bucket = self.buckets[serial]
            known = bucket.unread.known
            if known is not None:
                bucket.unread.is_asked = True
                if ledger_id in known.bitmaps:
                    bitmaps.append(known.bitmaps[ledger_id])
            elif not self.questions.is_wanted(serial):
                self._ask(bucket)
        return bitmaps

    def known_ledger_ids(self) -> set[int]:
        """Return the ledgers of which segments that are not loaded are known to hold a position."""
        known = (bucket.unread.known for bucket in self.questions.warm.values())
        return {ledger_id for members in known if members is not None for ledger_id in members.bitmaps}

    def _ask(self, bucket: Bucket) -> bool:
        is_known = self.questions.ask(bucket)
        self.is_dirty = self.is_dirty or not is_known
        return is_known

    @property
    def unread_count(self) -> int:
        """How many messages are in segments that are not loaded."""
        if self._unread_count is None:
            self._unread_count = sum(bucket.unread.count for bucket in self.buckets.values())
        return self._unread_count

    def unread_count_through(self, time_ms: int) -> int:
        """Return how many messages are in segments that are not loaded and end by a time."""
        return sum(bucket.unread_count_through(time_ms) for bucket in self.buckets.values() if bucket.unread.count)

    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget positions in segments that are not loaded; where they are not known, their bitmaps are read first."""
        for bucket in self.covering(ledger_id):
            if bucket.unread.known is not None:
                bucket.unread.discard(ledger_id, entry_ids)
            elif bucket.unread.count:
                self._ask(bucket)
        self._unread_count = None

    @property
    def unsealed_row_count(self) -> int:
        """How many rows are in memory because their snapshot is not durable."""
        return self.index.residents.row_count

    @property
    def held_row_count(self) -> int:
        """How many rows came with a bucket's metadata and are not loaded yet."""
        return sum(self._held_rows.values())

    def hold_first_segments(self, bucket: Bucket, segments: Sequence[bytes]) -> None:
        """Keep segments that came with the metadata, until they are loaded."""
        assert bucket.table is not None
        if segments:
            bucket.first_segments = segments
            self._held_rows[bucket.serial] = bucket.table.rows_before(bucket.table.spans_of(len(segments)))

    def drop_first_segments(self, bucket: Bucket) -> Sequence[bytes]:
        """Return what was kept, and keep it no longer."""
        segments, bucket.first_segments = bucket.first_segments, ()
        self._held_rows.pop(bucket.serial, None)
        return segments

    # Entry points: buckets come, buckets go.

    def seal(self, ledgers: LedgerRange, rows: Holding) -> None:
        """Make a bucket of the mutable bucket's rows; they are served from memory until it is durable."""
        bucket = self.new_bucket(ledgers, free_key(ledgers, self.keys), BucketState.SEALING)
        if len(rows.queue) != rows.members.count:
            # A position was added twice, or refused: not every row is one to be stored.
            bucket.tracked_parts = rows.members.copy()
        bucket.parts = rows.queue.rows_of()
        bucket.resident = rows
        rows.is_popped = False
        if self.index.settled:
            self.index.unsettle(rows.members)
        if rows.members.common_count(self.index.shared.members):
            self.doubts.mark(bucket)
        self.index.residents.append(rows)

    def recover(self, properties: Iterable[SnapshotProperty], foreign_ids: Iterable[int], now_ms: int) -> None:
        """Begin to recover the buckets that the cursor's properties name."""
        self.foreign_ids = frozenset(foreign_ids)
        ids: set[int] = set()
        for named in properties:
            # Two keys for one snapshot: one of them owns it, and the other one names nothing of its own.
            is_second = named.bucket_id in ids
            ids.add(named.bucket_id)
            state = BucketState.UNREGISTERING if is_second else BucketState.RECOVERING
            bucket = self.new_bucket(named.ledgers, named.key, state)
            bucket.bucket_id = named.bucket_id
            bucket.has_property = True
            bucket.needed_since_ms = now_ms
            self.frontier.note(bucket)
            if bucket.ledgers.last_ledger_id < self.index.first_ledger_id:
                self.remove(bucket)
        self.is_sweep_wanted = True
        self.is_dirty = True

    def trim(self) -> None:
        """Remove the buckets whose ledgers the cursor is past."""
        for bucket in list(self.buckets.values()):
            if bucket.ledgers.last_ledger_id < self.index.first_ledger_id:
                self.remove(bucket)
            elif bucket.ledgers.first_ledger_id < self.index.first_ledger_id:
                bucket.unread.trim(self.index.first_ledger_id)
                self._unread_count = None
                # How many messages are left is in its bitmaps alone.
                self._ask(bucket)

    def clear(self) -> None:
        """Remove every bucket."""
        for bucket in list(self.buckets.values()):
            self.remove(bucket)
        self.untracked.clear()
        self.untracked_ranges.clear()

    def remove(self, bucket: Bucket) -> None:
        """Stop serving a bucket and delete what is stored of it, now or when its action in flight is over."""
        self.changed()
        if bucket.state in NOT_SERVED:
            return
        if bucket.merging_into is not None:
            self.remove(self.buckets[bucket.merging_into])
        self.unpin(bucket)
        if bucket.resident is not None and bucket.resident in self.index.residents:
            self.index.residents.remove(bucket.resident)
        bucket.resident = None
        bucket.load = None
        for listener in (self.frontier, self.loads, self.questions):
            listener.forget(bucket.serial)
        self.doubts.note(bucket)
        self.drop_first_segments(bucket)
        bucket.unread.forget()
        self.ranges.discard(bucket.serial, bucket.ledgers)
        if bucket.state in (BucketState.SEALING, BucketState.MERGING, BucketState.REGISTERING) and bucket.work:
            bucket.is_doomed = True
            return
        if bucket.bucket_id is None:
            self.move(bucket, BucketState.UNREGISTERING if bucket.has_property else BucketState.GONE)
            return
        self.move(bucket, BucketState.DELETING)

    def unpin(self, target: Bucket) -> None:
        """Let the sources of a merge go on by themselves."""
        for serial in target.sources:
            source = self.buckets.get(serial)
            if source is not None:
                source.merging_into = None
        target.sources = ()
        self.is_merge_wanted = True

    def delete_orphan(self, bucket_id: int) -> None:
        """Delete a snapshot that no property names."""
        bucket = self.new_bucket(LedgerRange(0, 0), "", BucketState.DELETING)
        bucket.bucket_id = bucket_id

    def new_bucket(self, ledgers: LedgerRange, key: str, state: BucketState) -> Bucket:
        """Make a bucket in a state; its action is planned next."""
        self._serial += 1
        bucket = Bucket(self._serial, ledgers, key, state)
        self.buckets[bucket.serial] = bucket
        if _owns_key(bucket):
            self.keys.add(key)
        self._join_lane(bucket)
        self.changed()
        if state in (BucketState.SEALING, BucketState.RECOVERING):
            self.serve(bucket)
        return bucket

    def serve(self, bucket: Bucket) -> None:
        """Let a bucket count; where its range overlaps another's, one position may be in both."""
        others = [self.buckets[serial] for serial in self.ranges.overlapping(bucket.ledgers)]
        if others:
            self.doubts.mark_all((bucket, *others))
        self.ranges.add(bucket.serial, bucket.ledgers)

    def changed(self) -> None:
        """Note that `plan` and the barrier have to look again."""
        self.is_dirty = True
        self._barrier = None
        self._unread_count = None

    def note_time(self, now_ms: int) -> None:
        """Note what time it is; when the clock was put back, what waits for a time it has left waits no longer."""
        if now_ms < self._last_now_ms:
            self.merge_retry.at_ms = self.sweep_retry.at_ms = -1
            self.late_sweep_at_ms = min(self.late_sweep_at_ms, now_ms + self.config.operation_timeout_ms)
            for lane in self.lanes.all:
                lane.forget_wait()
            self.questions.forget_wait()
            for bucket in self.buckets.values():
                bucket.forget_waits(now_ms)
            self.frontier.note_waits_forgotten()
            self.loads.note_waits_forgotten()
            self.changed()
        self._last_now_ms = now_ms

    def note_needed(self, bucket: Bucket, now_ms: int) -> None:
        """Note that a bucket's next segment is wanted; from now on it counts how long others wait for it."""
        if bucket.needed_since_ms is None:
            bucket.needed_since_ms = now_ms
            self._barrier = None

    def note_outage_over(self, now_ms: int) -> None:
        """Try at once what waited for another try, all of it, and let what is due wait for it again.

        One bucket after the other, each when its own pause is over, would be handed out in that order.
        """
        for lane in self.lanes.all:
            lane.forget_wait()
        for bucket in self.buckets.values():
            bucket.forget_waits(now_ms)
            if bucket.needed_since_ms is not None:
                bucket.needed_since_ms = now_ms
        self.frontier.note_waits_forgotten()
        self.loads.note_waits_forgotten()
        self.changed()

    def move(self, bucket: Bucket, state: BucketState) -> None:
        """Move a bucket to a state and to the lane of its action."""
        self.lanes.forget(bucket.serial)
        owned_key = _owns_key(bucket)
        bucket.move_to(state)
        if owned_key and not _owns_key(bucket):
            self.keys.remove(bucket.key)
        bucket.parts, bucket.tracked_parts = (), None
        self.doubts.note(bucket)
        self.is_merge_wanted = True
        if state is BucketState.GONE:
            del self.buckets[bucket.serial]
        self._join_lane(bucket)
        self.changed()

    def _join_lane(self, bucket: Bucket) -> None:
        if bucket.state not in _STATE_IS_IDLE:
            self.lanes.of_state(bucket.state).work[bucket.serial] = bucket

    def may_merge(self, bucket: Bucket, now_ms: int) -> bool:
        """Whether a bucket is at rest; where all positions are kept, also whether its own are known already.

        Otherwise the target would know none, and which of them somebody has passed over would be forgotten.
        """
        is_known = bucket.is_warm or not self.questions.keeps_all
        return bucket.state is BucketState.SEALED and bucket.merge_retry_at_ms <= now_ms and is_known

    @property
    def is_creating(self) -> bool:
        """Whether a snapshot exists or may come to exist whose id is not known."""
        return bool(self.lanes.creates.work)

    def note_popped(self) -> None:
        """Look at the buckets again if what was handed out may have exhausted one, or lets a load go on."""
        queue = self.index.shared_queue
        if (
            queue.next_ms > self.next_exhaustion_ms
            or self.index.residents.has_empty
            or len(queue) < self._has_room_below
            or (self._blocked_at is not None and not self.index.has_row_through(self._blocked_at))
        ):
            self.is_dirty = True

    def note_blocked(self, excess: int, barrier: RowKey | None) -> None:
        """Note that loads wait until more than so many rows were handed out.

        Args:
            excess: How many rows too many are loaded or on their way, at least 0.
            barrier: Where nothing else can be handed out once nothing is left up to this key, that key: the load
                behind it goes on then, whatever the room.
        """
        self._has_room_below = len(self.index.shared_queue) - excess
        self._blocked_at = barrier

    def note_unblocked(self) -> None:
        """Note that no load waits for room."""
        self._has_room_below = 0
        self._blocked_at = None

    # How far hand-out may go, and when to look again.

    def barrier(self, now_ms: int) -> RowKey:
        """Return the last row that may be handed out: an earlier one may be in a segment that is not loaded.

        A bucket that could not be read for `order_wait_ms_max` holds nothing up any more.
        """
        if self._barrier is None or now_ms >= self._barrier_until_ms:
            bucket, self._barrier_until_ms = self.frontier.first_holding_up(now_ms)
            self._barrier = last_key_at(NEVER) if bucket is None else bucket.barrier
        return self._barrier

    def progressed(self, bucket: Bucket) -> None:
        """Note that more of a bucket is loaded, or that it has come to be served from segments."""
        for listener in (self.frontier, self.loads, self.questions, self.doubts):
            listener.note(bucket)
        if bucket.is_fully_loaded:
            heapq.heappush(self.ending, (bucket.last_ms, bucket.serial))

    def _waived_at_ms(self, bucket: Bucket) -> int:
        if bucket.needed_since_ms is None or self.config.order_wait_ms_max == UNLIMITED:
            return NEVER
        return max(bucket.needed_since_ms, bucket.next_segment_ms) + self.config.order_wait_ms_max

    def next_work_ms(self, now_ms: int) -> int:
        """Return when `plan` or the barrier should be looked at again, if nothing happens before; call after `plan`."""
        wakeup_ms = NEVER
        for lane in self.lanes.all:
            if lane.is_full:
                continue
            for bucket in lane.work.values():
                if bucket.work is None:
                    wakeup_ms = min(wakeup_ms, lane.starts_at_ms(bucket.work_retry))
        wakeup_ms = min(wakeup_ms, self.next_load_ms, self.questions.next_read_ms, self.questions.next_cooling_ms)
        if self.is_sweep_wanted and self.sweep is None and not self.is_creating:
            wakeup_ms = min(wakeup_ms, self.lanes.reads.starts_at_ms(self.sweep_retry))
        wakeup_ms = min(wakeup_ms, self.late_sweep_at_ms)
        if self.config.bucket_count_max > 0 and now_ms < self.merge_retry.at_ms:
            wakeup_ms = min(wakeup_ms, self.merge_retry.at_ms)
        # What is held up need not be a row in memory: whoever asked from when on to wait has due messages of its own.
        self.barrier(now_ms)
        return min(wakeup_ms, self._barrier_until_ms)

    def earliest_unloaded_ms(self) -> int:
        """Return the time of the earliest row that is not loaded, `NEVER` if all are."""
        bucket = self.frontier.first()
        return NEVER if bucket is None else bucket.next_segment_ms

    def check(self) -> None:
        """Assert every invariant over the buckets."""
        keys = [bucket.key for bucket in self.buckets.values() if bucket.has_property]
        assert len(keys) == len(set(keys))
        ids = [bucket.bucket_id for bucket in self.served() if bucket.bucket_id is not None]
        assert len(ids) == len(set(ids))
        assert sum(bool(bucket.sources) for bucket in self.buckets.values()) <= 1
        residents = [bucket.resident for bucket in self.buckets.values() if bucket.resident is not None]
        assert sorted(map(id, residents)) == sorted(map(id, self.index.residents))
        for serial, bucket in self.buckets.items():
            bucket.check()
            assert serial == bucket.serial
            assert bucket.state is not BucketState.GONE
            in_lane = bucket.serial in self.lanes.of_state(bucket.state).work
            assert in_lane == (bucket.state not in _STATE_IS_IDLE)
            assert (bucket.merging_into is not None) <= (bucket.merging_into in self.buckets)
            assert all(self.buckets[source].merging_into == serial for source in bucket.sources)
            assert bucket.unread.known is None or serial in self.questions.warm
            is_ending = bucket.state is BucketState.SEALED and bucket.is_fully_loaded
            assert not is_ending or (bucket.last_ms, serial) in self.ending
        assert self.keys == {bucket.key for bucket in self.buckets.values() if _owns_key(bucket)}
        for bucket in self.served():
            assert bucket.serial in self.ranges.covering(bucket.ledgers.first_ledger_id)
        assert len(self.ranges) == sum(1 for _ in self.served())
        assert not self.questions.keeps_all or not self.untracked_ranges
        self.ranges.check()
        self.doubts.check()
        assert self.unread_count == sum(bucket.unread.count for bucket in self.buckets.values())
        self.frontier.check()
        self.loads.check()
        for lane in self.lanes.all:
            assert lane.work.keys() <= self.buckets.keys()


def _owns_key(bucket: Bucket) -> bool:
    """Whether a bucket's property exists, or may come to exist."""
    if bucket.state in (BucketState.DELETING, BucketState.GONE):
        return bucket.has_property and bucket.state is BucketState.DELETING
    return True


def total_size_bytes(buckets: Mapping[int, Bucket]) -> int:
    """Return the bytes of all snapshots that are stored."""
    return sum(bucket.size_bytes for bucket in buckets.values())
