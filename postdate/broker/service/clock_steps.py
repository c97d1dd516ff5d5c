"""Steps of the wall clock: it was set, or the machine slept, and the difference of two times of day is no duration.

The service has one watch of the clock, which calls its listeners after each step. Durations are measured with a steady
clock. Work whose next turn is a time of day all the same, as APScheduler's, begins anew after a step. Delivery times,
tokens and retention are times of day: they follow the wall clock in each of its steps, and need no watch.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from managed_ledger.positions.value_types import Clock

logger = logging.getLogger(__name__)

STEP_MS_MIN: Final = 1_000
"""Less is taken for the rounding and the slewing of clocks."""

LOOK_INTERVAL_S: Final = 1.0
"""The longest time for which a step stays unseen."""

_SLEWED_SHARE_MAX: Final = 0.01
"""Time daemons slew a clock by 0.05 % at most, some virtual machines by more."""


def steady_ms() -> int:
    """Return the milliseconds since some moment; setting the wall clock does not change it."""
    return time.monotonic_ns() // 1_000_000


class ClockWatch:
    """Looks at the clock every second and whenever it is asked to; logs, counts and tells each step once.

    Args:
        now_ms: The wall clock.
        steady_ms: A clock that is never set.
    """

    def __init__(self, now_ms: Clock, steady_ms: Clock) -> None:
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._last = now_ms(), steady_ms()
        self._listeners: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.steps = 0
        """How many there were."""

    def add_listener(self, on_step: Callable[[], None]) -> None:
        """Have something called after each step, on the event loop."""
        self._listeners.append(on_step)

    def start(self) -> None:
        """Begin to look, on the running event loop."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._on_timer)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Look now, as before something computes with times of day."""
        before_ms, steady_before_ms = self._last
        self._last = now_ms, steady_now_ms = self._now_ms(), self._steady_ms()
        passed_ms = steady_now_ms - steady_before_ms
        step_ms = now_ms - before_ms - passed_ms
        if abs(step_ms) > STEP_MS_MIN + _SLEWED_SHARE_MAX * passed_ms:
            self.steps += 1
            logger.warning(
                "the wall clock was put %s by %.3f s, or the machine slept: periodic work begins anew from now",
                "forward" if step_ms > 0 else "back",
                abs(step_ms) / 1_000,
            )
            for on_step in self._listeners:
                on_step()

    def _on_timer(self) -> None:
        self.start()
        self.look()
