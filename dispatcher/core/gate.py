"""The gate of a pause and a smooth resume: it lets no message pass, so many a second, or all. Pure.

A closed gate is like a subscription without permits: due messages wait where they are, in order, and no message is read
ahead of a permit. So messages that are let through later keep each key's order. Messages that a consumer has are not
taken back.
"""

from typing import Final

from dispatcher.core.consumers import UNLIMITED

_GRANTS_PER_SECOND: Final = 50
"""A rate is granted in portions, so that few wake-ups serve any rate."""


class DeliveryGate:
    """Open at first; it outlives the dispatchers that use it, as does the count that a batch took beyond its grant."""

    __slots__ = ("_granted", "_granted_ms", "is_closed", "rate_per_second")

    def __init__(self) -> None:
        self.is_closed = False
        self.rate_per_second: float | None = None
        """The most messages a second that pass, None for no limit."""
        self._granted = 0.0
        self._granted_ms = 0

    @property
    def is_open(self) -> bool:
        """Whether everything passes."""
        return not self.is_closed and self.rate_per_second is None

    def close(self) -> None:
        """Let nothing pass."""
        self.is_closed = True
        self.rate_per_second = None

    def open(self, now_ms: int, rate_per_second: float | None = None) -> None:
        """Let everything pass, or so many messages a second; a rate that is in force goes on as it is."""
        assert rate_per_second is None or rate_per_second > 0
        if rate_per_second is not None and rate_per_second == self.rate_per_second:
            return
        self.is_closed = False
        self.rate_per_second = rate_per_second
        self._granted, self._granted_ms = 0.0, now_ms

    def note_time(self, now_ms: int) -> bool:
        """Note what time it is; return whether messages may pass again for which there was no room before."""
        if self.rate_per_second is None:
            return False
        had_none = int(self._granted) <= 0
        return self.budget(now_ms) > 0 and had_none

    def budget(self, now_ms: int) -> int:
        """Return how many messages may pass now, `UNLIMITED` for any number."""
        if self.is_closed:
            return 0
        if self.rate_per_second is None:
            return UNLIMITED
        self._grant(now_ms)
        # A batch passes as a whole, as no part of it can be kept back; later messages wait for longer.
        return int(self._granted)

    def note_given(self, messages: int) -> None:
        """Note that so many messages have passed."""
        if self.rate_per_second is not None:
            self._granted -= messages

    def next_grant_ms(self, now_ms: int) -> int | None:
        """Return when the next message may pass, None where no waiting for it is limited in time."""
        if self.is_closed or self.rate_per_second is None or self.budget(now_ms) > 0:
            return None
        missing = max(1.0, self._portion) - self._granted
        return now_ms + max(1, int(1000 * missing / self.rate_per_second) + 1)

    @property
    def _portion(self) -> float:
        assert self.rate_per_second is not None
        return self.rate_per_second / _GRANTS_PER_SECOND

    def _grant(self, now_ms: int) -> None:
        assert self.rate_per_second is not None
        # A clock that was put back neither grants anything nor takes a grant back.
        elapsed_ms = max(0, now_ms - self._granted_ms)
        self._granted_ms = now_ms
        # Unused grants are not kept for long, or their messages would come in one burst.
        most = max(1.0, 2 * self._portion)
        self._granted = min(most, self._granted + elapsed_ms * self.rate_per_second / 1000)
