"""A client of many topics over one connection, for `many_topics`: raw frames, so that it costs less than the service.

Of each topic it looks up the owner, makes a producer, subscribes with Key_Shared and gives permits, several topics at a
time. Messages carry the time at which they are due, and are acknowledged as they come if that is wanted.
"""

import asyncio
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final, Self

from tests.helpers.services.programs import frames

TOPICS_AT_A_TIME: Final = 64
PERMITS: Final = 5_000
_KEY_SHARED: Final = 3
_EARLIEST: Final = 1
_TYPE_AT: Final = 9
_SENDS_UNCONFIRMED_MAX: Final = 5_000
_SENT_AT_ONCE: Final = 500
_PUBLISH_TIME_FIELD, _KEY_FIELD, _DELIVER_AT_FIELD = 3, 6, 19


def topic_name(number: int) -> str:
    """Return the name of one of the many topics."""
    return f"persistent://public/default/quiet-{number}"


class ManyTopicsClient(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.received = 0
        self.on_payload: Callable[[bytes], None] | None = None
        """Called with the last eight bytes of each message."""
        self.unconfirmed_max = _SENDS_UNCONFIRMED_MAX
        """Messages on their way; with more of them, more of one topic share a commit."""
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._connected = asyncio.Event()
        self._request_ids = count(1)
        self._answers: dict[int, asyncio.Future[dict[int, Any]]] = {}
        self._sent = self._confirmed = 0
        self._has_room = asyncio.Event()
        self._awaited = 0
        self._has_received = asyncio.Event()
        self._error: Exception | None = None

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect to a service on this machine."""
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        client._write(frames.connect())
        await asyncio.wait_for(client._connected.wait(), 30)
        return client

    async def open_topics(self, numbers: range, *, has_producers: bool = True) -> None:
        """Look up, produce, subscribe and give permits; ids of producers and consumers are the topics' numbers."""
        waiting = iter(numbers)

        async def some() -> None:
            for number in waiting:
                await self._open_topic(number, has_producer=has_producers)

        await asyncio.gather(*(some() for _ in range(TOPICS_AT_A_TIME)))

    async def _open_topic(self, number: int, *, has_producer: bool) -> None:
        topic = topic_name(number)
        await self._ask(frames.LOOKUP, {1: topic}, request_id_field=2)
        if has_producer:
            await self._ask(frames.PRODUCER, {1: topic, 2: number, 4: f"producer-{number}"}, request_id_field=3)
        subscribe = {1: topic, 2: "all", 3: _KEY_SHARED, 4: number, 6: "consumer", 13: _EARLIEST, 17: {1: 0}}
        await self._ask(frames.SUBSCRIBE, subscribe, request_id_field=5)
        self.give_permits(number, PERMITS)

    def give_permits(self, number: int, permits: int) -> None:
        """Ask for more messages of a topic."""
        self._write(frames.command(frames.FLOW, {1: number, 2: permits}))

    async def close_topics(self, numbers: range) -> None:
        """Close the producers and consumers."""
        for begin in range(numbers.start, numbers.stop, TOPICS_AT_A_TIME):
            some = range(begin, min(begin + TOPICS_AT_A_TIME, numbers.stop))
            asked = [
                self._ask(kind, {1: one}, request_id_field=2)
                for kind in (frames.CLOSE_CONSUMER, frames.CLOSE_PRODUCER)
                for one in some
            ]
            await asyncio.gather(*asked)

    async def send(self, number: int, sequence_id: int, deliver_at_ms: int) -> None:
        """Publish one delayed message; its payload is when it is due."""
        await self.send_to_each(range(number, number + 1), sequence_id, deliver_at_ms)

    async def send_to_each(self, numbers: range, sequence_id: int, deliver_at_ms: int) -> None:
        """Publish one delayed message to each of many topics; it is encoded once."""
        metadata = {
            1: "producer",
            2: sequence_id,
            _PUBLISH_TIME_FIELD: time.time_ns() // 1_000_000,
            _KEY_FIELD: f"key-{sequence_id % 100}",
            _DELIVER_AT_FIELD: deliver_at_ms,
        }
        entry = frames.entry(metadata, struct.pack(">q", deliver_at_ms))
        for begin in range(numbers.start, numbers.stop, _SENT_AT_ONCE):
            while self._sent - self._confirmed >= self.unconfirmed_max:
                self._has_room.clear()
                await self._has_room.wait()
            some = numbers[begin - numbers.start :][:_SENT_AT_ONCE]
            self._sent += len(some)
            self._write(b"".join(frames.send_entry(entry, producer_id=one, sequence_id=sequence_id) for one in some))

    async def confirmed(self) -> None:
        """Wait until everything that was sent is confirmed."""
        while self._confirmed < self._sent:
            self._has_room.clear()
            await self._has_room.wait()

    async def until_received(self, messages: int, *, timeout_s: float) -> bool:
        """Wait until so many messages have come in all; return whether they have."""
        self._awaited = messages
        self._has_received.clear()
        if self.received < messages:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_received.wait(), timeout_s)
        return self.received >= messages

    def close(self) -> None:
        """End the connection."""
        assert self._transport is not None
        self._transport.close()

    async def _ask(self, kind: int, fields: dict[int, Any], *, request_id_field: int) -> dict[int, Any]:
        if self._error is not None:
            raise self._error
        request_id = next(self._request_ids)
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        self._write(frames.command(kind, fields | {request_id_field: request_id}))
        return await answer

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    # Methods that asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc or ConnectionError("the service ended the connection")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._error)
        self._answers.clear()

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        at = 0
        while at + 8 <= len(data):
            total, size = struct.unpack_from(">II", data, at)
            if at + 4 + total > len(data):
                break
            # A command begins with the field of its type, which is one byte for all that come here.
            kind = data[at + _TYPE_AT]
            if kind == frames.MESSAGE:
                self.received += 1
                if self.on_payload is not None:
                    self.on_payload(data[at + 4 + total - 8 : at + 4 + total])
            elif kind == frames.SEND_RECEIPT:
                self._confirmed += 1
                self._has_room.set()
            else:
                self._handle(kind, frames.parsed(data[at + 8 : at + 8 + size]))
            at += 4 + total
        self._data = data[at:]
        if self.received >= self._awaited:
            self._has_received.set()

    def _handle(self, kind: int, command: dict[int, Any]) -> None:
        if kind == frames.PING:
            self._write(frames.command(frames.PONG, {}))
        elif kind == frames.CONNECTED:
            self._connected.set()
        elif kind in (frames.SUCCESS, frames.ERROR, frames.PRODUCER_SUCCESS, frames.LOOKUP_RESPONSE):
            fields = frames.parsed(command[kind])
            # A look-up's answer has its id elsewhere: 1 and 2 are addresses, 3 says what it is.
            request_id = fields[4] if kind == frames.LOOKUP_RESPONSE else fields[1]
            answer = self._answers.pop(request_id)
            if kind == frames.ERROR:
                answer.set_exception(RuntimeError(f"refused: {fields}"))
            else:
                answer.set_result(fields)
        elif kind == frames.SEND_ERROR:
            raise RuntimeError(f"a message was refused: {command}")
