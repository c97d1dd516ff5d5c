"""Every decision that the bucket tracker makes, and nothing else.

Synchronous and deterministic: the same calls give the same state and the same actions. Time arrives as `now_ms`,
storage arrives as events, work leaves as actions; the shell (`bucket_tracker`) runs them. It imports no asyncio,
threading, time or logging, so it runs under a simulator as it does in a broker.

    add_message ──► mutable bucket ──seal──► buckets (`bucket_set`) ──load──► queues (`index`) ──► pop_due

After any call, if `is_dirty`, call `plan` and start the actions it gives. Unlike Pulsar's, a bucket's segments that
are due already are loaded at recovery, not skipped, so that a key's messages keep their order across a restart; and
rows in memory are never handed out past a segment that may hold an earlier one.
"""

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.columns import DelayedIndexes
from tracker import bucket_events, bucket_plan
from tracker.actions import Action, Event
from tracker.bucket_set import BucketSet, total_size_bytes
from tracker.buckets import BucketState
from tracker.config import UNLIMITED, TrackerConfig
from tracker.due_queue import NEVER, last_key_at
from tracker.holding import Holding
from tracker.index import Index
from tracker.membership import ENTRY_ID_MAX, LEDGER_ID_MAX, bitmap_of, ledger_groups
from tracker.offers import check_offer, check_tick_time, columns_of
from tracker.recovery import BucketProperties, read_properties

Int64Array = NDArray[np.int64]

_NO_LEDGER = -1


class TrackerCore:
    """The bucket tracker without its I/O; belongs to one caller at a time."""

    def __init__(
        self,
        config: TrackerConfig,
        *,
        acknowledged_in: Callable[[int], BitMap],
        rng: Random,
        keeps_positions: bool = False,
    ) -> None:
        self._config = config
        self._index = Index(acknowledged_in)
        self._buckets = BucketSet(config, self._index, rng, keeps_positions=keeps_positions)
        self._row_count_max = config.index_count_per_bucket_max
        if self._row_count_max == UNLIMITED:
            # What rows without a snapshot may take is a limit for a ledger that never ends, too.
            self._row_count_max = max(config.index_count_per_bucket_min, config.unsealed_row_count_max)
        self._first_ledger_id = self._last_ledger_id = self._ledger_id = _NO_LEDGER
        self._tick_time_ms = config.tick_time_ms
        self._is_active = True
        self._set_lead()
        self._reset_mutable()

    # Adding.

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int, *, now_ms: int) -> bool:
        """Track a message; False means it is due and was not tracked.

        PERFORMANCE: about 1 us, but for one in `BUFFER_ROWS_MAX` (1 to 2 ms).

        Raises:
            ValueError: The position is not one that can be tracked; nothing has changed.
        """
        try:
            is_odd = (ledger_id | entry_id | deliver_at_ms) < 0
        except TypeError:
            is_odd = True
        if is_odd or entry_id > ENTRY_ID_MAX or ledger_id > LEDGER_ID_MAX:
            check_offer(ledger_id, entry_id, deliver_at_ms)
            # The time is below 0: it never had a delay, so nothing of it is anywhere.
            return False
        if deliver_at_ms <= now_ms + self._buckets.lead_ms:
            self._refuse(ledger_id, BitMap((entry_id,)))
            return False
        if ledger_id != self._ledger_id or self._adds_before_cap <= 0:
            self._make_room(ledger_id)
        self._adds_before_cap -= 1
        index = self._index
        if index.forgotten:
            index.drop_forgotten(ledger_id, BitMap((entry_id,)))
        mutable = index.mutable
        mutable.members.add(ledger_id, entry_id)
        # The largest number stands for "never" in the queues.
        mutable.queue.push(deliver_at_ms if deliver_at_ms < NEVER else NEVER - 1, ledger_id, entry_id)
        return True

    def add_messages(
        self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, *, now_ms: int
    ) -> NDArray[np.bool_]:
        """Do what `add_message` does for each row in turn; the result says which rows are tracked.

        Raises:
            ValueError: A position cannot be tracked, or the lengths differ; nothing has changed.
        """
        ledgers, entries, times = columns_of(ledger_ids, entry_ids, deliver_at_ms)
        if not len(ledgers):
            return np.empty(0, np.bool_)
        cutoff_ms = max(-1, min(NEVER, now_ms + self._buckets.lead_ms))
        is_late = np.ones(len(times), np.bool_) if times.min() > cutoff_ms else times > cutoff_ms
        if not is_late.all():
            is_due = ~is_late & (times >= 0)
            due_ledgers, due_entries = ledgers[is_due], entries[is_due]
            for ledger_id, rows in ledger_groups(due_ledgers):
                self._refuse(ledger_id, bitmap_of(due_entries[rows]))
            ledgers, entries, times = ledgers[is_late], entries[is_late], times[is_late]
        # Ledger by ledger, since a seal comes between two ledgers.
        start = 0
        for end in _ledger_ends(ledgers):
            self._add_rows(int(ledgers[start]), ledgers[start:end], entries[start:end], times[start:end])
            start = end
        return is_late

    def _add_rows(self, ledger_id: int, ledgers: Int64Array, entries: Int64Array, times: Int64Array) -> None:
        """Track rows of one ledger, in pieces if a cap on the mutable bucket demands it."""
        start = 0
        while start < len(entries):
            if ledger_id != self._ledger_id or self._adds_before_cap <= 0:
                self._make_room(ledger_id)
            end = min(len(entries), start + self._adds_before_cap)
            self._adds_before_cap -= end - start
            entry_ids = bitmap_of(entries[start:end])
            if self._index.forgotten:
                self._index.drop_forgotten(ledger_id, entry_ids)
            mutable = self._index.mutable
            mutable.members.unite(ledger_id, entry_ids)
            times_ms = np.minimum(times[start:end], NEVER - 1)
            mutable.queue.push_rows(times_ms, ledgers[start:end], entries[start:end])
            start = end

    def _refuse(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Messages that are due are delivered by whoever offered them: forget them, here and in what is recovered."""
        covering = self._buckets.covering(ledger_id)
        self._buckets.doubts.mark_all(bucket for bucket in covering if bucket.may_hold(ledger_id, entry_ids))
        self._index.refuse(ledger_id, entry_ids)

    def _make_room(self, ledger_id: int) -> None:
        """Let the mutable bucket take a row of this ledger: seal what it holds before, if it is time.

        It takes late ledgers too, so that every row gets into a snapshot in the end; ranges may overlap.
        """
        is_next = ledger_id != self._ledger_id and self._ledger_id != _NO_LEDGER
        if (self._adds_before_cap <= 0 and self._is_at_cap()) or (
            is_next and len(self._index.mutable.queue) >= self._config.index_count_per_bucket_min
        ):
            self._seal()
        # They may have a position that is added again.
        self._buckets.doubts.mark_all(self._buckets.covering(ledger_id))
        self._ledger_id = ledger_id
        is_first = self._first_ledger_id == _NO_LEDGER
        self._first_ledger_id = ledger_id if is_first else min(self._first_ledger_id, ledger_id)
        self._last_ledger_id = max(self._last_ledger_id, ledger_id)

    def _is_at_cap(self) -> bool:
        """Whether the mutable bucket is as large as it may get; adds that came due since do not count."""
        room = self._row_count_max - len(self._index.mutable.queue)
        self._adds_before_cap = max(0, room)
        return room <= 0

    def _seal(self) -> None:
        """Freeze the mutable bucket's columns; sorting, encoding and storing happen elsewhere."""
        if self._first_ledger_id < self._index.first_ledger_id:
            # What was added although the cursor was past it is acknowledged, and no row of it would be loaded again.
            self._index.trim(self._index.first_ledger_id)
        if self._index.mutable.members.count:
            self._buckets.seal(LedgerRange(self._first_ledger_id, self._last_ledger_id), self._index.mutable)
        self._reset_mutable()

    def _reset_mutable(self) -> None:
        self._index.mutable = Holding()
        self._first_ledger_id = self._last_ledger_id = self._ledger_id = _NO_LEDGER
        self._adds_before_cap = self._row_count_max

    # Asking.

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is tracked; False also where that is not known yet, see `is_recovering`."""
        if not 0 <= entry_id <= ENTRY_ID_MAX:
            return False
        if self._index.contains(ledger_id, entry_id):
            return True
        return self._buckets.contains(ledger_id, entry_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """Return the tracked entry ids of a ledger as far as they are known, for reading only, or None."""
        bitmaps = self._index.bitmaps_of(ledger_id) + self._buckets.bitmaps_of(ledger_id)
        if len(bitmaps) > 1:
            return BitMap.union(*bitmaps)
        return bitmaps[0] if bitmaps else None

    def tracked_ledger_ids(self) -> list[int]:
        """Return the ledgers in which something is tracked, in no order; as far as they are known."""
        return list(self._index.ledger_ids() | self._buckets.known_ledger_ids())

    def is_recovering(self, ledger_id: int) -> bool:
        """Whether it is not known yet what is tracked in a ledger; to ask is to want to know."""
        return self._buckets.is_recovering(ledger_id)

    @property
    def message_count(self) -> int:
        """How many messages are tracked.

        Exact, but where one position is in two places (added again after a seal, or in two snapshots after a crash in
        a merge) it counts twice until one of the two is loaded. What was acknowledged or trimmed before a restart
        counts until its bucket's bitmaps are read, which begins by itself; what is acknowledged later without having
        been handed out (expired, skipped) counts until its ledger is passed, or it would be due.
        """
        return self._index.position_count + self._buckets.unread_count

    def has_due(self, *, now_ms: int) -> bool:
        """Whether `pop_due` may have something to give."""
        cutoff_ms = self._buckets.due_through_ms(now_ms)
        if self._index.next_ms > cutoff_ms or not self._index.position_count:
            return False
        return self._index.has_row_through(min(last_key_at(cutoff_ms), self._buckets.barrier(now_ms)))

    def next_delivery_ms(self) -> int | None:
        """Return when the next message is due, None if nothing is tracked; never later than it is."""
        loaded_ms = self._index.next_ms if self._index.position_count else NEVER
        next_ms = min(loaded_ms, self._buckets.earliest_unloaded_ms())
        return None if next_ms == NEVER else next_ms

    def first_withheld_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first due row that may be in a segment that is not loaded, None if there is none."""
        withheld_ms = self._buckets.barrier(now_ms).deliver_at_ms
        return withheld_ms if withheld_ms <= self._buckets.due_through_ms(now_ms) else None

    def should_pause(self, *, now_ms: int) -> bool:
        """Whether too much waits in memory because the storage takes nothing, and nothing is due."""
        return self.is_full and not self.has_due(now_ms=now_ms)

    @property
    def is_full(self) -> bool:
        """Whether as many rows as may wait in memory for their snapshots."""
        return self._buckets.unsealed_row_count >= self._config.unsealed_row_count_max

    def take_untracked(self) -> Mapping[int, BitMap]:
        """Return positions that are to be read from the log again, once."""
        untracked = self._buckets.untracked
        self._buckets.untracked = {}
        return untracked

    def take_untracked_ranges(self) -> list[LedgerRange]:
        """Return ranges of ledgers that are to be read from the log again, once."""
        ranges = self._buckets.untracked_ranges
        self._buckets.untracked_ranges = []
        return ranges

    def take_losses(self) -> list[tuple[str, str]]:
        """Return property key and reason of buckets that were given up, once."""
        losses = self._buckets.losses
        self._buckets.losses = []
        return losses

    @property
    def bucket_total(self) -> int:
        """How many buckets there are, with the mutable one."""
        return 1 + sum(1 for _ in self._buckets.served())

    @property
    def loaded_row_count(self) -> int:
        """How many rows are in memory."""
        return self._index.row_count

    @property
    def snapshot_size_bytes(self) -> int:
        """How many bytes all snapshots have."""
        return total_size_bytes(self._buckets.buckets)

    # Handing out.

    def pop_due(self, *, now_ms: int, limit: int) -> DelayedIndexes:
        """Hand out due messages in order of time, then position; each once."""
        through = min(last_key_at(self._buckets.due_through_ms(now_ms)), self._buckets.barrier(now_ms))
        rows = self._index.pop(through, limit)
        self._buckets.note_popped()
        return rows

    # Life.

    def set_tick_time(self, tick_time_ms: int) -> None:
        """Set how early messages may be handed out, unless times are strict.

        Raises:
            ValueError: It is below 0.
        """
        check_tick_time(tick_time_ms)
        self._tick_time_ms = tick_time_ms
        self._set_lead()

    def set_active(self, is_active: bool) -> None:
        """Heed delivery times, or hand out everything at once, strict or not."""
        self._is_active = is_active
        self._set_lead()

    def _set_lead(self) -> None:
        lead_ms = 0 if self._config.is_deliver_at_time_strict else self._tick_time_ms
        if not self._is_active:
            lead_ms = NEVER
        if lead_ms != self._buckets.lead_ms:
            self._buckets.lead_ms = lead_ms
            self._buckets.is_dirty = True

    def recover(self, properties: Mapping[str, str], *, now_ms: int) -> BucketProperties:
        """Begin to recover what the cursor's properties name; call once, before anything else but `trim`."""
        named = read_properties(properties)
        self._buckets.recover(named.buckets, named.malformed_ids, now_ms)
        return named

    def trim(self, first_ledger_id: int) -> None:
        """Forget all ledgers below this one: the cursor is past them."""
        if first_ledger_id == self._index.first_ledger_id:
            return
        if first_ledger_id > self._index.first_ledger_id:
            self._index.trim(first_ledger_id)
        self._index.first_ledger_id = first_ledger_id
        self._buckets.trim()

    def seal(self, *, index_count_min: int) -> None:
        """Seal the mutable bucket now, if it holds at least so many indexes; for closing."""
        if len(self._index.mutable.queue) >= max(1, index_count_min):
            self._seal()

    def clear(self) -> int:
        """Forget every message and begin to delete every snapshot.

        Returns:
            A mark: once `is_removed` is true for it, all snapshots from before are deleted.
        """
        self._buckets.clear()
        self._index.clear()
        self._reset_mutable()
        return self._buckets.last_serial

    def removals_through(self, mark: int) -> int:
        """Return how many buckets from before a `clear` are still being deleted."""
        return sum(serial <= mark for serial in self._buckets.buckets)

    @property
    def unsettled_count(self) -> int:
        """How many buckets are being sealed, merged, registered or removed."""
        return sum(
            bucket.state not in (BucketState.SEALED, BucketState.RECOVERING)
            for bucket in self._buckets.buckets.values()
        )

    # The shell's side.

    @property
    def is_dirty(self) -> bool:
        """Whether `plan` may have something to start."""
        return self._buckets.is_dirty

    def handle(self, event: Event, *, now_ms: int) -> None:
        """Take the answer to an action."""
        bucket_events.handle(self._buckets, event, now_ms)

    def plan(self, *, now_ms: int) -> list[Action]:
        """Return the actions to start now; each is to be answered by one event."""
        return bucket_plan.plan(self._buckets, now_ms)

    def next_wakeup_ms(self, *, now_ms: int) -> int | None:
        """Return when to look again if nothing happens before: a message comes due, or work can go on.

        What is due already is no reason to wake up: whoever was told of it will ask for it.
        """
        wakeup_ms = self._buckets.next_work_ms(now_ms)
        next_ms = self._index.next_ms
        if next_ms > now_ms and next_ms <= self._buckets.barrier(now_ms).deliver_at_ms:
            wakeup_ms = min(wakeup_ms, next_ms)
        return None if wakeup_ms == NEVER else wakeup_ms

    def _check(self) -> None:
        """Assert every invariant, O(n)."""
        self._index.check()
        self._buckets.check()
        assert (self._first_ledger_id == _NO_LEDGER) == (self._last_ledger_id == _NO_LEDGER)
        assert self._first_ledger_id <= self._last_ledger_id
        if self._first_ledger_id == _NO_LEDGER:
            assert not len(self._index.mutable.queue)


def _ledger_ends(ledger_ids: Int64Array) -> list[int]:
    """Return the exclusive end row of each stretch of one ledger."""
    if not len(ledger_ids):
        return []
    ends: list[int] = (np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1]) + 1).tolist()
    return [*ends, len(ledger_ids)]
