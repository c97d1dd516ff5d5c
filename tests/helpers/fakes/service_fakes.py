"""A connection's end without a socket: a service on a folder of the test's own, and a transport that remembers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from managed_ledger.positions.value_types import Clock
from postdate.broker.clients.connection import Connection
from postdate.broker.clients.requests import HANDLERS
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.protocol.commands import frame
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.service.service import Service
from tests.helpers.parsed_frames import frames_in
from tests.helpers.until import until


class FakeTransport(asyncio.Transport):
    """Remembers what was written, and whether it reads."""

    def __init__(self, port: int) -> None:
        super().__init__({"peername": ("test", port)})
        self.written: list[bytes] = []
        self.reads = True
        self.closed = False
        self.connection: Connection | None = None
        self.unread_bytes = 0
        self.client_hangs = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def close(self) -> None:
        was_closed, self.closed = self.closed, True
        # A real one waits until the client has read its last bytes.
        if not was_closed and not self.client_hangs and self.connection is not None:
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        if self.client_hangs and self.connection is not None:
            self.client_hangs = False
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Peer:
    """A client of one connection, speaking in commands."""

    def __init__(
        self,
        service: Service,
        *,
        has_to_connect: bool = True,
        clock_s: Callable[[], float] = lambda: 0.0,
        port: int = 1,
        **limits: int,
    ) -> None:
        self.transport = FakeTransport(port)
        # Without a clock that goes on, all that is received at once is handled at once.
        self.connection = Connection(service, HANDLERS, clock_s=clock_s, **limits)
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)
        self._requests = 0
        if has_to_connect:
            self.send(BaseCommand(type=BaseCommand.CONNECT, connect={"client_version": "test", "protocol_version": 20}))

    def send_bytes(self, data: bytes) -> None:
        """Let the connection receive bytes, as much at a time as its buffer takes."""
        while data:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def send(self, command: BaseCommand) -> None:
        """Let the connection receive a command."""
        self.send_bytes(frame(command))

    def answers(self) -> list[BaseCommand]:
        """All commands that were written so far."""
        return [one for one in frames_in(b"".join(self.transport.written)) if isinstance(one, BaseCommand)]

    async def request(self, kind: int, field: str, **values: Any) -> BaseCommand:
        """Send a request and wait for the answer that carries its id."""
        self._requests += 1
        command = BaseCommand(type=kind)
        getattr(command, field).request_id = self._requests
        for name, value in values.items():
            if isinstance(value, Message):
                getattr(getattr(command, field), name).CopyFrom(value)
            else:
                setattr(getattr(command, field), name, value)
        self.send(command)
        return await until(lambda: self._answer(self._requests))

    def _answer(self, request_id: int) -> BaseCommand | None:
        for answer in self.answers():
            for _, part in answer.ListFields():
                if getattr(part, "request_id", None) == request_id:
                    return answer
        return None


async def subscribe(peer: Peer, consumer_id: int = 1, **values: Any) -> BaseCommand:
    """Subscribe to topic t, Key_Shared by default."""
    fields = {"topic": "t", "subscription": "s", "subType": CommandSubscribe.Key_Shared, "consumer_id": consumer_id}
    return await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **(fields | values))


async def open_service(
    folder: Path, now_ms: Clock = lambda: 1_800_000_000_000, steady_ms: Clock | None = None, **values: Any
) -> Service:
    """Open a service on a folder, with the time standing still; all of it in this process, which saves a start.

    Without `steady_ms` the clock is never set: its steps are time that passes.
    """
    config = BrokerConfig(data_directory=folder, **values)
    return await Service.open(config, now_ms=now_ms, steady_ms=steady_ms or now_ms)


def play(folder: Path, story: Callable[[Service], Awaitable[None]], **values: Any) -> None:
    """Run a story on a service that `open_service` opens with these values."""

    async def run() -> None:
        service = await open_service(folder, **values)
        try:
            await story(service)
        finally:
            await service.close()

    asyncio.run(run())
