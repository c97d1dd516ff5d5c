"""The rules for unused topics: when one leaves memory, and when the configuration has it deleted.

Deleting follows Pulsar's rules. With `delete_when_no_subscriptions` any subscription keeps a topic, with a backlog or
without; a topic without one is deleted with its messages. With `delete_when_subscriptions_caught_up` a backlog keeps
it, delayed messages included. Connected producers and consumers keep a topic in both. The condition must have held for
a while, counted from the opening of the topic at the earliest.

Unlike in Pulsar, deleting is off by default: nothing irreversible happens by omission.
"""

from dataclasses import dataclass, field
from typing import Final

from managed_ledger.positions.value_types import InvalidValueError

DELETE_WHEN_NO_SUBSCRIPTIONS: Final = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
_MODES: Final = (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)
_SECONDS: Final = (1, 2**31 - 1)

REST_AFTER_MS: Final = 300_000
"""A topic that is unused for so long is closed; its next use opens it again, in a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveTopicsConfig:
    """The configuration of deleting unused topics."""

    is_deleted: bool = field(default=False, metadata={"key": "brokerDeleteInactiveTopicsEnabled"})
    check_interval_s: int = field(
        default=60, metadata={"key": "brokerDeleteInactiveTopicsFrequencySeconds", "range": _SECONDS}
    )
    mode: str = field(
        default=DELETE_WHEN_NO_SUBSCRIPTIONS,
        metadata={
            "key": "brokerDeleteInactiveTopicsMode",
            "choices": _MODES,
        },
    )
    inactive_s_max: int | None = field(
        default=None,
        metadata={"key": "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", "range": _SECONDS},
    )

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise InvalidValueError("mode", " or ".join(_MODES), value=self.mode)
        for name in ("check_interval_s", "inactive_s_max"):
            value = getattr(self, name)
            if value is not None and not _SECONDS[0] <= value <= _SECONDS[1]:
                least, most = _SECONDS
                raise InvalidValueError(name, "from {least} to {most}", value=value, least=least, most=most)

    @property
    def inactive_ms_max(self) -> int:
        """For how long a topic must have been inactive, in milliseconds."""
        return 1_000 * (self.check_interval_s if self.inactive_s_max is None else self.inactive_s_max)
