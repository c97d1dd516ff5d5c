"""The pause of a subscription's deliveries, as its cursor stores it: one property, so one synced write."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PAUSE_PROPERTY: Final = "#postdate.pause"
"""The name of the property; names of buckets and of clients' properties begin otherwise."""


@dataclass(frozen=True, slots=True)
class PauseState:
    """The state of deliveries: paused since a time, resumed at a limited rate, or running."""

    paused_since_ms: int | None = None
    rate_per_second: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether deliveries are held."""
        return self.paused_since_ms is not None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "PauseState":
        """Read the state from a cursor's properties.

        >>> PauseState.of(PauseState(paused_since_ms=5).to_properties())
        PauseState(paused_since_ms=5, rate_per_second=None)
        """
        text = properties.get(PAUSE_PROPERTY)
        if text is None:
            return NOT_PAUSED
        stored = json.loads(text)
        return cls(stored.get("pausedSinceMs"), stored.get("ratePerSecond"))

    def to_properties(self) -> dict[str, str]:
        """Return the property to be stored, none for running deliveries."""
        if self == NOT_PAUSED:
            return {}
        stored = {"pausedSinceMs": self.paused_since_ms, "ratePerSecond": self.rate_per_second}
        return {PAUSE_PROPERTY: json.dumps(stored, separators=(",", ":"))}


NOT_PAUSED: Final = PauseState()
