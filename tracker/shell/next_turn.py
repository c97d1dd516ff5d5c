"""When a tracker looks at what is to be done: once in a turn of the event loop, after any change, and at a time.

The timer is asyncio's own, set by the wall clock. That clock may be stepped, and the loop's is not: one watch compares
both every few seconds, and has every tracker look again after a step.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from managed_ledger.positions.value_types import Clock
from tracker.errors import TrackerError

WATCH_INTERVAL_S: Final = 5.0
"""A step of the clock is noticed within this time."""

_STEP_MS_MIN: Final = 1_000
"""A smaller step makes a timer late, or early, by no more than that."""

_WRONG_LOOP: Final = "a tracker is called on its own event loop alone: threads use its call_soon_threadsafe"


class WallClockWatch:
    """Has trackers look again when the wall clock was stepped, as long as there are any."""

    def __init__(self, now_ms: Clock) -> None:
        self.now_ms = now_ms
        self._turns: dict[NextTurn, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._difference_ms = 0.0
        """Of the wall clock and the loop's, when timers were last set by it: small steps add up."""

    def add(self, turn: "NextTurn") -> None:
        """Tell a tracker from now on."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # The timers of an event loop that has ended never come.
            self._turns, self._loop, self._handle = {}, loop, None
        self._turns[turn] = None
        if self._handle is None:
            self._compare()

    def discard(self, turn: "NextTurn") -> None:
        """Tell a tracker no more."""
        self._turns.pop(turn, None)
        if not self._turns and self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _compare(self) -> None:
        loop = asyncio.get_running_loop()
        difference_ms = self.now_ms() - 1_000 * loop.time()
        is_first, self._handle = self._handle is None, loop.call_later(WATCH_INTERVAL_S, self._compare)
        if is_first or abs(difference_ms - self._difference_ms) >= _STEP_MS_MIN:
            self._difference_ms = difference_ms
            for turn in () if is_first else tuple(self._turns):
                turn.end_timer()


class NextTurn:
    """A call that is made once, soon, after it was asked for, and at a time; it belongs to the loop that runs now.

    Without a watch, which has the clock, no timer can be set. Methods raise `TrackerError` in another thread.
    """

    __slots__ = ("_call", "_handle", "_is_closed", "_loop", "_timer", "_watch", "timer_at_ms")

    def __init__(self, call: Callable[[], None], watch: WallClockWatch | None = None) -> None:
        self._call = call
        self._loop = _running_loop()
        self._handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.timer_at_ms: int | None = None
        """The time that the timer is set for, None while it is not."""
        self._is_closed = False
        self._watch = watch
        if watch is not None:
            watch.add(self)

    def want(self) -> None:
        """Make the call in the next turn of the loop, unless that is asked for already, or this is closed."""
        if self._handle is None and not self._is_closed:
            self.check_loop()
            self._handle = self._loop.call_soon(self.run)

    def set_timer(self, at_ms: int | None) -> None:
        """Want the call at a time, at once if that is over, or at none; nothing is done where that has not changed."""
        if at_ms == self.timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at_ms = at_ms
        if at_ms is not None and self._watch is not None:
            wait_s = max(0, at_ms - self._watch.now_ms()) / 1_000
            self._timer = self._loop.call_later(wait_s, self.end_timer)

    def end_timer(self) -> None:
        """Want the call now, and not at the time of the timer: that has come, or the clock was stepped."""
        self.set_timer(None)
        self.want()

    def check_loop(self) -> None:
        """Check that the loop runs in this thread; after `close`, nothing is to be disturbed any more."""
        if not self._is_closed and _running_loop() is not self._loop:
            raise TrackerError(_WRONG_LOOP)

    def run(self) -> None:
        """Make the call now, instead of in the next turn."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._call()

    def close(self) -> None:
        """Make no call any more, and refer to its owner no more: a closed one is to go without a search for cycles."""
        self._is_closed = True
        self._call = do_nothing
        self.set_timer(None)
        if self._handle is not None:
            self._handle.cancel()
        if self._watch is not None:
            self._watch.discard(self)


def call_program(callback: Callable[..., None], *arguments: object) -> None:
    """Call a callback of the program here and now; an exception of it goes to the loop's exception handler.

    The caller may be in the middle of several answers, or of several subscriptions, and has to go on.
    """
    try:
        callback(*arguments)
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"Exception in callback {callback!r} of a tracker", "exception": error}
        )


def do_nothing(*_: object) -> None:
    """Stand for the callback of an owner that is closed, so that it goes without a search for cycles."""


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise TrackerError(_WRONG_LOOP) from None
