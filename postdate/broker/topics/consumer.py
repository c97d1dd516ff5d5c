"""The `ConsumerHandle` of one consumer, which writes to a connection.

It holds the fields of SUBSCRIBE. Permits, unacknowledged messages, counters and key ranges are in the dispatcher.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.consumer import Delivery, KeySharedPolicy
from postdate.broker.protocol import commands, frames
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.rates import ConsumerCounters, RateMeter


@dataclass(eq=False, slots=True)
class Consumer:
    """A consumer of a subscription.

    Attributes:
        link: Its connection.
        consumer_id: The client's number for it, unique within the connection.
        name: Its name; several consumers of a subscription may have the same.
        subscription_name: The name of its subscription.
        priority_level: 0 is served first, in Shared and Failover.
        key_shared_policy: The policy that it asks for in a Key_Shared subscription.
        connected_ms: When it subscribed.
        steady_ms: The same by a clock that is never set, from which its rates count.
        epoch: The client's count of redelivery requests, echoed with each message so that the client can tell
            messages that were sent before such a request.
        meter: The rates of its `ConsumerCounters`.
    """

    link: ClientLink
    consumer_id: int
    name: str
    subscription_name: str
    priority_level: int = 0
    key_shared_policy: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    epoch: int | None = None
    connected_ms: int = 0
    steady_ms: int = 0
    meter: RateMeter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = RateMeter(self.steady_ms, ConsumerCounters())

    @property
    def is_writable(self) -> bool:
        """Whether the client reads bytes as fast as they are read for its consumers and written."""
        return self.link.is_writable

    def begin_read(self, size: int) -> None:
        """Count bytes that are being read for it at its connection."""
        self.link.begin_read(size)

    def end_read(self, size: int) -> None:
        """Count these no more."""
        self.link.end_read(size)

    def send_messages(self, deliveries: Sequence[Delivery]) -> None:
        """Write one MESSAGE frame for each entry, all in one write."""
        self.link.write(frames.messages(self.consumer_id, deliveries, consumer_epoch=self.epoch))

    def active_consumer_changed(self, is_active: bool) -> None:
        """Tell the client whether this consumer is the active one (Failover)."""
        self.link.write(commands.active_consumer_change(self.consumer_id, is_active=is_active))

    def disconnect(self) -> None:
        """Tell the client that this consumer is closed; it will subscribe again by itself."""
        self.link.close_consumer(self.consumer_id)
