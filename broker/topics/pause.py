"""Whether a subscription's deliveries are held, as its cursor stores it: one property, so one synced write."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PAUSE_PROPERTY: Final = "#postdate.pause"
"""The cursor's property; no bucket's and no client's begins so."""


@dataclass(frozen=True, slots=True)
class PauseState:
    """Held since a time, or let go at a rate until nothing waits any more, or neither."""

    paused_since_ms: int | None = None
    rate_per_second: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether nothing goes out."""
        return self.paused_since_ms is not None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "PauseState":
        """Return what a cursor's properties say.

        >>> PauseState.of(PauseState(paused_since_ms=5).to_properties())
        PauseState(paused_since_ms=5, rate_per_second=None)
        """
        text = properties.get(PAUSE_PROPERTY)
        if text is None:
            return NOT_PAUSED
        stored = json.loads(text)
        return cls(stored.get("pausedSinceMs"), stored.get("ratePerSecond"))

    def to_properties(self) -> dict[str, str]:
        """Return the property to be stored, none where there is nothing to say."""
        if self == NOT_PAUSED:
            return {}
        stored = {"pausedSinceMs": self.paused_since_ms, "ratePerSecond": self.rate_per_second}
        return {PAUSE_PROPERTY: json.dumps(stored, separators=(",", ":"))}


NOT_PAUSED: Final = PauseState()
