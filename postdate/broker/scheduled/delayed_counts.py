"""How many messages are delayed, overdue and in hand, counted in the log instead of in the delayed index.

The index does not know it while it recovers, and a subscription that has had no consumer since the start has no index:
it costs memory, and most of ten thousand topics are quiet. The headers in the log and the cursor say it exactly, and
also how much comes due within a minute, an hour and a day, which no index says. A request for the stats of one topic
counts all its subscriptions. A periodic job counts, for `/metrics`, those of which a count has changed since the last
time, or may have; `/metrics` itself reads the last count. Of a long log only a few times are kept, and it is counted
again only so often that counting takes a small share of the time.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from managed_ledger.errors import LedgerError
from managed_ledger.positions.value_types import Clock
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.topic_schedule import TopicSchedule, schedules_of_each, totals_of_each
from postdate.broker.slices import Turns
from postdate.broker.topics.delayed_range import delays_through
from postdate.broker.topics.figures import NOTHING_WAITS, ScheduledCounts, TopicCounts
from postdate.broker.topics.subscription import DelayedInLog, Subscription
from postdate.broker.topics.topic import Topic

logger = logging.getLogger(__name__)

KEPT_ENTRIES_MAX: Final = 100_000
"""The longest log whose columns are kept."""

COUNTED_ENTRIES_MAX: Final = 5_000_000
"""The longest log whose messages are counted for its stats: 80 MB of columns, 0.3 s where they are not in memory."""

COUNTING_SHARE: Final = 0.05
"""The largest share of the time that counting a long log for metrics takes."""

COUNTING_SHARE_WHILE_SENT: Final = 0.01
"""The same where the dispatchers know how many messages are delayed, and only their times are looked for."""


async def delayed_counts(topic: Topic, catalog: ScheduleCatalog, now_ms: Clock) -> dict[str, int]:
    """Return by subscription how many messages wait for their time, for a log of up to `COUNTED_ENTRIES_MAX`.

    The result is empty for a longer log, and for one that cannot be read.
    """
    if topic.ledger.entries_total > COUNTED_ENTRIES_MAX:
        await count_delayed(topic, catalog, now_ms)
        return {}
    delaying = [one for one in topic.subscriptions.values() if one.has_delays]
    try:
        totals = await totals_of_each(catalog, await schedules_of_each(topic, catalog, delaying, now_ms))
        return {one.name: counted.delayed for one, counted in zip(delaying, totals, strict=True)}
    except LedgerError as error:
        logger.warning("%s: its delayed messages cannot be counted in the log: %s", topic.name, error)
        return {}


async def count_delayed(
    topic: Topic,
    catalog: ScheduleCatalog,
    now_ms: Clock,
    *,
    kept_entries_max: int = KEPT_ENTRIES_MAX,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> None:
    """Count for each subscription how many messages are delayed, overdue and in hand; log what fails.

    The log is counted where a message may wait for its time, or the dispatcher does not know that none does. Where
    nothing has changed since the last count, that one holds.

    Args:
        topic: An open topic.
        catalog: Keeps the columns of short logs.
        now_ms: The clock.
        kept_entries_max: The most entries of a log whose columns are kept.
        monotonic_s: A clock that never goes back.
    """
    is_long = topic.ledger.entries_total > kept_entries_max
    now = now_ms()
    counted: list[Subscription] = []
    waiting: list[Subscription] = []
    turns = Turns()
    for subscription in list(topic.subscriptions.values()):
        may_delay = subscription.may_have_delayed(now)
        known = subscription.known_counts()
        if known is not None:
            subscription.scheduled = known
            if not may_delay:
                subscription.delayed_in_log = DelayedInLog()
        if known is None or may_delay:
            waiting.append(subscription)
            if not _is_as_counted(topic, subscription, now):
                counted.append(subscription)
        await turns.give_way()
    if not waiting:
        topic.counts = NOTHING_WAITS
    elif topic.counts is None or topic.counts.subscriptions != len(waiting):
        counted = waiting
    begin_s = monotonic_s()
    backlogs = [one.cursor.backlog for one in counted]
    is_costly = is_long or topic.ledger.entries_total * len(counted) > COUNTED_ENTRIES_MAX
    if not counted or (is_costly and all(begin_s < one.delayed_in_log.valid_until_s for one in counted)):
        return
    # A catalog without room keeps nothing.
    columns = ScheduleCatalog(bytes_max=0) if is_long else catalog
    share = COUNTING_SHARE_WHILE_SENT if all(one.knows_all_delayed for one in counted) else COUNTING_SHARE
    through = topic.ledger.last_confirmed_position
    try:
        schedules = await schedules_of_each(topic, columns, counted, now_ms)
        if len(waiting) > 1:
            schedules.append(TopicSchedule(topic, columns, waiting, now_ms))
        totals = await totals_of_each(columns, schedules)
    except LedgerError as error:
        logger.warning("%s: its delayed messages cannot be counted in the log: %s", topic.name, error)
        topic.counts = None
        for subscription in counted:
            subscription.scheduled = None
        return
    end_s = monotonic_s()
    of_all = totals[-1]
    topic.counts = TopicCounts(len(waiting), of_all.delayed, of_all.overdue, of_all.due_soon)
    for subscription, of_one, backlog in zip(counted, totals, backlogs, strict=False):
        subscription.scheduled = ScheduledCounts(of_one.delayed, of_one.overdue, of_one.in_hand)
        subscription.delayed_in_log = DelayedInLog(
            of_one.delayed,
            end_s + (end_s - begin_s) / share,
            through,
            backlog,
            of_one.some_deliver_at_ms,
            of_one.first_overdue_ms,
            of_one.holds_until_ms,
            delays_through(subscription.cursor, topic.delayed_delivery),
        )


def _is_as_counted(topic: Topic, subscription: Subscription, now_ms: int) -> bool:
    """Whether the last count still holds: the log and the backlog are the same, and nothing came due or to a hand."""
    counts, counted = subscription.scheduled, subscription.delayed_in_log
    return (
        counts is not None
        and not counts.in_hand
        and not subscription.entries_in_hand()
        and counted.through == topic.ledger.last_confirmed_position
        and counted.backlog == subscription.cursor.backlog
        and counted.delays_through == delays_through(subscription.cursor, topic.delayed_delivery)
        and (counted.holds_until_ms is None or now_ms < counted.holds_until_ms)
    )
