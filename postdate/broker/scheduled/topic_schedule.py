"""The scheduled messages of a topic for some of its subscriptions: pages, counts and all rows.

An entry is scheduled while one of the subscriptions has not acknowledged it and no consumer of that subscription has it
in hand. The source is the catalog with the state of the cursors and consumers at one moment; the delayed index is left
out.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
from pyroaring import BitMap

from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.entries.messages import MessageFilter
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from managed_ledger.positions.value_types import Clock, Int64Array, Mask
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.histogram import Histogram, HistogramCounter, ScheduleTotals, TotalsCounter
from postdate.broker.scheduled.ledger_schedule import LedgerSchedule
from postdate.broker.scheduled.messages import OnDamaged, OnSearched, matching
from postdate.broker.scheduled.moment import Moment
from postdate.broker.scheduled.selection import (
    PageBuilder,
    Rows,
    Wanted,
    ordered,
    rows_of,
    times_of,
)
from postdate.broker.slices import Turns
from postdate.broker.topics.delayed_range import delays_through
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from tracker.columns.positions import is_in_bitmap, ledger_groups

SUBSCRIPTIONS_TOLD_MAX: Final = 10
"""The most subscriptions of a message that a list names."""
ROWS_MAX: Final = 5_000_000
"""The most messages of one operation, 24 bytes each while it runs. Larger ones need the jobs on Spark."""


def _nothing(*_: object) -> None:
    """No caller asks for the progress."""


class TooManyRowsError(Exception):
    """A selector matches more messages than one operation can change."""


class TopicSchedule:
    """The schedule of one topic, for some of its subscriptions; made for one request.

    Args:
        topic: The topic.
        catalog: The columns.
        subscriptions: The subscriptions that count.
        now_ms: The clock.
        moment: The moment of which it is, for these subscriptions at least; None for the present one.
        has_in_hand: Whether messages in the hand of a consumer count as well: to say of each that it is.
    """

    def __init__(
        self,
        topic: Topic,
        catalog: ScheduleCatalog,
        subscriptions: Sequence[Subscription],
        now_ms: Clock,
        *,
        moment: Moment | None = None,
        has_in_hand: bool = False,
    ) -> None:
        self.topic = topic
        self.subscriptions = subscriptions
        self._catalog = catalog
        self.now_ms = now_ms()
        """The time of the moment."""
        self._moment = moment
        self._has_in_hand = has_in_hand
        self._left_out_of_each: dict[int, list[tuple[str, BitMap]]] = {}

    @property
    def moment(self) -> Moment:
        """The moment of which it is, from its first use on; a change of single messages needs none."""
        if self._moment is None:
            self._moment = Moment(self.topic, self.subscriptions)
        return self._moment

    def left_out_of(self, schedule: LedgerSchedule) -> BitMap | None:
        """Return the entries of a ledger that count for no subscription, or that came later; None for none."""
        return self._left_out_of(schedule, has_in_hand=self._has_in_hand)

    def in_hand_in(self, schedule: LedgerSchedule, from_ms: int | None, until_ms: int | None) -> int:
        """Return how many messages of a ledger in a span of time are in hand, and no subscription waits for them."""
        if not any(self.moment.in_hand_in(one, schedule.ledger_id) for one in self.subscriptions):
            return 0
        unacknowledged, waiting = (
            times_of(schedule, self._left_out_of(schedule, has_in_hand=has_in_hand), from_ms, until_ms)
            for has_in_hand in (True, False)
        )
        return len(unacknowledged) - len(waiting)

    def is_waited_for(self, rows: Rows) -> Mask:
        """Return which of some unacknowledged messages a subscription waits for; the others are in hand."""
        is_waited_for = np.ones(len(rows), np.bool_)
        for ledger_id, group in ledger_groups(rows.ledger_ids):
            if any(self.moment.in_hand_in(one, ledger_id) for one in self.subscriptions):
                is_waited_for[group] = ~is_in_bitmap(
                    rows.entry_ids[group], self._left_out(ledger_id, has_in_hand=False)
                )
        return is_waited_for

    def waiting_for(self, position: Position) -> list[str]:
        """Return the names of subscriptions that wait for an entry, as many as are told."""
        ledger_id, entry_id = position
        of_each = self._left_out_of_each.get(ledger_id)
        if of_each is None:
            of_each = self._left_out_of_each[ledger_id] = [
                (one.name, self.moment.done_in(one, ledger_id) | self.moment.in_hand_in(one, ledger_id))
                for one in self.subscriptions
            ]
        names = (name for name, left_out in of_each if entry_id not in left_out)
        return list(islice(names, SUBSCRIPTIONS_TOLD_MAX))

    def _left_out_of(self, schedule: LedgerSchedule, *, has_in_hand: bool) -> BitMap | None:
        found = self._left_out(schedule.ledger_id, has_in_hand=has_in_hand)
        entries = self.moment.entries_of(schedule.ledger_id)
        if schedule.entries > entries:
            later = BitMap(range(entries, schedule.entries))
            found = later if found is None else found | later
        return found or None

    def _left_out(self, ledger_id: int, *, has_in_hand: bool) -> BitMap | None:
        found: BitMap | None = None
        for subscription in self.subscriptions:
            left_out = self.moment.done_in(subscription, ledger_id)
            if not has_in_hand:
                left_out = left_out | self.moment.in_hand_in(subscription, ledger_id)
            found = left_out if found is None else found & left_out
        return found

    async def page(self, wanted: Wanted, rows_max: int) -> Rows:
        """Return the first rows that match.

        Raises:
            LedgerError: The log cannot be read.
        """
        page = PageBuilder(rows_max)
        ledgers = [
            ledger
            for ledger in self.moment.ledgers
            if ledger.ledger_id >= self.first_ledger_id
            and self._catalog.may_have(self.topic.ledger, ledger, wanted.first_ms, wanted.until_ms)
        ]
        # Ledgers with early times first: once the page is full, later ones are not read.
        firsts = {one.ledger_id: self._catalog.first_ms(self.topic.ledger, one) for one in ledgers}
        ledgers.sort(key=lambda one: -1 if (first := firsts[one.ledger_id]) is None else first)
        turns = Turns()
        for ledger in ledgers:
            first_ms = self._catalog.first_ms(self.topic.ledger, ledger)
            if page.last_ms is not None and first_ms is not None and first_ms > page.last_ms:
                continue
            schedule = await self._catalog.schedule(self.topic.ledger, ledger)
            page.add(rows_of(schedule, self.left_out_of(schedule), wanted, rows_max))
            await turns.give_way()
        return page.rows()

    async def not_to_search(self) -> dict[int, BitMap]:
        """Return by ledger what a search for undelayed entries leaves out, besides those that are acknowledged.

        All entries where each has a delivery time, and those whose headers are damaged.

        Raises:
            LedgerError: The log cannot be read.
        """
        schedules = self._schedules(None, None)
        return {
            one.ledger_id: BitMap(range(one.entries)) if len(one) == one.entries else one.damaged
            async for one in schedules
        }

    async def rows(
        self,
        wanted: Wanted,
        takes: MessageFilter | None = None,
        on_searched: OnSearched = _nothing,
        on_damaged: OnDamaged = _nothing,
    ) -> Rows:
        """Return all rows that match, in order of delivery.

        Ledgers are filtered one by one, so that only what matches is in memory; the few rows of own ids' hashes
        together, which reads them at once.

        Args:
            wanted: The conditions on the columns.
            takes: Those on the entries themselves, None for none.
            on_searched: Told how far the search is.
            on_damaged: Told of entries of which it is not known whether they match.

        Raises:
            TooManyRowsError: There are more than `ROWS_MAX`.
            LedgerError: The log cannot be read.
        """
        parts: list[Rows] = []
        count = 0
        async for schedule in self._schedules(wanted.first_ms, wanted.until_ms):
            left_out = self.left_out_of(schedule)
            rows = rows_of(schedule, left_out, wanted)
            if damaged := schedule.damaged - (left_out or BitMap()):
                on_damaged({schedule.ledger_id: damaged})
            if takes is None:
                on_searched(len(rows), len(rows))
            elif wanted.id_hashes is None:
                rows = rows.take(await matching(self.topic.ledger, rows, takes, on_searched, on_damaged))
            count += len(rows)
            if count > ROWS_MAX:
                raise TooManyRowsError(f"more than {ROWS_MAX} messages are meant")
            parts.append(rows)
        found = await _in_order(parts)
        if takes is not None and wanted.id_hashes is not None:
            return found.take(await matching(self.topic.ledger, found, takes, on_searched, on_damaged))
        return found

    async def histogram_of(self, wanted: Wanted, takes: MessageFilter, buckets: int) -> Histogram:
        """Count the messages that a key or properties select, as `histogram` does: they are found first, then counted.

        Raises:
            TooManyRowsError: The messages are too many.
            LedgerError: The log cannot be read.
        """
        rows = await self.rows(wanted, takes)
        is_waited_for = self.is_waited_for(rows)
        times = rows.deliver_at_ms[is_waited_for]
        ends_ms = (int(times[0]), int(times[-1])) if len(times) else None
        counter = HistogramCounter(wanted.from_ms, wanted.until_ms, ends_ms, buckets, self.now_ms)
        counter.add(times, len(rows) - len(times))
        return counter.result()

    async def histogram(self, from_ms: int | None, until_ms: int | None, buckets: int) -> Histogram:
        """Count messages in equal parts of a span of time, by default from the first to the last one.

        Raises:
            LedgerError: The log cannot be read.
        """
        in_hand = 0
        if self.moment.has_in_hand:
            async for schedule in self._schedules(from_ms, until_ms):
                in_hand += self.in_hand_in(schedule, from_ms, until_ms)
        ends_ms: tuple[int, int] | None = None
        if from_ms is None or until_ms is None:
            spans = [
                (int(times[0]), int(times[-1]))
                async for schedule in self._schedules(from_ms, until_ms)
                if len(times := self.times_in(schedule, from_ms, until_ms))
            ]
            ends_ms = (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None
        counter = HistogramCounter(from_ms, until_ms, ends_ms, buckets, self.now_ms)
        from_ms, until_ms = counter.from_ms, counter.until_ms
        async for schedule in self._schedules(from_ms, until_ms):
            counter.add(self.times_in(schedule, from_ms, until_ms))
        counter.add(np.empty(0, np.int64), in_hand)
        return counter.result()

    def is_scheduled(self, position: Position, deliver_at_ms: int) -> bool:
        """Whether a subscription delays an entry with this time and has not acknowledged it; it may be in a hand."""
        if deliver_at_ms == NOT_DELAYED:
            return False
        for one in self.subscriptions:
            is_delayed = position <= delays_through(one.cursor, self.topic.delayed_delivery)
            if is_delayed and not one.cursor.is_durably_acknowledged(*position):
                return True
        return False

    def times_in(self, schedule: LedgerSchedule, from_ms: int | None, until_ms: int | None) -> Int64Array:
        """Return the times of a ledger's scheduled messages in a span of time, ascending."""
        return times_of(schedule, self.left_out_of(schedule), from_ms, until_ms)

    @property
    def first_ledger_id(self) -> int:
        """The first ledger that a subscription has not finished; one behind all ledgers without a subscription."""
        firsts = [self.moment.first_ledger_id[one] for one in self.subscriptions]
        return min(firsts, default=AFTER_EVERYTHING.ledger_id)

    def _schedules(self, from_ms: int | None, until_ms: int | None) -> AsyncIterator[LedgerSchedule]:
        ledgers = [one for one in self.moment.ledgers if one.ledger_id >= self.first_ledger_id]
        return self._catalog.schedules(self.topic.ledger, ledgers, from_ms, until_ms)


async def totals_of_each(catalog: ScheduleCatalog, schedules: Sequence[TopicSchedule]) -> list[ScheduleTotals]:
    """Count the messages of some schedules of one topic, with one pass over its log for all of them.

    Raises:
        LedgerError: The log cannot be read.
    """
    if not schedules:
        return []
    counted = [(one, TotalsCounter(one.now_ms)) for one in schedules]
    first = min(one.first_ledger_id for one in schedules)
    turns = Turns()
    # The last one is of the latest moment.
    ledgers = [ledger for ledger in schedules[-1].moment.ledgers if ledger.ledger_id >= first]
    async for ledger_schedule in catalog.schedules(schedules[-1].topic.ledger, ledgers, None, None):
        for one, totals in counted:
            if ledger_schedule.ledger_id >= one.first_ledger_id:
                in_hand = one.in_hand_in(ledger_schedule, None, None)
                totals.add(one.times_in(ledger_schedule, None, None), in_hand)
                await turns.give_way()
    return [totals.result() for _, totals in counted]


async def schedules_of_each(
    topic: Topic, catalog: ScheduleCatalog, subscriptions: Sequence[Subscription], now_ms: Clock
) -> list[TopicSchedule]:
    """Return the schedule of each subscription, each of a moment of its own: a topic may have thousands."""
    found: list[TopicSchedule] = []
    turns = Turns()
    for subscription in subscriptions:
        moment = Moment(topic, [subscription])
        found.append(TopicSchedule(topic, catalog, [subscription], now_ms, moment=moment))
        await turns.give_way()
    return found


async def _in_order(parts: list[Rows]) -> Rows:
    if sum(len(part) for part in parts) < 20_000:
        return ordered(parts)
    # Sorting releases the interpreter lock.
    return await asyncio.to_thread(ordered, parts)
