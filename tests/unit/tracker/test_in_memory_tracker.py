"""The in-memory tracker: windows of time, strict or not, and the detection of a fixed delay."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from managed_ledger.position import Position
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.in_memory import InMemoryDelayedDeliveryTracker, InMemoryDelayedDeliveryTrackerFactory
from tracker.testing import VIRTUAL_START_MS as START_MS
from tracker.testing import FakeClock, FakeCursor, run_virtually, virtual_now_ms

Test = Callable[[InMemoryDelayedDeliveryTracker, FakeClock], None]


def run(test: Test, **settings: Any) -> None:
    """Run a test of a tracker whose clock stands still."""

    async def main() -> None:
        clock = FakeClock(10_240)
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=FakeCursor(), on_available=lambda: None)
        tracker = InMemoryDelayedDeliveryTracker(context, TrackerConfig(**settings), now_ms=clock)
        test(tracker, clock)
        await tracker.close()

    asyncio.run(main())


def test_times_that_are_not_strict_are_at_most_a_tick_early() -> None:
    """A window is due when its last message would be."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        assert tracker.add_message(1, 1, 20_480)
        assert tracker.add_message(1, 2, 20_480 + 511)
        clock.now_ms = 20_480 + 510 - 1_000
        assert not tracker.has_message_available()
        clock.now_ms += 1
        assert tracker.get_scheduled_messages(10).to_rows() == [(20_480, 1, 1), (20_480, 1, 2)]

    run(test, tick_time_ms=1_000)


def test_strict_times_are_rounded_up() -> None:
    """Nothing is early."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        assert tracker.add_message(1, 1, 20_001)
        assert tracker.next_delivery_time() == 20_480
        clock.now_ms = 20_479
        assert not tracker.has_message_available()
        clock.now_ms = 20_480
        assert len(tracker.get_scheduled_messages(10)) == 1

    run(test, tick_time_ms=1_000, is_deliver_at_time_strict=True)


@pytest.mark.parametrize(("deliver_at_ms", "is_tracked"), [(-1, False), (10_240, False), (10_241, True)])
def test_what_is_due_is_not_tracked(deliver_at_ms: int, is_tracked: bool) -> None:
    """As with the other tracker."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        assert tracker.add_message(1, 1, deliver_at_ms) == is_tracked
        assert tracker.add_messages([1], [2], [deliver_at_ms]).tolist() == [is_tracked]
        assert tracker.number_of_delayed_messages() == 2 * is_tracked

    run(test, is_deliver_at_time_strict=True)


def test_a_limit_splits_a_window() -> None:
    """In order of position, and each once."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([2, 1, 1, 1], [0, 2, 0, 1], [30_000] * 4)
        clock.now_ms = 40_000
        assert tracker.get_scheduled_messages(2).to_rows() == [(29_696, 1, 0), (29_696, 1, 1)]
        assert tracker.get_scheduled_messages(5).to_rows() == [(29_696, 1, 2), (29_696, 2, 0)]
        assert tracker.number_of_delayed_messages() == 0
        assert tracker.next_delivery_time() is None

    run(test)


def test_a_position_in_two_windows_is_handed_out_once() -> None:
    """At the earlier one."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_message(1, 1, 30_000)
        tracker.add_message(1, 1, 20_000)
        clock.now_ms = 25_000
        assert len(tracker.get_scheduled_messages(5)) == 1
        clock.now_ms = 35_000
        assert len(tracker.get_scheduled_messages(5)) == 0

    run(test)


def test_positions_of_trimmed_ledgers_do_not_come() -> None:
    """The cursor is past them."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 2], [1, 1], [30_000] * 2)
        tracker._context.cursor.mark_delete_position = Position(2, 0)  # type: ignore[misc]  # The fake's can be set.
        clock.now_ms = 40_000
        assert tracker.get_scheduled_messages(5).to_rows() == [(29_696, 2, 1)]

    run(test)


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
        assert tracker._have_fixed_delays

    run(test, fixed_delay_detection_lookahead=3)


@pytest.mark.parametrize(("deliver_at_ms", "is_fixed"), [(29_000, True), (28_999, False), (5_000, False)])
def test_delays_that_differ_by_more_than_a_tick_are_not_fixed(deliver_at_ms: int, is_fixed: bool) -> None:
    """Neither are those of messages that are due."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 1, 1], [1, 2, 3], [30_000] * 3)
        tracker.add_message(1, 4, deliver_at_ms)
        assert tracker.should_pause_all_deliveries() == is_fixed

    run(test, fixed_delay_detection_lookahead=3)


def test_a_lookahead_of_zero_never_pauses() -> None:
    """The detection is off."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        tracker.add_messages([1, 1, 1], [1, 2, 3], [30_000] * 3)
        assert not tracker.should_pause_all_deliveries()

    run(test, fixed_delay_detection_lookahead=0)


def test_positions_out_of_range_are_refused() -> None:
    """Before anything changes."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        with pytest.raises(ValueError, match="out of range"):
            tracker.add_message(1, 2**32, 30_000)
        with pytest.raises(ValueError, match="out of range"):
            tracker.add_messages([1, 1], [0, -1], [30_000] * 2)
        assert tracker.number_of_delayed_messages() == 0

    run(test)


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
        await factory.clean_residual_snapshots(FakeCursor())
        await tracker.close()

    run_virtually(main())


@pytest.mark.parametrize("is_strict", [False, True])
def test_while_delays_are_off_everything_is_due(is_strict: bool) -> None:
    """And nothing more is tracked."""

    def test(tracker: InMemoryDelayedDeliveryTracker, clock: FakeClock) -> None:
        assert tracker.add_message(1, 1, clock.now_ms + 1_000_000)
        tracker.set_active(False)
        assert tracker.has_message_available()
        assert len(tracker.get_scheduled_messages(10)) == 1
        assert not tracker.add_message(1, 2, clock.now_ms + 1_000_000)
        tracker.set_active(True)
        assert tracker.add_message(1, 2, clock.now_ms + 1_000_000)
        assert not tracker.has_message_available()

    run(test, is_deliver_at_time_strict=is_strict)
