"""How many entries wait for their time, counted in the log instead of in the delayed index.

The index does not know it while it recovers, and a subscription that has had no consumer since the start has no index:
it costs memory, and most of ten thousand topics are quiet. The headers in the log and the cursor say it exactly. A
request for the stats of one topic counts all its subscriptions. `/metrics` asks for all topics, again and again, so it
counts those that are paused or have no dispatcher; of a long log nothing is kept, and it is counted again only so often
that counting takes a twentieth of the time.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from broker.scheduled.catalog import ScheduleCatalog
from broker.scheduled.topic_schedule import totals_of_each
from broker.topics.subscription import DelayedInLog, Subscription
from broker.topics.topic import Topic
from managed_ledger.errors import LedgerError
from managed_ledger.value_types import Clock

logger = logging.getLogger(__name__)

COUNTED_ENTRIES_MAX: Final = 5_000_000
"""The longest log whose messages are counted for its stats: 80 MB of columns, 0.3 s where they are not in memory."""

KEPT_ENTRIES_MAX: Final = 100_000
"""The longest log whose columns metrics keep."""

COUNTING_SHARE: Final = 0.05
"""The largest share of the time that counting a long log for metrics takes."""


async def delayed_counts(topic: Topic, catalog: ScheduleCatalog, now_ms: Clock) -> dict[str, int]:
    """Return by subscription how many messages wait for their time, for a log of up to `COUNTED_ENTRIES_MAX`.

    The result is empty for a longer log, and for one that cannot be read.
    """
    if topic.ledger.entries_total > COUNTED_ENTRIES_MAX:
        await note_delayed(topic, catalog, now_ms)
        return {}
    delaying = [one for one in topic.subscriptions.values() if one.has_delays]
    try:
        totals = await totals_of_each(topic, catalog, delaying, now_ms)
        return {one.name: counted.future_entries for one, counted in zip(delaying, totals, strict=True)}
    except LedgerError as error:
        logger.warning("%s: its delayed messages cannot be counted in the log: %s", topic.name, error)
        return {}


async def note_delayed(
    topic: Topic,
    catalog: ScheduleCatalog,
    now_ms: Clock,
    *,
    kept_entries_max: int = KEPT_ENTRIES_MAX,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> None:
    """Note at each subscription that is paused or has no dispatcher how many messages are delayed; log what fails.

    Args:
        topic: An open topic.
        catalog: Keeps the columns of short logs.
        now_ms: The clock.
        kept_entries_max: The most entries of a log whose columns are kept.
        monotonic_s: A clock that never goes back.
    """
    counted: list[Subscription] = []
    for subscription in topic.subscriptions.values():
        # The dispatcher of a paused subscription may have stopped reading, so its index knows too few.
        is_counted = subscription.dispatcher is None or subscription.pause.is_paused
        if is_counted and subscription.has_delays and subscription.cursor.backlog:
            counted.append(subscription)
        else:
            subscription.delayed_in_log = DelayedInLog()
    is_long = topic.ledger.entries_total > kept_entries_max
    begin_s = monotonic_s()
    if not counted or (is_long and all(begin_s < one.delayed_in_log.valid_until_s for one in counted)):
        return
    # A catalog without room keeps nothing.
    columns = ScheduleCatalog(bytes_max=0) if is_long else catalog
    try:
        totals = await totals_of_each(topic, columns, counted, now_ms)
    except LedgerError as error:
        logger.warning("%s: its delayed messages cannot be counted in the log: %s", topic.name, error)
        return
    end_s = monotonic_s()
    for subscription, of_one in zip(counted, totals, strict=True):
        subscription.delayed_in_log = DelayedInLog(of_one.future_entries, end_s + (end_s - begin_s) / COUNTING_SHARE)
