"""Consumers as the broker sees them, and the entries that their clients were sent and have not acknowledged."""

from collections.abc import Callable, Sequence

from dispatcher.consumer import Delivery, KeySharedPolicy
from postdate.broker.clients.writability import Writability
from postdate.broker.topics.consumer import Consumer


class Link:
    """A connection without a client at its other end (a `postdate.broker.topics.link.ClientLink`).

    Each consumer has a link of its own, which may take no bytes. All links of one life count their reads together.

    Args:
        reads: The reads of all links.
        on_writable: Told when reads may begin again.
    """

    peer = "simulated"
    client_version = "simulated"

    def __init__(self, reads: Writability, on_writable: Callable[[], None]) -> None:
        self.takes_bytes = True
        self.is_closed = False
        self._reads = reads
        self._on_writable = on_writable

    @property
    def waits_for_reads(self) -> bool:
        """Whether others are being read for, and nothing else is in the way."""
        return self.takes_bytes and not self._reads.is_writable

    @property
    def is_writable(self) -> bool:
        return self.takes_bytes and self._reads.is_writable

    def begin_read(self, size: int) -> None:
        self._reads.begin_read(size)

    def end_read(self, size: int) -> None:
        if self._reads.end_read(size):
            self._on_writable()

    def write(self, data: bytes) -> None:
        """Drop the commands: no client reads them."""

    def close(self, reason: str | None = None) -> None:
        self.is_closed = True

    def pause_reading(self, why: str) -> None:
        """Ignore it: the link reads no commands."""

    def resume_reading(self, why: str) -> None:
        """Ignore it: the link reads no commands."""

    def check_alive(self) -> None:
        """It is."""

    async def is_alive(self) -> bool:
        return not self.is_closed

    def close_producer(self, producer_id: int, *, refusal: str | None = None) -> None:
        """There is none."""

    def refuse_producer(self, producer_id: int, request_id: int) -> None:
        """There is none."""

    def producer_ready(self, request_id: int, producer_name: str, topic_epoch: int | None) -> None:
        """There is none."""

    def close_consumer(self, consumer_id: int) -> None:
        self.is_closed = True


class SimulatedConsumer(Consumer):
    """Hands every delivery to the oracle, and counts what it asked for and got."""

    def __init__(
        self,
        number: int,
        subscription_name: str,
        policy: KeySharedPolicy,
        priority_level: int,
        link: Link,
        on_delivery: Callable[["SimulatedConsumer", Sequence[Delivery]], None],
        on_active: Callable[["SimulatedConsumer"], None],
    ) -> None:
        self.own_link = link
        super().__init__(
            self.own_link,
            number,
            f"c{number}",
            subscription_name,
            priority_level=priority_level,
            key_shared_policy=policy,
        )
        self._on_delivery = on_delivery
        self._on_active = on_active
        self.messages_asked = 0
        """Permits that it gave."""
        self.messages_got = 0
        self.is_attached = False
        """Whether its SUBSCRIBE was answered, so that it may send commands."""
        self.is_leaving = False

    def send_messages(self, deliveries: Sequence[Delivery]) -> None:
        self._on_delivery(self, deliveries)

    def active_consumer_changed(self, is_active: bool) -> None:
        if is_active:
            self._on_active(self)
