"""The interface of a client's connection to the other parts of the service.

`postdate.broker.clients.connection` implements it. Producers, consumers and the service import this interface alone.
"""

from typing import Protocol


class ClientLink(Protocol):
    """The connection of one client."""

    @property
    def peer(self) -> str:
        """The client's address and port."""

    @property
    def client_version(self) -> str:
        """The version that the client names in CONNECT."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads bytes as fast as they are read for its consumers and written."""

    def begin_read(self, size: int) -> None:
        """Count bytes that are being read for a consumer, up to their write."""

    def end_read(self, size: int) -> None:
        """Count these no more: they are written, or will not be."""

    def write(self, data: bytes) -> None:
        """Send bytes; dropped when the client is gone."""

    def close(self, reason: str | None = None) -> None:
        """End the connection; a reason is logged as a warning."""

    def pause_reading(self, why: str) -> None:
        """Read no more bytes from the client until every reason to pause is gone."""

    def resume_reading(self, why: str) -> None:
        """Remove a reason to pause."""

    def check_alive(self) -> None:
        """Ask a silent client for a sign of life, or end the connection."""

    def check_credentials(self) -> None:
        """Ask for new credentials before they end, and end the connection with them."""

    async def check_permissions(self) -> None:
        """Close every producer and consumer that the client's role does not allow any more."""

    async def is_alive(self) -> bool:
        """Ask the client for a sign of life now; without one in time, end the connection and say no."""

    def close_producer(self, producer_id: int, *, refusal: str | None = None) -> None:
        """Accept nothing more from a producer, and tell its client after its receipts: it makes it again by itself.

        Args:
            producer_id: The client's number for it.
            refusal: Why a message of it was refused: the client's next request for the producer is answered so.
        """

    def refuse_producer(self, producer_id: int, request_id: int) -> None:
        """Tell the client that its waiting producer is fenced."""

    def producer_ready(self, request_id: int, producer_name: str, topic_epoch: int | None) -> None:
        """Tell the client that its waiting producer may begin."""

    def close_consumer(self, consumer_id: int) -> None:
        """Close a consumer and tell its client, which subscribes again by itself."""
