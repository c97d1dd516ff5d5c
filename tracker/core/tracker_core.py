"""The core of the bucket tracker as its shell sees it: messages in, due rows out, calls out, answers in.

    add ──► last mutable bucket ──seal──► immutable buckets ──load──► rows in memory ──► pop_due

Synchronous and deterministic: the same calls give the same state and the same actions. Time arrives as `now_ms`. After
any call, `plan` says what to start; `next_wakeup_ms` says when to call it again if nothing happens before.
"""

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.bucket_properties import BucketProperties
from tracker.columns.offers import check_acknowledged, check_tick_time, columns_of
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.row_order import NEVER, last_key_at, row_count_through
from tracker.config import TrackerConfig
from tracker.core import adding, deleting, handing_out, planning, recovering, sealing
from tracker.core.actions import Answer, Call
from tracker.core.bucket import ImmutableBucket, Phase
from tracker.core.state import TrackerState
from tracker.stats import BucketFigures


class TrackerCore:
    """The bucket tracker without its I/O; belongs to one caller at a time.

    Args:
        config: How buckets are sealed, cut, loaded and merged.
        acknowledged_in: Gives the acknowledged entries of a ledger.
        rng: For the jitter of retries.
    """

    def __init__(self, config: TrackerConfig, *, acknowledged_in: Callable[[int], BitMap], rng: Random) -> None:
        self._state = TrackerState(config, acknowledged_in=acknowledged_in, rng=rng)
        self._set_lead(config.tick_time_ms)

    def _set_lead(self, tick_time_ms: int) -> None:
        self._state.lead_ms = 0 if self._state.config.is_deliver_at_time_strict else tick_time_ms

    # Messages in.

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
        """Track a message; False means it is due and was not tracked.

        PERFORMANCE: about 0.5 us, but for one in `SINGLES_MAX`, which takes the others along.

        Raises:
            ValueError: The position is not one that can be tracked; nothing has changed.
        """
        return adding.add_one(self._state, ledger_id, entry_id, deliver_at_ms, now_ms)

    def add_messages(
        self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, *, now_ms: int
    ) -> NDArray[np.bool_]:
        """Do what `add_message` does for each row; the result says which rows are tracked.

        Raises:
            ValueError: A position cannot be tracked, or the lengths differ; nothing has changed.
        """
        columns = columns_of(ledger_ids, entry_ids, deliver_at_ms)
        return adding.add(self._state, *columns, now_ms) if len(columns[0]) else np.empty(0, np.bool_)

    def acknowledge(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Track messages no longer that were acknowledged without being handed out.

        Raises:
            ValueError: The entry ids are no bitmap; nothing has changed.
        """
        check_acknowledged(ledger_id, entry_ids)
        deleting.acknowledge(self._state, ledger_id, entry_ids)

    # Life.

    @property
    def lead_ms(self) -> int:
        """How early messages may be handed out: the tick, or 0 where times are strict."""
        return self._state.lead_ms

    def set_tick_time(self, tick_time_ms: int) -> None:
        """Set how early messages may be handed out, unless times are strict.

        Raises:
            ValueError: It is below 0.
        """
        check_tick_time(tick_time_ms)
        self._set_lead(tick_time_ms)

    def recover(self, properties: Mapping[str, str], *, now_ms: int) -> BucketProperties:
        """Begin to recover what the cursor's properties name; call once, before anything else but `trim`."""
        return recovering.recover(self._state, properties, now_ms)

    def trim(self, first_ledger_id: int) -> None:
        """Track nothing of the ledgers below this one: the cursor is past them."""
        deleting.trim(self._state, first_ledger_id)

    def pass_through(self, ledger_id: int, entry_id: int) -> None:
        """Track nothing any more up to a position: mark-delete has passed it."""
        deleting.pass_through(self._state, ledger_id, entry_id)

    def seal(self, *, index_count_min: int) -> None:
        """Seal the mutable bucket now, if it holds at least so many indexes; for closing."""
        if len(self._state.added) >= max(1, index_count_min):
            sealing.seal(self._state)

    def clear(self) -> None:
        """Track nothing any more, and begin to delete every snapshot."""
        deleting.clear(self._state)

    # Messages out.

    def pop_due(self, *, now_ms: int, limit: int) -> DelayedIndexes:
        """Hand out due messages in order of time, then position; each once."""
        return handing_out.hand_out(self._state, now_ms, limit)

    def to_read_again(self) -> Mapping[int, BitMap]:
        """Return positions that were tracked and are not, because a snapshot was lost; once."""
        positions, self._state.to_read_again = self._state.to_read_again, type(self._state.to_read_again)()
        return positions.bitmaps

    def losses(self) -> list[tuple[str, str]]:
        """Return property key and reason of buckets that were given up, once."""
        losses, self._state.losses = self._state.losses, []
        return losses

    # Calls out, answers in.

    def plan(self, *, now_ms: int) -> list[Call]:
        """Return the calls to start now; each is to be answered once."""
        return planning.plan(self._state, now_ms)

    def handle(self, call: Call, answer: Answer, *, now_ms: int) -> None:
        """Take the answer to a call."""
        planning.handle(self._state, call, answer, now_ms)

    def next_wakeup_ms(self, *, now_ms: int) -> int | None:
        """Return when to plan again if nothing happens before, None if there is no such time."""
        wakeup_ms = planning.next_look_ms(self._state, now_ms)
        return None if wakeup_ms == NEVER else wakeup_ms

    @property
    def has_losses(self) -> bool:
        """Whether `losses` has something new."""
        return bool(self._state.losses)

    @property
    def has_sealed(self) -> bool:
        """Whether a bucket waits for its snapshot to be stored, as an add may have brought about."""
        return self._state.writes.first_key() is not None

    def failing(self) -> set[type[Call]]:
        """Return the kinds of calls that have failed and are still to be made."""
        return planning.failing(self._state)

    # Questions by position.

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is tracked; False also where that is not known yet, see `is_recovering`."""
        return self._state.tracked.contains(ledger_id, entry_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """Return the tracked entry ids of a ledger as far as they are known, for reading only, or None."""
        return self._state.tracked.bitmaps.get(ledger_id)

    def tracked_ledger_ids(self) -> list[int]:
        """Return the ledgers in which something is tracked, in no order."""
        return list(self._state.tracked.bitmaps)

    def is_recovering(self, ledger_id: int) -> bool:
        """Whether it is not known yet what is tracked in a ledger."""
        return self._state.is_recovering(ledger_id)

    # Questions by time.

    def has_due(self, *, now_ms: int) -> bool:
        """Whether `pop_due` has something to give."""
        return self.first_deliver_at_ms(now_ms=now_ms) is not None

    def first_deliver_at_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first message that `pop_due` would give, None if it has none to give."""
        state = self._state
        if state.next_row_deliver_at_ms() > now_ms + state.lead_ms:
            return None
        first = handing_out.first_row_through(state, handing_out.hand_out_through(state, now_ms))
        return None if first is None else first.deliver_at_ms

    def next_deliver_at_ms(self) -> int | None:
        """Return when the next message is due, None if nothing is tracked; never later than it is."""
        state = self._state
        if not state.tracked:
            return None
        sealed = (bucket.next_deliver_at_ms for bucket in state.buckets.values() if bucket.phase is Phase.SEALED)
        next_deliver_at_ms = min(state.next_row_deliver_at_ms(), min(sealed, default=NEVER))
        return None if next_deliver_at_ms == NEVER else next_deliver_at_ms

    def first_withheld_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first due row that may be in a segment that is not loaded, None if there is none."""
        withheld_ms = handing_out.barrier(self._state).deliver_at_ms
        return withheld_ms if withheld_ms <= self._state.due_through_ms(now_ms) else None

    def _due_bitmaps(self, now_ms: int) -> dict[int, BitMap]:
        """Return the tracked positions that have a row in memory which is due."""
        through = last_key_at(self._state.due_through_ms(now_ms))
        runs = [run for queue in self._state.queues for run in queue.runs_through(through.deliver_at_ms)]
        due = DelayedIndexes.concatenate([run.rows.slice(0, row_count_through(run.rows, through)) for run in runs])
        tracked = self._state.tracked.bitmaps
        return {
            ledger_id: entries & tracked[ledger_id]
            for ledger_id, entries in ledger_bitmaps(due.ledger_ids, due.entry_ids)
            if ledger_id in tracked
        }

    def due_positions(self, *, now_ms: int) -> tuple[Int64Array, Int64Array]:
        """Return the ledger and entry ids of what is due and loaded."""
        due = self._due_bitmaps(now_ms)
        entry_ids = [np.frombuffer(bitmap.to_array(), np.uint32).astype(np.int64) for bitmap in due.values()]
        ledger_ids = [np.full(len(entries), ledger_id) for ledger_id, entries in zip(due, entry_ids, strict=True)]
        none = np.empty(0, np.int64)
        return np.concatenate([none, *ledger_ids]), np.concatenate([none, *entry_ids])

    # Figures.

    @property
    def message_count(self) -> int:
        """How many messages are tracked."""
        return self._state.tracked.count

    def future_count(self, *, now_ms: int) -> int:
        """Return how many messages are tracked and not due.

        Exact but where a segment began before now and could not be loaded in time: its rows count by their number.
        """
        cutoff_ms = self._state.due_through_ms(now_ms)
        in_memory = sum(map(len, self._due_bitmaps(now_ms).values()))
        unloaded = sum(_due_rows_unloaded(bucket, cutoff_ms) for bucket in self._state.buckets.values())
        return max(0, self.message_count - in_memory - unloaded)

    def should_pause(self, *, now_ms: int) -> bool:
        """Whether too much waits in memory because the storage takes nothing, and nothing is due."""
        return self.is_full and not self.has_due(now_ms=now_ms)

    @property
    def is_full(self) -> bool:
        """Whether as many rows as may wait in memory for their snapshots."""
        return self._state.unsealed_row_count >= self._state.config.unsealed_row_count_max

    @property
    def loaded_row_count(self) -> int:
        """How many rows are in memory."""
        return sum(map(len, self._state.queues))

    @property
    def segment_row_count(self) -> int:
        """How many rows of sealed buckets are in memory."""
        return len(self._state.loaded)

    @property
    def snapshot_size_bytes(self) -> int:
        """How many bytes all snapshots have."""
        return sum(bucket.size_bytes for bucket in self._state.buckets.values())

    @property
    def bucket_total(self) -> int:
        """How many buckets there are, with the mutable one."""
        return 1 + sum(bucket.is_served for bucket in self._state.buckets.values())

    def buckets(self) -> list[BucketFigures]:
        """Return the figures of the immutable buckets that count, in the order of their ledgers."""
        found = [_figures_of(bucket) for bucket in self._state.buckets.values() if bucket.is_served]
        return sorted(found, key=lambda one: (one.first_ledger_id, one.last_ledger_id))

    @property
    def unsettled_count(self) -> int:
        """How many buckets are being sealed, merged, named or removed."""
        at_rest = (Phase.SEALED, Phase.RECOVERING)
        return sum(bucket.phase not in at_rest for bucket in self._state.buckets.values())


def _due_rows_unloaded(bucket: ImmutableBucket, cutoff_ms: int) -> int:
    if bucket.phase is not Phase.SEALED or bucket.table is None or bucket.next_deliver_at_ms > cutoff_ms:
        return 0
    due_spans = int(bucket.table.last_times.searchsorted(cutoff_ms, "right"))
    return max(0, bucket.table.rows_before(due_spans) - bucket.rows_loaded)


def _figures_of(bucket: ImmutableBucket) -> BucketFigures:
    table = bucket.table
    return BucketFigures(
        first_ledger_id=bucket.ledgers.first_ledger_id,
        last_ledger_id=bucket.ledgers.last_ledger_id,
        state=bucket.phase.value,
        segments=0 if table is None else table.segment_count,
        loaded_segments=0 if table is None else table.segments_before(bucket.loaded_spans),
        rows=0 if table is None else table.row_count,
        loaded_rows=bucket.rows_loaded,
        size_bytes=bucket.size_bytes,
    )
