"""Views on one shared index, step by step; the whole is in `tests/simulation/whole_service`."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from postdate.testing import VIRTUAL_START_MS as START_MS
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex, SharedIndexView

Rows = list[tuple[int, int, int]]


class SharedIndexWorld:
    """An index, and subscriptions with a view each."""

    def __init__(self, row_count_max: int = 262_144) -> None:
        self.storage = MemoryBucketSnapshotStorage()
        self.own = FakeCursor()
        self.cursors: dict[str, FakeCursor] = {}
        self.views: dict[str, SharedIndexView] = {}
        self.told: list[str] = []
        self.taken: dict[str, set[tuple[int, int]]] = {}
        self.set_back_ms = 0
        self.looks_at_clock = 0
        config = TrackerConfig(
            index_count_per_bucket_min=5, is_deliver_at_time_strict=True, loaded_row_count_max=row_count_max
        )
        self.factory = BucketDelayedDeliveryTrackerFactory(
            config, self.storage, now_ms=self.now_ms, run_blocking=run_inline
        )

    def now_ms(self) -> int:
        self.looks_at_clock += 1
        return virtual_now_ms() - self.set_back_ms

    async def open(self, *names: str) -> None:
        await self.storage.start()
        self.cursor = SharedCursor(self.own, self.cursors.values)
        self.index = SharedDelayedIndex("t", "index", self.cursor, self.factory)
        for name in names:
            self.join(name)

    def join(self, name: str) -> SharedIndexView:
        cursor = self.cursors.setdefault(name, FakeCursor())
        self.taken.setdefault(name, set())

        context = TrackerContext(
            topic_name="t",
            cursor_name=name,
            cursor=cursor,
            on_available=lambda: self.told.append(name),
        )
        self.views[name] = self.index.new_view(context)
        return self.views[name]

    def rows(self, name: str, limit: int = 100) -> Rows:
        return self.views[name].get_scheduled_messages(limit).to_rows()


def play(
    story: Callable[[SharedIndexWorld], Coroutine[Any, Any, None]], *names: str, row_count_max: int = 262_144
) -> None:
    """Run a story with subscriptions of these names, in virtual time."""

    async def main() -> None:
        world = SharedIndexWorld(row_count_max)
        await world.open(*names)
        await story(world)
        await world.index.close()

    run_virtually(main())


async def rest() -> None:
    """Let everything happen that needs no time."""
    await asyncio.sleep(0.001)


def test_what_one_polls_is_due_for_all_once() -> None:
    async def story(world: SharedIndexWorld) -> None:
        a, b = world.views["a"], world.views["b"]
        assert a.add_messages([1, 1], [1, 2], [START_MS + 200, START_MS + 100]).all()
        assert b.add_message(1, 1, START_MS + 200)
        assert b.contains_message(1, 2)
        assert (a.number_of_delayed_messages(), b.number_of_delayed_messages()) == (2, 2)
        await asyncio.sleep(0.3)
        world.told.clear()
        expected = [(START_MS + 100, 1, 2), (START_MS + 200, 1, 1)]
        assert world.rows("a") == expected
        assert not a.has_message_available()
        await rest()
        assert world.told == ["b"]
        assert b.has_message_available()
        assert b.next_delivery_time() == START_MS + 100
        assert b.tracked_in(1) == BitMap([1, 2])
        assert (a.number_of_delayed_messages(), b.number_of_delayed_messages()) == (0, 2)
        assert world.rows("b", 1) == expected[:1]
        assert world.rows("b") == expected[1:]
        assert b.tracked_in(1) is None
        assert world.rows("a") == world.rows("b") == []

    play(story, "a", "b")


def test_what_a_subscription_has_acknowledged_is_not_due_for_it() -> None:
    """Below its mark-delete position or on its own; the others get it."""

    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_messages([1, 2, 2], [0, 0, 1], [START_MS + 100] * 3)
        world.cursors["a"].mark_delete_position = Position(2, -1)
        world.cursors["a"].acknowledge(2, 1)
        assert world.views["a"].number_of_delayed_messages() == 1
        assert world.views["b"].number_of_delayed_messages() == 3
        await asyncio.sleep(0.2)
        assert len(world.rows("b")) == 3
        assert world.rows("a") == [(START_MS + 100, 2, 0)]

    play(story, "a", "b")


def test_a_poll_goes_on_behind_what_was_acknowledged() -> None:
    """A subscription that skipped thousands of due messages is not told that there is nothing."""

    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_messages([1] * 5_000, list(range(5_000)), [START_MS + 100] * 5_000)
        world.cursors["a"].acknowledge(1, *range(4_990))
        await asyncio.sleep(0.2)
        got: Rows = []
        while world.views["a"].has_message_available():
            got += world.rows("a", 20)
        assert [entry_id for _, _, entry_id in got] == list(range(4_990, 5_000))

    play(story, "a", "b")


@pytest.mark.parametrize("deliver_at_ms", [START_MS + 100, START_MS + 90_000])
def test_a_message_that_is_due_when_it_is_offered_again_is_due_for_the_others(deliver_at_ms: int) -> None:
    """The tracker forgets it; the subscription that offered it delivers it, and the others still need it, once."""

    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_message(1, 1, deliver_at_ms)
        await asyncio.sleep(0.2)
        world.told.clear()
        assert not world.views["b"].add_message(1, 1, START_MS + 100)
        await rest()
        assert world.told == ["a"]
        assert not world.views["b"].contains_message(1, 1)
        assert world.views["b"].number_of_delayed_messages() == 0
        assert world.views["a"].number_of_delayed_messages() == 1
        assert world.rows("a") == [(START_MS + 100, 1, 1)]
        await asyncio.sleep(100)
        assert world.rows("b") == world.rows("a") == []

    play(story, "a", "b")


def test_a_message_without_a_delay_leaves_what_is_indexed_alone() -> None:
    """It is offered to say that delays differ; the position is another one's."""

    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_message(1, 1, START_MS + 100)
        assert not world.views["b"].add_message(1, 1, -1)
        assert world.views["b"].add_messages([1], [1], [-1]).tolist() == [False]
        await asyncio.sleep(0.2)
        assert len(world.rows("b")) == len(world.rows("a")) == 1

    play(story, "a", "b")


def test_a_view_that_comes_later_gets_what_is_indexed_and_not_what_was_polled() -> None:
    """That it finds in the log: it is not tracked, so that its reader does not pass over it."""

    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_messages([1, 1], [1, 2], [START_MS + 100, START_MS + 900])
        await asyncio.sleep(0.2)
        world.rows("a")
        late = world.join("late")
        assert late.tracked_in(1) == BitMap([2])
        assert not late.add_message(1, 1, START_MS + 100)
        await asyncio.sleep(1)
        assert world.rows("late") == [(START_MS + 900, 1, 2)]

    play(story, "a")


def test_clearing_and_closing_a_view_leave_the_index_to_the_others() -> None:
    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_messages([1, 1], [1, 2], [START_MS + 100, START_MS + 900])
        await asyncio.sleep(0.2)
        world.rows("a")
        await world.views["b"].clear()
        assert world.views["b"].tracked_in(1) == BitMap([2])
        assert world.rows("b") == []
        await world.views["c"].close()
        await world.views["c"].close()
        await asyncio.sleep(1)
        assert len(world.rows("a")) == len(world.rows("b")) == 1
        assert world.views["a"].number_of_delayed_messages() == 0

    play(story, "a", "b", "c")


def test_what_a_snapshot_lost_is_read_again_by_every_view() -> None:
    """One puts it back, and it is due for all of them."""

    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_messages([1] * 6, list(range(6)), [START_MS + 20_000] * 6)
        world.views["a"].add_message(2, 0, START_MS + 20_000)
        await rest()
        (bucket_id,) = map(int, world.own.properties.values())
        await world.storage.delete_bucket_snapshot(bucket_id)
        await asyncio.sleep(16)
        lost = {name: view.pop_to_read_again() for name, view in world.views.items()}
        assert lost["a"] == lost["b"] == {1: BitMap(range(6))}
        assert world.views["a"].add_messages([1] * 6, list(range(6)), [START_MS + 20_000] * 6).all()
        await asyncio.sleep(5)
        assert len(world.rows("a")) == len(world.rows("b")) == 7
        assert world.views["b"].number_of_delayed_messages() == 0

    play(story, "a", "b")


def test_the_index_goes_where_the_slowest_subscription_is() -> None:
    """Snapshots below it are deleted; the properties are the index's own."""

    async def story(world: SharedIndexWorld) -> None:
        for ledger_id in range(1, 4):
            world.views["a"].add_messages([ledger_id] * 5, list(range(5)), [START_MS + 3_600_000] * 5)
        await rest()
        assert sorted(world.own.properties) == [f"{BUCKET_KEY_PREFIX}_1_1", f"{BUCKET_KEY_PREFIX}_2_2"]
        world.cursors["a"].mark_delete_position = Position(3, 0)
        world.cursors["b"].mark_delete_position = Position(2, 0)
        world.index.refresh()
        await rest()
        assert sorted(world.own.properties) == [f"{BUCKET_KEY_PREFIX}_2_2"]
        assert not world.cursors["a"].properties
        world.cursors["a"].acknowledge(2, 1, 2)
        world.cursors["b"].acknowledge(2, 2, 3)
        assert world.cursor.acknowledged_in(2) == BitMap([2])

    play(story, "a", "b")


def test_what_a_subscription_offers_that_went_back_is_kept() -> None:
    """The slowest one seeks to the beginning, and the index is not told before its messages are sealed."""

    async def story(world: SharedIndexWorld) -> None:
        world.cursors["a"].mark_delete_position = world.cursors["b"].mark_delete_position = Position(9, 0)
        world.index.refresh()
        world.cursors["a"].mark_delete_position = Position(0, -1)
        view = world.views["a"]
        for ledger_id in (1, 2):
            assert view.add_messages([ledger_id] * 5, list(range(5)), [START_MS + 1_000 * ledger_id] * 5).all()
        await asyncio.sleep(5)

        assert [row[1:] for row in world.rows("a", 20)] == [(k, n) for k in (1, 2) for n in range(5)]
        assert world.rows("b", 20) == []

    play(story, "a", "b")


def test_without_subscriptions_the_index_stays_where_its_own_cursor_is() -> None:
    cursor = FakeCursor()
    cursor.mark_delete_position = Position(7, 7)
    cursor.acknowledge(8, 1)

    shared = SharedCursor(cursor, list)

    assert shared.mark_delete_position == Position(7, 7)
    assert shared.acknowledged_in(8) == BitMap([1])


def test_an_index_at_rest_looks_at_the_clock_every_five_seconds_at_most() -> None:
    """It knows the positions of all its buckets for as long as it has them, so there is nothing to let go of."""

    async def story(world: SharedIndexWorld) -> None:
        world.views["a"].add_messages([1] * 6, list(range(6)), [START_MS + 3_600_000] * 6)
        world.views["a"].add_message(2, 0, START_MS + 3_600_000)
        await asyncio.sleep(60)
        world.looks_at_clock = 0
        await asyncio.sleep(600)

        assert world.own.properties
        # A turn looks twice.
        assert world.looks_at_clock <= 2 * 600 / 5 + 4

    play(story, "a", "b")


def test_due_messages_that_a_view_is_told_are_acknowledged_are_forgotten() -> None:
    """They count no more and are not handed out; another subscription gets them."""

    async def story(world: SharedIndexWorld) -> None:
        a, b = world.views["a"], world.views["b"]
        a.add_messages([1] * 4, list(range(4)), [START_MS + 100 + entry_id for entry_id in range(4)])
        await asyncio.sleep(0.2)
        assert len(world.rows("a")) == 4
        assert b.number_of_delayed_messages() == 4
        world.cursors["b"].acknowledge(1, 0, 1, 3)
        b.remove_acknowledged(1, BitMap([0, 1, 3, 7]))
        b.remove_acknowledged(2, BitMap([0]))
        assert b.number_of_delayed_messages() == 1
        assert b.next_delivery_time() == START_MS + 102
        assert b.tracked_in(1) == BitMap([2])
        assert world.rows("b") == [(START_MS + 102, 1, 2)]
        assert not b.has_message_available()
        assert b.next_delivery_time() is None

    play(story, "a", "b")


def test_what_a_subscription_that_takes_nothing_leaves_behind_is_read_again_by_position() -> None:
    """Its rows in memory are bounded; the rest is due, and comes from the log when there is room."""

    async def story() -> None:
        world = SharedIndexWorld(row_count_max=4)
        await world.open("a", "b")
        rows = [(START_MS + 1_000 + n, 1, n) for n in range(12)]
        for time_ms, ledger_id, entry_id in rows:
            assert world.views["a"].add_message(ledger_id, entry_id, time_ms)
        await asyncio.sleep(2)
        taken = []
        while some := world.rows("a", 3):
            taken += some
        assert taken == rows

        b = world.views["b"]
        assert b.number_of_delayed_messages() == 12
        received = world.rows("b", 3)
        assert received == rows[:3]
        for _ in range(20):
            # All that the dispatcher reads again is due, so it is not tracked.
            for ledger_id, entry_ids in b.pop_to_read_again().items():
                times = [rows[entry_id][0] for entry_id in entry_ids]
                assert not b.add_messages([ledger_id] * len(times), list(entry_ids), times).any()
                received += [rows[entry_id] for entry_id in entry_ids]
            received += world.rows("b", 3)
        assert sorted(received) == rows
        assert b.number_of_delayed_messages() == 0

    run_virtually(story())
