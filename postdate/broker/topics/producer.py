"""One producer of a topic, as its connection holds it, and the access modes of producers.

A producer holds the state that the broker keeps between two SENDs. Appending is left out: it is the connection's fast
path, over the topic's log directly.

    Shared               beside other producers, unless one of them is exclusive
    Exclusive            alone, or refused
    ExclusiveWithFencing alone; present producers are fenced
    WaitForExclusive     alone; it is accepted now and becomes ready when the topic is free

Source: PIP-68, "Exclusive Producer".
"""

from dataclasses import dataclass
from enum import Enum

from postdate.broker.topics.link import ClientLink


class ProducerAccessMode(Enum):
    """How a producer shares its topic; values are the protocol's numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


@dataclass(eq=False, slots=True)
class Producer:
    """A producer.

    Attributes:
        producer_id: The client's number for it, unique within the connection.
        name: Its name, unique within the topic.
        link: Its connection.
        access_mode: How it shares the topic with other producers.
        request_id: The request that created it, answered again when a waiting producer becomes ready.
        is_ready: False while it waits for the topic to be free.
        topic_epoch: The topic's epoch when it got access (`broker.topics.topic_epochs`); before that, what its client
            shows of an earlier time, None at first.
        is_warned_of_seconds: Whether the log has said that its delivery times may be seconds.
    """

    producer_id: int
    name: str
    link: ClientLink
    access_mode: ProducerAccessMode = ProducerAccessMode.SHARED
    request_id: int = 0
    is_ready: bool = True
    topic_epoch: int | None = None
    is_warned_of_seconds: bool = False

    def disconnect(self) -> None:
        """Tell the client that this producer is closed; it will come back by itself."""
        self.link.close_producer(self.producer_id)

    def fence(self) -> None:
        """Tell the client that another producer has taken the access: one that waits is refused for good."""
        if self.is_ready:
            # When it comes back, its epoch is over.
            self.disconnect()
        else:
            self.link.refuse_producer(self.producer_id, self.request_id)
