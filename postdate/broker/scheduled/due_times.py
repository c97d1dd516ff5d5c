"""When the next and the last scheduled messages of a topic come due, for `/metrics`.

The times are exact for a log of up to `EXACT_ENTRIES_MAX`. Metrics are read all the time, and must not bring the
columns of a longer log into memory. There the delayed index says the next time, and where it does not, or its next
message is held back, the last count in the log (`postdate.broker.scheduled.delayed_counts`). The last time is an upper
bound then, which the ledgers know.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from managed_ledger.value_types import Clock
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic

EXACT_ENTRIES_MAX: Final = 100_000
"""The longest log whose columns metrics keep."""


async def note_due_times(
    topic: Topic,
    delaying: Sequence[Subscription],
    catalog: ScheduleCatalog,
    now_ms: Clock,
    *,
    exact_entries_max: int = EXACT_ENTRIES_MAX,
) -> None:
    """Note at a topic when its next and last messages come due: 0 for never, None where that is not known.

    Args:
        topic: An open topic.
        delaying: Its subscriptions of which a message may wait for its time, as `note_delayed` found just now.
        catalog: Keeps the columns of short logs.
        now_ms: The clock.
        exact_entries_max: The most entries of a log whose columns are kept.

    Raises:
        LedgerError: The log cannot be read; the times are not known.
    """
    topic.next_deliver_at_ms = topic.last_deliver_at_ms = None
    now = now_ms()
    if not delaying:
        topic.next_deliver_at_ms = topic.last_deliver_at_ms = 0
    elif topic.ledger.entries_total <= exact_entries_max:
        totals = await TopicSchedule(topic, catalog, delaying, now_ms).totals()
        topic.next_deliver_at_ms = totals.next_deliver_at_ms or 0
        topic.last_deliver_at_ms = totals.last_deliver_at_ms or 0
    else:
        nexts = [next_roughly(topic, one, now) for one in delaying]
        # Where one is not known, the others are bounds all the same.
        topic.next_deliver_at_ms = min((one for one in nexts if one), default=None if None in nexts else 0)
        if topic.next_deliver_at_ms == 0:
            topic.last_deliver_at_ms = 0
        else:
            first = min(one.cursor.next_unacknowledged_position for one in delaying)
            topic.last_deliver_at_ms = topic.ledger.last_due_ms_behind(first)


def may_have_delayed(topic: Topic, subscription: Subscription, now_ms: int) -> bool:
    """Whether a message of a subscription may wait for its time, as far as the ledgers' own figures tell."""
    if not subscription.has_delays or not subscription.cursor.backlog:
        return False
    last_ms = topic.ledger.last_due_ms_behind(subscription.cursor.next_unacknowledged_position)
    return last_ms is not None and last_ms > now_ms


def next_roughly(topic: Topic, subscription: Subscription, now_ms: int) -> int | None:
    """Return about when the next message of a subscription comes due; 0 for never, None where that is not known."""
    indexed_ms = next_in_index(subscription, now_ms)
    if indexed_ms is not None:
        return indexed_ms
    counted = subscription.delayed_in_log
    place = bisect_right(counted.some_deliver_at_ms, now_ms)
    if place < len(counted.some_deliver_at_ms):
        return counted.some_deliver_at_ms[place]
    # Messages that were appended since then may be delayed.
    return 0 if counted.through == topic.ledger.last_confirmed_position else None


def next_in_index(subscription: Subscription, now_ms: int) -> int | None:
    """Return the next time in the delayed index; None where it does not know all or holds what is due already."""
    dispatcher = subscription.dispatcher
    if dispatcher is None or dispatcher.tracker is None or not subscription.knows_all_delayed:
        return None
    deliver_at_ms = dispatcher.tracker.next_delivery_time()
    return deliver_at_ms if deliver_at_ms is not None and deliver_at_ms > now_ms else None
