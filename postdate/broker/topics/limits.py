"""What the configuration limits: connections, topics, producers and consumers, and for how long unused topics stay.

Names and defaults are Pulsar's, where 0 is no limit. A request over a limit is refused with the error of a real Pulsar,
and present clients stay. Connections are counted here; all else is checked where it is added.

Deleting inactive topics follows Pulsar's rules. With `delete_when_no_subscriptions` any subscription keeps a topic,
with a backlog or without; a topic without one is deleted with its messages. With `delete_when_subscriptions_caught_up`
a backlog keeps it, delayed messages included. Connected producers and consumers keep a topic in both. The condition
must have held for a while, counted from the opening of the topic at the earliest. Unlike in Pulsar, deleting is off by
default: nothing irreversible happens by omission.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Final

from managed_ledger.positions.value_types import InvalidValueError

_COUNT: Final = (0, 2**31 - 1)
_SECONDS: Final = (1, 2**31 - 1)
DELETE_WHEN_NO_SUBSCRIPTIONS: Final = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """The limits; fields are counts, 0 is no limit."""

    connections_max: int = field(default=0, metadata={"key": "brokerMaxConnections", "range": _COUNT})
    connections_per_ip_max: int = field(default=0, metadata={"key": "brokerMaxConnectionsPerIp", "range": _COUNT})
    web_connections_max: int = field(default=2048, metadata={"key": "maxHttpServerConnections", "range": _COUNT})
    connect_timeout_s: int = field(default=10, metadata={"key": "connectTimeoutSeconds", "range": (1, 3_600)})
    topics_per_namespace_max: int = field(default=0, metadata={"key": "maxTopicsPerNamespace", "range": _COUNT})
    producers_per_topic_max: int = field(default=0, metadata={"key": "maxProducersPerTopic", "range": _COUNT})
    subscriptions_per_topic_max: int = field(default=0, metadata={"key": "maxSubscriptionsPerTopic", "range": _COUNT})
    consumers_per_topic_max: int = field(default=0, metadata={"key": "maxConsumersPerTopic", "range": _COUNT})
    consumers_per_subscription_max: int = field(
        default=0, metadata={"key": "maxConsumersPerSubscription", "range": _COUNT}
    )

    def __post_init__(self) -> None:
        _check_fields(self)


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
            "choices": (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP),
        },
    )
    inactive_s_max: int | None = field(
        default=None,
        metadata={"key": "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds", "range": _SECONDS},
    )

    def __post_init__(self) -> None:
        _check_fields(self)

    @property
    def inactive_ms_max(self) -> int:
        """For how long a topic must have been inactive, in milliseconds."""
        return 1_000 * (self.check_interval_s if self.inactive_s_max is None else self.inactive_s_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeduplicationConfig:
    """The configuration of deduplication (`postdate.broker.topics.deduplication`)."""

    is_enabled: bool = field(default=False, metadata={"key": "brokerDeduplicationEnabled"})
    producers_max: int = field(
        default=10_000, metadata={"key": "brokerDeduplicationMaxNumberOfProducers", "range": (1, 2**31 - 1)}
    )
    inactivity_timeout_ms: int = field(
        default=360 * 60_000,
        metadata={
            "key": "brokerDeduplicationProducerInactivityTimeoutMinutes",
            "factor": 60_000,
            "range": (60_000, 60_000 * (2**31 - 1)),
        },
    )

    def __post_init__(self) -> None:
        _check_fields(self)


def _check_fields(config: LimitsConfig | InactiveTopicsConfig | DeduplicationConfig) -> None:
    for one in fields(config):
        value, choices = getattr(config, one.name), one.metadata.get("choices")
        if choices is not None and value not in choices:
            raise InvalidValueError(one.name, " or ".join(choices), value=value)
        least, most = one.metadata.get("range", (None, None))
        if least is not None and value is not None and not least <= value <= most:
            raise InvalidValueError(one.name, "from {least} to {most}", value=value, least=least, most=most)


def is_full(present: Collection[object], count_max: int) -> bool:
    """Whether there are as many as a limit allows; 0 is no limit."""
    return bool(count_max) and len(present) >= count_max


class ConnectionController:
    """Counts connections, in all and by address.

    Args:
        count_max: The most in all; 0 is no limit.
        per_ip_max: The most from one address; 0 is no limit.
    """

    def __init__(self, count_max: int = 0, per_ip_max: int = 0) -> None:
        self._count_max = count_max
        self._per_ip_max = per_ip_max
        self._by_address: Counter[str] = Counter()
        self._count = 0

    def admit(self, address: str) -> str | None:
        """Count a new connection, or return why it exceeds a limit; a refused connection is not released.

        Args:
            address: The client's IP address, without its port.
        """
        if self._count_max and self._count >= self._count_max:
            return "Reached the maximum number of connections"
        if self._per_ip_max and self._by_address[address] >= self._per_ip_max:
            return f"Reached the maximum number of connections on address {address}"
        self._count += 1
        self._by_address[address] += 1
        return None

    def release(self, address: str) -> None:
        """Uncount a connection that has ended."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
