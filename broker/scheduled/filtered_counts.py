"""Counts of the scheduled messages that a key or properties select: the messages are found first, then counted."""

import numpy as np

from broker.scheduled.histogram import Histogram, HistogramCounter
from broker.scheduled.ledger_schedule import Batches, order_of_times
from broker.scheduled.matched import match_rows
from broker.scheduled.operations import Selector
from broker.scheduled.topic_schedule import TopicSchedule


async def histogram_of(schedule: TopicSchedule, selector: Selector, buckets: int, now_ms: int) -> Histogram:
    """Count selected messages in equal parts of a span of time, by default from the first to the last one.

    Args:
        schedule: The topic's schedule for the subscriptions that count.
        selector: Selects by conditions.
        buckets: How many parts.
        now_ms: The present time.

    Raises:
        TooManyRowsError: The messages are too many.
        LedgerError: The log cannot be read.
    """
    matched = match_rows(schedule, await schedule.rows(selector.wanted, selector.filter))
    times = np.concatenate([matched.rows.deliver_at_ms, np.array(list(matched.parts.values()), np.int64)])
    times.sort()
    batches = Batches(
        np.array([one.deliver_at_ms for one in matched.batches.values()], np.int64),
        np.array([at.entry_id for at in matched.batches], np.uint32),
        np.array([one.message_count for one in matched.batches.values()], np.int32),
    )
    ends_ms = (int(times[0]), int(times[-1])) if len(times) else None
    counter = HistogramCounter(selector.from_ms, selector.until_ms, ends_ms, buckets, now_ms)
    counter.add(times, batches.take(order_of_times(batches.deliver_at_ms)))
    return counter.result()
