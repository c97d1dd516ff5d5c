"""Requests that name a subscription: its kind, its start, a topic that is missing, an acknowledgement beyond the end.

The fields are written by hand, as most clients set only some of them; a real Pulsar says what is right.
"""

from typing import Any

import pytest

from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import now_ms
from tests.helpers.services.programs.frames import RawConnection, play
from tests.helpers.services.services import RunningService

EXCLUSIVE, SHARED = 0, 1
EARLIEST = 1
TOPIC_NOT_FOUND, NOT_ALLOWED_ERROR = 11, 22
QUIET_S = 1.0

FIRST_ID, LAST_ID = {1: 2**64 - 1, 2: 2**64 - 1}, {1: 2**63 - 1, 2: 2**63 - 1}
"""The message ids that stand for the two ends of a topic."""


async def subscribe(connection: RawConnection, topic: str, consumer_id: int, **fields: Any) -> tuple[int, Any]:
    """Subscribe from the earliest message on; return whether it is SUCCESS or ERROR, and which."""
    more = {8: int(fields.get("durable", True)), 15: int(fields.get("may_create", True))}
    if "start" in fields:
        more |= {9: fields["start"], 16: fields["rollback_s"]}
    request = {1: topic, 2: "s", 3: fields.get("kind", EXCLUSIVE), 4: consumer_id, 5: 7, 13: EARLIEST, **more}
    kind, answer = await connection.ask(frames.command(frames.SUBSCRIBE, request))
    return kind, answer.get(2)


async def close(connection: RawConnection, consumer_id: int) -> None:
    kind, _ = await connection.ask(frames.command(frames.CLOSE_CONSUMER, {1: consumer_id, 2: 8}))
    assert kind == frames.SUCCESS


async def publish(connection: RawConnection, payload: bytes, *, ago_s: int = 0) -> dict[int, Any]:
    """Publish a message that was made so long ago; return its id."""
    metadata = {1: "p", 2: 0, 3: now_ms() - ago_s * 1_000}
    kind, receipt = await connection.ask(frames.send(metadata, payload))
    assert kind == frames.SEND_RECEIPT, receipt
    return frames.parsed(receipt[3])


async def received(connection: RawConnection, consumer_id: int) -> list[bytes]:
    """Return the last byte of each message that comes until it is quiet."""
    await connection.write(frames.command(frames.FLOW, {1: consumer_id, 2: 100}))
    payloads = []
    try:
        while True:
            kind, _, rest = await connection.read(timeout_s=QUIET_S)
            if kind == frames.MESSAGE:
                payloads.append(rest[-1:])
    except TimeoutError:
        return payloads


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
@pytest.mark.parametrize("is_durable", [True, False])
def test_a_reader_and_a_durable_consumer_share_no_subscription(
    service: RunningService, topic: str, is_durable: bool, kind: int
) -> None:
    """The one would acknowledge what the other is to get, or take the subscription along when it leaves."""

    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        assert (await subscribe(connection, topic, 1, durable=is_durable, kind=kind))[0] == frames.SUCCESS
        if is_durable:
            # A durable subscription stays without a consumer.
            await close(connection, 1)
        await publish(connection, b"1")

        refused = await subscribe(connection, topic, 2, durable=not is_durable, kind=kind)

        assert refused == (frames.ERROR, NOT_ALLOWED_ERROR)
        if is_durable:
            assert (await subscribe(connection, topic, 3, durable=True, kind=kind))[0] == frames.SUCCESS
            assert await received(connection, 3) == [b"1"]
        else:
            assert await received(connection, 1) == [b"1"]

    play(service.port, story)


@pytest.mark.parametrize("start", [FIRST_ID, LAST_ID], ids=["first", "last"])
def test_a_reader_may_start_so_many_seconds_ago(service: RunningService, topic: str, start: dict[int, int]) -> None:
    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        for number in range(3):
            await publish(connection, b"%d" % number, ago_s=100)
        for number in range(3, 5):
            await publish(connection, b"%d" % number)

        asked = await subscribe(connection, topic, 1, durable=False, start=start, rollback_s=20)

        assert asked[0] == frames.SUCCESS
        assert await received(connection, 1) == [b"3", b"4"]

    play(service.port, story)


def test_a_missing_topic_is_not_created_for_a_consumer_that_does_not_want_it(
    service: RunningService, topic: str
) -> None:
    async def story(connection: RawConnection) -> None:
        await connection.look_up(topic)

        assert await subscribe(connection, topic, 1, may_create=False) == (frames.ERROR, TOPIC_NOT_FOUND)
        assert (await subscribe(connection, topic, 2))[0] == frames.SUCCESS
        await close(connection, 2)
        assert (await subscribe(connection, topic, 3, may_create=False))[0] == frames.SUCCESS

    play(service.port, story)


def test_a_producer_may_bring_a_subscription_along(service: RunningService, topic: str) -> None:
    """As that of a dead letter topic does: a message that is published before the first consumer waits for it."""

    async def story(connection: RawConnection) -> None:
        await connection.look_up(topic)
        request = {1: topic, 2: 1, 3: 3, 13: "s"}
        assert (await connection.ask(frames.command(frames.PRODUCER, request)))[0] == frames.PRODUCER_SUCCESS
        await publish(connection, b"1")

        assert (await subscribe(connection, topic, 1, may_create=False))[0] == frames.SUCCESS
        assert await received(connection, 1) == [b"1"]

    play(service.port, story)
