"""The pause of a subscription's deliveries, as its cursor stores it: one property, so one synced write.

A pause of a whole topic is one of each of its subscriptions, marked as such: a subscription that is made meanwhile
takes it over from another.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from postdate.command_line.output import iso_or_none

PAUSE_PROPERTY: Final = "#postdate.pause"
"""The name of the property; names of buckets and of clients' properties begin otherwise."""


@dataclass(frozen=True, slots=True)
class PauseState:
    """The state of deliveries: paused since a time, resumed at a limited rate, or running."""

    paused_since_ms: int | None = None
    rate_per_second: float | None = None
    is_of_topic: bool = False
    """Whether it is a pause of all subscriptions, which later ones join."""
    author: str | None = None
    """Who paused: a role, without authentication an address; None where it was paused before this was kept."""
    note: str | None = None

    @property
    def is_paused(self) -> bool:
        """Whether deliveries are held."""
        return self.paused_since_ms is not None

    def __str__(self) -> str:
        """Return a pause as sentences name it.

        >>> str(PauseState(0, author="anna", note="deploy"))
        'the pause since 1970-01-01T00:00:00.000Z by anna ("deploy")'
        """
        by, note = (f" by {self.author}" if self.author else ""), (f' ("{self.note}")' if self.note else "")
        return f"the pause since {iso_or_none(self.paused_since_ms)}{by}{note}"

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "PauseState":
        """Read the state from a cursor's properties.

        >>> PauseState.of({PAUSE_PROPERTY: '{"pausedSinceMs":5,"ratePerSecond":null}'}) == PauseState(paused_since_ms=5)
        True
        """
        text = properties.get(PAUSE_PROPERTY)
        if text is None:
            return NOT_PAUSED
        stored = json.loads(text)
        return cls(
            stored.get("pausedSinceMs"),
            stored.get("ratePerSecond"),
            stored.get("isOfTopic", False),
            stored.get("author"),
            stored.get("note"),
        )

    def to_properties(self) -> dict[str, str]:
        """Return the property to be stored, none for running deliveries."""
        if self == NOT_PAUSED:
            return {}
        stored: dict[str, float | bool | str | None] = {
            "pausedSinceMs": self.paused_since_ms,
            "ratePerSecond": self.rate_per_second,
        }
        others = {"isOfTopic": self.is_of_topic, "author": self.author, "note": self.note}
        stored |= {name: value for name, value in others.items() if value}
        return {PAUSE_PROPERTY: json.dumps(stored, separators=(",", ":"))}


NOT_PAUSED: Final = PauseState()
