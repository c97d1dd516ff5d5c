"""Frames of the Pulsar binary protocol made by hand, good ones and broken ones.

    simple frame    u32 total | u32 command size | command
    with payload    ... command | 0x0e01 | u32 CRC32-C of what follows | u32 metadata size | metadata | payload

The tests of bad input write and read bytes with this and not with the service's own codec, so that an error that
the codec makes both ways cannot hide. Messages are dictionaries of field number to value: an int is a varint, bytes
and str are length-delimited, a dictionary is a nested message, a list is a repeated field. Only what the tests need
is here: no fixed-size fields, no negative numbers.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import google_crc32c

from tests.helpers.wire_frames import varint

CONNECT, CONNECTED, SUBSCRIBE, PRODUCER, SEND, SEND_RECEIPT, SEND_ERROR, MESSAGE, ACK, FLOW = range(2, 12)
UNSUBSCRIBE, SUCCESS, ERROR, CLOSE_PRODUCER, CLOSE_CONSUMER, PRODUCER_SUCCESS, PING, PONG, REDELIVER = range(12, 21)
PARTITIONED_METADATA, PARTITIONED_METADATA_RESPONSE, LOOKUP, LOOKUP_RESPONSE = range(21, 25)
SEEK, GET_LAST_MESSAGE_ID = 28, 29
AUTH_CHALLENGE, AUTH_RESPONSE = 36, 37

PROTOCOL_VERSION = 20
_REPLY_TIMEOUT_S = 10.0

Fields = Mapping[int, Any]


def crc32c(data: bytes) -> int:
    """Return the checksum that the protocol uses."""
    value: int = google_crc32c.value(data)
    return value


def message(fields: Fields) -> bytes:
    """Encode a message of field number to value.

    >>> message({1: 150, 2: "hi"}).hex()
    '08960112026869'
    """
    out = b""
    for number, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                out += varint(number << 3) + varint(one)
                continue
            data = message(one) if isinstance(one, dict) else one.encode() if isinstance(one, str) else one
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def parsed(data: bytes) -> dict[int, Any]:
    """Decode a message, nested ones left as bytes; of a repeated field the last one counts.

    >>> parsed(message({1: 150, 2: "hi"}))
    {1: 150, 2: b'hi'}
    """
    return dict(_fields(data))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        assert tag & 7 in (0, 2), "only varints and length-delimited fields are known here"
        value, at = _read_varint(data, at)
        if tag & 7 == 2:
            value, at = data[at : at + value], at + value
        yield tag >> 3, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def command(kind: int, fields: Fields) -> bytes:
    """Encode a simple frame; a command's field number is its type."""
    body = message({1: kind, kind: dict(fields)})
    return struct.pack(">II", len(body) + 4, len(body)) + body


def connect(token: bytes | None = None, *, can_refresh: bool = True) -> bytes:
    """Encode what a client says first, with a token and whether it can be asked for another."""
    fields: dict[int, Any] = {1: "postdate-tests", 4: PROTOCOL_VERSION}
    if token is not None:
        fields |= {3: token, 5: "token", 10: {1: int(can_refresh)}}
    return command(CONNECT, fields)


def send(
    metadata: Fields, payload: bytes, *, producer_id: int = 1, sequence_id: int = 0, checksum: int | None = None
) -> bytes:
    """Encode a SEND with its payload; `checksum` replaces the right one."""
    return send_entry(entry(metadata, payload, checksum=checksum), producer_id=producer_id, sequence_id=sequence_id)


def entry(metadata: Fields, payload: bytes, *, checksum: int | None = None) -> bytes:
    """Encode the part of a SEND that a service stores."""
    encoded = message(metadata)
    content = struct.pack(">I", len(encoded)) + encoded + payload
    return struct.pack(">HI", 0x0E01, crc32c(content) if checksum is None else checksum) + content


def send_entry(encoded: bytes, *, producer_id: int, sequence_id: int) -> bytes:
    """Encode a SEND of an encoded entry."""
    header = message({1: SEND, SEND: {1: producer_id, 2: sequence_id, 3: 1}})
    return struct.pack(">II", 4 + len(header) + len(encoded), len(header)) + header + encoded


class ConnectionEndedError(Exception):
    """The service closed the connection."""


class RawConnection:
    """One TCP connection to a service, on which anything can be written."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def socket(self) -> socket.socket:
        """The socket below, for options."""
        below: socket.socket = self._writer.get_extra_info("socket")
        return below

    async def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def read(self, *, timeout_s: float | None = _REPLY_TIMEOUT_S) -> tuple[int, dict[int, Any], bytes]:
        """Read one frame as (type, fields of the command, what follows the command).

        Raises:
            ConnectionEndedError: The service closed the connection instead.
        """
        try:
            async with asyncio.timeout(timeout_s):
                total, size = struct.unpack(">II", await self._reader.readexactly(8))
                body = await self._reader.readexactly(size)
                rest = await self._reader.readexactly(total - 4 - size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConnectionEndedError from error
        fields = parsed(body)
        return fields[1], parsed(fields[fields[1]]), rest

    async def ask(self, frame: bytes) -> tuple[int, dict[int, Any]]:
        """Write a frame and read the next one that is not a PING."""
        await self.write(frame)
        while True:
            kind, fields, _rest = await self.read()
            if kind != PING:
                return kind, fields
            await self.write(command(PONG, {}))

    async def is_ended(self) -> bool:
        """Read all frames that still come, and say whether the service closes the connection."""
        try:
            while True:
                await self.read()
        except ConnectionEndedError:
            return True
        except TimeoutError:
            return False

    async def look_up(self, topic: str) -> None:
        """Ask where the topic is; a real Pulsar serves a topic only after a client asked for it."""
        kind, fields = await self.ask(command(LOOKUP, {1: topic, 2: 1}))
        assert kind == LOOKUP_RESPONSE, fields

    async def open_producer(self, topic: str, *, producer_id: int = 1) -> dict[int, Any]:
        """Create a producer and return the service's answer."""
        await self.look_up(topic)
        kind, fields = await self.ask(command(PRODUCER, {1: topic, 2: producer_id, 3: 1}))
        assert kind == PRODUCER_SUCCESS, fields
        return fields


@asynccontextmanager
async def raw_connection(port: int, *, greet: bool = True) -> AsyncIterator[RawConnection]:
    """Connect, greet unless told not to, and close at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = RawConnection(reader, writer)
    try:
        if greet:
            kind, _fields = await connection.ask(connect())
            assert kind == CONNECTED
        yield connection
    finally:
        writer.close()
        # The service may have ended it first, which is what some tests are about.
        with suppress(ConnectionError):
            await writer.wait_closed()


def play(port: int, story: Callable[[RawConnection], Awaitable[None]]) -> None:
    """Run a story on a connection of its own."""

    async def run() -> None:
        async with raw_connection(port) as connection:
            await story(connection)

    asyncio.run(run())
