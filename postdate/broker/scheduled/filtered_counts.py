"""Counts of the scheduled messages that a key or properties select: the messages are found first, then counted."""

from postdate.broker.scheduled.histogram import Histogram, HistogramCounter
from postdate.broker.scheduled.operations import Selector
from postdate.broker.scheduled.topic_schedule import TopicSchedule


async def histogram_of(schedule: TopicSchedule, selector: Selector, buckets: int, now_ms: int) -> Histogram:
    """Count selected messages in equal parts of a span of time, by default from the first to the last one.

    Args:
        schedule: The topic's schedule for the subscriptions that count, with what is in hand.
        selector: Selects by conditions.
        buckets: How many parts.
        now_ms: The present time.

    Raises:
        TooManyRowsError: The messages are too many.
        LedgerError: The log cannot be read.
    """
    rows = await schedule.rows(selector.wanted, selector.filter)
    is_waited_for = schedule.is_waited_for(rows)
    times = rows.deliver_at_ms[is_waited_for]
    ends_ms = (int(times[0]), int(times[-1])) if len(times) else None
    counter = HistogramCounter(selector.from_ms, selector.until_ms, ends_ms, buckets, now_ms)
    counter.add(times, len(rows) - len(times))
    return counter.result()
