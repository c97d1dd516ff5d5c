"""Bytes that no client should send: they end in an error or a closed connection, and harm no other client.

Every test watches a bystander: a producer on another connection that must still get its receipts afterwards. Where a
real Pulsar differs in something that a user may notice, the test says so.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import now_ms
from tests.helpers.services.programs.frames import ConnectionEndedError, RawConnection, command, raw_connection
from tests.helpers.services.services import RunningService
from tests.helpers.wire_frames import framed

METADATA_ERROR = 1
CONSUMER_ASSIGN_ERROR = 19

FRAME_MAX = 5 * 2**20 + 10 * 2**10
"""The largest message and what surrounds it."""


def metadata() -> dict[int, Any]:
    """Return what a message's metadata must have: producer name, sequence id, publish time."""
    return {1: "p", 2: 0, 3: now_ms()}


def beside_a_bystander(
    service: RunningService, topic: str, story: Callable[[RawConnection], Awaitable[None]], *, greet: bool = True
) -> None:
    """Run a story on one connection and show that a producer on another one does not notice."""

    async def run() -> None:
        async with raw_connection(service.port) as bystander:
            await bystander.open_producer(f"{topic}-bystander")
            async with raw_connection(service.port, greet=greet) as connection:
                await story(connection)
            kind, fields = await bystander.ask(frames.send(metadata(), b"still here"))
            assert kind == frames.SEND_RECEIPT, fields

    asyncio.run(run())


def simple_frame(*, total: int, command_size: int, body: bytes) -> bytes:
    """Write a frame whose sizes need not be true."""
    return struct.pack(">II", total, command_size) + body


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(struct.pack(">I", 3) + b"abc" + bytes(8), id="a frame too small for a command"),
        pytest.param(simple_frame(total=4, command_size=400, body=b""), id="a command beyond its frame"),
        pytest.param(simple_frame(total=10, command_size=6, body=b"\xff" * 6), id="no protobuf"),
        pytest.param(simple_frame(total=2**31 - 1, command_size=6, body=b"x" * 6), id="2 GiB announced"),
        pytest.param(simple_frame(total=2**32 - 1, command_size=6, body=b"x" * 6), id="4 GiB announced"),
        pytest.param(simple_frame(total=FRAME_MAX + 4096, command_size=6, body=b"x" * 6), id="too large"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="another protocol"),
        pytest.param(command(99, {1: 1}), id="an unknown command"),
        pytest.param(simple_frame(total=6, command_size=2, body=frames.message({1: 5})), id="a command without body"),
        pytest.param(command(frames.CONNECTED, {1: "I am the server"}), id="a server's command"),
        pytest.param(command(frames.PRODUCER, {1: "topic"}), id="required fields missing"),
        pytest.param(frames.connect(), id="a second greeting"),
        pytest.param(frames.send(metadata(), b"x", producer_id=77), id="a producer that does not exist"),
    ],
)
def test_a_connection_that_breaks_the_protocol_is_closed(service: RunningService, topic: str, broken: bytes) -> None:
    """There is no way to go on after this, so the service ends the connection."""

    async def story(connection: RawConnection) -> None:
        await connection.write(broken)
        assert await connection.is_ended()

    beside_a_bystander(service, topic, story)


def broken_sends() -> list[Any]:
    """Return SEND frames whose part after the command is not what it should be."""
    header = frames.message({1: frames.SEND, frames.SEND: {1: 1, 2: 0, 3: 1}})

    too_long = struct.pack(">I", 5000) + b"x"
    checked = struct.pack(">HI", 0x0E01, frames.crc32c(too_long)) + too_long
    return [
        pytest.param(frames.send({1: "p"}, b"x"), id="metadata lacks fields"),
        pytest.param(frames.send({1: 1, 2: 2}, b"x"), id="metadata of wrong types"),
        pytest.param(framed(header, checked), id="metadata beyond its frame"),
        pytest.param(framed(header, b""), id="no metadata at all"),
        pytest.param(framed(header, b"\x0e\x01"), id="a checksum cut off"),
    ]


@pytest.mark.parametrize("broken", broken_sends())
def test_a_message_that_cannot_be_read_is_not_kept(service: RunningService, topic: str, broken: bytes) -> None:
    """The connection is closed or the message refused, and nothing of it reaches a consumer."""

    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        try:
            kind, fields = await connection.ask(broken)
        except ConnectionEndedError:
            return
        assert kind == frames.SEND_ERROR, fields

    async def nothing_was_kept() -> None:
        async with raw_connection(service.port) as connection:
            await connection.look_up(topic)
            await connection.ask(command(frames.SUBSCRIBE, {1: topic, 2: "s", 3: 1, 4: 1, 5: 1, 13: 1}))
            kind, fields = await connection.ask(command(frames.GET_LAST_MESSAGE_ID, {1: 1, 2: 2}))
            # An empty topic answers with entry -1, which is a large number on the wire.
            assert frames.parsed(fields[1])[2] >= 2**63, (kind, fields)

    beside_a_bystander(service, topic, story)
    asyncio.run(nothing_was_kept())


@pytest.mark.parametrize(
    "request_kind",
    [
        pytest.param(frames.UNSUBSCRIBE, id="UNSUBSCRIBE"),
        pytest.param(frames.SEEK, id="SEEK"),
        pytest.param(frames.GET_LAST_MESSAGE_ID, id="GET_LAST_MESSAGE_ID"),
    ],
)
def test_a_request_about_no_consumer_is_an_error(service: RunningService, topic: str, request_kind: int) -> None:
    """It is answered, and the connection lives on."""

    async def story(connection: RawConnection) -> None:
        kind, fields = await connection.ask(command(request_kind, {1: 77, 2: 5}))
        assert (kind, fields[1], fields[2]) == (frames.ERROR, 5, METADATA_ERROR)

    beside_a_bystander(service, topic, story)


def test_commands_of_no_consumer_are_ignored(service: RunningService, topic: str) -> None:
    """FLOW, ACK and REDELIVER may cross with a close, so nothing is said about them."""

    async def story(connection: RawConnection) -> None:
        await connection.write(command(frames.FLOW, {1: 77, 2: 5}))
        await connection.write(command(frames.ACK, {1: 77, 2: 0, 3: {1: 1, 2: 1}}))
        await connection.write(command(frames.REDELIVER, {1: 77}))
        assert await connection.ask(command(frames.PING, {})) == (frames.PONG, {})

    beside_a_bystander(service, topic, story)


@pytest.mark.parametrize("positions", [[(2**63, 2**63)], [(10**9, 0)], [(0, 2**64 - 1)], [(2**64 - 1, 2**64 - 1)]])
def test_acknowledging_what_never_was_harms_nothing(
    service: RunningService, topic: str, positions: list[tuple[int, int]]
) -> None:
    """Positions that do not exist are no reason to lose those that do."""

    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        await connection.ask(command(frames.SUBSCRIBE, {1: topic, 2: "s", 3: 1, 4: 1, 5: 1, 13: 1}))
        ids = [{1: ledger_id, 2: entry_id} for ledger_id, entry_id in positions]
        await connection.write(command(frames.ACK, {1: 1, 2: 0, 3: ids}))
        await connection.write(command(frames.REDELIVER, {1: 1, 2: ids}))
        kind, _ = await connection.ask(frames.send(metadata(), b"x"))
        assert kind == frames.SEND_RECEIPT
        await connection.write(command(frames.FLOW, {1: 1, 2: 10}))
        kind, _, rest = await connection.read()
        assert (kind, rest[-1:]) == (frames.MESSAGE, b"x")

    beside_a_bystander(service, topic, story)


@pytest.mark.parametrize("entry_id", [0, 2**32, 2**63, 2**64 - 1])
def test_a_cumulative_acknowledgement_of_ledger_minus_one_acknowledges_nothing(
    service: RunningService, topic: str, entry_id: int
) -> None:
    """It is before all entries, as it is for a client that sends -1 as an unsigned number."""

    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        await connection.ask(command(frames.SUBSCRIBE, {1: topic, 2: "s", 3: 0, 4: 1, 5: 1, 13: 1}))
        await connection.ask(frames.send(metadata(), b"x"))
        await connection.write(command(frames.ACK, {1: 1, 2: 1, 3: {1: 2**64 - 1, 2: entry_id}}))
        await connection.write(command(frames.FLOW, {1: 1, 2: 10}))
        assert (await connection.read())[2][-1:] == b"x"
        await connection.write(command(frames.REDELIVER, {1: 1}))
        kind, _, rest = await connection.read()
        assert (kind, rest[-1:]) == (frames.MESSAGE, b"x")

    beside_a_bystander(service, topic, story)


@pytest.mark.parametrize("position", [(2**63, 2**63), (2**64 - 1, 2**64 - 1), (0, 2**32), (0, 2**62)], ids=str)
def test_seeking_what_never_was_keeps_the_service_alive(
    service: RunningService, topic: str, position: tuple[int, int]
) -> None:
    """Wherever it leads, the request is answered and the next message is delivered."""

    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        subscribe = {1: topic, 2: "s", 3: 3, 4: 1, 5: 1, 13: 1}
        await connection.ask(command(frames.SUBSCRIBE, subscribe))
        await connection.write(command(frames.SEEK, {1: 1, 2: 7, 3: {1: position[0], 2: position[1]}}))
        kind, fields, _ = await connection.read()
        while kind not in (frames.SUCCESS, frames.ERROR):
            kind, fields, _ = await connection.read()
        assert fields[1] == 7
        await connection.write(command(frames.CLOSE_CONSUMER, {1: 1, 2: 8}))
        while kind != frames.SUCCESS or fields[1] != 8:
            kind, fields, _ = await connection.read()
        await connection.ask(command(frames.SUBSCRIBE, subscribe | {4: 2}))
        await connection.write(command(frames.FLOW, {1: 2, 2: 10}))
        await connection.write(frames.send(metadata(), b"x"))
        while kind != frames.MESSAGE:
            kind, fields, rest = await connection.read()
        assert rest[-1:] == b"x"

    beside_a_bystander(service, topic, story)


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([], id="none"),
        pytest.param([{1: 5, 2: 1}], id="turned around"),
        pytest.param([{1: 30, 2: 50}, {1: 40, 2: 60}], id="overlapping"),
    ],
)
def test_sticky_ranges_that_make_no_sense_are_refused(
    service: RunningService, topic: str, ranges: list[dict[int, int]]
) -> None:
    """The official client checks some of this itself; the service does not rely on it."""

    async def story(connection: RawConnection) -> None:
        await connection.look_up(topic)
        subscribe = {1: topic, 2: "s", 3: 3, 4: 1, 5: 9, 13: 1, 17: {1: 1, 3: ranges}}
        kind, fields = await connection.ask(command(frames.SUBSCRIBE, subscribe))
        assert (kind, fields[1], fields[2]) == (frames.ERROR, 9, CONSUMER_ASSIGN_ERROR)

    beside_a_bystander(service, topic, story)
