"""The tracker without snapshots: all of the index in memory, read again from the log after a restart.

It is the bucket tracker's core with a bucket that is never sealed, and Pulsar's pause while all delays look the same.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from managed_ledger.positions.value_types import Clock
from tracker.config import UNLIMITED, TrackerConfig
from tracker.core.actions import Call
from tracker.delayed_delivery_tracker import DelayedDeliveryTrackerFactory, ScheduledMessages, TrackerContext
from tracker.shell.core_tracker import CoreTracker
from tracker.shell.next_turn import WallClockWatch


class InMemoryDelayedDeliveryTracker(CoreTracker):
    """Pulsar's default tracker; a message takes a bit, and 24 bytes until its time, even if it is acknowledged."""

    def __init__(
        self, context: TrackerContext, config: TrackerConfig, *, now_ms: Clock, watch: WallClockWatch | None = None
    ) -> None:
        never_sealed = replace(
            config,
            index_count_per_bucket_min=sys.maxsize,
            index_count_per_bucket_max=UNLIMITED,
            unsealed_row_count_max=sys.maxsize,
        )
        super().__init__(context, never_sealed, now_ms=now_ms, watch=watch)
        self._tick_time_ms = config.tick_time_ms if context.tick_time_ms is None else context.tick_time_ms
        self._highest_deliver_at_ms = 0
        self._have_fixed_delays = True
        """Whether each message so far was due at least as late as those before it, but for a tick."""
        context.cursor.add_listener(self._on_mark_delete_moved)
        self._turn_soon()

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        is_tracked = super().add_message(ledger_id, entry_id, deliver_at)
        if not is_tracked or deliver_at < self._highest_deliver_at_ms - self._tick_time_ms:
            self._have_fixed_delays = False
        if is_tracked:
            self._highest_deliver_at_ms = max(self._highest_deliver_at_ms, int(deliver_at))
        return is_tracked

    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        is_tracked = super().add_messages(ledger_ids, entry_ids, deliver_ats)
        if not is_tracked.all():
            self._have_fixed_delays = False
        deliver_at_ms = np.asarray(deliver_ats, np.int64)[is_tracked]
        if len(deliver_at_ms):
            # The highest time before each row, in the order in which they came.
            highest_ms = np.maximum.accumulate(np.append(self._highest_deliver_at_ms, deliver_at_ms))
            if (deliver_at_ms < highest_ms[:-1] - self._tick_time_ms).any():
                self._have_fixed_delays = False
            self._highest_deliver_at_ms = int(highest_ms[-1])
        return is_tracked

    def end_fixed_delays(self) -> None:
        self._have_fixed_delays = False

    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        rows = super().get_scheduled_messages(max_messages)
        if not self._core.tracked.count:
            self._expect_fixed_delays()
        return rows

    def reset_tick_time(self, tick_time_ms: int) -> None:
        super().reset_tick_time(tick_time_ms)
        self._tick_time_ms = tick_time_ms

    async def clear(self) -> None:
        await super().clear()
        self._expect_fixed_delays()

    async def close(self) -> None:
        self._next_turn.check_loop()
        self._stop()

    def _expect_fixed_delays(self) -> None:
        self._highest_deliver_at_ms = 0
        self._have_fixed_delays = True

    def _is_paused(self, now_ms: int) -> bool:
        """Whether all delays are the same: nothing that is read further on is due before what is tracked."""
        lookahead = self._config.fixed_delay_detection_lookahead
        has_many = self._have_fixed_delays and self._core.tracked.count >= lookahead
        return lookahead > 0 and has_many and not self._core.has_due(now_ms=now_ms)

    def _start_calls(self, calls: Sequence[Call]) -> None:
        assert not calls, "nothing is sealed, so nothing is stored"


class InMemoryDelayedDeliveryTrackerFactory(DelayedDeliveryTrackerFactory):
    """Makes in-memory trackers."""

    def __init__(self, config: TrackerConfig, *, now_ms: Clock) -> None:
        self._config = config
        self._now_ms = now_ms
        self._watch = WallClockWatch(now_ms)

    def new_tracker(self, context: TrackerContext) -> InMemoryDelayedDeliveryTracker:
        return InMemoryDelayedDeliveryTracker(context, self._config, now_ms=self._now_ms, watch=self._watch)
