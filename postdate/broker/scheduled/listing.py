"""Lists: a page of a topic's scheduled messages, and a summary of each topic."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from managed_ledger.value_types import Clock, Json
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.messages import PAGE_BYTES_MAX, both, described, described_without_entry, fitting
from postdate.broker.scheduled.moment import Moment
from postdate.broker.scheduled.operations import Selector
from postdate.broker.scheduled.page_token import PageToken
from postdate.broker.scheduled.topic_schedule import TopicSchedule, totals_of_each
from postdate.broker.slices import Turns
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from tracker.columns.row_order import RowKey, key_of

CANDIDATES_MAX: Final = 200_000
"""The most entries that one page reads; with few matches the page ends early and names where to continue."""


async def list_messages(
    schedule: TopicSchedule, selector: Selector, *, limit: int, after: PageToken | None, has_payload: bool
) -> tuple[list[Json], PageToken | None]:
    """Return the first selected messages, and the token of the next page; None at the end.

    A page can be shorter than the limit and not the last: where messages are large, or few of many are selected.

    Raises:
        LedgerError: The log cannot be read.
    """
    wanted = replace(selector.wanted, after=None if after is None else after.place)
    messages: list[Json] = []
    candidates = bytes_read = 0
    turns = Turns()
    while True:
        rows = await schedule.page(wanted, limit)
        headers = await schedule.topic.ledger.read_headers_at(rows.ledger_ids, rows.entry_ids)
        if not len(headers):
            if not len(rows):
                return messages, None
            # All messages of this page were trimmed meanwhile.
            wanted = replace(wanted, after=key_of(rows, -1))
            continue
        headers = headers.take(slice(0, fitting(headers, max(1, PAGE_BYTES_MAX - bytes_read))))
        entries, damaged = await schedule.topic.ledger.read_intact_payloads(headers.ledger_ids, headers.entry_ids)
        for row, entry in enumerate(entries):
            place = RowKey(int(headers.deliver_at_ms[row]), int(headers.ledger_ids[row]), int(headers.entry_ids[row]))
            wanted = replace(wanted, after=place)
            bytes_read += int(headers.sizes[row])
            if entry is None:
                # Its header has the hash of its key, which decided already.
                if place.entry_id not in damaged.get(place.ledger_id, ()) or selector.filter.properties:
                    continue
                messages.append(described_without_entry(row, headers))
            elif selector.filter.is_trivial or selector.filter.matches(entry):
                messages.append(described(entry, row, headers, has_payload=has_payload))
            else:
                continue
            if len(messages) == limit:
                return messages, await _if_more(schedule, selector, wanted.after)
            await turns.give_way()
        candidates += len(rows)
        if len(rows) < limit and len(headers) == len(rows):
            return messages, None
        if candidates >= CANDIDATES_MAX or bytes_read >= PAGE_BYTES_MAX:
            return messages, await _if_more(schedule, selector, wanted.after)


async def _if_more(schedule: TopicSchedule, selector: Selector, place: RowKey | None) -> PageToken | None:
    assert place is not None
    rows = await schedule.page(replace(selector.wanted, after=place), 1)
    return PageToken(place) if len(rows) else None


def undelayed(subscriptions: Sequence[Subscription]) -> list[Json]:
    """Return those that do not delay, with a sentence about each; a reader's is left out, as it lasts no longer."""
    kinds = [(one.name, one.type_without_delays) for one in subscriptions if one.cursor.is_durable]
    return [
        {
            "subscription": name,
            "type": kind.value,
            "sentence": f"Nothing is scheduled for {name}: its subscription is {kind.value}, which does not delay",
        }
        for name, kind in kinds
        if kind is not None
    ]


async def topic_summary(topic: Topic, catalog: ScheduleCatalog, now_ms: Clock) -> Json:
    """Return the summary of a topic, for all of its subscriptions and for each.

    Raises:
        LedgerError: The log cannot be read.
    """
    subscriptions = list(topic.subscriptions.values())
    delaying = [one for one in subscriptions if one.has_delays]
    moment = Moment(topic, delaying)
    groups = [delaying, *([one] for one in delaying)]
    schedules = [TopicSchedule(topic, catalog, group, now_ms, moment=moment) for group in groups]
    of_all, *of_each_in_order = await totals_of_each(catalog, schedules)
    of_each = dict(zip(delaying, of_each_in_order, strict=True))
    shown = []
    for one in subscriptions:
        totals = of_each.get(one)
        shown.append(
            {
                **_kind_of(one),
                "consumers": len(one.consumers),
                "backlog": one.cursor.backlog,
                "delayed": 0 if totals is None else totals.delayed,
                "overdue": 0 if totals is None else totals.overdue,
                "inHand": 0 if totals is None else totals.in_hand,
                **both("nextDue", None if totals is None else totals.next_deliver_at_ms),
                **both("lastDue", None if totals is None else totals.last_deliver_at_ms),
                "paused": one.pause.is_paused,
                **both("pausedSince", one.pause.paused_since_ms),
                "ratePerSecond": one.pause.rate_per_second,
            }
        )
    return {
        "name": f"{topic.name.namespace_name}/{topic.name.local_name}",
        "subscriptions": shown,
        "delayed": of_all.delayed,
        "overdue": of_all.overdue,
        "inHand": of_all.in_hand,
        **both("nextDue", of_all.next_deliver_at_ms),
        **both("lastDue", of_all.last_deliver_at_ms),
        "backlog": sum(one.cursor.backlog for one in subscriptions),
        "paused": any(one.pause.is_paused for one in subscriptions),
        "publishedWithoutSubscription": topic.published_without_subscription_total,
    }


def subscriptions_of(topic: Topic) -> list[Json]:
    """Return the subscriptions of a topic and whether they delay, without a look at the log."""
    return [_kind_of(one) for one in topic.subscriptions.values()]


def _kind_of(subscription: Subscription) -> Json:
    kind = subscription.subscription_type or subscription.type_without_delays
    return {
        "name": subscription.name,
        "type": None if kind is None else kind.value,
        "delays": subscription.has_delays,
    }
