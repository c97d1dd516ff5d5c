"""A whole service with scheduled messages, in virtual time, over a disk and a snapshot storage that fail on command.

Forty messages of four keys are due one after the other, and one client of one connection gets them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.entries.message_metadata import metadata_bytes, parse_metadata
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.protocol.commands import frame
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.scheduled.operations import Operations, Progress, Selector
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.service.service import Service
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.fakes.life_loop import Clock, LifeLoop, LoopExecutor
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.helpers.fakes.opened_place import service_on
from tests.helpers.fakes.service_fakes import Peer
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
KINDS = pytest.mark.parametrize("kind", TRACKERS)


class World:
    """A service with one topic and one Key_Shared subscription."""

    def __init__(self, kind: str) -> None:
        self.config = BrokerConfig(
            data_directory=Path("unused"),
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
        self.service = await service_on(self.config, self.store, self.storage, now_ms=self.clock.now_ms, rng=Random(1))
        self.topic = await self.service.topics.get_or_create(TopicName.parse("t"))

    async def connect(self) -> None:
        """Connect the client, which gets all messages that are due at once."""
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
        return Operations(self.topic, self.schedule, now_ms=self.service.now_ms, early_ms=0, progress=Progress())

    def schedule(self) -> TopicSchedule:
        """The schedule of all subscriptions, with what is in hand."""
        subscriptions = list(self.topic.subscriptions.values())
        return TopicSchedule(self.topic, self.service.catalog, subscriptions, self.service.now_ms, has_in_hand=True)

    async def move(self, selector: Selector, shift_ms: int) -> int:
        """Reschedule; the number of moved messages."""
        return (await self.operations().move(selector, lambda times_ms: times_ms + shift_ms)).changed

    async def cancel(self, selector: Selector) -> int:
        """Cancel; the number of cancelled messages."""
        return (await self.operations().cancel(selector)).changed

    async def scheduled(self) -> int:
        """The number of scheduled messages by the log and its cursors."""
        return (await self.operations().look_at_cancel(ALL)).matched

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
            found.append((entry[10 + metadata_size :].decode(), parse_metadata(metadata_bytes(entry)).deliver_at_time))
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
