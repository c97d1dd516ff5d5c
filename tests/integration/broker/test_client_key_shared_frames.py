"""Key_Shared as bytes on the wire: the frames of clients whose time-outs run out, and frames they should not send.

A client's acknowledgement time-out is ten seconds at least, and then it asks for redelivery by position. These tests
send that request themselves. The judge runs them too, except for its silent acts.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pulsar import ConsumerType

from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import Clients, now_ms, receive, subscribe
from tests.helpers.services.programs.frames import RawConnection, command, play, raw_connection
from tests.helpers.services.services import POSTDATE, RunningService, make_service
from tests.helpers.services.topic_stats import ask_topic

KEY_SHARED = 3
CONSUMER_BUSY, CONSUMER_ASSIGN_ERROR, NOT_ALLOWED = 5, 19, 22
EVERYTHING = [{1: 0, 2: 65535}]


async def join(connection: RawConnection, topic: str, consumer_id: int, **policy: Any) -> tuple[int, dict[int, Any]]:
    """Subscribe and ask for 100 messages; return the answer to the first."""
    meta: dict[int, Any] = {1: 1, 3: policy["ranges"]} if policy else {1: 0}
    subscribe_fields = {1: topic, 2: "sub", 3: KEY_SHARED, 4: consumer_id, 5: 1, 6: f"c{consumer_id}", 13: 1, 17: meta}
    answer = await connection.ask(command(frames.SUBSCRIBE, subscribe_fields))
    await connection.write(command(frames.FLOW, {1: consumer_id, 2: 100}))
    return answer


async def publish(connection: RawConnection, count: int, *, key: str = "k") -> None:
    """Send messages of one key; their receipts are skipped by `messages`."""
    for number in range(count):
        metadata = {1: "p", 2: number, 3: now_ms(), 6: key}
        await connection.write(frames.send(metadata, b"%d" % number, sequence_id=number))


async def messages(connection: RawConnection, count: int) -> list[tuple[int, tuple[int, int], int]]:
    """Return (consumer, position, redelivery count) of the next messages."""
    found: list[tuple[int, tuple[int, int], int]] = []
    while len(found) < count:
        kind, fields, _ = await connection.read()
        if kind == frames.MESSAGE:
            at = frames.parsed(fields[2])
            found.append((fields[1], (at[1], at[2]), fields.get(3, 0)))
    return found


def ids(positions: list[tuple[int, int]]) -> list[dict[int, int]]:
    """Return positions as the protocol has them."""
    return [{1: ledger_id, 2: entry_id} for ledger_id, entry_id in positions]


def test_what_was_not_acknowledged_in_time_comes_again_in_its_place(service: RunningService, topic: str) -> None:
    """To the same consumer, counted, the others of its key untouched; and again when that is too late too."""

    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        await join(connection, topic, 1)
        await join(connection, topic, 2)
        await publish(connection, 4)
        first = await messages(connection, 4)
        owner = first[0][0]
        late = [at for _, at, _ in first[1:3]]
        for count in (1, 2):
            await connection.write(command(frames.REDELIVER, {1: owner, 2: ids(late)}))
            assert await messages(connection, 2) == [(owner, at, count) for at in late]
        # A consumer cannot ask for entries that another one holds.
        await connection.write(command(frames.REDELIVER, {1: 3 - owner, 2: ids(late)}))
        await publish(connection, 1)
        ((consumer, at, count),) = await messages(connection, 1)
        assert (consumer, at[1], count) == (owner, 4, 0)

    play(service.port, story)


@pytest.mark.parametrize("never_was", [(2**64 - 1, 2**64 - 1), (2**63, 0), (0, 2**32), (0, 2**63)], ids=str)
def test_an_id_that_cannot_be_is_no_harm_to_the_others_of_its_command(
    service: RunningService, topic: str, never_was: tuple[int, int]
) -> None:
    """Entries acknowledged in the same command stay acknowledged; the others come again on request."""

    async def story(connection: RawConnection) -> None:
        await connection.open_producer(topic)
        await join(connection, topic, 1)
        await publish(connection, 3)
        first, second, third = [at for _, at, _ in await messages(connection, 3)]
        in_its_ledger = (first[0], never_was[1] or 2**32)
        await connection.write(command(frames.ACK, {1: 1, 2: 0, 3: ids([first, never_was, in_its_ledger])}))
        await connection.write(command(frames.REDELIVER, {1: 1, 2: ids([never_was, in_its_ledger, third])}))
        assert await messages(connection, 1) == [(1, third, 1)]
        await connection.write(command(frames.REDELIVER, {1: 1, 2: ids([never_was])}))
        await connection.write(command(frames.REDELIVER, {1: 1}))
        assert await messages(connection, 2) == [(1, second, 1), (1, third, 2)]

    play(service.port, story)


async def answer_pings(connection: RawConnection) -> None:
    """Be there, as a client is; for ever."""
    while True:
        kind, _, _ = await connection.read(timeout_s=None)
        if kind == frames.PING:
            await connection.write(command(frames.PONG, {}))


def test_a_range_stays_with_a_holder_that_gives_a_sign_of_life(service: RunningService, topic: str) -> None:
    async def story(connection: RawConnection) -> None:
        await connection.look_up(topic)
        assert (await join(connection, topic, 1, ranges=EVERYTHING))[0] == frames.SUCCESS
        there = asyncio.ensure_future(answer_pings(connection))
        try:
            async with raw_connection(service.port) as other:
                kind, fields = await join(other, topic, 2, ranges=[{1: 100, 2: 200}])
                assert (kind, fields[2]) == (frames.ERROR, CONSUMER_ASSIGN_ERROR)
            assert not there.done()
        finally:
            there.cancel()

    play(service.port, story)


def test_a_holder_that_gives_no_sign_of_life_loses_its_range_and_messages(tmp_path: Path, topic: str) -> None:
    """Within the time of one request, not of two keep-alive intervals; it is disconnected."""
    service = make_service(POSTDATE, tmp_path, {"connectionLivenessCheckTimeoutMillis": "200"})
    service.start()

    async def story(silent: RawConnection) -> None:
        await silent.open_producer(topic)
        assert (await join(silent, topic, 1, ranges=EVERYTHING))[0] == frames.SUCCESS
        await publish(silent, 1)
        ((_, position, _),) = await messages(silent, 1)
        async with raw_connection(service.port) as other:
            assert (await join(other, topic, 2, ranges=EVERYTHING))[0] == frames.SUCCESS
            assert (await messages(other, 1))[0][:2] == (2, position)
        assert await silent.is_ended()

    try:
        play(service.port, story)
    finally:
        service.stop()


@pytest.mark.parametrize(
    ("settings", "name", "at"),
    [
        ({"subscriptionKeySharedOrderingMode": "last_sent_position"}, "lastSentPositionWhenJoining", 3),
        ({"subscriptionKeySharedUseClassicPersistentImplementation": "true"}, "readPositionWhenJoining", 4),
    ],
)
def test_the_older_modes_show_where_a_newcomer_waits(
    tmp_path: Path, topic: str, settings: dict[str, str], name: str, at: int
) -> None:
    """PIP-282's names, and the classic ones, over HTTP; the newcomer is told apart by name, id and address."""
    service = make_service(POSTDATE, tmp_path, settings)
    service.start()
    clients = Clients(service.url)
    try:
        holder = subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name="c")
        producer = clients.new().create_producer(topic, batching_enabled=False)
        for number in range(4):
            producer.send(b"%d" % number, partition_key=f"key-{number}")
        ledger_id = receive(holder, 4)[0].message_id().ledger_id()
        subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name="c")

        shown = ask_topic(service, topic, "stats")[1]["subscriptions"]["sub"]
        position = f"{ledger_id}:{at}"
        assert shown["consumers"][1][name] == position
        ((who, waits_for),) = shown["consumersAfterMarkDeletePosition"].items()
        assert who.startswith("consumerName=c, consumerId=")
        assert waits_for == position
        is_pip_282 = name.startswith("last")
        assert shown.get("lastSentPosition") == (position if is_pip_282 else None)
        assert shown.get("individuallySentPositions") == ("[]" if is_pip_282 else None)
        assert ("keyHashRanges" in shown["consumers"][1]) is not is_pip_282
    finally:
        clients.close()
        service.stop()
