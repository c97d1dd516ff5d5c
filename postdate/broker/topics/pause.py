"""The pause of a subscription's deliveries, as its cursor stores it: one property, so one synced write.

A pause of a whole topic is one of each of its subscriptions, marked as such: a subscription that is made meanwhile
takes it over from another.
"""

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
    is_of_topic: bool = False
    """Whether it is a pause of all subscriptions, which later ones join."""

    @property
    def is_paused(self) -> bool:
        """Whether deliveries are held."""
        return self.paused_since_ms is not None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "PauseState":
        """Read the state from a cursor's properties.

        >>> PauseState.of(PauseState(paused_since_ms=5).to_properties())
        PauseState(paused_since_ms=5, rate_per_second=None, is_of_topic=False)
        """
        text = properties.get(PAUSE_PROPERTY)
        if text is None:
            return NOT_PAUSED
        stored = json.loads(text)
        return cls(stored.get("pausedSinceMs"), stored.get("ratePerSecond"), stored.get("isOfTopic", False))

    def to_properties(self) -> dict[str, str]:
        """Return the property to be stored, none for running deliveries."""
        if self == NOT_PAUSED:
            return {}
        stored: dict[str, float | bool | None] = {
            "pausedSinceMs": self.paused_since_ms,
            "ratePerSecond": self.rate_per_second,
        }
        if self.is_of_topic:
            stored["isOfTopic"] = True
        return {PAUSE_PROPERTY: json.dumps(stored, separators=(",", ":"))}


NOT_PAUSED: Final = PauseState()
