"""Which topics may go: out of memory when nobody uses them, and for good where the configuration says so.

Deleting follows Pulsar's rules. With `delete_when_no_subscriptions` any subscription keeps a topic, whatever it has
acknowledged; what was published to a topic without one goes with it. With `delete_when_subscriptions_caught_up` a
backlog keeps it, delayed messages included. Connected producers and consumers keep a topic in both. It must have been
so for a while, counted from when the topic was opened at the earliest.

Unlike in Pulsar it is switched off unless somebody asks for it: nothing irreversible happens by omission.
"""

from dataclasses import dataclass, field
from typing import Final

DELETE_WHEN_NO_SUBSCRIPTIONS: Final = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
_MODES: Final = (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)
_SECONDS: Final = (1, 2**31 - 1)

REST_AFTER_MS: Final = 300_000
"""A topic that nobody has used for so long is closed; who asks for it has it opened again, in a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveTopicsConfig:
    """When a topic that nobody uses is deleted."""

    is_deleted: bool = field(default=False, metadata={"key": "brokerDeleteInactiveTopicsEnabled"})
    """Whether any is deleted at all. Default off, in Pulsar on."""

    check_interval_s: int = field(
        default=60, metadata={"key": "brokerDeleteInactiveTopicsFrequencySeconds", "range": _SECONDS}
    )
    """How often it is looked. Default 60."""

    mode: str = field(
        default=DELETE_WHEN_NO_SUBSCRIPTIONS,
        metadata={
            "key": "brokerDeleteInactiveTopicsMode",
            "choices": _MODES,
        },
    )
    """Whether subscriptions without a backlog keep a topic. Default they do."""

    inactive_s_max: int | None = field(
        default=None,
        metadata={"key": "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", "range": _SECONDS},
    )
    """For how long a topic must have been inactive. Default as `check_interval_s`."""

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(f"mode must be {' or '.join(_MODES)}, but is {self.mode}")
        for name in ("check_interval_s", "inactive_s_max"):
            value = getattr(self, name)
            if value is not None and not _SECONDS[0] <= value <= _SECONDS[1]:
                raise ValueError(f"{name} must be from {_SECONDS[0]} to {_SECONDS[1]}, but is {value}")

    @property
    def inactive_ms_max(self) -> int:
        """For how long a topic must have been inactive, in milliseconds."""
        return 1_000 * (self.check_interval_s if self.inactive_s_max is None else self.inactive_s_max)
