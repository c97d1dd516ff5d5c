"""The answer to a caller of the web port that is one too many: a 503, and the end of the connection.

Which caller that is decides the listener (`postdate.broker.network.listener.Admission`).
"""

import asyncio
from typing import Final

RETRY_AFTER_S: Final = 1


class RefusedConnection(asyncio.Protocol):
    """Answers the first bytes of a caller that may not stay; it is not counted, so no end of it is told.

    Args:
        reason: The reason.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, _: bytes) -> None:
        # Not before: bytes that have come and were not read would make the end a reset, which drops the answer.
        assert self._transport is not None
        body = f"{self._reason}\n".encode()
        self._transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n"
            + f"Retry-After: {RETRY_AFTER_S}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self._transport.close()
