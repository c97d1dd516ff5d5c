"""The shell in virtual time: its timer, its news to the dispatcher, restarts, outages, clearing and closing.

Tests that take `world` run over a storage that works and over ones that fail or are late in a third of their calls:
a tracker that is patient behaves the same.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from postdate.testing import VIRTUAL_START_MS as START_MS
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan, Operation
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.ownerless import delete_unnamed
from tests.helpers.seeds import seeds
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.tracker_calls import InThreads
from tracker.stats import BucketOperation

MINUTE_S = 60
HOUR_S = 3_600

CONFIG = TrackerConfig(index_count_per_bucket_min=5, is_deliver_at_time_strict=True)
SURVIVABLE = (Fault.LATENCY, Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER, Fault.TIMEOUT_AFTER)
"""Faults that cost time and nothing else."""


def faulty(seed: int) -> FaultPlan:
    return FaultPlan(seed=seed, rate=0.3, faults=SURVIVABLE, latency_ms_max=8, timeout_ms=8)


@dataclass
class BucketTrackerWorld:
    """A storage and a cursor, and the trackers that live on them one after the other."""

    plan: FaultPlan = NO_FAULTS
    config: TrackerConfig = CONFIG
    cursor: FakeCursor = field(default_factory=FakeCursor)
    told_at_ms: list[int] = field(default_factory=list)
    on_available: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.stored = MemoryBucketSnapshotStorage()
        self.storage = FaultInjectingBucketSnapshotStorage(self.stored, self.plan)

    async def tracker(self) -> BucketDelayedDeliveryTracker:
        await self.storage.start()

        def on_available() -> None:
            self.told_at_ms.append(virtual_now_ms())
            self.on_available()

        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=on_available)
        return self.factory.new_tracker(context)

    @property
    def factory(self) -> BucketDelayedDeliveryTrackerFactory:
        config = self.config
        if self.plan is not NO_FAULTS:
            config = replace(config, retry_backoff_ms_min=1, retry_backoff_ms_max=4)
        return BucketDelayedDeliveryTrackerFactory(config, self.storage, now_ms=virtual_now_ms, run_blocking=run_inline)

    async def rest(self) -> None:
        """Let everything happen that needs no time, or the time of some attempts."""
        await asyncio.sleep(0.001 if self.plan is NO_FAULTS else 0.5)

    async def snapshot_ids(self) -> set[int]:
        return {info.bucket_id for info in await self.stored.list_bucket_snapshots()}

    def named_ids(self) -> set[int]:
        return set(map(int, self.cursor.properties.values()))


@pytest.fixture(params=[NO_FAULTS, *map(faulty, range(3))], ids=lambda plan: f"rate-{plan.rate}-seed-{plan.seed}")
def world(request: pytest.FixtureRequest) -> BucketTrackerWorld:
    return BucketTrackerWorld(request.param)


@pytest.fixture
def sound_world() -> BucketTrackerWorld:
    """For what depends on single calls."""
    return BucketTrackerWorld()


def add(tracker: BucketDelayedDeliveryTracker, delay_ms: int, *ledgers: int) -> None:
    """Add one message in each ledger, due a millisecond after the other."""
    for number, ledger_id in enumerate(ledgers):
        assert tracker.add_message(ledger_id, ledger_id, START_MS + delay_ms + number)


def test_a_bucket_that_single_adds_fill_is_stored_before_any_message_is_due(sound_world: BucketTrackerWorld) -> None:
    """Nothing else wakes the tracker then."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        add(tracker, 60_000, 1)
        await sound_world.rest()
        for entry_id in range(2, 7):
            assert tracker.add_message(1, entry_id, START_MS + 70_000)
        assert tracker.add_message(2, 0, START_MS + 70_000)
        await sound_world.rest()
        assert len(await sound_world.snapshot_ids()) == 1
        await tracker.close()

    run_virtually(main())


@pytest.mark.slow
def test_a_thousand_messages_due_at_different_times_are_each_on_time(world: BucketTrackerWorld) -> None:
    """A dispatcher that polls when it is told loses no time, over seals and loads."""
    received: list[tuple[int, int]] = []

    async def main() -> None:
        tracker = await world.tracker()

        def poll() -> None:
            while tracker.has_message_available():
                received.extend((row[0], virtual_now_ms()) for row in tracker.get_scheduled_messages(3).to_rows())

        world.on_available = poll
        for number in range(1_000):
            tracker.add_message(number // 10, number, START_MS + 10_000 + (number * 7_919) % 60_000)
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        await asyncio.sleep(80)
        assert world.cursor.properties == {}
        # One whose create took effect and failed is the sweep's.
        assert world.plan is not NO_FAULTS or await world.snapshot_ids() == set()
        await tracker.close()

    run_virtually(main())
    assert len(received) == 1_000
    assert all(deliver_at_ms <= at_ms <= deliver_at_ms + 1 for deliver_at_ms, at_ms in received)
    assert received == sorted(received)


def test_a_restart_brings_back_what_was_sealed_and_what_was_worth_sealing_at_close(world: BucketTrackerWorld) -> None:
    """Closing seals the mutable bucket, so that nothing is to be read again."""
    world.config = TrackerConfig(index_count_per_bucket_min=5, index_count_at_close_min=2)

    async def main() -> None:
        tracker = await world.tracker()
        add(tracker, 60_000, *range(1, 9))
        await tracker.close()
        tracker = await world.tracker()
        assert tracker.is_recovering(3)
        assert tracker.is_recovering(8)
        await world.rest()
        assert not tracker.is_recovering(3)
        assert not tracker.is_recovering(8)
        assert tracker.number_of_delayed_messages() == 8
        assert list(tracker.tracked_in(8) or ()) == [8]
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize(("at_close_min", "bucket_count"), [(4, 1), (3, 2), (-1, 1)])
def test_a_small_mutable_bucket_is_not_sealed_at_close(
    world: BucketTrackerWorld, at_close_min: int, bucket_count: int
) -> None:
    """Below the configured number reading again is cheaper."""
    world.config = TrackerConfig(index_count_per_bucket_min=5, index_count_at_close_min=at_close_min)

    async def main() -> None:
        tracker = await world.tracker()
        add(tracker, 60_000, *range(1, 9))
        await tracker.close()

    run_virtually(main())
    assert len(world.cursor.properties) == bucket_count


def test_a_storage_that_is_down_for_an_hour_costs_a_few_calls_and_no_message(sound_world: BucketTrackerWorld) -> None:
    """Messages in memory are on time, adding goes on, and afterwards everything is stored."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        await sound_world.rest()
        sound_world.storage.is_down = True
        sound_world.storage.calls.clear()
        add(tracker, 2 * HOUR_S * 1_000, *range(1, 101))
        add(tracker, HOUR_S * 500, 200)
        await asyncio.sleep(HOUR_S)
        assert 0 < sound_world.storage.calls[Operation.CREATE] < 60 * 4
        assert sound_world.storage.calls.total() == sound_world.storage.calls[Operation.CREATE]
        assert len(tracker.get_scheduled_messages(10)) == 1

        sound_world.storage.is_down = False
        await asyncio.sleep(60)
        assert len(sound_world.cursor.properties) == 20
        assert sound_world.named_ids() == await sound_world.snapshot_ids()
        assert tracker.stats().operations[BucketOperation.CREATE].succeed == 20
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize("how", ["down", "hanging"])
def test_an_hour_of_outage_is_told_once_and_fills_memory_up_to_the_limit(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sealing falls back to memory, reading pauses at the limit, what is due comes, and nothing spins."""
    world = BucketTrackerWorld(config=replace(CONFIG, unsealed_row_count_max=50))

    async def main() -> None:
        tracker = await world.tracker()
        await world.rest()
        world.storage.is_down, world.storage.is_hanging = how == "down", how == "hanging"
        world.storage.calls.clear()
        caplog.set_level("INFO", "tracker.shell")
        add(tracker, HOUR_S * 500, 1)
        for ledger_id in range(2, 100):
            if tracker.should_pause_all_deliveries():
                break
            add(tracker, 2 * HOUR_S * 1_000, ledger_id)
            await world.rest()
        assert ledger_id == 52
        await asyncio.sleep(HOUR_S)
        assert 0 < world.storage.calls.total() < 60 * 4
        assert len(tracker.get_scheduled_messages(10)) == 1
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 2
        assert sum("CreateSnapshot failed" in message for message in warnings) == 1
        assert sum("50 indexes wait in memory" in message for message in warnings) == 1

        world.storage.is_down = world.storage.is_hanging = False
        await asyncio.sleep(120)
        assert not tracker.should_pause_all_deliveries()
        assert world.named_ids() == await world.snapshot_ids() != set()
        assert sum("CreateSnapshot works again" in record.getMessage() for record in caplog.records) == 1
        await tracker.close()

    run_virtually(main())


def test_property_writes_that_fail_are_repeated(sound_world: BucketTrackerWorld) -> None:
    """Nothing is leaked, and rows stay in memory until it worked."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        sound_world.cursor.property_error = OSError("no quorum")
        add(tracker, 60_000, *range(1, 7))
        await asyncio.sleep(10)
        assert tracker.stats().index_loaded == 6
        sound_world.cursor.property_error = None
        await asyncio.sleep(31)
        assert tracker.stats().index_loaded == 1
        assert len(sound_world.named_ids()) == 1
        assert sound_world.named_ids() == await sound_world.snapshot_ids()
        await tracker.close()

    run_virtually(main())


@pytest.mark.slow
def test_a_bucket_is_told_with_the_segments_of_its_snapshot(sound_world: BucketTrackerWorld) -> None:
    """In memory small neighbours are one entry of its table: five rows of one segment each here."""
    sound_world.config = TrackerConfig(index_count_per_bucket_min=1_000, segment_row_count_max=1)

    async def main() -> None:
        tracker = await sound_world.tracker()
        entries = np.arange(1_000)
        tracker.add_messages(np.ones_like(entries), entries, virtual_now_ms() + HOUR_S * 1_000 + 1_000 * entries)
        add(tracker, 2 * HOUR_S * 1_000, 2)
        await sound_world.rest()
        (bucket,) = tracker.buckets()
        assert (bucket.segments, bucket.loaded_segments, bucket.rows) == (1_000, 0, 1_000)
        await asyncio.sleep(HOUR_S + 100)
        (bucket,) = tracker.buckets()
        assert bucket.loaded_segments == bucket.loaded_rows > 100
        await tracker.close()

    run_virtually(main())


def test_a_missing_snapshot_is_counted_and_told(world: BucketTrackerWorld) -> None:
    """Its range may be read, and its property is gone."""

    async def main() -> None:
        world.cursor.properties = {f"{BUCKET_KEY_PREFIX}_1_5": "77", f"{BUCKET_KEY_PREFIX}_oops": "1"}
        tracker = await world.tracker()
        assert tracker.is_recovering(3)
        await world.rest()
        assert not tracker.is_recovering(3)
        assert world.told_at_ms
        assert tracker.stats().buckets_lost == 1
        assert tracker.stats().buckets_recovered == 0
        assert set(world.cursor.properties) == {f"{BUCKET_KEY_PREFIX}_oops"}
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize("how", ["read", "cleared", "trimmed"])
def test_a_snapshot_of_somebody_else_is_not_touched(world: BucketTrackerWorld, how: str) -> None:
    """Its property goes, the loss is counted, and the snapshot stays, also when the tracker had not read it yet."""

    async def main() -> None:
        await world.stored.start()
        alien_id = await world.stored.create_bucket_snapshot(
            b"", [], bucket_key=f"{BUCKET_KEY_PREFIX}_1_5", topic_name="t", cursor_name="other"
        )
        world.cursor.properties = {f"{BUCKET_KEY_PREFIX}_1_5": str(alien_id)}
        if how == "trimmed":
            world.cursor.mark_delete_position = Position(6, 0)
        tracker = await world.tracker()
        if how == "cleared":
            await tracker.clear()
        await world.rest()
        assert world.cursor.properties == {}
        assert await world.snapshot_ids() == {alien_id}
        assert tracker.stats().buckets_lost == (how == "read")
        assert not tracker.is_recovering(3)
        await tracker.close()

    run_virtually(main())


def test_a_snapshot_that_is_lost_while_in_use_is_handed_back_for_reading(world: BucketTrackerWorld) -> None:
    """The dispatcher is told, takes the ledgers, and adds their messages again."""

    async def main() -> None:
        tracker = await world.tracker()
        add(tracker, 60_000, *range(1, 7))
        await world.rest()
        (bucket_id,) = await world.snapshot_ids()
        await world.stored.delete_bucket_snapshot(bucket_id)
        await asyncio.sleep(56)
        assert world.told_at_ms
        assert tracker.pop_to_read_again() == {n: BitMap([n]) for n in range(1, 6)}
        add(tracker, 60_000, *range(1, 6))
        await asyncio.sleep(5)
        assert len(tracker.get_scheduled_messages(10)) == 6
        await tracker.close()

    run_virtually(main())


def slow(operation: Operation) -> FaultPlan:
    return FaultPlan(rate=1.0, faults=(Fault.LATENCY,), operations=frozenset({operation}), latency_ms_max=20_000)


OUTAGES = {
    "fails at once": lambda storage: setattr(storage, "is_down", True),
    "never answers": lambda storage: setattr(storage, "is_hanging", True),
    "deletes slowly": lambda storage: setattr(storage, "plan", slow(Operation.DELETE)),
    "creates slowly": lambda storage: setattr(storage, "plan", slow(Operation.CREATE)),
}


def end_outage(storage: FaultInjectingBucketSnapshotStorage) -> None:
    storage.is_down = storage.is_hanging = False
    storage.plan = NO_FAULTS


@pytest.mark.parametrize("outage", OUTAGES)
def test_clearing_takes_no_time_whatever_the_storage_does(sound_world: BucketTrackerWorld, outage: str) -> None:
    """Snapshots, and some under way; messages that are added afterwards come, and no earlier one is left in the end."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        add(tracker, 30_000, *range(1, 12))
        await sound_world.rest()
        old_ids = await sound_world.snapshot_ids()
        OUTAGES[outage](sound_world.storage)
        add(tracker, 30_000, *range(12, 17))
        await sound_world.rest()

        began_ms = virtual_now_ms()
        await tracker.clear()
        assert virtual_now_ms() == began_ms
        assert tracker.number_of_delayed_messages() == 0
        assert not any(tracker.is_recovering(ledger_id) for ledger_id in range(1, 17))
        add(tracker, 30_000, *range(3, 17))
        await asyncio.sleep(30.1)
        assert [row[1] for row in tracker.get_scheduled_messages(100).to_rows()] == list(range(3, 17))

        add(tracker, HOUR_S * 1_000, *range(17, 30))
        end_outage(sound_world.storage)
        await asyncio.sleep(200)
        assert sound_world.named_ids() == await sound_world.snapshot_ids()
        assert not old_ids & sound_world.named_ids()
        assert tracker.number_of_delayed_messages() == 13
        await tracker.close()

    run_virtually(main())


def test_what_is_left_of_a_cleared_index_is_the_next_trackers(sound_world: BucketTrackerWorld) -> None:
    """The first one ends, or is killed, while the storage is away: properties name what is to be deleted."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        add(tracker, 60_000, *range(1, 7))
        await sound_world.rest()
        sound_world.storage.is_hanging = True
        await tracker.clear()
        tracker.abandon()
        await asyncio.gather(tracker.close(), tracker.close())
        assert len(sound_world.cursor.properties) == 1

        sound_world.storage.is_hanging = False
        tracker = await sound_world.tracker()
        await asyncio.sleep(61)
        assert len(tracker.get_scheduled_messages(100)) == 5
        await sound_world.rest()
        assert sound_world.named_ids() == await sound_world.snapshot_ids() == set()
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_abandoned_index_is_closed_in_no_time_whatever_the_storage_does(
    sound_world: BucketTrackerWorld, outage: str
) -> None:
    """In the middle of sealing, merging, loading and deleting."""
    sound_world.config = replace(CONFIG, bucket_count_max=2)

    async def main() -> None:
        tracker = await sound_world.tracker()
        add(tracker, 6_000, *range(1, 12))
        await sound_world.rest()
        OUTAGES[outage](sound_world.storage)
        add(tracker, HOUR_S * 1_000, *range(12, 30))
        sound_world.cursor.mark_delete_position = Position(6, 0)
        await asyncio.sleep(2)
        began_ms = virtual_now_ms()
        tracker.abandon()
        await tracker.close()
        assert virtual_now_ms() == began_ms

    run_virtually(main())


class SlowPropertiesCursor(FakeCursor):
    """Takes a while to write its properties, as a log does."""

    write_s = 0.01

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        await asyncio.sleep(self.write_s)
        await super().update_properties(put=put, remove=remove)


def test_a_property_that_is_being_written_is_there_when_the_tracker_is_closed(sound_world: BucketTrackerWorld) -> None:
    """The next tracker reads the snapshots that the cursor names, and would take this one for garbage."""
    sound_world.cursor = SlowPropertiesCursor()

    async def main() -> None:
        tracker = await sound_world.tracker()
        add(tracker, HOUR_S * 1_000, *range(1, 7))
        await asyncio.sleep(0.005)
        assert len(await sound_world.snapshot_ids()) == 1
        assert sound_world.named_ids() == set()
        tracker.abandon()
        await tracker.close()
        assert sound_world.named_ids() == await sound_world.snapshot_ids()

    run_virtually(main())


class HangingCursor(FakeCursor):
    """Writes no property while it hangs."""

    is_hanging = False

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        if self.is_hanging:
            await asyncio.Event().wait()
        await super().update_properties(put=put, remove=remove)


@pytest.mark.parametrize("in_flight_max", [1, 2, 16])
def test_closing_waits_only_so_long_for_a_cursor_that_hangs(
    sound_world: BucketTrackerWorld, in_flight_max: int
) -> None:
    """However many writes wait for others; the sweep of the storage's owner finds what no property names."""
    config = replace(CONFIG, index_count_per_bucket_min=1, operations_in_flight_max=in_flight_max)
    sound_world.config = config
    sound_world.cursor = cursor = HangingCursor()

    async def main() -> None:
        tracker = await sound_world.tracker()
        cursor.is_hanging = True
        add(tracker, HOUR_S * 1_000, *range(100))
        await asyncio.sleep(1)
        assert len(await sound_world.snapshot_ids()) == 99
        began_ms = virtual_now_ms()
        await tracker.close()
        assert virtual_now_ms() - began_ms <= config.close_timeout_ms + config.operation_timeout_ms

        # Nothing is written for a tracker that is closed.
        cursor.is_hanging = False
        await sound_world.rest()
        assert cursor.properties == {}
        await delete_unnamed(sound_world.stored, cursor.properties)
        assert await sound_world.snapshot_ids() == set()

    run_virtually(main())


def test_closing_waits_only_so_long_for_a_storage_that_hangs(sound_world: BucketTrackerWorld) -> None:
    """Messages that could not be stored are read again from the log."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        await sound_world.rest()
        sound_world.storage.is_hanging = True
        add(tracker, 60_000, *range(1, 7))
        await sound_world.rest()
        began_ms = virtual_now_ms()
        await tracker.close()
        await tracker.close()
        assert virtual_now_ms() - began_ms == sound_world.config.close_timeout_ms

    run_virtually(main())
    assert sound_world.cursor.properties == {}


def test_trimming_follows_the_mark_delete_position(world: BucketTrackerWorld) -> None:
    """At once, without a poll; not within one ledger, and not after closing."""

    async def main() -> None:
        tracker = await world.tracker()
        add(tracker, 60_000, *range(1, 12))
        await world.rest()
        world.cursor.mark_delete_position = Position(6, 0)
        assert tracker.number_of_delayed_messages() == 6
        await world.rest()
        assert set(world.cursor.properties) == {f"{BUCKET_KEY_PREFIX}_6_10"}
        await tracker.close()
        world.cursor.mark_delete_position = Position(20, 0)
        assert tracker.number_of_delayed_messages() == 6

    run_virtually(main())


def test_after_a_cursor_reset_the_index_is_built_for_the_new_position(world: BucketTrackerWorld) -> None:
    """Forgotten, and read again from there: ledgers that the cursor had passed count again."""

    async def main() -> None:
        tracker = await world.tracker()
        world.cursor.mark_delete_position = Position(8, 0)
        add(tracker, 60_000, *range(8, 20))
        await world.rest()
        await tracker.clear()
        world.cursor.mark_delete_position = Position(2, -1)
        add(tracker, 60_000, *range(2, 20))
        await asyncio.sleep(61)
        assert [row[1] for row in tracker.get_scheduled_messages(100).to_rows()] == list(range(2, 20))
        await world.rest()
        assert world.named_ids() == set()
        # One whose create took effect and failed is the sweep's.
        assert world.plan is not NO_FAULTS or await world.snapshot_ids() == set()
        await tracker.close()

    run_virtually(main())


@pytest.mark.slow
def test_the_tracker_goes_on_while_nobody_polls(world: BucketTrackerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """All consumers have left for ten minutes: nothing is lost, rebuilt, or loaded without a limit."""
    monkeypatch.setattr("tracker.core.loading.ROWS_OF_A_BUCKET_MIN", 1)
    world.config = replace(world.config, loaded_row_count_max=10)

    async def main() -> None:
        tracker = await world.tracker()
        add(tracker, 60_000, *range(1, 102))
        await asyncio.sleep(10 * MINUTE_S)
        assert tracker.number_of_delayed_messages() == 101
        assert tracker.stats().index_loaded < 101
        received: list[int] = []
        while len(received) < 101:
            received += [row[1] for row in tracker.get_scheduled_messages(7).to_rows()]
            await world.rest()
        assert received == list(range(1, 102))
        await tracker.close()

    run_virtually(main())


def test_a_clock_that_steps_forward_is_noticed_within_seconds(world: BucketTrackerWorld) -> None:
    """Also for segments that are not loaded; timers are never set far ahead."""
    step_ms = 0

    async def main() -> None:
        nonlocal step_ms
        await world.storage.start()
        context = TrackerContext(
            topic_name="t", cursor_name="c", cursor=world.cursor, on_available=lambda: world.told_at_ms.append(0)
        )
        tracker = BucketDelayedDeliveryTracker(
            context,
            world.config,
            world.storage,
            now_ms=lambda: virtual_now_ms() + step_ms,
            threads=InThreads(run_inline),
        )
        tracker.start()
        # A reader that announces nothing is told of each range that became known.
        add(tracker, HOUR_S * 1_000, *range(1, 12))
        await asyncio.sleep(30)
        assert not world.told_at_ms
        step_ms = HOUR_S * 1_000
        await asyncio.sleep(5.6)
        assert world.told_at_ms
        assert len(tracker.get_scheduled_messages(100)) == 11
        await tracker.close()

    run_virtually(main())


def test_figures_are_cumulative(sound_world: BucketTrackerWorld) -> None:
    """Reading them changes nothing."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        add(tracker, 60_000, *range(1, 12))
        await sound_world.rest()
        for _ in range(2):
            stats = tracker.stats()
            created = stats.operations[BucketOperation.CREATE]
            assert (created.all, created.succeed, created.failed) == (2, 2, 0)
            assert sum(created.latency_counts) == 2
            assert stats.bucket_total == 3
            assert stats.snapshot_size_bytes > 0
            assert stats.message_count == 11
        await tracker.close()

    run_virtually(main())


class LateStorage(MemoryBucketSnapshotStorage):
    """Takes 70 s to store a bucket, longer than any caller waits."""

    creates = 0

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        self.creates += 1
        create = super().create_bucket_snapshot(
            metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
        )

        async def late() -> int:
            await asyncio.sleep(70)
            return await create

        # As a thread: it goes on when its caller is cancelled.
        return await asyncio.shield(asyncio.ensure_future(late()))


@pytest.fixture
def late_world() -> BucketTrackerWorld:
    world = BucketTrackerWorld(config=replace(CONFIG, index_count_at_close_min=1))
    world.stored = world.storage = LateStorage()  # type: ignore[assignment]
    return world


def test_an_index_that_is_abandoned_is_not_stored_when_it_closes(late_world: BucketTrackerWorld) -> None:
    """It is deleted next: that would be work for nothing, and something that may come late."""

    async def main() -> None:
        tracker = await late_world.tracker()
        add(tracker, 600_000, 1, 2)
        tracker.abandon()
        await tracker.close()
        assert virtual_now_ms() == START_MS
        assert late_world.stored.creates == 0  # type: ignore[attr-defined]

    run_virtually(main())


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_what_was_acknowledged_before_a_restart_does_not_count(
    sound_world: BucketTrackerWorld, is_trimmed: bool
) -> None:
    """No caller has to ask about its ledgers."""
    sound_world.config = replace(
        CONFIG, index_count_per_bucket_min=100, segment_row_count_max=1, index_count_at_close_min=1
    )

    async def main() -> None:
        tracker = await sound_world.tracker()
        for entry_id in range(450):
            assert tracker.add_message(1 + entry_id // 50, entry_id, START_MS + 60_000 + entry_id)
        await tracker.close()
        if is_trimmed:
            sound_world.cursor.mark_delete_position = Position(2, 0)
        else:
            sound_world.cursor.acknowledge(1, *range(50))
        tracker = await sound_world.tracker()
        await sound_world.rest()
        assert tracker.number_of_delayed_messages() == 400
        assert tracker.stats().message_count == 400
        await tracker.close()

    run_virtually(main())


def test_another_tick_counts_at_once(world: BucketTrackerWorld) -> None:
    """Also for what is tracked already."""

    async def main() -> None:
        world.config = TrackerConfig(tick_time_ms=1_000, is_deliver_at_time_strict=False)
        tracker = await world.tracker()
        add(tracker, 5_000, 1)
        await asyncio.sleep(0.001)
        tracker.reset_tick_time(10_000)
        await asyncio.sleep(0.001)
        assert world.told_at_ms == [START_MS + 1]
        assert len(tracker.get_scheduled_messages(10)) == 1
        await tracker.close()

    run_virtually(main())


def test_what_failed_and_is_wanted_no_more_fails_no_longer(sound_world: BucketTrackerWorld) -> None:
    """The messages of a bucket that could not be stored, and is gone, are no reason to call a tracker unhealthy."""

    async def main() -> None:
        tracker = await sound_world.tracker()
        await sound_world.rest()
        sound_world.storage.is_down = True
        add(tracker, 6_000, *range(1, 7))
        await sound_world.rest()
        assert tracker.stats().failing == {"CreateSnapshot"}
        sound_world.storage.is_down = False
        sound_world.cursor.mark_delete_position = Position(9, 0)
        await sound_world.rest()
        assert tracker.stats().failing == set()
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize("seed", seeds())
def test_what_came_due_while_the_storage_was_away_comes_in_order_when_it_is_back(
    sound_world: BucketTrackerWorld, seed: int
) -> None:
    """At a start, and for longer than due messages wait; each bucket is tried and answered in its own time."""
    factory = BucketDelayedDeliveryTrackerFactory(
        CONFIG, sound_world.storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(seed)
    )
    context = TrackerContext(topic_name="t", cursor_name="c", cursor=sound_world.cursor, on_available=lambda: None)

    async def main() -> None:
        tracker = await sound_world.tracker()
        # Later ledgers are due earlier.
        for ledger_id in range(1, 12):
            assert tracker.add_message(ledger_id, 0, START_MS + 60_000 - 100 * ledger_id)
        await tracker.close()

        sound_world.storage.is_down = True
        tracker = factory.new_tracker(context)
        await asyncio.sleep(300)
        assert len(tracker.get_scheduled_messages(100)) == 0
        sound_world.storage.is_down = False
        sound_world.storage.plan = FaultPlan(seed=seed, rate=1.0, faults=(Fault.LATENCY,), latency_ms_max=2_000)
        received: list[int] = []
        for _ in range(400):
            received += [row[1] for row in tracker.get_scheduled_messages(3).to_rows()]
            await asyncio.sleep(0.1)
        assert received == list(range(10, 0, -1))
        await tracker.close()

    run_virtually(main())
