"""Steps of the wall clock: it was set, or the machine slept, and the difference of two times of day is no duration.

Left out: the consequences. Delivery times are times of day, and follow the wall clock in each of its steps.
"""

import time
from typing import Final

from managed_ledger.value_types import Clock

STEP_MS_MIN: Final = 1_000
"""Less is taken for the rounding and the slewing of clocks."""

_SLEWED_SHARE_MAX: Final = 0.01
"""Time daemons slew a clock by 0.05 % at most, some virtual machines by more."""


def steady_ms() -> int:
    """Return the milliseconds since some moment; setting the wall clock does not change it."""
    return time.monotonic_ns() // 1_000_000


class ClockSteps:
    """Compares the wall clock with one that is never set.

    Args:
        now_ms: The wall clock.
        steady_ms: The other.
    """

    def __init__(self, now_ms: Clock, steady_ms: Clock) -> None:
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._last = now_ms(), steady_ms()

    def were_made(self) -> bool:
        """Return whether the wall clock has been set since the last call, or since this was made."""
        before_ms, steady_before_ms = self._last
        self._last = now_ms, steady_now_ms = self._now_ms(), self._steady_ms()
        passed_ms = steady_now_ms - steady_before_ms
        return abs(now_ms - before_ms - passed_ms) > STEP_MS_MIN + _SLEWED_SHARE_MAX * passed_ms
