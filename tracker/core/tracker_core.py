"""The core of the bucket tracker as its shell sees it: messages in, due rows out, calls out, answers in.

    add ──► last mutable bucket ──seal──► immutable buckets ──load──► rows in memory ──► pop_due

Synchronous and deterministic. After any call, `plan` says what to start; `next_wakeup_ms` says when to call it again
if nothing happens before.
"""

from collections.abc import Mapping

from pyroaring import BitMap

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.offers import check_tick_time
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.row_order import NEVER, last_key_at, row_count_through
from tracker.columns.row_queue import first_tracked_row
from tracker.core import adding, deleting, handing_out, planning, recovering, sealing
from tracker.core.bucket import Phase
from tracker.core.loading import first_ahead
from tracker.core.state import TrackerState
from tracker.stats import BucketFigures


class TrackerCore(TrackerState):
    """The bucket tracker without its I/O; belongs to one caller at a time, which sets none of its fields.

    Args:
        config: How buckets are sealed, cut, loaded and merged.
        acknowledged_in: Gives the acknowledged entries of a ledger.
        rng: For the jitter of retries.
    """

    add_message = adding.add_one
    add_messages = adding.add
    acknowledge = deleting.acknowledge
    recover = recovering.recover
    trim = deleting.trim
    pass_through = deleting.pass_through
    seal = sealing.seal
    clear = deleting.clear
    pop_due = handing_out.pop_due
    plan = planning.plan
    handle = planning.handle
    next_wakeup_ms = planning.next_wakeup_ms
    failing = planning.failing

    def set_tick_time(self, tick_time_ms: int) -> None:
        """Set how early messages may be handed out, unless times are strict.

        Raises:
            ValueError: It is below 0.
        """
        check_tick_time(tick_time_ms)
        self.lead_ms = 0 if self.config.is_deliver_at_time_strict else tick_time_ms

    # News, each given once.

    def pop_to_read_again(self) -> Mapping[int, BitMap]:
        """Return positions that were tracked and are not, because a snapshot was lost; once."""
        positions, self.to_read_again = self.to_read_again, PositionSet()
        return positions.bitmaps

    def pop_losses(self) -> list[tuple[str, str]]:
        """Return property key and reason of buckets that were given up, once."""
        losses, self.losses = self.losses, []
        return losses

    # Questions by position.

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is tracked; False also where that is not known yet, see `is_recovering`."""
        return self.tracked.contains(ledger_id, entry_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """Return the tracked entry ids of a ledger as far as they are known, for reading only, or None."""
        return self.tracked.bitmaps.get(ledger_id)

    # Questions by time.

    def has_due(self, *, now_ms: int) -> bool:
        """Whether `pop_due` has something to give."""
        return self.first_deliver_at_ms(now_ms=now_ms) is not None

    def first_deliver_at_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first message that `pop_due` would give, None if it has none to give."""
        first = first_tracked_row(self.queues, handing_out.hand_out_through(self, now_ms), self.tracked.bitmaps)
        return None if first is None else first.deliver_at_ms

    def next_deliver_at_ms(self) -> int | None:
        """Return when the next message is due, None if nothing is tracked; never later than it is."""
        sealed = [one.barrier.deliver_at_ms for one in self.buckets.values() if one.phase is Phase.SEALED]
        next_deliver_at_ms = min(*(queue.next_deliver_at_ms for queue in self.queues), *sealed, NEVER)
        return next_deliver_at_ms if self.tracked and next_deliver_at_ms < NEVER else None

    def first_withheld_ms(self, *, now_ms: int) -> int | None:
        """Return the time of the first due row that may be in a segment that is not loaded, None if there is none."""
        bucket = first_ahead(self)
        withheld_ms = NEVER if bucket is None else bucket.barrier.deliver_at_ms
        return withheld_ms if withheld_ms <= self.due_through_ms(now_ms) else None

    def due_bitmaps(self, *, now_ms: int) -> dict[int, BitMap]:
        """Return the tracked positions that have a row in memory which is due."""
        through = last_key_at(self.due_through_ms(now_ms))
        runs = [run for queue in self.queues for run in queue.runs_through(through.deliver_at_ms)]
        due = DelayedIndexes.concatenate([run.rows.slice(0, row_count_through(run.rows, through)) for run in runs])
        tracked = self.tracked.bitmaps
        return {
            ledger_id: entries & tracked[ledger_id]
            for ledger_id, entries in ledger_bitmaps(due.ledger_ids, due.entry_ids)
            if ledger_id in tracked
        }

    # Figures.

    def future_count(self, *, now_ms: int) -> int:
        """Return how many messages are tracked and not due.

        Exact but where a segment began before now and could not be loaded in time: its rows count by their number.
        """
        due_count = sum(map(len, self.due_bitmaps(now_ms=now_ms).values()))
        due_through_ms = self.due_through_ms(now_ms)
        for bucket in self.buckets.values():
            if bucket.table is not None and bucket.phase is Phase.SEALED:
                due_spans = int(bucket.table.last_times.searchsorted(due_through_ms, "right"))
                due_count += max(0, bucket.table.rows_before(due_spans) - bucket.table.rows_before(bucket.loaded_spans))
        return max(0, self.tracked.count - due_count)

    @property
    def is_full(self) -> bool:
        """Whether as many rows as may wait in memory for their snapshots, beside the mutable bucket's."""
        row_count = sum(len(bucket.rows) for bucket in self.with_rows.values() if bucket.rows is not None)
        return row_count >= self.config.unsealed_row_count_max

    @property
    def loaded_row_count(self) -> int:
        """How many rows are in memory."""
        return sum(map(len, self.queues))

    def bucket_figures(self) -> list[BucketFigures]:
        """Return the figures of the immutable buckets that count, in the order of their ledgers."""
        served = sorted((bucket for bucket in self.buckets.values() if bucket.is_served), key=lambda one: one.ledgers)
        return [
            BucketFigures(
                first_ledger_id=bucket.ledgers.first_ledger_id,
                last_ledger_id=bucket.ledgers.last_ledger_id,
                state=bucket.phase.value,
                segments=0 if bucket.table is None else bucket.table.segment_count,
                loaded_segments=0 if bucket.table is None else bucket.table.segments_before(bucket.loaded_spans),
                rows=0 if bucket.table is None else bucket.table.row_count,
                loaded_rows=0 if bucket.table is None else bucket.table.rows_before(bucket.loaded_spans),
                size_bytes=bucket.size_bytes,
            )
            for bucket in served
        ]

    @property
    def unsettled_count(self) -> int:
        """How many buckets are being sealed, merged, named or removed."""
        at_rest = (Phase.SEALED, Phase.RECOVERING)
        return sum(bucket.phase not in at_rest for bucket in self.buckets.values())
