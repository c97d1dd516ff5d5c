"""Each message of a producer is stored once, whatever it repeats and however the disk and the service end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from managed_ledger.disk.keys import Family
from managed_ledger.entries.message_metadata import metadata_bytes, parse_metadata
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.broker.protocol.frames import Send
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.topics.deduplication import Deduplication
from postdate.broker.topics.limits import DeduplicationConfig
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_world import World, play
from tests.helpers.send_frames import send_frame

NAME = "orders"
ENABLED = DeduplicationConfig(is_enabled=True)


def told(story: Callable[[World], Awaitable[None]], config: DeduplicationConfig = ENABLED) -> None:
    """Run a story of a service that deduplicates."""

    async def whole(world: World) -> None:
        world.config = replace(world.config, deduplication=config)
        await world.start()
        await world.connect()
        await story(world)

    play("memory", whole)


class ResendingClient:
    """A client that sends again what has no receipt, as Pulsar's clients do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._peer: Peer | None = None
        self._seen = 0
        self.count = 0
        self.pending: dict[int, None] = {}
        self.last_ids: list[tuple[int, int]] = []
        """What each producer was told as the last id, and the last id that had a receipt then."""

    async def connect(self) -> None:
        """Make the producer, and send what is pending."""
        if self._peer is None:
            self._peer, self._seen = Peer(self._world.service), 0
        values = {"topic": "t", "producer_id": 1, "producer_name": NAME}
        answer = await self._peer.request(BaseCommand.PRODUCER, "producer", **values)
        if answer.type != BaseCommand.PRODUCER_SUCCESS:
            # It tries again.
            self.lose_connection()
            return
        self.last_ids.append((answer.producer_success.last_sequence_id, min(self.pending, default=self.count) - 1))
        self._seen = self._peer.answers().index(answer) + 1
        for number in self.pending:
            self._peer.send_bytes(send_frame(number))

    def send(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            self.pending[number] = None
            if self._peer is not None:
                self._peer.send_bytes(send_frame(number))
        self.count += count

    def lose_connection(self) -> None:
        if self._peer is not None:
            self._peer.connection.connection_lost(None)
            self._peer = None

    async def read(self) -> None:
        """Take receipts; a producer that is closed is made anew."""
        if self._peer is None:
            await self.connect()
            return
        answers = self._peer.answers()[self._seen :]
        self._seen += len(answers)
        for one in answers:
            if one.type == BaseCommand.SEND_RECEIPT:
                self.pending.pop(one.send_receipt.sequence_id, None)
        if any(one.type == BaseCommand.CLOSE_PRODUCER for one in answers):
            await self.connect()


async def stored_ids(world: World) -> list[int]:
    ledger = world.topic.ledger
    columns = [(one.ledger_id, entry_id) for one in ledger.ledgers() for entry_id in range(one.entries)]
    ids = np.array(columns, np.int64).reshape(-1, 2)
    entries = await ledger.read_payloads(ids[:, 0], ids[:, 1])
    return [parse_metadata(metadata_bytes(entry or b"")).sequence_id for entry in entries]


async def lose_power(world: World, client: ResendingClient) -> None:
    world.disk = world.disk.after_power_loss()
    client.lose_connection()
    world.peer.connection.connection_lost(None)
    await world.service.close()
    await world.start()
    await world.connect()


@pytest.mark.parametrize("seed", range(25))
def test_over_failed_writes_lost_connections_and_power_each_message_is_stored_once(seed: int) -> None:
    rng = Random(seed)

    async def story(world: World) -> None:
        client = ResendingClient(world)
        for _ in range(60):
            match rng.randrange(10):
                case 0:
                    world.disk.failures_to_come = 1
                case 1:
                    client.lose_connection()
                case 2:
                    await lose_power(world, client)
                case _:
                    client.send(rng.randint(1, 4))
            await asyncio.sleep(rng.choice([0, 0.0003, 0.001, 0.5]))
            await client.read()
        world.disk.failures_to_come = 0
        for _ in range(20):
            await client.read()
            await asyncio.sleep(0.5)

        assert not client.pending
        assert await stored_ids(world) == list(range(client.count))
        assert all(last >= acknowledged for last, acknowledged in client.last_ids)

    told(story)


def _send(sequence_id: int, *, highest: int = 0, chunk_id: int | None = None) -> Send:
    metadata = MessageMetadata()
    if chunk_id is not None:
        metadata.num_chunks_from_msg, metadata.chunk_id = 2, chunk_id
    return Send(1, sequence_id, 1, metadata, b"", highest)


def test_batches_count_with_their_last_message_and_chunks_with_their_last_part() -> None:
    async def story(world: World) -> None:
        ledger = world.topic.ledger
        found = world.topic.deduplication
        assert found is not None

        def is_stored(send: Send) -> bool:
            if found.is_duplicate(NAME, send):
                return False
            ledger.append_nowait(b"x", publish_time_ms=1)
            found.published(NAME, send)
            return True

        assert found.last_sequence_id(NAME) == -1
        assert is_stored(_send(3, highest=5))
        assert [is_stored(_send(number)) for number in (3, 5, 6)] == [False, False, True]
        assert [is_stored(_send(8, chunk_id=at)) for at in (0, 0, 1)] == [True, True, True]
        assert [is_stored(_send(8, chunk_id=at)) for at in (0, 1)] == [False, False]
        assert is_stored(_send(2**63))
        await ledger.committed()
        assert found.last_sequence_id(NAME) == 2**63 - 1
        assert {name: use.sequence_id for name, use in ledger.sequence_ids.durable.items()} == {NAME: 2**63}

    told(story)


def _rows(world: World) -> int:
    return sum(key.startswith(b"d") for key, _ in world.disk.scan(Family.META, b"d", b"e"))


def test_over_restarts_the_longest_inactive_producers_are_removed_and_the_present_one_never() -> None:
    """By when they published last, whatever their names are and however often the topic was opened since."""

    async def story(world: World) -> None:
        async def restart() -> Deduplication:
            await lose_power(world, ResendingClient(world))
            assert world.topic.deduplication is not None
            return world.topic.deduplication

        found = await restart()
        for number, name in enumerate("ecadb"):
            world.topic.ledger.append_nowait(b"x", publish_time_ms=1)
            found.published(name, _send(number))
            await world.topic.ledger.committed()
            await asyncio.sleep(60)
            found = await restart()
        # The opening removes none: whoever is connecting may be among them.
        assert sorted(world.topic.ledger.sequence_ids) == list("abcde")
        found.remove_inactive({"e"})
        assert sorted(world.topic.ledger.sequence_ids) == list("bde")
        await world.topic.ledger.committed()
        await asyncio.sleep(60 * (10 - 2) + 1)
        found = await restart()
        found.remove_inactive({"e"})
        assert sorted(world.topic.ledger.sequence_ids) == list("be")
        await world.topic.ledger.committed()
        assert _rows(world) == 2
        assert found.last_sequence_id("b") == 4

    told(story, DeduplicationConfig(is_enabled=True, producers_max=3, inactivity_timeout_ms=10 * 60_000))


def test_rows_go_with_the_topic_and_when_deduplication_is_switched_off() -> None:
    """Its producers may begin anew with their ids meanwhile, and nothing that they send then may be taken for old."""

    async def story(world: World) -> None:
        client = ResendingClient(world)
        await client.connect()
        client.send(5)
        await asyncio.sleep(1)
        await client.read()
        assert (_rows(world), client.pending) == (1, {})
        world.config = replace(world.config, deduplication=DeduplicationConfig())
        await lose_power(world, client)
        await client.connect()
        client.send(1)
        await asyncio.sleep(1)
        assert _rows(world) == 0
        assert client.last_ids[-1][0] == -1

        world.config = replace(world.config, deduplication=ENABLED)
        await lose_power(world, client)
        client.pending, client.count = {}, 0
        await client.connect()
        client.send(2)
        await asyncio.sleep(1)
        assert await stored_ids(world) == [0, 1, 2, 3, 4, 5, 0, 1]
        assert _rows(world) == 1
        client.lose_connection()
        world.peer.connection.connection_lost(None)
        await asyncio.sleep(1)
        await world.service.topics.delete(world.service.topics[TopicName.parse("t")])
        assert _rows(world) == 0

    told(story)
