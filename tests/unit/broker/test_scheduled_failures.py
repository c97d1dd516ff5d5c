"""Scheduled messages are changed while the log fails and while the delayed index is away.

A whole service runs in virtual time, with a client of one connection, over a disk and a snapshot storage that fail on
command. Whatever fails, each message is delivered once or is cancelled, and the counts say so.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pytest

from broker.configuration.config import BrokerConfig
from broker.protocol.commands import frame
from broker.protocol.entries import metadata_of
from broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from broker.scheduled.operations import Operations, Progress, Selector
from broker.scheduled.topic_schedule import TopicSchedule
from broker.server.service import Service
from broker.topics.topic import Topic
from broker.topics.topic_name import TopicName
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import LedgerWriteError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.helpers.fakes.service_fakes import Peer
from tests.simulation.whole_service.disk import LoopExecutor
from tests.simulation.whole_service.life import Clock, LifeLoop
from tracker.config import IN_MEMORY_FACTORY, TrackerConfig

MESSAGES = 40
FIRST_DUE_MS = 600_000
"""The delay of the first message; the next ones follow each a second later."""
BUCKETS: dict[str, Any] = {
    "index_count_per_bucket_min": 5,
    "segment_row_count_max": 3,
    "segment_step_ms_max": 2_000,
    "loaded_row_count_max": 3,
    "prefetch_ms": 0,
}
TRACKERS: dict[str, dict[str, Any]] = {
    "memory": {"tracker_factory_class_name": IN_MEMORY_FACTORY},
    "bucket": {},
    "unloaded": BUCKETS,
    "shared": {**BUCKETS, "is_index_shared": True},
}
ALL = Selector(from_ms=0)


class World:
    """A service with one topic and one Key_Shared subscription."""

    def __init__(self, kind: str) -> None:
        self.config = BrokerConfig(
            data_directory=Path("unused"),
            has_snapshot_process=False,
            tracker=TrackerConfig(is_deliver_at_time_strict=True, tick_time_ms=10, **TRACKERS[kind]),
            managed_ledger=ManagedLedgerConfig(entries_per_ledger_max=10),
        )
        self.disk = MemoryDatabase()
        self.stored = MemoryBucketSnapshotStorage()
        self.clock = Clock()
        self.loop = self.clock.loop = LifeLoop(0.0, lambda loop, workers: LoopExecutor(loop, workers, lambda: 0.001))
        self.store: LedgerStore
        self.service: Service
        self.storage: FaultInjectingBucketSnapshotStorage
        self.topic: Topic
        self.peer: Peer
        self.came: list[tuple[str, int]] = []
        """The payload of each delivered message, with the time."""

    async def start(self, *, is_storage_away: bool = False) -> None:
        """Open the service on what is stored."""
        self.store = await LedgerStore.open(
            Path("unused"),
            self.config.managed_ledger,
            now_ms=self.clock.now_ms,
            open_database=lambda _path, _config: self.disk,
            new_executor=lambda workers, _name: LoopExecutor(self.loop, workers, lambda: 0.001),
        )
        self.storage = FaultInjectingBucketSnapshotStorage(self.stored)
        await self.storage.start()
        self.storage.is_hanging = is_storage_away
        self.service = Service(self.config, self.store, self.storage, now_ms=self.clock.now_ms, rng=Random(1))
        self.topic = await self.service.topic(TopicName.parse("t"))

    async def connect(self) -> None:
        """Connect the client, which gets everything that is due at once."""
        self.peer = Peer(self.service)
        values = {"subType": CommandSubscribe.Key_Shared, "consumer_id": 1, "consumer_name": "c"}
        await self.peer.request(BaseCommand.SUBSCRIBE, "subscribe", topic="t", subscription="sub", **values)
        self.peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 1_000}))

    async def publish(self) -> None:
        """Publish the messages."""
        await self.peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="")
        now_ms = self.clock.now_ms()
        for number in range(MESSAGES):
            self.peer.send_bytes(_send(number, now_ms + FIRST_DUE_MS + number * 1_000))
        await asyncio.sleep(5)
        assert self.topic.ledger.entries_total == MESSAGES

    def operations(self) -> Operations:
        """Operations for all subscriptions."""
        schedule = TopicSchedule(
            self.topic, self.service.catalog, list(self.topic.subscriptions.values()), self.service.now_ms
        )
        return Operations(schedule, now_ms=self.service.now_ms, early_ms=0, progress=Progress())

    async def move(self, selector: Selector, shift_ms: int) -> int:
        """Reschedule; the number of moved messages."""
        operations = self.operations()
        movable = await operations.movable(await operations.find(selector))
        return (await operations.move(movable, lambda times_ms: times_ms + shift_ms))[0]

    async def cancel(self, selector: Selector) -> int:
        """Cancel; the number of cancelled messages."""
        operations = self.operations()
        return await operations.cancel(await operations.find(selector))

    async def scheduled(self) -> int:
        """The number of scheduled messages by the log and its cursors."""
        return (await self.operations().find(ALL)).message_count

    @property
    def delayed(self) -> int:
        """The subscription's `msgDelayed`."""
        stats = self.topic.subscriptions["sub"].stats()
        assert stats is not None
        return stats.msg_delayed

    async def run_until(self, delay_ms: int) -> None:
        """Let time pass until so long after the publishing of the messages, and take what comes."""
        await asyncio.sleep(max(0.0, delay_ms / 1_000 - self.loop.time()))
        for answer in self.peer.answers():
            assert answer.type != BaseCommand.CLOSE_CONSUMER
        self.came = _messages(b"".join(self.peer.transport.written))


def _send(number: int, deliver_at_ms: int) -> bytes:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=number, publish_time=1, partition_key=b"k%d" % (number % 4)
    )
    metadata.deliver_at_time = deliver_at_ms
    data = metadata.SerializeToString()
    covered = len(data).to_bytes(4, "big") + data + b"%d" % number
    entry = b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered
    send = {"producer_id": 1, "sequence_id": number, "num_messages": 1}
    simple = frame(BaseCommand(type=BaseCommand.SEND, send=send))
    return (int.from_bytes(simple[:4], "big") + len(entry)).to_bytes(4, "big") + simple[4:] + entry


def _messages(data: bytes) -> list[tuple[str, int]]:
    """The payloads and delivery times of the MESSAGE frames of a stream."""
    found = []
    while data:
        size, command_size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
        command = BaseCommand.FromString(data[8 : 8 + command_size])
        entry = data[8 + command_size : 4 + size]
        if command.type == BaseCommand.MESSAGE:
            metadata_size = int.from_bytes(entry[6:10], "big")
            found.append((entry[10 + metadata_size :].decode(), metadata_of(entry).deliver_at_time))
        data = data[4 + size :]
    return found


def play(kind: str, story: Callable[[World], Awaitable[None]]) -> None:
    """Run a story in virtual time."""
    world = World(kind)
    with asyncio.Runner(loop_factory=lambda: world.loop) as runner:

        async def whole() -> None:
            await story(world)
            await world.service.close()

        runner.run(whole())


KINDS = pytest.mark.parametrize("kind", TRACKERS)


@KINDS
@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "nobody connected"])
def test_a_reschedule_that_cannot_be_stored_leaves_the_old_messages_to_be_delivered_once(
    kind: str, *, is_connected: bool
) -> None:
    """Its copies never come, the counts are those of before, and it can be repeated."""

    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        if not is_connected:
            world.peer.connection.connection_lost(None)
            await asyncio.sleep(1)
        before = (await world.scheduled(), world.delayed)
        world.disk.failures_to_come = 1

        with pytest.raises(LedgerWriteError):
            await world.move(Selector(key=b"k1"), 3_600_000)
        await asyncio.sleep(5)
        after = (await world.scheduled(), world.delayed)
        moved = await world.move(Selector(key=b"k2"), 7_200_000)
        if not is_connected:
            await world.connect()
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 10_000)
        first = Counter(payload for payload, _ in world.came)
        await world.run_until(FIRST_DUE_MS + 7_200_000 + MESSAGES * 1_000 + 10_000)
        came = Counter(payload for payload, _ in world.came)

        assert before == after == (MESSAGES, MESSAGES)
        assert moved == MESSAGES // 4
        assert first == Counter(str(number) for number in range(MESSAGES) if number % 4 != 2)
        assert came == Counter(str(number) for number in range(MESSAGES))
        assert world.delayed == 0

    play(kind, story)


@KINDS
def test_a_cancel_that_cannot_be_stored_says_so_and_still_nobody_gets_the_messages(kind: str) -> None:
    """The acknowledgements are in memory and written later: to repeat the request is safe, and makes it certain."""

    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        world.disk.failures_to_come = 1

        with pytest.raises(LedgerWriteError):
            await world.cancel(Selector(key=b"k1"))
        counts = (await world.scheduled(), world.delayed)
        again = await world.cancel(Selector(key=b"k1"))
        world.disk = world.disk.after_power_loss()
        world.peer.connection.connection_lost(None)
        await world.service.close()
        await world.start()
        await world.connect()
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 10_000)

        assert counts == (MESSAGES * 3 // 4, MESSAGES * 3 // 4)
        assert again == 0
        assert Counter(payload for payload, _ in world.came) == Counter(
            str(number) for number in range(MESSAGES) if number % 4 != 1
        )

    play(kind, story)


@KINDS
def test_messages_are_changed_while_the_index_recovers_from_a_storage_that_does_not_answer(kind: str) -> None:
    """After a restart, with nobody connected and then with the index in recovery; nothing waits for the snapshots."""

    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        world.peer.connection.connection_lost(None)
        await world.service.close()
        await world.start(is_storage_away=True)

        cancelled = await world.cancel(Selector(key=b"k0"))
        moved = await world.move(Selector(key=b"k1"), 3_600_000)
        await world.connect()
        await asyncio.sleep(1)
        began_s = world.loop.time()
        cancelled_late = await world.cancel(Selector(key=b"k2"))
        moved_late = await world.move(Selector(key=b"k3", until_ms=world.clock.now_ms() + FIRST_DUE_MS), 3_600_000)
        taken_s = world.loop.time() - began_s
        left = await world.scheduled()
        world.storage.is_hanging = False
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 10_000)
        first = {payload for payload, _ in world.came}
        await world.run_until(FIRST_DUE_MS + 3_600_000 + MESSAGES * 1_000 + 10_000)
        came = Counter(payload for payload, _ in world.came)

        assert (cancelled, moved, cancelled_late) == (MESSAGES // 4,) * 3
        assert taken_s < 1
        assert left == MESSAGES // 2
        assert first == {str(number) for number in range(MESSAGES) if number % 4 == 3} - {
            str(number) for number in range(3, 3 + 4 * moved_late, 4)
        }
        assert came == Counter(str(number) for number in range(MESSAGES) if number % 4 in (1, 3))
        assert world.delayed == 0

    play(kind, story)
