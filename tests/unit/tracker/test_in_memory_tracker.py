"""The in-memory tracker: windows of time, strict or not, and the detection of a fixed delay."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.positions.position import Position
from postdate.testing import VIRTUAL_START_MS as START_MS
from postdate.testing import FakeClock, FakeCursor, run_virtually, virtual_now_ms
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.in_memory import InMemoryDelayedDeliveryTracker, InMemoryDelayedDeliveryTrackerFactory

Test = Callable[[InMemoryDelayedDeliveryTracker, FakeClock], None]

LOOSE = {"is_deliver_at_time_strict": False}


def new_tracker(clock: FakeClock, cursor: FakeCursor | None = None, **settings: Any) -> InMemoryDelayedDeliveryTracker:
    """Return a tracker whose times are not strict unless told so; needs an event loop."""
    context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor or FakeCursor(), on_available=lambda: None)
    return InMemoryDelayedDeliveryTracker(context, TrackerConfig(**(LOOSE | settings)), now_ms=clock)


def run(test: Test, *, cursor: FakeCursor | None = None, **settings: Any) -> None:
    """Run a test of a tracker whose clock stands still."""

    async def main() -> None:
        clock = FakeClock(10_240)
        tracker = new_tracker(clock, cursor, **settings)
        test(tracker, clock)
        await tracker.close()

    asyncio.run(main())


@pytest.mark.parametrize(("deliver_at_ms", "is_tracked"), [(-1, False), (10_240, False), (10_241, True)])
def test_what_is_due_is_not_tracked(deliver_at_ms: int, is_tracked: bool) -> None:
    """As with the other tracker."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        assert tracker.add_message(1, 1, deliver_at_ms) == is_tracked
        assert tracker.add_messages([1], [2], [deliver_at_ms]).tolist() == [is_tracked]
        assert tracker.number_of_delayed_messages() == 2 * is_tracked

    run(test, is_deliver_at_time_strict=True)


def test_a_limit_splits_what_is_due_at_one_time() -> None:
    """In order of position, and each once."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([2, 1, 1, 1], [0, 2, 0, 1], [30_000] * 4)
        clock.now_ms = 40_000
        assert tracker.get_scheduled_messages(2).to_rows() == [(30_000, 1, 0), (30_000, 1, 1)]
        assert tracker.get_scheduled_messages(5).to_rows() == [(30_000, 1, 2), (30_000, 2, 0)]
        assert tracker.number_of_delayed_messages() == 0
        assert tracker.next_delivery_time() is None

    run(test)


def test_positions_of_trimmed_ledgers_do_not_come() -> None:
    """The cursor is past them; they do not count either."""
    cursor = FakeCursor()

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 2], [1, 1], [30_000] * 2)
        cursor.mark_delete_position = Position(1, 0)
        assert tracker.number_of_delayed_messages() == 2
        cursor.mark_delete_position = Position(2, 0)
        assert tracker.number_of_delayed_messages() == 1
        clock.now_ms = 40_000
        assert tracker.get_scheduled_messages(5).to_rows() == [(30_000, 2, 1)]

    run(test, cursor=cursor)


def test_a_fixed_delay_pauses_reading_at_the_lookahead() -> None:
    """Nothing further on is due earlier; when something is due, reading goes on."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        for entry_id in range(3):
            assert not tracker.should_pause_all_deliveries()
            tracker.add_message(1, entry_id, 30_000 + entry_id)
        assert tracker.should_pause_all_deliveries()
        clock.now_ms = 31_000
        assert not tracker.should_pause_all_deliveries()
        tracker.get_scheduled_messages(5)
        # The delays still look fixed: it pauses again at as many.
        for entry_id in range(3, 6):
            tracker.add_message(1, entry_id, 40_000 + entry_id)
        assert tracker.should_pause_all_deliveries()

    run(test, fixed_delay_detection_lookahead=3)


@pytest.mark.parametrize(("deliver_at_ms", "is_fixed"), [(29_000, True), (28_999, False), (5_000, False)])
def test_delays_that_differ_by_more_than_a_tick_are_not_fixed(deliver_at_ms: int, is_fixed: bool) -> None:
    """Neither are those of messages that are due."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 1, 1], [1, 2, 3], [30_000] * 3)
        tracker.add_message(1, 4, deliver_at_ms)
        assert tracker.should_pause_all_deliveries() == is_fixed

    run(test, fixed_delay_detection_lookahead=3)


def test_a_message_without_a_delay_ends_the_pause_and_keeps_what_is_tracked() -> None:
    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 1, 1], [1, 2, 3], [30_000] * 3)
        tracker.end_fixed_delays()
        assert not tracker.should_pause_all_deliveries()
        assert tracker.number_of_delayed_messages() == 3

    run(test, fixed_delay_detection_lookahead=3)


def test_a_lookahead_of_zero_never_pauses() -> None:
    """The detection is off."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 1, 1], [1, 2, 3], [30_000] * 3)
        assert not tracker.should_pause_all_deliveries()

    run(test, fixed_delay_detection_lookahead=0)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(10_000, 14_000)), min_size=1, max_size=60
    ),
    tick_time_ms=st.sampled_from([0, 8, 1_000]),
    is_strict=st.booleans(),
)
def test_many_at_once_are_as_many_one_by_one(
    rows: list[tuple[int, int, int]], tick_time_ms: int, is_strict: bool
) -> None:
    """Which are tracked, when they come, and whether their delays look fixed."""
    # A position that is both due and not in one call is forgotten first, then tracked.
    rows = list({(ledger, entry): (ledger, entry, time) for ledger, entry, time in rows}.values())

    settings = {
        "tick_time_ms": tick_time_ms, "is_deliver_at_time_strict": is_strict, "fixed_delay_detection_lookahead": 1
    }  # fmt: skip

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        other = new_tracker(clock, **settings)
        one_by_one = [other.add_message(*row) for row in rows]
        ledgers, entries, times = zip(*rows, strict=True)
        assert tracker.add_messages(ledgers, entries, times).tolist() == one_by_one
        assert tracker.should_pause_all_deliveries() == other.should_pause_all_deliveries()
        for _ in range(20):
            clock.now_ms += 250
            assert tracker.next_delivery_time() == other.next_delivery_time()
            assert tracker.get_scheduled_messages(7).to_rows() == other.get_scheduled_messages(7).to_rows()

    run(test, **settings)


def test_times_that_are_not_strict_are_at_most_a_tick_early() -> None:
    """And exact where they are strict, with any tick."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 1, 2], [1, 2, 3], [20_001, 20_479, 20_300])
        clock.now_ms = 19_000
        assert len(tracker.get_scheduled_messages(9)) == 0
        clock.now_ms = 19_001
        assert tracker.get_scheduled_messages(9).to_rows() == [(20_001, 1, 1)]
        tracker.reset_tick_time(8)
        clock.now_ms = 20_291
        assert len(tracker.get_scheduled_messages(9)) == 0
        clock.now_ms = 20_292
        assert tracker.get_scheduled_messages(9).to_rows() == [(20_300, 2, 3)]

    run(test, tick_time_ms=1_000, is_deliver_at_time_strict=False)


def test_a_larger_tick_makes_nothing_late() -> None:
    """Messages that were tracked with the smaller one stay as exact as they were."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_message(1, 1, 20_100)
        tracker.reset_tick_time(1_000)
        clock.now_ms = 20_100
        assert len(tracker.get_scheduled_messages(9)) == 1

    run(test, tick_time_ms=8)


def test_the_dispatcher_is_told_when_a_window_is_due() -> None:
    """And clearing forgets everything."""

    async def main() -> None:
        told: list[int] = []
        factory = InMemoryDelayedDeliveryTrackerFactory(
            TrackerConfig(tick_time_ms=8, is_deliver_at_time_strict=True), now_ms=virtual_now_ms
        )
        context = TrackerContext(
            topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=lambda: told.append(virtual_now_ms())
        )
        tracker = factory.new_tracker(context)
        tracker.add_message(1, 1, START_MS + 20_000)
        tracker.add_message(1, 2, START_MS + 30_000)
        await asyncio.sleep(21)
        assert told == [START_MS + 20_000]
        tracker.get_scheduled_messages(1)
        await tracker.clear()
        await asyncio.sleep(20)
        assert told == [START_MS + 20_000]
        assert not tracker.contains_message(1, 2)
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize("is_array", [False, True])
def test_the_dispatcher_is_told_of_an_earlier_message_that_comes_later(is_array: bool) -> None:
    """The timer that is set for the first one is set forward, whichever way the second one is added."""

    async def main() -> None:
        told: list[int] = []
        context = TrackerContext(
            topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=lambda: told.append(virtual_now_ms())
        )
        config = TrackerConfig(tick_time_ms=8, is_deliver_at_time_strict=True)
        tracker = InMemoryDelayedDeliveryTracker(context, config, now_ms=virtual_now_ms)
        tracker.add_message(1, 1, START_MS + 30_000)
        await asyncio.sleep(1)
        if is_array:
            tracker.add_messages([1], [2], [START_MS + 3_000])
        else:
            tracker.add_message(1, 2, START_MS + 3_000)

        await asyncio.sleep(20)

        # Not at the next look at the clock, which is every five seconds.
        assert told == [START_MS + 3_000]
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize("tick_time_ms", [0, 1, 100, 1_000, 8_192])
@pytest.mark.parametrize("window_offset_ms", [0, 1, 63, 511, 8_191])
def test_an_idle_dispatcher_is_told_no_later_than_a_message_is_due(tick_time_ms: int, window_offset_ms: int) -> None:
    """And no more than a tick before, wherever the time is in its window, unless times are strict."""

    async def main() -> None:
        told = asyncio.Event()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=told.set)
        tracker = InMemoryDelayedDeliveryTracker(
            context, TrackerConfig(**LOOSE, tick_time_ms=tick_time_ms), now_ms=virtual_now_ms
        )
        deliver_at_ms = START_MS // 8_192 * 8_192 + 10 * 8_192 + window_offset_ms
        tracker.add_message(1, 1, deliver_at_ms)

        await told.wait()

        assert len(tracker.get_scheduled_messages(1)) == 1
        assert deliver_at_ms - tick_time_ms <= virtual_now_ms() <= deliver_at_ms
        await tracker.close()

    run_virtually(main())


def test_an_exception_of_one_program_keeps_no_other_tracker_from_being_called() -> None:
    """All trackers of a factory share a watch of the clock."""

    async def main() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        told: list[str] = []

        def fail() -> None:
            told.append("the one that fails")
            raise LookupError("of the program")

        factory = InMemoryDelayedDeliveryTrackerFactory(TrackerConfig(tick_time_ms=0), now_ms=virtual_now_ms)
        for on_available in (fail, lambda: told.append("the other one")):
            context = TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=on_available)
            factory.new_tracker(context).add_message(1, 1, START_MS + 1_000)
        await asyncio.sleep(2)

        assert told == ["the one that fails", "the other one"]
        assert [str(report["exception"]) for report in reports] == ["of the program"]

    run_virtually(main())
