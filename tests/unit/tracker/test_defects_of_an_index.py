"""An exception in the core of an index: its owner hears of it, and nothing half changed is asked or stored any more."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from postdate.testing import VIRTUAL_START_MS as START_MS
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.core.state import TrackerState
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.errors import TrackerClosedError
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex

CONFIG = TrackerConfig(index_count_per_bucket_min=3, index_count_at_close_min=1, tick_time_ms=1)

_NOT_CALLED_WHILE_IN_USE = {
    # Called before there is a tracker to stop.
    *("recover", "trim"),
}

_MEMBERS = sorted(
    name
    for name, member in {**vars(TrackerState), **vars(TrackerCore)}.items()
    if not name.startswith("_") and (callable(member) or isinstance(member, property))
    if name not in _NOT_CALLED_WHILE_IN_USE
)


def _factory(storage: MemoryBucketSnapshotStorage) -> BucketDelayedDeliveryTrackerFactory:
    return BucketDelayedDeliveryTrackerFactory(
        CONFIG, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
    )


@contextlib.contextmanager
def _broken(name: str) -> Iterator[None]:
    """Let a method or property of every core do its work and then raise."""
    member = {**vars(TrackerState), **vars(TrackerCore)}[name]
    work: Callable[..., object] = member.fget if isinstance(member, property) else member

    def broken(*arguments: object, **named: object) -> object:
        work(*arguments, **named)
        raise IndexError("a defect")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrackerCore, name, property(broken) if isinstance(member, property) else broken)
        yield


def _uses(tracker: BucketDelayedDeliveryTracker, cursor: FakeCursor) -> list[Callable[[], object]]:
    return [
        lambda: tracker.add_message(7, 1, START_MS + 60_000),
        lambda: tracker.add_messages([8, 8, 9], [1, 2, 3], [START_MS + 70_000] * 3),
        lambda: tracker.add_messages([9, 10], [4, 5], [START_MS + 80_000] * 2),
        lambda: tracker.contains_message(8, 1),
        lambda: tracker.tracked_in(8),
        tracker.tracked_ledger_ids,
        lambda: tracker.is_recovering(8),
        tracker.pop_to_read_again,
        tracker.has_message_available,
        lambda: tracker.lead_ms,
        tracker.next_delivery_time,
        tracker.first_withheld_time,
        lambda: tracker.get_scheduled_messages(10),
        tracker.number_of_delayed_messages,
        tracker.number_of_future_messages,
        tracker.due_bitmaps,
        lambda: tracker.remove_acknowledged(8, BitMap([2])),
        tracker.should_pause_all_deliveries,
        lambda: tracker.reset_tick_time(5),
        tracker.stats,
        tracker.buckets,
        lambda: setattr(cursor, "mark_delete_position", Position(2, -1)),
    ]


@pytest.mark.parametrize("name", _MEMBERS)
def test_a_tracker_stops_for_a_defect_and_tells_its_owner(name: str) -> None:
    async def story() -> None:
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        cursor, told = FakeCursor(), list[Exception]()
        context = TrackerContext(
            topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None, on_defect=told.append
        )
        tracker = _factory(storage).new_tracker(context)
        tracker.add_messages([1, 1, 2], [1, 2, 3], [START_MS + 50_000] * 3)
        tracker.add_messages([3], [1], [START_MS + 50_000])
        await asyncio.sleep(1)
        named = dict(cursor.properties)
        assert named

        with _broken(name):
            # A failed call is tried again, and the core is asked for it.
            cursor.property_error = OSError("the disk is full")
            for use in _uses(tracker, cursor):
                with contextlib.suppress(IndexError, TrackerClosedError):
                    use()
            await asyncio.sleep(1)
            cursor.property_error = None
            if name == "clear":
                with pytest.raises(IndexError):
                    await tracker.clear()
            if name in {"seal", "unsettled_count"}:
                await tracker.close()

        assert [type(defect) for defect in told] == [IndexError]
        assert tracker.failure is told[0]
        assert (tracker.number_of_delayed_messages(), tracker.tracked_in(1)) == (0, None)
        with pytest.raises(TrackerClosedError):
            tracker.add_message(20, 1, START_MS + 90_000)
        with pytest.raises(TrackerClosedError):
            tracker.get_scheduled_messages(1)
        await tracker.close()
        # Snapshots that the properties name are still there, for the next tracker.
        assert named.items() <= cursor.properties.items()
        heir = _factory(storage).new_tracker(context)
        await asyncio.sleep(1)
        assert heir.number_of_delayed_messages() >= 1
        await heir.close()

    run_virtually(story())


def test_a_defect_of_a_shared_index_is_told_to_every_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        cursors, told = [FakeCursor(), FakeCursor()], list[Exception]()
        index = SharedDelayedIndex("t", "index", SharedCursor(FakeCursor(), lambda: cursors), _factory(storage))
        views = [
            index.new_view(
                TrackerContext(
                    topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None, on_defect=told.append
                )
            )
            for cursor in cursors
        ]
        views[0].add_message(1, 1, START_MS + 1_000)

        def broken(*_: object) -> None:
            raise IndexError("a defect")

        monkeypatch.setattr(views[0], "receive", broken)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await asyncio.sleep(2)
        # By now the index has told its views; it gives them the rows when one of them polls.
        with contextlib.suppress(IndexError, TrackerClosedError):
            views[1].get_scheduled_messages(1)

        assert [type(defect) for defect in told] == [IndexError, IndexError]
        assert isinstance(index.tracker.failure, IndexError)
        for view in views:
            await view.close()
        await index.close()

    run_virtually(story())


def test_an_exception_of_the_program_keeps_no_answer_from_a_tracker() -> None:
    """One of several answers to one call tells of a loss, and the program's callback raises."""
    reported, errors = list[dict[str, Any]](), [ZeroDivisionError("a bug of the program")]

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report))
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        is_lost = False

        def on_available() -> None:
            if is_lost and errors:
                raise errors.pop()

        tracker = BucketDelayedDeliveryTrackerFactory(
            TrackerConfig(index_count_per_bucket_min=1, prefetch_ms=0),
            storage,
            now_ms=virtual_now_ms,
            run_blocking=run_inline,
        ).new_tracker(TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=on_available))
        for ledger_id in range(20):
            assert tracker.add_message(ledger_id, 0, START_MS + 60_000)
        await asyncio.sleep(10)
        del storage.snapshots[min(storage.snapshots)]
        is_lost = True
        await asyncio.sleep(60)

        assert not errors
        assert tracker.pop_to_read_again() == {0: BitMap([0])}
        assert [row[1] for row in tracker.get_scheduled_messages(100).to_rows()] == list(range(1, 20))
        assert tracker.number_of_delayed_messages() == 0
        await tracker.close()

    run_virtually(story())
    assert [type(report["exception"]) for report in reported] == [ZeroDivisionError]


@pytest.mark.parametrize("name", ["on_available", "on_defect"])
def test_an_exception_of_one_subscription_keeps_nothing_from_the_others(name: str) -> None:
    told, reported = list[str](), list[dict[str, Any]]()

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report))
        storage = MemoryBucketSnapshotStorage()
        await storage.start()
        cursors = {"a": FakeCursor(), "b": FakeCursor()}
        index = SharedDelayedIndex("t", "i", SharedCursor(FakeCursor(), cursors.values), _factory(storage))
        views = []
        for of in cursors:

            def call(*_: object, of: str = of) -> None:
                told.append(of)
                if of == "a":
                    raise ZeroDivisionError("a bug of the program")

            context = TrackerContext(topic_name="t", cursor_name=of, cursor=cursors[of], on_available=lambda: None)
            views.append(index.new_view(replace(context, **{name: call})))
        views[0].add_message(1, 1, START_MS + 1_000)
        if name == "on_defect":
            index.tracker.stop_for_defect(IndexError("a defect"))
        else:
            await asyncio.sleep(2)
        for view in views:
            await view.close()
        await index.close()

    run_virtually(story())
    assert told[:2] == ["a", "b"]
    assert reported
    assert all(isinstance(report["exception"], ZeroDivisionError) for report in reported)
