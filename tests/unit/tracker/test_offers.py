"""Messages offered to either tracker: which ones it refuses, and that they mean the same to both."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from postdate.testing import FakeClock, FakeCursor, run_inline
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, TrackerContext
from tracker.in_memory import InMemoryDelayedDeliveryTrackerFactory
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex

NOW_MS = 1_000_000
LATER_MS = NOW_MS + 100_000
Test = Callable[[DelayedDeliveryTracker, FakeClock], None]
Run = Callable[[Test], None]


@pytest.fixture(params=["bucket", "in-memory", "view"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test with a tracker of each kind whose clock stands still."""

    async def main(test: Test) -> None:
        clock = FakeClock(NOW_MS)
        config = TrackerConfig(tick_time_ms=1, is_deliver_at_time_strict=True)
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=lambda: None)
        buckets = BucketDelayedDeliveryTrackerFactory(
            config, storage, now_ms=clock, run_blocking=run_inline, rng=Random(1)
        )
        index = SharedDelayedIndex("t", "index", SharedCursor(FakeCursor(), lambda: [context.cursor]), buckets)
        tracker: DelayedDeliveryTracker
        if request.param == "bucket":
            tracker = buckets.new_tracker(context)
        elif request.param == "view":
            tracker = index.new_view(context)
        else:
            tracker = InMemoryDelayedDeliveryTrackerFactory(config, now_ms=clock).new_tracker(context)
        test(tracker, clock)
        await tracker.close()
        await index.close()

    return lambda test: asyncio.run(main(test))


@pytest.mark.parametrize("row_count_before", [0, 1])
@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "deliver_at"),
    [
        (1, 2**32, LATER_MS),
        (1, -1, LATER_MS),
        (2**63, 1, LATER_MS),
        (-1, 1, LATER_MS),
        (1, 2**40, -1),
        (1, 1.5, LATER_MS),
        (1.0, 1, LATER_MS),
        (1, 1, LATER_MS + 0.5),
        ("1", 1, LATER_MS),
        (1, 1, None),
        (1, np.timedelta64(5), LATER_MS),
    ],
)
def test_an_offer_that_is_none_is_refused_before_anything_changes(
    run: Run, ledger_id: Any, entry_id: Any, deliver_at: Any, row_count_before: int
) -> None:
    """One by one, the first or the next of its ledger, and among others."""

    def test(tracker: DelayedDeliveryTracker, clock: FakeClock) -> None:
        for number in range(row_count_before):
            assert tracker.add_message(1, 100 + number, LATER_MS)
        with pytest.raises(ValueError, match=r"integers|cannot track position"):
            tracker.add_message(ledger_id, entry_id, deliver_at)
        with pytest.raises(ValueError, match=r"integers|cannot track position|above"):
            tracker.add_messages([7, ledger_id], [7, entry_id], [LATER_MS, deliver_at])
        assert tracker.number_of_delayed_messages() == row_count_before

    run(test)


@pytest.mark.parametrize("row_count_before", [0, 1])
@pytest.mark.parametrize(("entry_id", "deliver_at"), [(np.array([5]), LATER_MS), (5, np.array([LATER_MS]))])
def test_a_column_is_no_single_offer(run: Run, entry_id: Any, deliver_at: Any, row_count_before: int) -> None:
    """Although one of a single row calculates like an integer; messages tracked before and after are not harmed."""

    def test(tracker: DelayedDeliveryTracker, clock: FakeClock) -> None:
        for number in range(row_count_before):
            assert tracker.add_message(1, 100 + number, LATER_MS)
        with pytest.raises(ValueError, match="integers"):
            tracker.add_message(1, entry_id, deliver_at)
        assert tracker.add_message(1, 200, LATER_MS)
        clock.now_ms = LATER_MS
        assert len(tracker.get_scheduled_messages(10)) == row_count_before + 1

    run(test)


def test_columns_that_do_not_belong_together_are_refused(run: Run) -> None:
    """Of different lengths, of no length, or of times that no signed integer holds."""

    def test(tracker: DelayedDeliveryTracker, clock: FakeClock) -> None:
        with pytest.raises(ValueError, match="do not belong together"):
            tracker.add_messages([1, 2], [1], [LATER_MS])
        with pytest.raises(ValueError, match="dimensions"):
            tracker.add_messages(1, 1, LATER_MS)
        with pytest.raises(ValueError, match="above"):
            tracker.add_messages([5], [5], np.array([2**63 + 7], np.uint64))
        assert tracker.number_of_delayed_messages() == 0
        assert tracker.add_messages([], [], []).tolist() == []

    run(test)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint32, np.int16, np.uint8])
def test_integers_of_numpy_are_integers(run: Run, kind: Callable[[int], Any]) -> None:
    """A reader of columns may offer one row of them; also one that comes after others, and one that is due."""

    def test(tracker: DelayedDeliveryTracker, clock: FakeClock) -> None:
        for ledger_id in (2**40, kind(1)):
            for entry_id in (kind(1), kind(2), 3):
                assert tracker.add_message(ledger_id, entry_id, LATER_MS)
        assert tracker.add_message(kind(1), kind(4), np.int64(LATER_MS))  # type: ignore[arg-type]
        assert not tracker.add_message(kind(1), kind(5), kind(77))
        tracked = tracker.tracked_in(1)
        assert tracked is not None
        assert list(tracked) == [1, 2, 3, 4]
        assert tracker.contains_message(2**40, 2)

    run(test)


def test_a_tick_below_0_is_refused(run: Run) -> None:
    """And the one before stays."""

    def test(tracker: DelayedDeliveryTracker, clock: FakeClock) -> None:
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*63 - 1, but is -5"):
            tracker.reset_tick_time(-5)
        assert tracker.add_message(1, 1, LATER_MS)

    run(test)


def test_every_time_up_to_the_last_there_is_can_be_tracked(run: Run) -> None:
    """None of them wraps around and is due."""

    def test(tracker: DelayedDeliveryTracker, clock: FakeClock) -> None:
        times = [LATER_MS, 2**61, 2**62, 2**62 + NOW_MS + 1, 2**63 - 2, 2**63 - 1]
        for entry_id, deliver_at in enumerate(times):
            assert tracker.add_message(1, entry_id, deliver_at)
        assert not tracker.has_message_available()
        assert tracker.add_messages([9, 9], [1, 2], [2**63 - 1, 2**62]).tolist() == [True, True]
        assert not tracker.has_message_available()
        assert tracker.number_of_delayed_messages() == len(times) + 2

    run(test)
