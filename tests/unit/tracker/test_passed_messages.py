"""Messages that the cursor has passed: none is handed out, and none keeps another one waiting."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from managed_ledger.positions.position import Position
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.core_checks import check_tracker
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

Story = Callable[[BucketDelayedDeliveryTracker, FakeCursor], Awaitable[None]]


class Polling:
    """A dispatcher that polls when it is told, as long as something is available."""

    def __init__(self) -> None:
        self.tracker: BucketDelayedDeliveryTracker | None = None
        self.received: list[tuple[int, int]] = []

    def poll(self) -> None:
        """Take all that is due and loaded."""
        while self.tracker is not None and self.tracker.has_message_available():
            rows = self.tracker.get_scheduled_messages(100).to_rows()
            self.received += [(ledger_id, entry_id) for _, ledger_id, entry_id in rows]


def play(config: TrackerConfig, polling: Polling, story: Story) -> None:
    """Tell a story of one tracker on an empty storage, in virtual time."""

    async def run() -> None:
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        factory = BucketDelayedDeliveryTrackerFactory(
            config, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
        )
        cursor = FakeCursor()
        tracker = factory.new_tracker(
            TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=polling.poll)
        )
        polling.tracker = tracker
        await story(tracker, cursor)
        check_tracker(tracker)
        await tracker.close()

    run_virtually(run())


def test_what_mark_delete_has_passed_in_a_sealed_bucket_is_not_handed_out() -> None:
    """Its positions are known since it was sealed, so that loading does not ask the cursor."""
    polling = Polling()

    async def story(tracker: BucketDelayedDeliveryTracker, cursor: FakeCursor) -> None:
        start_ms = virtual_now_ms()
        for entry_id in range(100):
            tracker.add_message(1, entry_id, start_ms + 600_000 + 20 * entry_id)
        tracker.add_message(2, 0, start_ms + 1_000_000)
        await asyncio.sleep(1)
        cursor.mark_delete_position = Position(1, 49)
        await asyncio.sleep(1)
        tracked = tracker.tracked_in(1)
        assert tracked is not None
        assert list(tracked) == list(range(50, 100))
        assert tracker.number_of_delayed_messages() == 51
        await asyncio.sleep(650)
        assert polling.received == [(1, entry_id) for entry_id in range(50, 100)]

    play(TrackerConfig(index_count_per_bucket_min=50, segment_step_ms_max=10, prefetch_ms=20), polling, story)


def test_what_is_sealed_behind_the_cursor_keeps_no_other_message_waiting() -> None:
    """A load without room in memory waits until the rows before it are handed out; these never are."""
    polling = Polling()

    async def story(tracker: BucketDelayedDeliveryTracker, cursor: FakeCursor) -> None:
        cursor.mark_delete_position = Position(2, -1)
        start_ms = virtual_now_ms()
        for ledger_id, entry_count, delay_ms in ((5, 4, 5_000), (6, 3, 4_000), (1, 3, 3_000), (8, 1, 6_000)):
            for entry_id in range(entry_count):
                tracker.add_message(ledger_id, entry_id, start_ms + delay_ms + entry_id)
            await asyncio.sleep(0.3)
            check_tracker(tracker)
        await asyncio.sleep(60)
        in_order = [(6, entry_id) for entry_id in range(3)] + [(5, entry_id) for entry_id in range(4)] + [(8, 0)]
        assert [position for position in polling.received if position[0] != 1] == in_order

    config = TrackerConfig(
        index_count_per_bucket_min=3,
        segment_step_ms_max=10,
        segment_row_count_max=2,
        prefetch_ms=10_000,
        loaded_row_count_max=4,
    )
    play(config, polling, story)
