"""The wall clock that APScheduler sees: it asks `datetime`, and takes no clock as an argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from typing import Any
from unittest.mock import patch

from apscheduler.triggers.interval import IntervalTrigger

from managed_ledger.positions.value_types import Clock


class ListedTurns:
    """Counts the turns that APScheduler lists; each takes a few microseconds, in which the loop stands still."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def apscheduler_clock(now_ms: Clock) -> Iterator[ListedTurns]:
    """Let APScheduler see a clock, and count the turns that it lists."""

    class ClockDatetime(datetime):
        """Times of day by that clock."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromtimestamp(now_ms() / 1_000, UTC).astimezone(tz)

    listed = ListedTurns()
    next_turn = IntervalTrigger.get_next_fire_time

    def count_and_list(trigger: Any, previous: Any, now: Any) -> Any:
        listed.count += 1
        return next_turn(trigger, previous, now)

    with (
        patch("apscheduler.schedulers.base.datetime", ClockDatetime),
        patch("apscheduler.executors.base.datetime", ClockDatetime),
        patch("apscheduler.triggers.interval.datetime", ClockDatetime),
        patch.object(IntervalTrigger, "get_next_fire_time", count_and_list),
    ):
        yield listed
