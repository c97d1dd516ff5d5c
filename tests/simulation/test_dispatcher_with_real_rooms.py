"""The dispatcher over the real log, the real bucket tracker and real snapshots, through a restart, in real time."""

import asyncio
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from dispatcher import Delivery, Dispatcher, DispatcherConfig, SubscriptionType, make_dispatcher
from dispatcher.slots import sticky_hash
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.fakes.dispatcher_world import FakeConsumer
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig

_MESSAGES = 3_000
_KEYS = 60


class _PausedClock:
    """Real time that stands still where a slow machine would change the story: while publishing and recovering."""

    def __init__(self) -> None:
        self._behind_ms = 0
        self._held_ms: int | None = None

    def __call__(self) -> int:
        return self._held_ms if self._held_ms is not None else time.time_ns() // 1_000_000 - self._behind_ms

    def hold(self, ahead_ms: int = 0) -> int:
        self._held_ms = self() + ahead_ms
        return self._held_ms

    def go_on(self) -> None:
        assert self._held_ms is not None
        self._behind_ms = time.time_ns() // 1_000_000 - self._held_ms
        self._held_ms = None


class _Service:
    """A log in a folder, and a subscription on it."""

    def __init__(self, path: Path, storage: MemoryBucketSnapshotStorage, *, prefetch_ms: int = 5_000) -> None:
        self._path = path
        self.clock = _PausedClock()
        config = TrackerConfig(
            index_count_per_bucket_min=200,
            index_count_at_close_min=1,
            is_deliver_at_time_strict=True,
            tick_time_ms=10,
            prefetch_ms=prefetch_ms,
        )
        self._factory = BucketDelayedDeliveryTrackerFactory(config, storage, now_ms=self.clock)
        self.first: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self.early = 0
        self.deliveries = 0

    async def start(self) -> None:
        config = ManagedLedgerConfig(entries_per_ledger_max=500)
        self._store = await LedgerStore.open(self._path, config, now_ms=self.clock)
        self.ledger: ManagedLedger = await self._store.open_managed_ledger("t")
        self.cursor = await self.ledger.open_cursor("sub")
        self.dispatcher: Dispatcher = make_dispatcher(
            SubscriptionType.KEY_SHARED,
            self.ledger,
            self.cursor,
            self._factory,
            DispatcherConfig(),
            self.clock,
            topic_name="persistent://public/default/t",
        )

    async def stop(self) -> None:
        await self.dispatcher.close()
        await self._store.close()

    def join(self, name: str, delivered: dict[tuple[int, int], tuple[int, int]]) -> FakeConsumer:
        def note(consumer: FakeConsumer, delivery: Delivery) -> None:
            position = (delivery.ledger_id, delivery.entry_id)
            key, due = map(int, delivery.payload.split())
            self.early += self.clock() < due
            self.deliveries += 1
            if position not in delivered:
                delivered[position] = (key, due)
                self.first[key].append((due, *position))
            self.dispatcher.acknowledge(consumer, [position])
            self.dispatcher.consumer_flow(consumer, 1)

        consumer = FakeConsumer(name, note)
        self.dispatcher.add_consumer(consumer)
        self.dispatcher.consumer_flow(consumer, 1000)
        return consumer


def test_delayed_messages_survive_a_restart_in_order(tmp_path: Path) -> None:
    """Sealed buckets are recovered, other messages are read again, and each key's messages come by time."""

    async def story() -> None:
        storage = MemoryBucketSnapshotStorage()
        delivered: dict[tuple[int, int], tuple[int, int]] = {}
        service = _Service(tmp_path, storage)
        await storage.start()
        await service.start()
        for name in ("a", "b"):
            service.join(name, delivered)
        start_ms = service.clock.hold()
        for number in range(_MESSAGES):
            # Late enough that all are durable before the first is due: what cannot be read yet has no order.
            due = start_ms + 1_500 + (number * 7919) % 2_500
            key = number % _KEYS
            service.ledger.append_nowait(
                b"%d %d" % (key, due),
                publish_time_ms=start_ms,
                deliver_at_ms=due,
                sticky_hash=sticky_hash(b"key-%d" % key),
            )
        await service.ledger.committed()
        service.clock.go_on()
        while len(delivered) < _MESSAGES // 4:  # noqa: ASYNC110 (a test of real time)
            await asyncio.sleep(0.01)
        before = len(delivered)
        await service.stop()
        # Much falls due during the outage; how long due entries wait for the recovery is not what is tested here.
        service.clock.hold(ahead_ms=300)
        await service.start()
        for name in ("a", "c"):
            service.join(name, delivered)
        async with asyncio.timeout(60):
            while len(delivered) == before:  # noqa: ASYNC110 (a test of real time)
                await asyncio.sleep(0.01)
            service.clock.go_on()
            while service.cursor.backlog:  # noqa: ASYNC110 (a test of real time)
                await asyncio.sleep(0.05)

        assert 0 < before < len(delivered) == _MESSAGES
        assert service.early == 0
        assert all(a < b for rows in service.first.values() for a, b in pairwise(rows))
        assert service.dispatcher.stats().msg_delayed == 0
        await service.stop()

    asyncio.run(story())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_whose_snapshot_is_lost_are_read_from_the_log_again(tmp_path: Path, is_restarted: bool) -> None:
    """Each comes once: those of lost snapshots, those beside them, and none that a consumer holds."""

    async def story() -> None:
        storage = MemoryBucketSnapshotStorage()
        delivered: dict[tuple[int, int], tuple[int, int]] = {}
        service = _Service(tmp_path, storage, prefetch_ms=50)
        await storage.start()
        await service.start()
        service.join("a", delivered)
        start_ms = service.clock.hold()
        for number in range(_MESSAGES):
            # Some are due at once and are handed out before the loss.
            due = start_ms + (100 if number % 10 == 0 else 1_500 + (number * 7919) % 500)
            service.ledger.append_nowait(
                b"%d %d" % (number % _KEYS, due),
                publish_time_ms=start_ms,
                deliver_at_ms=due,
                sticky_hash=sticky_hash(b"key-%d" % (number % _KEYS)),
            )
        await service.ledger.committed()
        service.clock.go_on()
        async with asyncio.timeout(60):
            while len(storage.snapshots) < 5 or len(delivered) < _MESSAGES // 10:  # noqa: ASYNC110 (real time)
                await asyncio.sleep(0.05)
        if is_restarted:
            await service.stop()
            await service.start()
            service.join("a", delivered)
            async with asyncio.timeout(60):
                while service.dispatcher.stats().msg_delayed < _MESSAGES // 2:  # noqa: ASYNC110 (real time)
                    await asyncio.sleep(0.01)
        for bucket_id in list(storage.snapshots)[::2]:
            await storage.delete_bucket_snapshot(bucket_id)
        async with asyncio.timeout(60):
            while service.cursor.backlog:  # noqa: ASYNC110 (real time)
                await asyncio.sleep(0.05)

        assert len(delivered) == _MESSAGES
        assert sum(map(len, service.first.values())) == _MESSAGES
        assert service.deliveries == _MESSAGES or is_restarted
        assert service.dispatcher.stats().msg_delayed == 0
        await service.stop()

    asyncio.run(story())
