"""One producer of a topic, as its connection holds it.

Only what the broker must remember between two SENDs. Appending is the connection's fast path, over the topic's log
directly: a method call per message here would buy nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.connection import Connection
    from broker.topic import Topic


@dataclass(eq=False, slots=True)
class Producer:
    """A producer.

    Attributes:
        producer_id: The client's number for it, unique within the connection.
        name: Its name, unique within the topic.
        epoch: Grows with each reconnection of the same producer.
        topic: Where it produces.
        connection: The connection it lives on.
    """

    producer_id: int
    name: str
    epoch: int
    topic: "Topic"
    connection: "Connection"

    def disconnect(self) -> None:
        """Tell the client that this producer is closed; it will come back by itself."""
        self.connection.close_producer(self)
