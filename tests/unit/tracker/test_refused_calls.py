"""Calls that a tracker of either kind refuses: wrong arguments, and calls from another thread than its event loop's.

The caller gets an error, nothing has changed, and the tracker goes on: a wrong call is no defect of the index.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from postdate.memory_cursor import MemoryCursor
from postdate.testing import FakeClock, run_inline
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory, TrackerContext
from tracker.errors import TrackerError
from tracker.in_memory import InMemoryDelayedDeliveryTrackerFactory

NOW_MS = 1_000_000
DUE_MS, LATER_MS = NOW_MS + 100_000, NOW_MS + 200_000
CONFIG = TrackerConfig(tick_time_ms=1, index_count_per_bucket_min=2)
Test = Callable[[DelayedDeliveryTracker, MemoryCursor], Awaitable[None]]
Call = Callable[[Any, Any], object]


@pytest.fixture(params=["bucket", "in-memory"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Run a test with a tracker whose messages are in a sealed bucket and in memory; all must come afterwards."""

    async def main(test: Test) -> None:
        clock, cursor = FakeClock(NOW_MS), MemoryCursor()
        async with MemoryBucketSnapshotStorage() as storage:
            factory: DelayedDeliveryTrackerFactory
            if request.param == "bucket":
                factory = BucketDelayedDeliveryTrackerFactory(CONFIG, storage, now_ms=clock, run_blocking=run_inline)
            else:
                factory = InMemoryDelayedDeliveryTrackerFactory(CONFIG, now_ms=clock)
            context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
            tracker = factory.new_tracker(context)
            tracker.add_messages([7, 7, 8], [0, 1, 0], [DUE_MS, DUE_MS, LATER_MS])
            # Nothing asks for a turn of the tracker any more, so a call would have to.
            await asyncio.sleep(0.01)
            await test(tracker, cursor)
            clock.now_ms = LATER_MS
            tracker.reset_tick_time(1)
            await asyncio.sleep(0.01)
            rows = tracker.get_scheduled_messages(2).to_rows() + tracker.get_scheduled_messages(10).to_rows()
            assert rows == [(DUE_MS, 7, 0), (DUE_MS, 7, 1), (LATER_MS, 8, 0)]
            await tracker.close()

    return lambda test: asyncio.run(main(test))


@pytest.mark.parametrize(
    "call",
    [
        *(lambda one, _, n=number: one.get_scheduled_messages(n) for number in (None, "x", 1.5)),
        *(lambda one, _, tick=tick: one.reset_tick_time(tick) for tick in (None, "x", 1.5, -1, 2**63)),
        *(lambda one, _, ledger=ledger: one.remove_acknowledged(ledger, BitMap([0])) for ledger in (None, "x", 7.0)),
        lambda one, _: one.remove_acknowledged(7, [0]),
        lambda one, _: one.contains_message([7], 0),
        *(lambda one, _, entry=entry: one.contains_message(7, entry) for entry in (None, "x")),
        lambda one, _: one.tracked_in([7]),
        *(lambda one, _, time=time: one.add_message(9, 0, time) for time in (None, "x", [LATER_MS], 1e18)),
        lambda one, _: one.add_message("x", 0, NOW_MS + 1),
        lambda one, _: one.add_messages(None, [0], [LATER_MS]),
        *(
            lambda _, cursor, position=position: setattr(cursor, "mark_delete_position", position)
            for position in (None, "x", Position(7, "x"), Position(7.5, 0))
        ),
    ],
)
def test_a_wrong_argument_is_an_error_of_the_caller_alone(run: Callable[[Test], None], call: Call) -> None:
    async def test(tracker: DelayedDeliveryTracker, cursor: MemoryCursor) -> None:
        with pytest.raises((ValueError, TypeError)):
            call(tracker, cursor)
        assert cursor.mark_delete_position == Position(-1, -1)

    run(test)


@pytest.mark.parametrize(
    "call",
    [
        lambda one, _: one.get_scheduled_messages(10),
        lambda one, _: one.add_messages([9], [0], [NOW_MS + 1]),
        lambda one, _: one.remove_acknowledged(7, BitMap([0])),
        lambda one, _: one.reset_tick_time(5),
        lambda _, cursor: setattr(cursor, "mark_delete_position", Position(6, 0)),
        lambda one, _: asyncio.run(one.clear()),
        lambda one, _: asyncio.run(one.close()),
    ],
)
@pytest.mark.parametrize("has_turn_to_come", [False, True])
def test_a_call_from_another_thread_is_refused(run: Callable[[Test], None], call: Call, has_turn_to_come: bool) -> None:
    async def test(tracker: DelayedDeliveryTracker, cursor: MemoryCursor) -> None:
        if has_turn_to_come:
            tracker.reset_tick_time(1)
        with pytest.raises(TrackerError, match="call_soon_threadsafe"):
            await asyncio.to_thread(call, tracker, cursor)

    run(test)


def test_an_add_from_another_thread_that_wants_a_turn_is_refused() -> None:
    """A single add that wants none is not looked at, as that would make every add slower."""

    async def main() -> None:
        async with MemoryBucketSnapshotStorage() as storage:
            factory = BucketDelayedDeliveryTrackerFactory(CONFIG, storage, now_ms=FakeClock(NOW_MS))
            context = TrackerContext(topic_name="t", cursor_name="c", cursor=MemoryCursor(), on_available=lambda: None)
            tracker = factory.new_tracker(context)
            await asyncio.sleep(0.01)
            with pytest.raises(TrackerError, match="call_soon_threadsafe"):
                await asyncio.to_thread(tracker.add_message, 7, 0, LATER_MS)
            assert tracker.number_of_delayed_messages() == 0
            assert tracker.add_message(7, 0, LATER_MS)
            await tracker.close()

    asyncio.run(main())


def test_a_tracker_takes_the_names_of_its_arguments(run: Callable[[Test], None]) -> None:
    async def test(tracker: DelayedDeliveryTracker, _: MemoryCursor) -> None:
        assert tracker.add_messages(ledger_ids=[9], entry_ids=[0], deliver_ats=[NOW_MS]).tolist() == [False]
        assert len(tracker.get_scheduled_messages(max_messages=10)) == 0

    run(test)
