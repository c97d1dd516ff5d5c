"""Limits of connections, topics, subscriptions, producers and consumers, and the count of connections.

Names and defaults are Pulsar's, where 0 is no limit. A request over a limit is refused with the error of a real Pulsar,
and present clients stay. Topics and subscriptions are checked in `postdate.broker.topics.topic`,
`postdate.broker.topics.subscription` and `postdate.broker.service.service`; connections are counted here.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Final

from managed_ledger.positions.value_types import InvalidValueError

_COUNT: Final = (0, 2**31 - 1)


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
        for one in fields(self):
            least, most = one.metadata["range"]
            if not least <= getattr(self, one.name) <= most:
                value = getattr(self, one.name)
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
