"""Lists: a page of a topic's scheduled messages, and a summary of each topic."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from managed_ledger.positions.value_types import Clock
from postdate.broker.scheduled import answers
from postdate.broker.scheduled.answers import both
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.histogram import ScheduleTotals
from postdate.broker.scheduled.messages import PAGE_BYTES_MAX, described, described_without_entry, fitting
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


_NOTHING: Final = ScheduleTotals(0, 0, 0, None, None, ())


async def list_messages(
    schedule: TopicSchedule, selector: Selector, *, limit: int, after: PageToken | None, has_payload: bool
) -> tuple[list[answers.MessageAnswer], PageToken | None]:
    """Return the first selected messages, and the token of the next page; None at the end.

    A page can be shorter than the limit and not the last: where messages are large, or few of many are selected.

    Raises:
        LedgerError: The log cannot be read.
    """
    wanted = replace(selector.wanted, after=None if after is None else after.place)
    messages: list[answers.MessageAnswer] = []
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


def undelayed(subscriptions: Sequence[Subscription]) -> list[answers.Undelayed]:
    """Return those that do not delay, with a sentence about each; a reader's is left out, as it lasts no longer."""
    kinds = [(one.name, one.type_without_delays) for one in subscriptions if one.cursor.is_durable]
    return [
        answers.Undelayed(
            subscription=name,
            type=kind.value,
            sentence=f"Nothing is scheduled for {name}: its subscription is {kind.value}, which does not delay",
        )
        for name, kind in kinds
        if kind is not None
    ]


async def topic_summary(topic: Topic, catalog: ScheduleCatalog, now_ms: Clock) -> answers.TopicAnswer:
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
    shown = [
        answers.TopicSubscription(
            **_kind_of(one),
            **counts_of(of_each.get(one)),
            **pause_of(one),
            consumers=len(one.consumers),
            backlog=one.cursor.backlog,
        )
        for one in subscriptions
    ]
    return answers.TopicAnswer(
        name=topic.name.short,
        subscriptions=shown,
        **counts_of(of_all),
        backlog=sum(one.cursor.backlog for one in subscriptions),
        paused=any(one.pause.is_paused for one in subscriptions),
        published_without_subscription=topic.published_without_subscription_total,
    )


def counts_of(totals: ScheduleTotals | None) -> dict[str, Any]:
    """Return the fields of `answers.Counts`; nothing is scheduled for a subscription without totals."""
    totals = totals or _NOTHING
    return {
        "delayed": totals.delayed,
        "overdue": totals.overdue,
        "in_hand": totals.in_hand,
        "due_within_minute": totals.due_soon.within_minute,
        "due_within_hour": totals.due_soon.within_hour,
        "due_within_day": totals.due_soon.within_day,
        "first_overdue_ms": totals.first_overdue_ms,
        **both("next_due", totals.next_deliver_at_ms),
        **both("last_due", totals.last_deliver_at_ms),
    }


def pause_of(subscription: Subscription) -> dict[str, Any]:
    """Return the fields of `answers.SubscriptionPause` but for the name."""
    pause = subscription.pause
    return {
        "paused": pause.is_paused,
        **both("paused_since", pause.paused_since_ms),
        "paused_by": pause.author,
        "pause_note": pause.note,
        "rate_per_second": pause.rate_per_second,
    }


def subscriptions_of(topic: Topic) -> list[answers.SubscriptionKind]:
    """Return the subscriptions of a topic and whether they delay, without a look at the log."""
    return [answers.SubscriptionKind(**_kind_of(one)) for one in topic.subscriptions.values()]


def _kind_of(subscription: Subscription) -> dict[str, Any]:
    kind = subscription.subscription_type or subscription.type_without_delays
    return {
        "name": subscription.name,
        "type": None if kind is None else kind.value,
        "delays": subscription.has_delays,
    }
