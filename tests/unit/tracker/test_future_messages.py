"""`msgDelayed` counts messages that are neither due nor acknowledged, wherever their rows are."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from postdate.testing import VIRTUAL_START_MS as START_MS
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, TrackerContext
from tracker.in_memory import InMemoryDelayedDeliveryTrackerFactory
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex

Story = Callable[[DelayedDeliveryTracker, FakeCursor], Awaitable[None]]

KINDS = ("bucket", "sealed", "in-memory", "shared")


def play(kind: str, story: Story) -> None:
    """Run a story on a tracker; of kind `sealed`, nearly all rows are in segments of buckets."""

    async def main() -> None:
        config = TrackerConfig(
            index_count_per_bucket_min=4 if kind == "sealed" else 1_000,
            segment_row_count_max=2,
            prefetch_ms=0,
            loaded_row_count_max=4 if kind == "sealed" else 1_000,
            is_deliver_at_time_strict=True,
            tick_time_ms=1,
        )
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        cursor = FakeCursor()
        factory = BucketDelayedDeliveryTrackerFactory(
            config, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
        )
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        index = None
        tracker: DelayedDeliveryTracker
        if kind == "shared":
            index = SharedDelayedIndex(
                "t", "index", SharedCursor(FakeCursor(), lambda: [cursor, FakeCursor()]), factory
            )
            tracker = index.new_view(context)
        elif kind == "in-memory":
            tracker = InMemoryDelayedDeliveryTrackerFactory(config, now_ms=virtual_now_ms).new_tracker(context)
        else:
            tracker = factory.new_tracker(context)
        await story(tracker, cursor)
        await tracker.close()
        if index is not None:
            await index.close()

    run_virtually(main())


def fill(tracker: DelayedDeliveryTracker) -> None:
    """Ledgers 1 to 4 of ten messages each, due after 1 s, 2 s, ... 40 s; ledger 5 begins, so 4 can be sealed."""
    for number in range(40):
        assert tracker.add_message(number // 10 + 1, number % 10, START_MS + 1_000 * (number + 1))
    assert tracker.add_message(5, 0, START_MS + 100_000)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_due_is_not_counted_although_nobody_polls(kind: str) -> None:
    async def story(tracker: DelayedDeliveryTracker, _: FakeCursor) -> None:
        fill(tracker)
        await asyncio.sleep(0.5)
        counts = [tracker.number_of_future_messages()]
        for _ in range(4):
            await asyncio.sleep(10)
            counts.append(tracker.number_of_future_messages())
        assert counts == [41, 31, 21, 11, 1]
        assert tracker.number_of_delayed_messages() == 41

    play(kind, story)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_acknowledged_is_not_counted(kind: str) -> None:
    async def story(tracker: DelayedDeliveryTracker, cursor: FakeCursor) -> None:
        fill(tracker)
        await asyncio.sleep(0.5)
        for ledger_id, entry_ids in ((2, (3, 4)), (4, (9,)), (5, (0,)), (9, (1,))):
            cursor.acknowledge(ledger_id, *entry_ids)
            tracker.remove_acknowledged(ledger_id, BitMap(entry_ids))
        await asyncio.sleep(0.1)
        assert tracker.number_of_future_messages() == 37
        # Twice is as good as once, also while the positions are known.
        tracker.remove_acknowledged(2, BitMap((3, 4)))
        cursor.acknowledge(2, 5)
        tracker.remove_acknowledged(2, BitMap((5,)))
        assert tracker.number_of_future_messages() == 36
        await asyncio.sleep(60)
        assert tracker.number_of_future_messages() == 0
        taken = set[tuple[int, int]]()
        while len(rows := tracker.get_scheduled_messages(7)):
            taken |= {(ledger_id, entry_id) for _, ledger_id, entry_id in rows.to_rows()}
            await asyncio.sleep(0.1)
        assert len(taken) == 36
        assert not taken & {(2, 3), (2, 4), (2, 5), (4, 9), (5, 0)}

    play(kind, story)


def test_what_another_subscription_has_not_polled_is_subtracted_from_nobody_twice() -> None:
    """On a shared index: this one has acknowledged what is due, and the other one has not taken it."""

    async def story(tracker: DelayedDeliveryTracker, cursor: FakeCursor) -> None:
        fill(tracker)
        await asyncio.sleep(10.5)
        assert tracker.number_of_future_messages() == 31
        cursor.acknowledge(1, *range(10))
        assert tracker.number_of_future_messages() == 31

    play("shared", story)


@pytest.mark.parametrize("kind", KINDS)
def test_what_mark_delete_has_passed_is_not_counted(kind: str) -> None:
    """Expiry: within its ledger as well."""

    async def story(tracker: DelayedDeliveryTracker, cursor: FakeCursor) -> None:
        fill(tracker)
        await asyncio.sleep(0.5)
        cursor.acknowledge(1, *range(10))
        cursor.acknowledge(2, *range(7))
        cursor.mark_delete_position = Position(2, 6)
        tracker.remove_acknowledged(2, BitMap(range(7)))
        await asyncio.sleep(0.1)

        assert tracker.number_of_future_messages() == 41 - 17

    play(kind, story)
