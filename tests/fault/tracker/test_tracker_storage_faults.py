"""The bucket tracker over a storage that goes wrong in every way at once, by seed, in virtual time.

Messages are published with delays while calls of the storage are late, hang, fail before and after their effect, lose
deletes, give damaged entries, and store what can never be read. The tracker is stopped and started, and cut off from
its storage as by a crash. Then the faults end. Verdict: each message was handed out exactly once, none early; at rest,
the storage holds the snapshots that the cursor's properties name, and no other.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from managed_ledger.positions.position import Position
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.bucket_key import parse_bucket_key
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan, Operation
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.ownerless import delete_unnamed
from tests.helpers.seeds import seeds
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

CONFIG = TrackerConfig(
    index_count_per_bucket_min=6,
    index_count_at_close_min=1,
    bucket_count_max=3,
    segment_step_ms_max=3_000,
    segment_row_count_max=3,
    is_deliver_at_time_strict=True,
    prefetch_ms=1_000,
    loaded_row_count_max=20,
    order_wait_ms_max=2_000,
    retry_backoff_ms_min=10,
    retry_backoff_ms_max=400,
    operation_timeout_ms=1_500,
    close_timeout_ms=2_000,
)
DROPPED_AFTER_FAILURES = 12
MESSAGES = 160
MESSAGES_PER_LEDGER = 4
LIVES = 4


class FaultStory:
    """One subscription, its log and its storage, over several lives of its tracker."""

    def __init__(
        self, plan: FaultPlan, *, are_reads_checked: bool = True, dropped_after: int | None = DROPPED_AFTER_FAILURES
    ) -> None:
        self.plan = plan
        self.chance = Random(f"story {plan.seed}")
        self.stored = MemoryBucketSnapshotStorage()
        self.storage = FaultInjectingBucketSnapshotStorage(
            self.stored, plan, are_reads_checked=are_reads_checked, dropped_after_failures=dropped_after
        )
        self.cursor = FakeCursor()
        self.log: list[tuple[int, int]] = []
        self.waiting: dict[tuple[int, int], int] = {}
        self.handed_out: Counter[tuple[int, int]] = Counter()
        self.early = 0
        self.buckets_lost = 0
        self.tracker: BucketDelayedDeliveryTracker | None = None

    async def play(self) -> None:
        """Publish over several lives, of which some end in a crash."""
        await self.stored.start()
        for life in range(LIVES):
            await self.start()
            await self.publish(MESSAGES // LIVES)
            if life < LIVES - 1:
                await self.stop(is_crash=self.chance.random() < 0.5)
                await asyncio.sleep(self.chance.choice([0, 0.5, 5]))

    async def end_faults(self) -> None:
        """Let all calls work again, and come to rest; calls that hang run into their time limit."""
        self.storage.plan = NO_FAULTS
        await asyncio.sleep(10)

    async def start(self) -> None:
        factory = BucketDelayedDeliveryTrackerFactory(
            CONFIG, self.storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(self.chance.random())
        )
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=self.look)
        self.tracker = factory.new_tracker(context)
        self.look()

    async def stop(self, *, is_crash: bool) -> None:
        """Close the tracker; after a crash, nothing that it does takes effect any more."""
        assert self.tracker is not None
        tracker, self.tracker = self.tracker, None
        self.storage.is_down = is_crash
        self.cursor.property_error = OSError("crashed") if is_crash else None
        await tracker.close()
        self.storage.is_down = False
        self.cursor.property_error = None
        self.buckets_lost += tracker.stats().buckets_lost

    async def publish(self, count: int) -> None:
        for _ in range(count):
            number = len(self.log)
            position = (number // MESSAGES_PER_LEDGER, number % MESSAGES_PER_LEDGER)
            self.log.append(position)
            self.waiting[position] = virtual_now_ms() + self.chance.choice([500, 3_000, 20_000, 20_000, 60_000])
            self.look()
            await asyncio.sleep(self.chance.choice([0, 0.01, 0.3]))

    def look(self) -> None:
        """Do what a dispatcher does: take what is due, and read from the log what the tracker does not know."""
        tracker = self.tracker
        if tracker is None:
            return
        while len(rows := tracker.get_scheduled_messages(5)):
            for deliver_at_ms, ledger_id, entry_id in rows.to_rows():
                self.early += virtual_now_ms() < deliver_at_ms
                self.hand_out((ledger_id, entry_id))
        tracker.pop_to_read_again()
        for position, deliver_at_ms in list(self.waiting.items()):
            is_known = tracker.is_recovering(position[0]) or tracker.contains_message(*position)
            if not is_known and not tracker.add_message(*position, deliver_at_ms):
                self.hand_out(position)
        first_ledger_id = next(iter(self.waiting), (len(self.log), 0))[0]
        self.cursor.mark_delete_position = Position(first_ledger_id, -1)

    def hand_out(self, position: tuple[int, int]) -> None:
        self.handed_out[position] += 1
        self.waiting.pop(position, None)
        self.cursor.acknowledge(*position)

    async def snapshot_ids(self) -> set[int]:
        return {info.bucket_id for info in await self.stored.list_bucket_snapshots()}

    def named_ids(self) -> set[int]:
        return set(map(int, self.cursor.properties.values()))

    async def finish(self) -> None:
        """Wait for the last message, and judge.

        A create that failed and took effect leaves a snapshot that no property names, and a lost delete another: the
        sweep of the storage's owner finds them.
        """
        assert self.named_ids() <= await self.snapshot_ids()
        await asyncio.sleep(120)
        await self.stop(is_crash=False)
        assert self.early == 0
        assert self.handed_out == Counter(self.log), "not each message exactly once"
        assert self.named_ids() == set()
        await delete_unnamed(self.stored, self.cursor.properties)
        assert await self.snapshot_ids() == set()


def told(story: FaultStory, main: object) -> None:
    """Run a story; a failure says by which seed it can be repeated, and what had happened."""
    try:
        run_virtually(main)  # type: ignore[arg-type]
    except BaseException as error:
        error.add_note(f"seed {story.plan.seed}, what went wrong: {dict(story.storage.fault_counts)}")
        raise


@pytest.mark.parametrize("seed", seeds())
def test_every_message_comes_once_and_nothing_is_leaked_whatever_goes_wrong(seed: int) -> None:
    """With all kinds of faults, but for one at most, in each story; a lost delete is found by the sweep."""
    # A story has few creates and deletes, so chance alone would leave some stories without these two.
    rare = {(Operation.CREATE, number): Fault.UNREADABLE for number in range(seed % 4, 1_000, 4)}
    rare |= {(Operation.DELETE, number): Fault.LOST_DELETE for number in range(seed % 5, 1_000, 5)}
    story = FaultStory(FaultPlan(seed=seed, rate=0.25, at=rare, latency_ms_max=400, timeout_ms=600))

    async def main() -> None:
        await story.play()
        await story.end_faults()
        await story.stop(is_crash=False)
        await story.start()
        await asyncio.sleep(5)
        await story.finish()

    told(story, main())
    assert len(set(Fault) - set(story.storage.fault_counts)) <= 1
    assert story.storage.reads_in_vain


@pytest.mark.parametrize("seed", seeds())
def test_what_only_takes_time_and_attempts_is_at_rest_without_a_restart(seed: int) -> None:
    """Late, failed and hanging calls cost no message, and leave nothing that the sweep does not find."""
    faults = (Fault.LATENCY, Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER, Fault.TIMEOUT_AFTER, Fault.HANG)
    story = FaultStory(FaultPlan(seed=seed, rate=0.3, faults=faults, latency_ms_max=400, timeout_ms=600))

    async def main() -> None:
        await story.play()
        await story.end_faults()
        await story.finish()

    told(story, main())
    assert set(story.storage.fault_counts) == set(faults)


@pytest.mark.parametrize("seed", seeds())
def test_a_segment_without_its_end_is_found_out_without_a_checksum(seed: int) -> None:
    """Also where it ends between two rows, and also by a merge."""
    plan = FaultPlan(seed=seed, rate=0.2, faults=(Fault.TORN_READ,), operations=frozenset({Operation.SEGMENT}))
    story = FaultStory(plan, are_reads_checked=False)

    async def main() -> None:
        await story.play()
        await story.end_faults()
        await story.finish()

    told(story, main())
    assert story.buckets_lost


@pytest.mark.parametrize("seed", seeds())
def test_snapshots_that_an_operator_drops_are_read_from_the_log(seed: int) -> None:
    """Every third one, as it can never be read; all others come from their snapshots, and nothing is left."""
    unreadable = {(Operation.CREATE, number): Fault.UNREADABLE for number in range(seed % 3, 1_000, 3)}
    story = FaultStory(FaultPlan(seed=seed, at=unreadable))

    async def main() -> None:
        await story.play()
        await story.end_faults()
        await story.finish()

    told(story, main())
    assert story.storage.unreadable_ids
    assert story.buckets_lost
    assert story.storage.reads_in_vain <= 2 * DROPPED_AFTER_FAILURES * len(story.storage.unreadable_ids)


def test_a_snapshot_that_can_never_be_read_is_named_asked_for_seldom_and_holds_up_its_own_messages_alone() -> None:
    """Minutes later, all the rest was handed out, and the call is still made now and then."""
    story = FaultStory(FaultPlan(seed=1, at={(Operation.CREATE, 1): Fault.UNREADABLE}), dropped_after=None)

    async def main() -> None:
        await story.stored.start()
        await story.start()
        await story.publish(MESSAGES // 2)
        await story.stop(is_crash=False)
        await story.start()
        await story.publish(MESSAGES // 2)
        await asyncio.sleep(120)
        in_vain = story.storage.reads_in_vain
        await asyncio.sleep(600)
        # The longest pause is 0.4 s, so some 2,000 calls; a busy loop would make millions.
        assert 500 <= story.storage.reads_in_vain - in_vain <= 600 * 10
        (bucket_id,) = story.storage.unreadable_ids & story.named_ids()
        assert story.tracker is not None
        assert story.tracker.stats().unreadable == {bucket_id}
        assert [str(bucket_id) in problem for problem in story.tracker.stats().problems()][-1]
        info = next(info for info in await story.stored.list_bucket_snapshots() if info.bucket_id == bucket_id)
        first, last = parse_bucket_key(info.bucket_key) or (0, -1)
        assert {ledger_id for ledger_id, _ in story.waiting} <= set(range(first, last + 1))
        assert story.waiting
        await story.stop(is_crash=False)

    told(story, main())


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.DELETE])
def test_a_disk_that_is_full_costs_a_few_calls_a_minute_while_reads_work(operation: Operation) -> None:
    """Loads go on; that they succeed says nothing of the creates, nor of the deletes."""
    config = replace(CONFIG, retry_backoff_ms_max=30_000, bucket_count_max=-1)

    async def main() -> None:
        storage = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage())
        await storage.start()
        factory = BucketDelayedDeliveryTrackerFactory(
            config, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
        )
        tracker = factory.new_tracker(
            TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=lambda: None)
        )
        start_ms = virtual_now_ms()
        # One message a second for ten minutes, in buckets of eight that end one after the other.
        for number in range(600):
            tracker.add_message(number // 4, number % 4, start_ms + 20_000 + 1_000 * number)
        await asyncio.sleep(10)
        storage.plan = FaultPlan(seed=1, rate=1.0, faults=(Fault.FAILURE_BEFORE,), operations=frozenset({operation}))
        for number in range(160):
            tracker.add_message(1_000 + number // 4, number % 4, start_ms + 100_000_000)
        handed_out = 0
        for _ in range(650):
            await asyncio.sleep(1)
            handed_out += len(tracker.get_scheduled_messages(100))
        assert handed_out == 600
        # The first try of each bucket, and a retry each 15 to 30 s; if each success of a load reset that, hundreds.
        bucket_count = 20 if operation is Operation.CREATE else 75
        assert bucket_count <= storage.fault_counts[Fault.FAILURE_BEFORE] <= bucket_count + 60
        storage.plan = NO_FAULTS
        await tracker.close()

    run_virtually(main())
