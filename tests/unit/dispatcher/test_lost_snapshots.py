"""A snapshot found damaged while its messages are due: they are read from the log again, and come in order of time.

The dispatcher and the bucket tracker are real, in virtual time. A message is due before the one published before it, so
the order of the log is never the right one; and each bucket reaches over the whole time, so what is read again belongs
between rows of the others.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pytest

from dispatcher import Delivery, Dispatcher, DispatcherConfig, SubscriptionType, make_dispatcher
from dispatcher.slots import sticky_hash
from postdate.testing import run_inline
from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotHead
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog, FakeLogCursor
from tests.helpers.fakes.shell_world import settle
from tests.helpers.fakes.virtual_time import START_MS, now_ms, run
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig

KEYS = 7
MESSAGES = 401
"""Four ledgers that are full, and so four buckets, and a message beyond them."""
TRACKER = TrackerConfig(
    index_count_per_bucket_min=100,
    segment_row_count_max=10,
    index_count_at_close_min=-1,
    is_deliver_at_time_strict=True,
    prefetch_ms=0,
)
DISPATCHER = DispatcherConfig(lookup_entries_max=7, scan_entries_max=50, read_batch_entries_max=20)
"""In small portions, so that others have a turn between any two of them."""


@dataclass
class _NamedCursor(FakeLogCursor):
    """A cursor that names snapshots."""

    named: dict[str, str] = field(default_factory=dict)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.named

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        self.named.update(put)
        for key in remove:
            self.named.pop(key, None)


class _SlowLog(FakeLog):
    """Reading takes a millisecond, or as long as is asked for."""

    read_s = 0.001

    async def _take_time(self) -> None:
        await asyncio.sleep(self.read_s)


class _DamagedStorage(MemoryBucketSnapshotStorage):
    """Snapshots of which some entries are damaged, of which reading says so after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: dict[int, int] = {}
        """By snapshot, the entry from which on it is damaged."""
        self.found: set[int] = set()
        self.damage_found_after_s = 0.0

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        await self._check(bucket_id, 0)
        head = await super().get_bucket_snapshot_head(bucket_id)
        return BucketSnapshotHead(head.info, head.metadata)

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        await self._check(bucket_id, 0)
        return await super().get_bucket_snapshot_metadata(bucket_id)

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        await self._check(bucket_id, last_entry)
        return await super().get_bucket_snapshot_segment(bucket_id, first_entry, last_entry)

    async def _check(self, bucket_id: int, entry: int) -> None:
        if entry >= self.damaged.get(bucket_id, entry + 1):
            self.found.add(bucket_id)
            await asyncio.sleep(self.damage_found_after_s)
            raise SnapshotCorruptedError("a block checksum", bucket_id=bucket_id, entry=entry)


class _World:
    """A log, a cursor and snapshots; and one dispatcher after the other over them."""

    def __init__(self) -> None:
        self.log = _SlowLog(entries_per_ledger=100)
        self.cursor = _NamedCursor(self.log)
        self.storage = _DamagedStorage()
        self.delivered: list[int] = []
        self.delivered_at_ms: list[int] = []

    def open(self, *, order_wait_ms_max: int = 5_000) -> Dispatcher:
        factory = BucketDelayedDeliveryTrackerFactory(
            replace(TRACKER, order_wait_ms_max=order_wait_ms_max),
            self.storage,
            now_ms=now_ms,
            run_blocking=run_inline,
        )
        config = replace(DISPATCHER, order_wait_ms_max=order_wait_ms_max)
        return make_dispatcher(
            SubscriptionType.KEY_SHARED, self.log, self.cursor, factory, config, now_ms, topic_name="t"
        )

    async def publish(self, due_s: int) -> None:
        """Publish numbers and wait for the snapshots."""
        await self.storage.start()
        dispatcher = self.open()
        for number in range(MESSAGES):
            self.log.append(
                b"%d" % number,
                key_hash=sticky_hash(b"key-%d" % (number % KEYS)),
                deliver_at_ms=START_MS + 1_000 * due_s + _due_ms(number),
            )
        await settle(5)
        assert len(self.cursor.named) == 4
        await dispatcher.close()

    def join(self, dispatcher: Dispatcher) -> None:
        def take(consumer: FakeConsumer, delivery: Delivery) -> None:
            self.delivered.append(int(delivery.payload))
            self.delivered_at_ms.append(now_ms())
            dispatcher.acknowledge(consumer, [(delivery.ledger_id, delivery.entry_id)])
            dispatcher.consumer_flow(consumer, 1)

        consumer = FakeConsumer("c", take)
        dispatcher.add_consumer(consumer)
        dispatcher.consumer_flow(consumer, 1_000)


def _due_ms(number: int) -> int:
    """Return when a message is due, so that each ledger reaches over the whole time and goes back in it."""
    return 10 * (MESSAGES - number * 101 % MESSAGES)


def _keys_out_of_order(delivered: list[int]) -> list[int]:
    of_keys = [[number for number in delivered if number % KEYS == key] for key in range(KEYS)]
    return [key for key, numbers in enumerate(of_keys) if numbers != sorted(numbers, key=_due_ms)]


@pytest.mark.parametrize("first_damaged", [0, 4, 9], ids=["entry 0", "a segment in the middle", "a late segment"])
@pytest.mark.parametrize("damage_found_after_s", [0.0, 2.0], ids=["found at once", "found late"])
@pytest.mark.parametrize("due_s", [10, 200], ids=["due at the start", "due later"])
def test_messages_of_a_snapshot_found_damaged_keep_the_order_of_time(
    first_damaged: int, damage_found_after_s: float, due_s: int
) -> None:
    """Those that are due wait until what was lost is read again, for so long as it takes."""

    async def scenario() -> None:
        world = _World()
        await world.publish(due_s)
        await settle(50)
        for bucket_id in sorted(world.storage.snapshots)[1:3]:
            world.storage.damaged[bucket_id] = first_damaged
        world.storage.damage_found_after_s = damage_found_after_s
        dispatcher = world.open()
        world.join(dispatcher)
        await settle(250)

        assert world.storage.found == world.storage.damaged.keys()
        assert sorted(world.delivered) == list(range(MESSAGES))
        assert _keys_out_of_order(world.delivered) == []
        await dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("order_wait_ms_max", [0, 3_000, 20_000, -1])
def test_the_wait_for_what_a_damaged_snapshot_held_is_the_configured_one(order_wait_ms_max: int) -> None:
    """The log is so slow that reading a lost bucket again takes some ten seconds: longer than the default bound."""

    async def scenario() -> None:
        world = _World()
        await world.publish(10)
        await settle(50)
        world.storage.damaged[min(world.storage.snapshots)] = 1
        world.log.read_s = 0.5
        opened_ms = now_ms()
        dispatcher = world.open(order_wait_ms_max=order_wait_ms_max)
        world.join(dispatcher)
        await settle(250)

        assert sorted(world.delivered) == list(range(MESSAGES))
        first_ms = world.delivered_at_ms[0] - opened_ms
        if order_wait_ms_max in (0, 3_000):
            # The header and the payload of a due message take a read each, beside one that is under way.
            assert order_wait_ms_max <= first_ms <= order_wait_ms_max + 2_000
            assert order_wait_ms_max or _keys_out_of_order(world.delivered)
        else:
            assert 10_000 <= first_ms <= 20_000
            assert _keys_out_of_order(world.delivered) == []
        await dispatcher.close()

    run(scenario())
