"""A caller that trusts `on_available` alone gets each message at its time, also if an announced one leaves the tracker.

The program here looks when it is told and when it gets permits, as a dispatcher does, and at no other time. A was due
while it could take nothing, and then left the tracker without a poll; B follows. Of every kind of tracker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

import pytest

from managed_ledger.positions.position import Position
from postdate.testing import VIRTUAL_START_MS as START_MS
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.seeds import seeds
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, TrackerContext
from tracker.in_memory import InMemoryDelayedDeliveryTrackerFactory
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex

KINDS = ("bucket", "in-memory", "shared")
CONFIG = TrackerConfig(index_count_per_bucket_min=3, is_deliver_at_time_strict=True, tick_time_ms=1)

Row = tuple[int, int, int]
Story = Callable[["WakeUpWorld"], Coroutine[Any, Any, None]]


class Program:
    """Embeds a tracker; takes what it can when it is told, and when it gets permits."""

    def __init__(self) -> None:
        self.cursor = FakeCursor()
        self.tracker: DelayedDeliveryTracker | None = None
        self.permits = 0
        self.told_count = 0
        self.taken: list[Row] = []
        self.taken_at_ms: list[int] = []

    def on_available(self) -> None:
        self.told_count += 1
        self.look()

    def flow(self, permits: int) -> None:
        self.permits += permits
        self.look()

    def look(self) -> None:
        assert self.tracker is not None
        while self.permits and self.tracker.has_message_available():
            rows = self.tracker.get_scheduled_messages(self.permits).to_rows()
            if not rows:
                return
            self.permits -= len(rows)
            self.taken += rows
            self.taken_at_ms.append(virtual_now_ms())


class WakeUpWorld:
    """A tracker of a kind, and the program that embeds it; with the shared index, another one beside it."""

    def __init__(self, kind: str, config: TrackerConfig, plan: FaultPlan) -> None:
        self.kind = kind
        self.config = config
        self.storage = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage(), plan)
        self.program, self.other = Program(), Program()
        self.set_back_ms = 0
        self.index: SharedDelayedIndex | None = None
        self.factory = BucketDelayedDeliveryTrackerFactory(
            config, self.storage, now_ms=self.now_ms, run_blocking=run_inline, rng=Random(1)
        )

    def now_ms(self) -> int:
        return virtual_now_ms() - self.set_back_ms

    @property
    def tracker(self) -> DelayedDeliveryTracker:
        assert self.program.tracker is not None
        return self.program.tracker

    async def open(self) -> None:
        await self.storage.start()
        if self.kind == "shared":
            cursor = SharedCursor(FakeCursor(), lambda: [self.program.cursor, self.other.cursor])
            self.index = SharedDelayedIndex("t", "index", cursor, self.factory)
        for program in (self.program, self.other):
            context = TrackerContext(
                topic_name="t", cursor_name="c", cursor=program.cursor, on_available=program.on_available
            )
            if self.index is not None:
                program.tracker = self.index.new_view(context)
            elif program is self.program:
                in_memory = InMemoryDelayedDeliveryTrackerFactory(self.config, now_ms=self.now_ms)
                factory = in_memory if self.kind == "in-memory" else self.factory
                program.tracker = factory.new_tracker(context)

    async def close(self) -> None:
        await self.tracker.close()
        if self.index is not None:
            await self.index.close()

    def pass_ledgers_before(self, ledger_id: int) -> None:
        for program in (self.program, self.other):
            program.cursor.mark_delete_position = Position(ledger_id, -1)
        if self.index is not None:
            self.index.refresh()


def play(story: Story, kind: str, *, config: TrackerConfig = CONFIG, plan: FaultPlan = NO_FAULTS) -> None:
    async def main() -> None:
        world = WakeUpWorld(kind, config, plan)
        await world.open()
        await story(world)
        await world.close()

    run_virtually(main())


async def _seek(world: WakeUpWorld) -> None:
    world.pass_ledgers_before(2)
    await world.tracker.clear()
    world.tracker.add_message(2, 0, START_MS + 20_000)


async def _pass(world: WakeUpWorld) -> None:
    world.pass_ledgers_before(2)


async def _pass_within_the_ledger(world: WakeUpWorld) -> None:
    for program in (world.program, world.other):
        program.cursor.mark_delete_position = Position(1, 0)
    if world.index is not None:
        world.index.refresh()


async def _refuse(world: WakeUpWorld) -> None:
    assert not world.tracker.add_message(1, 0, START_MS + 1_000)


async def _refuse_many(world: WakeUpWorld) -> None:
    assert not world.tracker.add_messages([1], [0], [START_MS + 1_000]).any()


LEAVING = {
    "a seek": _seek,
    "mark-delete": _pass,
    "mark-delete within a ledger": _pass_within_the_ledger,
    "a refusal": _refuse,
    "a refusal of many": _refuse_many,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
@pytest.mark.parametrize("are_permits_early", [False, True], ids=["permits-3-s", "permits-2-s"])
def test_a_message_comes_at_its_time_after_an_earlier_one_left_untaken(
    kind: str, leave: Callable[[WakeUpWorld], Awaitable[None]], are_permits_early: bool
) -> None:
    """A was due at 1 s without permits and left at 2 s; B comes at 20 s, also when permits follow at once."""

    async def story(world: WakeUpWorld) -> None:
        world.tracker.add_message(1, 0, START_MS + 1_000)
        world.tracker.add_message(2, 0, START_MS + 20_000)
        await asyncio.sleep(2)
        assert world.program.told_count > 0
        assert world.tracker.has_message_available()

        await leave(world)
        assert not world.tracker.has_message_available()
        await asyncio.sleep(0 if are_permits_early else 1)
        world.program.flow(1)
        assert world.program.taken == []

        await asyncio.sleep(20)
        assert world.program.taken == [(START_MS + 20_000, 2, 0)]
        assert world.program.taken_at_ms == [START_MS + 20_000]

    play(story, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap_s", [0, 6])
def test_a_message_comes_at_its_time_after_the_clock_was_put_back(kind: str, gap_s: int) -> None:
    """It was due, and told; then it is not due, and no event says that the clock moved. On time to 5 s, by design."""

    async def story(world: WakeUpWorld) -> None:
        world.tracker.add_message(1, 0, START_MS + 1_000)
        await asyncio.sleep(2)
        assert world.program.told_count == 1
        world.set_back_ms = 60_000
        await asyncio.sleep(gap_s)
        world.program.flow(1)
        assert world.program.taken == []

        await asyncio.sleep(70)
        assert world.program.taken == [(START_MS + 1_000, 1, 0)]
        assert world.program.taken_at_ms[0] <= START_MS + 61_000 + 5_000

    play(story, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_comes_at_its_time_after_the_clock_was_put_forward_by_many_moments(kind: str) -> None:
    """As that of a virtual machine that runs slow, and is set by its host; none of the steps is worth a look alone."""

    async def story(world: WakeUpWorld) -> None:
        world.tracker.add_message(1, 0, START_MS + 3_600_000)
        world.program.flow(1)
        for _ in range(60):
            await asyncio.sleep(30)
            world.set_back_ms -= 500
        # On time to the second of the steps that were not looked at yet, and the five until the next look.
        await asyncio.sleep(1_800 - 30 + 6)
        assert world.program.taken == [(START_MS + 3_600_000, 1, 0)]

    play(story, kind)


def test_a_message_of_a_shared_index_comes_to_who_has_acknowledged_what_another_one_took() -> None:
    """The other subscription polls A, this one has acknowledged it; B comes to both."""

    async def story(world: WakeUpWorld) -> None:
        world.tracker.add_message(1, 0, START_MS + 1_000)
        world.tracker.add_message(2, 0, START_MS + 20_000)
        await asyncio.sleep(2)
        world.program.cursor.acknowledge(1, 0)
        world.other.flow(10)
        await asyncio.sleep(1)
        world.program.flow(10)

        await asyncio.sleep(20)
        assert world.program.taken == [(START_MS + 20_000, 2, 0)]
        assert world.other.taken == [(START_MS + 1_000, 1, 0), (START_MS + 20_000, 2, 0)]

    play(story, "shared")


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_position_is_gone_is_not_available(kind: str) -> None:
    """It is available neither before a poll nor without one; the row behind it is."""

    async def story(world: WakeUpWorld) -> None:
        for entry_id in range(1_000):
            world.tracker.add_message(1, entry_id, START_MS + 1_000)
        world.tracker.add_message(2, 0, START_MS + 1_001)
        await asyncio.sleep(2)
        assert not world.tracker.add_messages([1] * 1_000, range(1_000), [START_MS + 1_000] * 1_000).any()
        assert world.tracker.has_message_available()
        assert world.tracker.get_scheduled_messages(10).to_rows() == [(START_MS + 1_001, 2, 0)]
        assert not world.tracker.has_message_available()
        assert world.tracker.next_delivery_time() is None

    play(story, kind)


@pytest.mark.parametrize("kind", ["bucket", "shared"])
def test_reading_goes_on_when_memory_has_room_again(kind: str) -> None:
    """It paused because the storage took nothing; nothing is due when that is over."""
    config = TrackerConfig(index_count_per_bucket_min=3, unsealed_row_count_max=10, is_deliver_at_time_strict=True)

    async def story(world: WakeUpWorld) -> None:
        world.storage.is_down = True
        for ledger_id in range(1, 20):
            world.tracker.add_message(ledger_id, 0, START_MS + 10**9)
        await asyncio.sleep(1)
        assert world.tracker.should_pause_all_deliveries()
        world.program.told_count = 0
        await asyncio.sleep(60)
        assert world.program.told_count == 0

        world.storage.is_down = False
        await asyncio.sleep(60)
        assert world.program.told_count > 0
        assert not world.tracker.should_pause_all_deliveries()

    play(story, kind, config=config)


def test_reading_goes_on_when_less_than_the_lookahead_is_tracked() -> None:
    """It paused because all delays look the same; the tracked messages are passed before they are due."""
    config = TrackerConfig(fixed_delay_detection_lookahead=2)

    async def story(world: WakeUpWorld) -> None:
        for entry_id in range(2):
            world.tracker.add_message(1, entry_id, START_MS + 10**9)
        assert world.tracker.should_pause_all_deliveries()
        await asyncio.sleep(1)
        assert world.program.told_count == 0

        world.pass_ledgers_before(2)
        await asyncio.sleep(0.001)
        assert world.program.told_count == 1

    play(story, "in-memory", config=config)


@pytest.mark.parametrize("kind", ["bucket", "shared"])
def test_who_holds_due_messages_back_is_told_when_waiting_is_over(kind: str) -> None:
    """A segment that hangs holds up what is due for 5 s, also where nothing that the tracker has waits for it."""
    config = TrackerConfig(index_count_per_bucket_min=3, is_deliver_at_time_strict=True, prefetch_ms=1_000)

    async def story(world: WakeUpWorld) -> None:
        for ledger_id in range(1, 4):
            world.tracker.add_message(ledger_id, 0, START_MS + 10_000)
        world.tracker.add_message(4, 0, START_MS + 8_000)
        await asyncio.sleep(1)
        world.storage.is_hanging = True
        world.program.flow(10)
        await asyncio.sleep(10)
        assert world.program.taken == [(START_MS + 8_000, 4, 0)]
        assert world.tracker.first_withheld_time() == START_MS + 10_000
        world.program.told_count = 0

        await asyncio.sleep(3.9)
        assert world.program.told_count == 0
        await asyncio.sleep(0.2)
        assert world.program.told_count == 1
        assert world.tracker.first_withheld_time() is None

    play(story, kind, config=config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds())
def test_nothing_available_waits_for_a_program_that_has_permits(kind: str, seed: int) -> None:
    """This holds under all events of the index and with a slow storage."""
    chance = Random(seed)
    faults = (Fault.LATENCY, Fault.FAILURE_BEFORE, Fault.TIMEOUT_AFTER)
    plan = FaultPlan(seed=seed, rate=0.3, faults=faults, latency_ms_max=8, timeout_ms=8) if seed % 2 else NO_FAULTS
    config = TrackerConfig(
        index_count_per_bucket_min=3,
        is_deliver_at_time_strict=chance.random() < 0.7,
        tick_time_ms=chance.choice([1, 100]),
        prefetch_ms=chance.choice([0, 500]),
        bucket_count_max=chance.choice([-1, 2]),
        retry_backoff_ms_min=1,
        retry_backoff_ms_max=4,
    )

    async def story(world: WakeUpWorld) -> None:
        first, last, offered = 1, 1, {}
        for _ in range(150):
            now_ms, what = world.now_ms(), chance.random()
            if what < 0.45:
                last += chance.random() < 0.5
                entry_id = len(offered)
                offered[last, entry_id] = now_ms + chance.choice([0, 5, 50, 1_000, 5_000])
                world.tracker.add_message(last, entry_id, offered[last, entry_id])
            elif what < 0.6 and offered:
                ledger_id, entry_id = chance.choice(list(offered))
                if ledger_id >= first:
                    world.tracker.add_message(ledger_id, entry_id, offered[ledger_id, entry_id])
            elif what < 0.65:
                first = chance.randint(first, last)
                world.pass_ledgers_before(first)
            elif what < 0.68:
                await world.tracker.clear()
            elif what < 0.74:
                world.tracker.reset_tick_time(chance.choice([1, 5_000]))
            elif what < 0.78:
                world.set_back_ms += chance.choice([50, 2_000])
            elif what < 0.82:
                world.program.permits = 0
            elif what < 0.92:
                world.program.flow(chance.choice([1, 3, 1_000]))
            else:
                world.other.flow(3) if world.index is not None else None
            if chance.random() < 0.7:
                wait_s = chance.choice([0, 0.03, 6])
                await asyncio.sleep(wait_s)
                # In 6 s the storage has answered, and a clock that was put back is noticed.
                assert wait_s < 6 or not world.program.permits or not world.tracker.has_message_available()
        await asyncio.sleep(6)
        world.tracker.reset_tick_time(1)
        world.program.flow(10**6)
        await asyncio.sleep(20)
        assert not world.tracker.has_message_available()
        assert world.tracker.next_delivery_time() is None

    play(story, kind, config=config, plan=plan)
