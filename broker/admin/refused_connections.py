"""The answer to a caller of the web port that is one too many: a 503, and the end of the connection.

Which caller that is decides the listener (`broker.network.listener.Admission`).
"""

import asyncio
from typing import Final

from broker.network.listener import Accepted

RETRY_AFTER_S: Final = 1


class RefusedConnection(asyncio.Protocol):
    """Answers the first bytes of a caller that may not stay.

    Args:
        accepted: The connection, with the reason.
    """

    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, _: bytes) -> None:
        # Not before: bytes that have come and were not read would make the end a reset, which drops the answer.
        assert self._transport is not None
        body = f"{self._accepted.refusal}\n".encode()
        self._transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n"
            + f"Retry-After: {RETRY_AFTER_S}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._accepted.leave()
