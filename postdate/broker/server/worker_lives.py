"""When a worker that has ended is started again: at once, and later each time if it does not last.

    STARTING ── ready ──► READY ── ended ──► WAITING ── its time has come ──► STARTING
        └────────────────── ended ──────────────┘

A pure decision: times come in, in seconds of a clock that is never set.
"""

from typing import Final

LASTING_S: Final = 60.0
"""A life of this length is one of a worker that works: after it the next one begins at once."""

PAUSE_S: Final = 0.5
"""The first pause, after a second short life; it doubles."""

PAUSE_MAX_S: Final = 30.0


class WorkerLives:
    """The lives of one worker, one after the other.

    Args:
        name: What it is called in `problem`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun_s = 0.0
        self._short_lives = 0
        self._ended: str | None = None
        self.is_ready = False
        """Whether it serves its bundles now."""
        self.is_tried = False
        """Whether it has been ready, or has ended, at least once."""

    def begin(self, now_s: float) -> None:
        """Note that its process was started."""
        self._begun_s = now_s

    def become_ready(self) -> None:
        """Note that it serves its bundles."""
        self.is_ready = self.is_tried = True
        self._ended = None

    def end(self, now_s: float, exit_code: int) -> float:
        """Note that its process has ended, and return after how many seconds to start the next one.

        Args:
            now_s: The time.
            exit_code: Its exit code, negative for the signal that it was ended by.
        """
        has_lasted = self.is_ready and now_s - self._begun_s >= LASTING_S
        self._short_lives = 1 if has_lasted else self._short_lives + 1
        self.is_ready, self.is_tried = False, True
        how = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        self._ended = f"{how}; the log says why"
        if self._short_lives == 1:
            return 0.0
        return min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self._short_lives - 2, 10))

    @property
    def problem(self) -> str | None:
        """Why its bundles are not served; None while they are."""
        if self.is_ready:
            return None
        if self._ended is None:
            return f"{self._name} is starting"
        return f"{self._name} is starting again, as it {self._ended}"
