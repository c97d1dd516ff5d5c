"""One timer of the event loop for the alarms of many trackers, by the wall clock.

    alarms, a heap by time ──► the loop's timer: at the first alarm, or 5 s ahead if that is sooner

The wall clock may be stepped, so the timer is never set further ahead than `TIMER_MS_MAX`. With a timer for each
tracker, ten thousand of them with messages for tomorrow would wake up two thousand times a second to find nothing; here
the first alarm answers for all behind it.
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from managed_ledger.value_types import Clock
from tracker.shell.callbacks import do_nothing

TIMER_MS_MAX: Final = 5_000
"""No sleep is longer, so that a step of the clock is noticed."""

_STEP_MS_MIN: Final = 1_000
"""A smaller step of the clock makes an alarm late, or early, by no more than that."""

CALLED_A_TURN_MAX: Final = 32
"""Alarms of one turn of the event loop: each has its tracker's dispatcher read and send, some 0.2 ms in all."""

_CANCELLED_MIN: Final = 100
"""So many cancelled alarms may lie in the heap, and as many as there are others."""


class Alarm:
    """One time at which a tracker is to be called."""

    __slots__ = ("at_ms", "on_time")

    def __init__(self, at_ms: int, on_time: Callable[[], None] | None) -> None:
        self.at_ms = at_ms
        self.on_time = on_time
        """None once it is over or cancelled."""


class Alarms:
    """The alarms of one event loop.

    Args:
        now_ms: The wall clock in milliseconds.
    """

    def __init__(self, now_ms: Clock) -> None:
        self._now_ms = now_ms
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = count()
        self._cancelled = 0
        self._stepped: list[Alarm] = []
        """Those that are called because the clock was stepped, the next one last."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = (0, 0.0)
        """The wall clock and the loop's, in milliseconds and seconds, when the timer was set."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._stepped) - self._cancelled

    def set(self, at_ms: int, on_time: Callable[[], None]) -> Alarm:
        """Have something called at a time, or at once if that is over."""
        self._leave_other_loop()
        alarm = Alarm(at_ms, on_time)
        heappush(self._heap, (at_ms, next(self._numbers), alarm))
        self._arm()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Forget an alarm; one that is over is ignored."""
        if alarm.on_time is None:
            return
        alarm.on_time = None
        self._cancelled += 1
        if self._cancelled > max(_CANCELLED_MIN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].on_time is not None]
            heapify(self._heap)
            self._stepped = [other for other in self._stepped if other.on_time is not None]
            self._cancelled = 0
        if not self and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave_other_loop(self) -> None:
        """Forget the alarms of an event loop that has ended before they were cancelled: its timer never comes."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            for alarm in (*(alarm for _, _, alarm in self._heap), *self._stepped):
                alarm.on_time = None
            self._heap, self._stepped, self._cancelled = [], [], 0
            self._loop, self._timer = loop, None

    def _arm(self) -> None:
        self._drop_cancelled()
        if not (self._heap or self._stepped):
            return
        loop = asyncio.get_running_loop()
        now_ms, loop_s = self._now_ms(), loop.time()
        at_ms = now_ms if self._stepped else self._heap[0][0]
        at_s = loop_s + min(TIMER_MS_MAX, max(0, at_ms - now_ms)) / 1_000
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        else:
            self._armed_at = (now_ms, loop_s)
        self._timer = loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        if self._has_stepped(now_ms):
            # A tracker that waits by a clock that was stepped is to look at its timers again.
            self._stepped = [*(alarm for _, _, alarm in sorted(self._heap, reverse=True)), *self._stepped]
            self._heap = []
        due: list[Alarm] = []
        while len(due) < CALLED_A_TURN_MAX and self._heap and self._heap[0][0] <= now_ms:
            due.append(heappop(self._heap)[2])
        while len(due) < CALLED_A_TURN_MAX and self._stepped:
            due.append(self._stepped.pop())
        for alarm in due:
            on_time, alarm.on_time = alarm.on_time, None
            if on_time is None:
                self._cancelled -= 1
            else:
                on_time()
        self._arm()

    def _has_stepped(self, now_ms: int) -> bool:
        """Return whether the wall clock went another way than the loop's since the timer was set."""
        armed_ms, armed_s = self._armed_at
        passed_ms = 1_000 * (asyncio.get_running_loop().time() - armed_s)
        return abs(now_ms - armed_ms - passed_ms) >= _STEP_MS_MIN

    def _drop_cancelled(self) -> None:
        while self._heap and self._heap[0][2].on_time is None:
            heappop(self._heap)
            self._cancelled -= 1


class TrackerTimer:
    """The one alarm of a tracker, set anew when its time changes.

    Args:
        alarms: The alarms of the event loop.
        on_time: Called at the time, which is forgotten then.
    """

    __slots__ = ("_alarm", "_alarms", "_on_time", "at_ms")

    def __init__(self, alarms: Alarms, on_time: Callable[[], None]) -> None:
        self._alarms = alarms
        self._on_time = on_time
        self._alarm: Alarm | None = None
        self.at_ms: int | None = None
        """The time it was set for, None while it is not."""

    def set(self, at_ms: int | None) -> None:
        """Set it for a time, or for none; nothing is done where that has not changed."""
        if at_ms == self.at_ms:
            return
        self.cancel()
        self.at_ms = at_ms
        if at_ms is not None:
            self._alarm = self._alarms.set(at_ms, self._on_alarm)

    def cancel(self) -> None:
        """Set it for no time."""
        if self._alarm is not None:
            self._alarms.cancel(self._alarm)
        self._alarm = self.at_ms = None

    def close(self) -> None:
        """Set it for no time, and refer to the tracker no more: a closed one is to go without a search for cycles."""
        self.cancel()
        self._on_time = do_nothing

    def _on_alarm(self) -> None:
        self._alarm = self.at_ms = None
        self._on_time()
