"""One consumer, as the dispatcher sees it: a `ConsumerHandle` that writes to a connection.

It holds what the client said at SUBSCRIBE and two counters. Permits, unacknowledged messages and key ranges are the
dispatcher's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.protocol import commands, frames
from dispatcher import Delivery, KeySharedPolicy

if TYPE_CHECKING:
    from broker.connection import Connection


@dataclass(eq=False, slots=True)
class Consumer:
    """A consumer of a subscription.

    Attributes:
        connection: The connection it lives on.
        consumer_id: The client's number for it, unique within the connection.
        name: Its name; several consumers of a subscription may have the same.
        subscription_name: What it consumes.
        priority_level: 0 is served first, in Shared and Failover.
        key_shared_policy: Its wishes in a Key_Shared subscription.
        messages_out_total: Messages sent to it.
        bytes_out_total: Bytes of their payloads.
        epoch: The client's count of redelivery requests, echoed with each message so that the client can tell
            what was sent before such a request.
    """

    connection: "Connection"
    consumer_id: int
    name: str
    subscription_name: str
    priority_level: int = 0
    key_shared_policy: KeySharedPolicy | None = None
    epoch: int | None = None
    messages_out_total: int = 0
    bytes_out_total: int = field(default=0)

    @property
    def is_writable(self) -> bool:
        """Whether the client takes bytes as fast as they are written."""
        return self.connection.is_writable

    def send_messages(self, deliveries: Sequence[Delivery]) -> None:
        """Write one MESSAGE frame for each entry, all in one write."""
        consumer_id, epoch = self.consumer_id, self.epoch
        data = b"".join(
            [
                frames.message(
                    consumer_id,
                    delivery.ledger_id,
                    delivery.entry_id,
                    delivery.payload,
                    redelivery_count=delivery.redelivery_count,
                    ack_set=delivery.ack_set,
                    consumer_epoch=epoch,
                )
                for delivery in deliveries
            ]
        )
        self.messages_out_total += len(deliveries)
        self.bytes_out_total += len(data)
        self.connection.write(data)

    def active_consumer_changed(self, is_active: bool) -> None:
        """Tell the client whether it is the one that receives (Failover)."""
        self.connection.write(commands.active_consumer_change(self.consumer_id, is_active=is_active))

    def disconnect(self) -> None:
        """Tell the client that this consumer is closed; it will subscribe again by itself."""
        self.connection.close_consumer(self)
