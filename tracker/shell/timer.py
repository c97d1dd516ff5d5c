"""The timers of trackers: asyncio's own, by the wall clock, and one watch of that clock for many trackers.

The wall clock may be stepped, and the loop's clock is not. So the watch compares both every few seconds, and has every
tracker look again after a step.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from managed_ledger.value_types import Clock
from tracker.shell.next_turn import do_nothing

WATCH_INTERVAL_S: Final = 5.0
"""A step of the clock is noticed within this time."""

_STEP_MS_MIN: Final = 1_000
"""A smaller step makes a timer late, or early, by no more than that."""


class WallClockWatch:
    """Tells timers that the wall clock was stepped, as long as there are any.

    Args:
        now_ms: The wall clock in milliseconds.
    """

    def __init__(self, now_ms: Clock) -> None:
        self.now_ms = now_ms
        self._timers: dict[Timer, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._last = (0, 0.0)
        """The wall clock and the loop's, in milliseconds and seconds, when they were compared last."""

    def add(self, timer: "Timer") -> None:
        """Tell a timer from now on."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # The timers of an event loop that has ended never come.
            self._timers, self._loop, self._handle = {}, loop, None
        self._timers[timer] = None
        if self._handle is None:
            self._compare_later(loop)

    def discard(self, timer: "Timer") -> None:
        """Tell a timer no more."""
        self._timers.pop(timer, None)
        if not self._timers and self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _compare_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last = (self.now_ms(), loop.time())
        self._handle = loop.call_later(WATCH_INTERVAL_S, self._compare)

    def _compare(self) -> None:
        loop = asyncio.get_running_loop()
        last_ms, last_s = self._last
        has_stepped = abs(self.now_ms() - last_ms - 1_000 * (loop.time() - last_s)) >= _STEP_MS_MIN
        self._compare_later(loop)
        for timer in tuple(self._timers) if has_stepped else ():
            timer.fire()


class Timer:
    """The one timer of a tracker, set anew when its time changes.

    Args:
        watch: Tells it of steps of the clock.
        on_time: Called at the time, which is over then, and after a step of the clock.
    """

    def __init__(self, watch: WallClockWatch, on_time: Callable[[], None]) -> None:
        self._watch = watch
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None
        self.at_ms: int | None = None
        """The time it was set for, None while it is not."""
        watch.add(self)

    def set(self, at_ms: int | None) -> None:
        """Set it for a time, at once if that is over, or for none; nothing is done where that has not changed."""
        if at_ms == self.at_ms:
            return
        self._cancel()
        self.at_ms = at_ms
        if at_ms is not None:
            wait_s = max(0, at_ms - self._watch.now_ms()) / 1_000
            self._handle = asyncio.get_running_loop().call_later(wait_s, self.fire)

    def fire(self) -> None:
        """Make the call now; the time is over."""
        self._cancel()
        self._on_time()

    def close(self) -> None:
        """Set it for no time, and refer to the tracker no more: a closed one is to go without a search for cycles."""
        self._cancel()
        self._watch.discard(self)
        self._on_time = do_nothing

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self.at_ms = None
