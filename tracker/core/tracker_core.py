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
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.bucket_properties import BucketProperties, read_properties
from tracker.columns.offers import check_offer, check_tick_time, columns_of
from tracker.columns.positions import ENTRY_ID_MAX, bitmap_of, ledger_groups
from tracker.columns.row_queue import LATEST_MS, NEVER, last_key_at
from tracker.config import TrackerConfig
from tracker.core import bucket_events, bucket_plan
from tracker.core.actions import Action, Event
from tracker.core.bucket_set import BucketSet, total_size_bytes
from tracker.core.index import Index
from tracker.core.mutable_bucket import MutableBucket

Int64Array = NDArray[np.int64]

_ENTRY_ID_BITS = ENTRY_ID_MAX.bit_length()
_TIME_BITS = LATEST_MS.bit_length() - 1
_IS_ODD = (False, True)
"""By what is left of a number behind its bits: 0, or -1 of a negative one. Columns are no index, whatever they hold."""


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
        self._singles = self._index.singles
        self._buckets = BucketSet(config, self._index, rng, keeps_positions=keeps_positions)
        self._mutable = MutableBucket(config, self._index, self._buckets)
        self.stirs_before_ms = NEVER
        """A single add that is due before this gives the loop something to do."""
        self._tick_time_ms = config.tick_time_ms
        self._set_lead()

    # Adding.

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
        """Track a message; False means it is due and was not tracked.

        PERFORMANCE: about 0.4 us, but for one in `SINGLES_MAX`, which takes the others along in 0.05 ms, and one in
        `RUN_ROWS_MAX`, which sorts as many in 0.4 ms. With a question after each add, 6 us.

        Raises:
            ValueError: The position is not one that can be tracked; nothing has changed.
        """
        singles = self._singles
        try:
            # Of integers, each is 0 where it is the same ledger, or within the range; nothing tells it faster.
            is_odd = (
                ledger_id ^ singles.ledger_id
                or _IS_ODD[entry_id >> _ENTRY_ID_BITS]
                or _IS_ODD[deliver_at_ms >> _TIME_BITS]
            )
        except (TypeError, OverflowError, IndexError):
            is_odd = True
        if is_odd or len(singles.times) >= singles.row_count_max or deliver_at_ms <= now_ms + self._buckets.lead_ms:
            return self._add_first(ledger_id, entry_id, deliver_at_ms, now_ms)
        singles.times.append(deliver_at_ms)
        singles.entry_ids.append(entry_id)
        return True

    def _add_first(self, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
        """Track or refuse a message that is not just the next of its ledger, and begin a stretch of single adds."""
        ledger_id, entry_id, deliver_at_ms = check_offer(ledger_id, entry_id, deliver_at_ms)
        if deliver_at_ms < 0:
            # It never had a delay, so nothing of it is anywhere.
            return False
        if deliver_at_ms <= now_ms + self._buckets.lead_ms:
            self._refuse(ledger_id, BitMap((entry_id,)))
            return False
        self._singles.open(ledger_id, self._mutable.make_room(ledger_id))
        self._singles.times.append(min(deliver_at_ms, LATEST_MS))
        self._singles.entry_ids.append(entry_id)
        if self.is_dirty:
            self.stirs_before_ms = NEVER
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
        self._mutable.add(ledgers, entries, times)
        return is_late

    def _refuse(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Messages that are due are delivered by whoever offered them: forget them, here and in what is recovered."""
        covering = self._buckets.covering(ledger_id)
        self._buckets.doubts.mark_all(bucket for bucket in covering if bucket.may_hold(ledger_id, entry_ids))
        if self._index.refuse(ledger_id, entry_ids):
            # Another message may be the first now.
            self._buckets.is_dirty = True

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
        a merge) it counts twice until one of the two is loaded. What was acknowledged or trimmed in segments that are
        not loaded counts until their bitmaps are read, which begins by itself.
        """
        return self._index.position_count + self._buckets.unread_count

    def future_count(self, *, now_ms: int) -> int:
        """Return how many messages are tracked and not due, as `message_count` counts."""
        cutoff_ms = self._buckets.due_through_ms(now_ms)
        due = self._index.count_through(last_key_at(cutoff_ms)) + self._buckets.unread_count_through(cutoff_ms)
        return max(0, self.message_count - due)

    def due_positions(self, *, now_ms: int) -> tuple[Int64Array, Int64Array]:
        """Return the ledger and entry ids of what is due and loaded."""
        return self._index.positions_through(last_key_at(self._buckets.due_through_ms(now_ms)))

    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget messages that were acknowledged without being handed out."""
        self._index.refuse(ledger_id, entry_ids)
        self._buckets.note_acknowledged(ledger_id, entry_ids)

    def has_due(self, *, now_ms: int) -> bool:
        """Whether `pop_due` has something to give."""
        return self.first_due_ms(now_ms=now_ms) is not None

    def first_due_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first message that `pop_due` would give, None if it has none to give."""
        cutoff_ms = self._buckets.due_through_ms(now_ms)
        if self._index.next_ms > cutoff_ms:
            return None
        return self._index.first_ms_through(min(last_key_at(cutoff_ms), self._buckets.barrier(now_ms)))

    def next_delivery_ms(self) -> int | None:
        """Return when the next message is due, None if nothing is tracked; never later than it is."""
        loaded_ms = self._index.next_ms if self._index.has_positions else NEVER
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

    def _set_lead(self) -> None:
        lead_ms = 0 if self._config.is_deliver_at_time_strict else self._tick_time_ms
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
            # Another message may be the first now.
            self._buckets.is_dirty = True
        self._index.first_ledger_id = first_ledger_id
        self._buckets.trim()

    def seal(self, *, index_count_min: int) -> None:
        """Seal the mutable bucket now, if it holds at least so many indexes; for closing."""
        if self._index.mutable.members.count >= max(1, index_count_min):
            self._mutable.seal()

    def clear(self) -> None:
        """Forget every message and begin to delete every snapshot."""
        self._buckets.clear()
        self._index.clear()
        self._mutable.forget_ledgers()

    @property
    def unsettled_count(self) -> int:
        """How many buckets are being sealed, merged, registered or removed."""
        lanes = self._buckets.lanes
        return sum(len(lane.work) for lane in (lanes.creates, lanes.deletes, lanes.properties))

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
        if self._index.drop_stale(last_key_at(self._buckets.due_through_ms(now_ms))):
            self._buckets.note_popped()
        return bucket_plan.plan(self._buckets, now_ms)

    def retried(self) -> set[type[Action]]:
        """Return the kinds of actions that have failed and are wanted still."""
        return bucket_plan.retried(self._buckets)

    def next_wakeup_ms(self, *, now_ms: int) -> int | None:
        """Return when to look again if nothing happens before: a message comes due, or work can go on.

        What is due already is no reason to wake up: whoever was told of it will ask for it. But it is due no more when
        the clock is put back, so somebody has to look some time: that is `LATEST_MS`.
        """
        wakeup_ms = self._buckets.next_work_ms(now_ms)
        # Rows of messages that are tracked no more wake nobody.
        next_ms = self._index.next_ms if self._index.position_count else NEVER
        if next_ms <= self._buckets.barrier(now_ms).deliver_at_ms:
            wakeup_ms = min(wakeup_ms, next_ms if next_ms > now_ms else LATEST_MS)
        self.stirs_before_ms = wakeup_ms
        return None if wakeup_ms == NEVER else wakeup_ms

    def _check(self) -> None:
        """Assert every invariant, O(n)."""
        self._index.check()
        self._buckets.check()
        self._mutable.check()
