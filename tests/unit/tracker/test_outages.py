"""Actions that fail: the log lines of a tracker about them, and calls that the storage gives up by itself."""

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.core.actions import Call, LoadSegments, PutName
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.calls_in_flight import CallsInFlight
from tracker.shell.tracker_calls import InThreads, TrackerCalls
from tracker.stats import TrackerStats


class CursorFullError(Exception):
    """The error of a cursor, which the tracker does not know."""


@pytest.mark.parametrize(("action", "is_traced"), [(PutName(1, "key", 7), False), (LoadSegments(1, 7, 1, 1, 5), True)])
def test_a_cursor_that_cannot_write_is_told_in_one_line_and_a_defect_with_its_trace(
    caplog: pytest.LogCaptureFixture, action: Call, *, is_traced: bool
) -> None:
    context = TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=lambda: None)
    making = TrackerCalls(TrackerConfig(), context, MemoryBucketSnapshotStorage(), InThreads())
    calls = CallsInFlight("topic / sub", making, TrackerStats(), lambda: 0, lambda _call, _answer: None)

    with caplog.at_level(logging.WARNING):
        calls.count_failure(action, CursorFullError("no room"))
        # An outage is told once.
        calls.count_failure(action, CursorFullError("no room"))

    (line,) = caplog.records
    assert bool(line.exc_info) == is_traced
    assert is_traced or line.getMessage() == "topic / sub: PutName failed: no room"


class StorageThatGivesUp(MemoryBucketSnapshotStorage):
    """Cancels the first of its own calls of a kind, as a pool of threads does that is shut down."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.left = [what]

    async def _give_up(self, what: str) -> None:
        if what in self.left:
            self.left.remove(what)
            raise asyncio.CancelledError

    async def create_bucket_snapshot(self, *args: Any, **kwargs: Any) -> int:
        await self._give_up("create")
        return await super().create_bucket_snapshot(*args, **kwargs)

    async def get_bucket_snapshot_segment(self, *args: Any, **kwargs: Any) -> Any:
        await self._give_up("load")
        return await super().get_bucket_snapshot_segment(*args, **kwargs)


@pytest.mark.parametrize("what", ["create", "load"])
def test_a_call_that_the_storage_itself_cancels_is_tried_again(what: str) -> None:
    async def main() -> None:
        storage, cursor = StorageThatGivesUp(what), FakeCursor()
        config = TrackerConfig(index_count_per_bucket_min=3, index_count_per_bucket_max=3)
        factory = BucketDelayedDeliveryTrackerFactory(
            config, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
        )
        await factory.start()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        tracker = factory.new_tracker(context)
        for entry_id in range(9):
            tracker.add_message(1, entry_id, virtual_now_ms() + 60_000 + 1_000 * entry_id)
        await asyncio.sleep(120)

        assert len(tracker.get_scheduled_messages(100)) == 9
        await asyncio.sleep(60)
        assert not storage.left
        assert not storage.snapshots
        assert not cursor.properties
        began_s = asyncio.get_running_loop().time()
        await tracker.close()
        assert asyncio.get_running_loop().time() == began_s
        await factory.close()

    run_virtually(main())
