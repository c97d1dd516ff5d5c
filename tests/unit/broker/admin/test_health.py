"""The answers of `/health`: whether the service does its job, and if not why."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from dispatcher.core.read_plan import ReadRequest
from managed_ledger.ledger_store import LedgerStore, OpenDatabase, open_rocksdb
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Clock
from managed_ledger.rocksdb_store.disk_room import Room
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.helpers.fakes.opened_place import service_on
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.until import until
from tracker.config import BUCKET_FACTORY, TrackerConfig

_NOW_MS = 1_800_000_000_000
_TOPIC = TopicName.parse("t")


class _FullDisk(LedgerStore):
    """A store that has no room."""

    @property
    def refusal(self) -> str | None:
        return "There is no room for the log: no space left"


def running_clock() -> Clock:
    """A clock that goes on from `_NOW_MS`, since an outage ends with a retry.

    It begins with the story: a worker may have imported this module a long run of other tests ago.
    """
    started_ns = time.monotonic_ns()
    return lambda: _NOW_MS + (time.monotonic_ns() - started_ns) // 1_000_000


def play(
    folder: Path,
    story: Callable[[Service, FaultInjectingBucketSnapshotStorage], Awaitable[None]],
    store_class: type[LedgerStore] = LedgerStore,
    open_database: OpenDatabase = open_rocksdb,
) -> None:
    """Run a story on a service whose snapshots can be let down."""

    async def run() -> None:
        tracker = TrackerConfig(
            tracker_factory_class_name=BUCKET_FACTORY,
            index_count_per_bucket_min=1,
            index_count_per_bucket_max=1,
            retry_backoff_ms_min=1,
            retry_backoff_ms_max=2,
        )
        config = BrokerConfig(data_directory=folder, tracker=tracker)
        now_ms = running_clock()
        store = await store_class.open(
            folder / "ledgers", config.managed_ledger, now_ms=now_ms, open_database=open_database
        )
        storage = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage())
        await storage.start()
        service = await service_on(config, store, storage, now_ms=now_ms)
        try:
            await story(service, storage)
        finally:
            await service.close()

    asyncio.run(run())


async def subscribe(service: Service) -> Peer:
    peer = Peer(service)
    await peer.request(
        BaseCommand.SUBSCRIBE,
        "subscribe",
        topic="t",
        subscription="s",
        subType=CommandSubscribe.Key_Shared,
        consumer_id=1,
    )
    return peer


def test_nothing_is_wrong_with_a_service_that_works(tmp_path: Path) -> None:
    async def story(service: Service, _: FaultInjectingBucketSnapshotStorage) -> None:
        await subscribe(service)
        assert await service.problems() == []

    play(tmp_path, story)


def test_a_log_that_takes_no_messages_is_told(tmp_path: Path) -> None:
    async def story(service: Service, _: FaultInjectingBucketSnapshotStorage) -> None:
        assert await service.problems() == ["new messages are refused: There is no room for the log: no space left"]
        assert service.unready == "New messages are refused: there is no room for them"

    play(tmp_path, story, _FullDisk)


def test_an_outage_of_the_snapshots_is_told_until_it_is_over(tmp_path: Path) -> None:
    async def story(service: Service, storage: FaultInjectingBucketSnapshotStorage) -> None:
        await subscribe(service)
        storage.is_down = True
        topic = service.topics[_TOPIC]
        # The second begins another bucket, so the first is to be stored.
        for _ in range(2):
            await topic.ledger.append(b"x", publish_time_ms=_NOW_MS, deliver_at_ms=_NOW_MS + 3_600_000)
        (problem,) = await until(service.problems)
        assert service.unready is None
        # Which call failed first, or both, is not the point: the sweep for residual snapshots fails as well.
        assert problem.startswith(f"{_TOPIC}: subscription s: snapshots fail: ")
        assert re.search(r", since 2027-01-15T08:0\d:\d\dZ: .*injected failure", problem)

        storage.is_down = False

        async def is_well() -> bool:
            return await service.problems() == []

        await until(is_well)

    play(tmp_path, story)


def test_a_dispatcher_that_a_defect_has_stopped_is_told(tmp_path: Path) -> None:
    def defect(_: Position) -> ReadRequest | None:
        raise AssertionError("seeded")

    async def story(service: Service, _: FaultInjectingBucketSnapshotStorage) -> None:
        await subscribe(service)
        subscription = service.topics[_TOPIC].subscriptions["s"]
        assert subscription.dispatcher is not None
        subscription.dispatcher.core.next_read = defect  # type: ignore[method-assign]
        subscription.dispatcher.consumer_flow(next(iter(subscription.consumers)), 1)
        (problem,) = await until(service.problems)
        assert problem == f"{_TOPIC}: subscription s has stopped by a defect: AssertionError('seeded')"

    play(tmp_path, story)


def test_a_disk_with_room_again_is_healthy_without_another_message(tmp_path: Path) -> None:
    """The log looks once a second."""
    database = MemoryDatabase()

    async def story(service: Service, storage: FaultInjectingBucketSnapshotStorage) -> None:
        database.free = Room(free_bytes=3 * 2**20, disk_bytes=2**26, unflushed_bytes=0)
        # Any commit does.
        await subscribe(service)
        (problem,) = await service.problems()
        assert "has 3.0 MiB free" in problem

        database.free = Room(free_bytes=25 * 2**20, disk_bytes=2**26, unflushed_bytes=0)

        async def is_well() -> bool:
            return await service.problems() == []

        await until(is_well)

    play(tmp_path, story, open_database=lambda _path, _config: database)
