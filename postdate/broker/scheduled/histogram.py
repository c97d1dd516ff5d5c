"""Counts of scheduled messages: in total, and per equal part of a span of time. Pure.

Each unacknowledged message with a delivery time is one of these, for a subscription and for the topic:

    delayed   its time has not come
    overdue   it is due, and in no hand
    in hand   a consumer has it, or is about to be sent it

For the topic, a message is delayed or overdue while one of its subscriptions waits for it, and in hand when each that
has not acknowledged it has it in hand. So `count` is delayed + overdue, which a list shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from managed_ledger.positions.value_types import Int64Array
from postdate.broker.scheduled.selection import TIME_MS_LAST, bucket_edges, counts_between, open_span
from postdate.broker.topics.figures import NOTHING_DUE_SOON, SOON_MS, DueSoon

TIMES_OF_A_LEDGER: Final = 32
"""How many delivery times of a ledger a count notes, evenly by rank."""


@dataclass(frozen=True, slots=True)
class ScheduleTotals:
    """The number of scheduled messages, and their first and last times."""

    delayed: int
    """Messages whose time has not come."""
    overdue: int
    """Messages that are due and in no hand."""
    in_hand: int
    """Messages that a consumer has, or is about to be sent."""
    next_deliver_at_ms: int | None
    """The earliest time of these."""
    last_deliver_at_ms: int | None
    """The latest time of these."""
    some_deliver_at_ms: Sequence[int]
    """Some of these times, ascending, with the first and the last of each ledger."""
    due_soon: DueSoon = NOTHING_DUE_SOON
    """How many of the delayed ones come due within each of `SOON_MS`."""
    first_overdue_ms: int | None = None
    """The earliest time of those that are overdue."""
    holds_until_ms: int | None = None
    """When the first of these counts changes by itself; None for never."""

    @property
    def count(self) -> int:
        """The messages that a list shows."""
        return self.delayed + self.overdue


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """The number of messages per span of time."""

    totals: ScheduleTotals
    edges: Sequence[int]
    counts: Int64Array


class TotalsCounter:
    """Counts messages in total.

    Args:
        now_ms: The present time.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._delayed = self._overdue = self._in_hand = 0
        self._some_ms: set[int] = set()
        self._due_soon = NOTHING_DUE_SOON
        self._first_overdue_ms: list[int] = []
        self._changes_at_ms: list[int] = []

    def add(self, times: Int64Array, in_hand: int = 0) -> None:
        """Count messages by their times, ascending, and those that are in hand."""
        self._in_hand += in_hand
        begin, *ends = (int(np.searchsorted(times, self._now_ms + ms, side="right")) for ms in (0, *SOON_MS))
        self._overdue += begin
        if begin:
            self._first_overdue_ms.append(int(times[0]))
        if begin < len(times):
            self._due_soon = DueSoon(*(n + end - begin for n, end in zip(self._due_soon, ends, strict=True)))
            self._changes_at_ms += (
                int(times[end]) - ms for end, ms in zip((begin, *ends), (0, *SOON_MS), strict=True) if end < len(times)
            )
            self._delayed += len(times) - begin
            step = -(-(len(times) - begin) // TIMES_OF_A_LEDGER)
            self._some_ms.update(times[begin::step].tolist(), times[-1:].tolist())

    def result(self) -> ScheduleTotals:
        """Return the counts."""
        some_ms = sorted(self._some_ms)
        first_ms, last_ms = (some_ms[0], some_ms[-1]) if some_ms else (None, None)
        return ScheduleTotals(
            self._delayed,
            self._overdue,
            self._in_hand,
            first_ms,
            last_ms,
            some_ms,
            self._due_soon,
            min(self._first_overdue_ms, default=None),
            min(self._changes_at_ms, default=None),
        )


class HistogramCounter:
    """Counts messages in equal parts of a span of time, from ascending times of one ledger or more.

    Args:
        from_ms: The beginning of the span; None for the first time that there is.
        until_ms: The end of the span; None for the last time that there is, which is in the last part then.
        ends_ms: The first and the last time that there is; None without messages.
        buckets: How many parts, as far as milliseconds allow.
        now_ms: The present time.
    """

    def __init__(
        self, from_ms: int | None, until_ms: int | None, ends_ms: tuple[int, int] | None, buckets: int, now_ms: int
    ) -> None:
        if from_ms is None or until_ms is None:
            first_ms = (now_ms if ends_ms is None else ends_ms[0]) if from_ms is None else from_ms
            last_ms = (first_ms if ends_ms is None else ends_ms[1]) if until_ms is None else until_ms - 1
            from_ms, until_ms = open_span(first_ms, last_ms)
        self.edges = bucket_edges(from_ms, until_ms, buckets)
        self.from_ms = from_ms
        self.until_ms = None if until_ms == TIME_MS_LAST else until_ms
        """None where a message at the last time there is lies in the last part."""
        self._counts = np.zeros(len(self.edges) - 1, np.int64)
        self._totals = TotalsCounter(now_ms)

    def add(self, times: Int64Array, in_hand: int = 0) -> None:
        """Count messages by their times, ascending and all in the span, and those of the span that are in hand."""
        self._counts += counts_between(times, self.edges)
        self._totals.add(times, in_hand)

    def result(self) -> Histogram:
        """Return the counts."""
        return Histogram(self._totals.result(), self.edges, self._counts)
