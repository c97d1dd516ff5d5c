"""The tracker without snapshots: all of the index in memory, read again from the log after a restart.

Times are kept with the precision that the tick allows, as Pulsar does: with a tick of 1,000 ms, windows of 512 ms.
Messages of one window share a bitmap per ledger, so a fixed delay costs a fraction of a byte a message; times that
are spread widely cost a bitmap each, and the bucket tracker is the better choice.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from managed_ledger.position import Position
from managed_ledger.value_types import Clock, Int64Array
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.offers import check_acknowledged, check_integers, check_offer, check_tick_time, columns_of
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import bitmap_of, ledger_groups
from tracker.columns.refused_positions import RefusedPositions
from tracker.columns.row_order import LATEST_MS, NEVER
from tracker.columns.time_windows import TimeWindows
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import (
    DelayedDeliveryTracker,
    DelayedDeliveryTrackerFactory,
    ScheduledMessages,
    TrackerContext,
)
from tracker.errors import TrackerClosedError
from tracker.shell.alarms import Alarms, TrackerTimer
from tracker.shell.callbacks import call_program
from tracker.shell.next_turn import NextTurn
from tracker.shell.wake_up import WakeUp


def precision_bits(tick_time_ms: int) -> int:
    """Return how many low bits of a time are dropped: the largest power of two within a tick.

    >>> [precision_bits(tick) for tick in (1_000, 100, 1, 0)]
    [9, 6, 0, 0]
    """
    return max(0, tick_time_ms.bit_length() - 1)


class InMemoryDelayedDeliveryTracker(DelayedDeliveryTracker):
    """Pulsar's default tracker: windows of time, each with a bitmap per ledger."""

    has_exact_times = False

    def __init__(
        self, context: TrackerContext, config: TrackerConfig, *, now_ms: Clock, alarms: Alarms | None = None
    ) -> None:
        self._context = context
        self._config = config
        self._is_strict = config.is_deliver_at_time_strict
        self._lookahead = config.fixed_delay_detection_lookahead
        self._now_ms = now_ms
        self._tick_time_ms = config.tick_time_ms if context.tick_time_ms is None else context.tick_time_ms
        self._bits = precision_bits(self._tick_time_ms)
        self._members = PositionSet()
        self._windows = TimeWindows()
        self._refused = RefusedPositions()
        self._highest_deliver_at_ms = 0
        self._have_fixed_delays = True
        self._wake_up = WakeUp()
        self._next_turn = NextTurn(self._turn)
        self._turn_soon = self._next_turn.want
        self._timer = TrackerTimer(alarms if alarms is not None else Alarms(now_ms), self._next_turn.run)
        self._is_closed = False
        self._first_ledger_id = context.cursor.mark_delete_position.ledger_id
        context.cursor.add_listener(self._on_mark_delete_moved)

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        self._check_open()
        ledger_id, entry_id, deliver_at_ms = check_offer(ledger_id, entry_id, deliver_at)
        if deliver_at_ms < 0 or deliver_at_ms <= self._cutoff_ms():
            self._have_fixed_delays = False
            self._refuse(ledger_id, BitMap((entry_id,)))
            return False
        if self._refused:
            self._windows.discard(ledger_id, self._refused.take(ledger_id, BitMap((entry_id,))))
        self._windows.put_one(self._window_of(deliver_at_ms), ledger_id, entry_id)
        if deliver_at_ms < self._highest_deliver_at_ms - self._tick_time_ms:
            self._have_fixed_delays = False
        self._highest_deliver_at_ms = max(self._highest_deliver_at_ms, deliver_at_ms)
        self._members.add_one(ledger_id, entry_id)
        if self._timer.at_ms is None or self._windows.next_deliver_at_ms < self._timer.at_ms:
            self._turn_soon()
        return True

    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        self._check_open()
        ledgers, entries, deliver_at_ms = columns_of(ledger_ids, entry_ids, deliver_ats)
        rows = DelayedIndexes(deliver_at_ms, ledgers, entries)
        is_tracked = rows.deliver_at_ms > max(-1, self._cutoff_ms())
        if not is_tracked.all():
            self._have_fixed_delays = False
            refused = rows.take(~is_tracked)
            for ledger_id, group in ledger_groups(refused.ledger_ids):
                self._refuse(ledger_id, bitmap_of(refused.entry_ids[group]))
            rows = rows.take(is_tracked)
        if len(rows):
            self._add_rows(rows)
            self._turn_soon()
        return is_tracked

    def note_undelayed(self) -> None:
        self._have_fixed_delays = False

    def _add_rows(self, rows: DelayedIndexes) -> None:
        """Track rows, with one step for each ledger of each window."""
        windows_ms = self._windows_of(rows.deliver_at_ms)
        order = np.lexsort((rows.ledger_ids, windows_ms))
        windows_ms, ledger_ids = windows_ms[order], rows.ledger_ids[order]
        is_end = (windows_ms[1:] != windows_ms[:-1]) | (ledger_ids[1:] != ledger_ids[:-1])
        start = 0
        for end in [*(np.flatnonzero(is_end) + 1).tolist(), len(rows)]:
            ledger_id, entry_ids = int(ledger_ids[start]), bitmap_of(rows.entry_ids[order[start:end]])
            if self._refused:
                self._windows.discard(ledger_id, self._refused.take(ledger_id, entry_ids))
            self._members.unite(ledger_id, entry_ids)
            self._windows.put(int(windows_ms[start]), ledger_id, entry_ids)
            start = end
        # The highest time before each row, in the order in which they came.
        highest_ms = np.maximum.accumulate(np.append(self._highest_deliver_at_ms, rows.deliver_at_ms))
        if (rows.deliver_at_ms < highest_ms[:-1] - self._tick_time_ms).any():
            self._have_fixed_delays = False
        self._highest_deliver_at_ms = int(highest_ms[-1])

    def _refuse(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget positions of a ledger; the dispatcher that offered them has them."""
        if self._refused.refuse(self._members, ledger_id, entry_ids):
            # Another message may be the first now.
            self._turn_soon()

    def _window_of(self, deliver_at_ms: int) -> int:
        """Return the time of a message's window: never early when strict, else rounded down."""
        window_ms = deliver_at_ms >> self._bits << self._bits
        if self._is_strict and window_ms < deliver_at_ms:
            window_ms = min(NEVER, window_ms + (1 << self._bits))
        return window_ms

    def _windows_of(self, deliver_at_ms: Int64Array) -> Int64Array:
        """Return the same of many."""
        windows_ms = deliver_at_ms >> self._bits << self._bits
        if self._is_strict:
            step_ms = np.where(windows_ms < deliver_at_ms, 1 << self._bits, 0)
            windows_ms = np.where(windows_ms > NEVER - step_ms, NEVER, windows_ms + step_ms)
        return windows_ms

    @property
    def lead_ms(self) -> int:
        return 0 if self._is_strict else self._tick_time_ms

    def _cutoff_ms(self) -> int:
        return self._now_ms() + self.lead_ms

    def _due_through_ms(self) -> int:
        """Return the last window that is due.

        When times were rounded down, the window's last message must be due, not only its first.
        """
        return self._cutoff_ms() - (0 if self._is_strict else (1 << self._bits) - 1)

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        return self._members.contains(ledger_id, entry_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        return self._members.bitmaps.get(ledger_id)

    def has_message_available(self) -> bool:
        is_available = self._first_deliver_at_ms() is not None
        if not is_available and self._wake_up.note_nothing_due():
            self._turn_soon()
        return is_available

    def next_delivery_time(self) -> int | None:
        return self._windows.first_ms(self._members)

    def _first_deliver_at_ms(self) -> int | None:
        first_ms = self._windows.first_ms(self._members)
        return first_ms if first_ms is not None and first_ms <= self._due_through_ms() else None

    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        """Return due messages; the time of a message is that of its window."""
        self._next_turn.check_loop()
        check_integers(max_messages)
        rows = self._windows.pop(self._due_through_ms(), max_messages, self._members)
        if not self._members.count:
            self._forget_delays()
        self._wake_up.note_nothing_due()
        self._turn_soon()
        return rows

    def number_of_delayed_messages(self) -> int:
        return self._members.count

    def number_of_future_messages(self) -> int:
        """Count messages that are not due.

        Runtime complexity: O(windows that are due).
        """
        due = self._windows.count_through(self._due_through_ms(), self._members)
        return max(0, self._members.count - due)

    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        self._next_turn.check_loop()
        check_acknowledged(ledger_id, entry_ids)
        self._refuse(ledger_id, entry_ids)

    def should_pause_all_deliveries(self) -> bool:
        """Return whether all delays are the same: nothing that is read further on is due before what is tracked."""
        is_paused = self._is_paused()
        self._wake_up.note_paused(is_paused)
        return is_paused

    def _is_paused(self) -> bool:
        return (
            self._lookahead > 0
            and self._have_fixed_delays
            and self._members.count >= self._lookahead
            and self._first_deliver_at_ms() is None
        )

    def reset_tick_time(self, tick_time_ms: int) -> None:
        """Take a new tick; with a smaller one, windows that were rounded down are due when their last message is."""
        self._next_turn.check_loop()
        check_tick_time(tick_time_ms)
        bits, self._bits = self._bits, precision_bits(tick_time_ms)
        self._tick_time_ms = tick_time_ms
        if not self._is_strict and self._bits < bits:
            self._windows.move(lambda window_ms: self._window_of(window_ms + (1 << bits) - 1))
        self._turn_soon()

    def _on_mark_delete_moved(self, mark_delete: Position) -> None:
        self._next_turn.check_loop()
        tracked = self._members.bitmaps.get(mark_delete.ledger_id)
        if tracked and tracked.min() <= mark_delete.entry_id:
            self._refuse(mark_delete.ledger_id, BitMap(range(mark_delete.entry_id + 1)))
        if mark_delete.ledger_id == self._first_ledger_id:
            return
        self._first_ledger_id = mark_delete.ledger_id
        passed = [ledger_id for ledger_id in self._members.bitmaps if ledger_id < mark_delete.ledger_id]
        for ledger_id in passed:
            self._members.drop_ledger(ledger_id)
        self._refused.drop_below(mark_delete.ledger_id)
        if passed:
            self._windows.drop_ledgers(passed, self._first_ledger_id)
            self._turn_soon()

    def _check_open(self) -> None:
        self._next_turn.check_loop()
        if self._is_closed:
            raise TrackerClosedError("add a message")

    def _forget_delays(self) -> None:
        self._highest_deliver_at_ms = 0
        self._have_fixed_delays = True

    async def clear(self) -> None:
        self._next_turn.check_loop()
        self._members = PositionSet()
        self._windows.clear()
        self._refused.clear()
        self._forget_delays()
        self._turn_soon()

    async def close(self) -> None:
        self._next_turn.check_loop()
        if self._is_closed:
            return
        self._is_closed = True
        self._context.cursor.remove_listener(self._on_mark_delete_moved)
        self._timer.close()
        self._next_turn.close()
        self._members = PositionSet()
        self._windows.clear()

    # The loop: set the timer, tell the dispatcher.

    def _turn(self) -> None:
        """Bring everything up to date, once per turn of the loop."""
        self._set_timer()
        if self._wake_up.is_wanted(deliver_at_ms=self._first_deliver_at_ms(), is_paused=self._is_paused()):
            call_program(self._context.on_available)

    def _set_timer(self) -> None:
        """Look again at the time of the first window; one whose time has come waits for a poll.

        Then no message of it is late. Where it was rounded down it has been due for a while, as a tick is no shorter
        than a window: a poll for another reason gives it up to a tick early. A window that is due is due no more when
        the clock is put back: `Alarms` tell of that.
        """
        at_ms = self._windows.first_ms(self._members)
        is_due = at_ms is not None and at_ms <= self._now_ms()
        self._timer.set(LATEST_MS if is_due else at_ms)


class InMemoryDelayedDeliveryTrackerFactory(DelayedDeliveryTrackerFactory):
    """Makes in-memory trackers."""

    def __init__(self, config: TrackerConfig, *, now_ms: Clock) -> None:
        self._config = config
        self._now_ms = now_ms
        self._alarms = Alarms(now_ms)

    def new_tracker(self, context: TrackerContext) -> InMemoryDelayedDeliveryTracker:
        return InMemoryDelayedDeliveryTracker(context, self._config, now_ms=self._now_ms, alarms=self._alarms)
