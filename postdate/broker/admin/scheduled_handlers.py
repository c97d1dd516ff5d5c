"""The handlers of `/postdate/v1`: requests about scheduled messages are carried out in `postdate.broker.scheduled`.

A key and properties may be longer than aiohttp lets a query be (8,190 bytes), so a look has a body form, with the same
fields. Paths, requests and answers are in the table of `postdate.broker.admin.endpoints`.
"""

import math
import time
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import UNSET

from managed_ledger.positions.position import Position
from postdate.broker.admin import scheduled_requests as requests
from postdate.broker.admin.endpoint import Call
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.scheduled_requests import (
    Count,
    Explain,
    Key,
    List,
    ListTopics,
    ListTrail,
    NewTime,
    Pause,
    Rescheduling,
    Resume,
    SelectionRequest,
)
from postdate.broker.admin.topic_stats import KeyStatusAnswer, key_status
from postdate.broker.admin.trail import TrailAnswer
from postdate.broker.admin.web_service import Served
from postdate.broker.scheduled import answers
from postdate.broker.scheduled.delayed_counts import COUNTING_SHARE
from postdate.broker.scheduled.explanation import explain_found, explain_message
from postdate.broker.scheduled.listing import (
    counts_of,
    list_messages,
    pause_of,
    subscriptions_of,
    topic_summary,
    undelayed,
)
from postdate.broker.scheduled.operations import ChangeOutcome, Operations, Progress, Selector, early_ms_of
from postdate.broker.scheduled.selection import Rows
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.slices import in_slices
from postdate.broker.topics.figures import TopicCounts
from postdate.broker.topics.pause import NOT_PAUSED, PauseState
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import DOMAIN_PREFIX, TopicName

OPERATION_ID: Final = "Operation-Id"
_NO_KEY_ADVICE: Final = (
    "Acknowledged, cancelled and expired messages are not found by key, and those of a batch by the batch's key alone: "
    "explain them by messageId (--id)"
)
_NO_ID_ADVICE: Final = (
    "Acknowledged, cancelled, replaced and expired messages are not found by id: explain them by messageId (--id)"
)
_NOTHING_ADVICE: Final = "GET .../scheduled lists the scheduled messages; delivered and cancelled ones are gone"

Outcome = TypeVar("Outcome", bound=answers.ChangeAnswer)


async def list_topics(served: Served, call: Call[ListTopics]) -> answers.Topics:
    """The topics that the caller may see, by name; all of them without a limit, else `next` goes on."""
    asked, caller, service = call.asked, call.caller, served.service
    contained = asked.contains.lower()
    found: list[answers.TopicAnswer] = []
    following, total, last = None, 0, ""
    async for full_name in in_slices(service.topics.names()):
        shown = full_name.removeprefix(DOMAIN_PREFIX)
        if contained not in shown.lower():
            continue
        name = TopicName.parse(full_name)
        if caller is not None and not caller.may_see(name):
            continue
        total += 1
        if shown <= asked.after:
            continue
        if asked.limit is not UNSET and len(found) == asked.limit:
            following = last
            continue
        async with service.topics.visit(name) as topic:
            if topic is None:
                # It was deleted meanwhile.
                continue
            found.append(await _summary(served, call, topic))
        last = shown
    return answers.Topics(topics=found, next=following, total=total)


async def totals(served: Served, call: Call[None]) -> answers.Totals:
    """How much is scheduled, overdue and due soon in all topics that the caller may see.

    Open topics are counted where something has changed, which takes a small share of the time; closed ones are
    estimated by their first and last times.
    """
    topics, begin_s = served.service.topics, time.monotonic()
    is_counted = served.counted_until_s <= begin_s
    found: list[TopicCounts | None] = []
    if is_counted:
        served.counted_until_s = math.inf
    try:
        async for full_name in in_slices(topics.names()):
            name = TopicName.parse(full_name)
            if call.caller is None or call.caller.may_see(name):
                found.append(await topics.scheduled_in(name, is_counted=is_counted))
    finally:
        if is_counted:
            end_s = time.monotonic()
            served.counted_until_s = end_s + (end_s - begin_s) / COUNTING_SHARE
    known = [one for one in found if one is not None]
    minute, hour, day = (sum(one.due_soon[place] for one in known) for place in range(3))
    return answers.Totals(
        topics=len(found),
        delayed=sum(one.delayed for one in known),
        overdue=sum(one.overdue for one in known),
        due_within_minute=minute,
        due_within_hour=hour,
        due_within_day=day,
        unknown=len(found) - len(known),
        estimated=sum(one.is_estimate for one in known),
    )


async def get_topic(served: Served, call: Call[None]) -> answers.TopicAnswer:
    """One topic."""
    return await _summary(served, call, await served.topic(call.topic_name))


async def _summary(served: Served, call: Call[Any], topic: Topic) -> answers.TopicAnswer:
    answer = await topic_summary(topic, served.service.catalog, served.service.now_ms)
    answer.may_pause = call.caller is None or call.caller.is_super_user
    return answer


async def list_subscriptions(served: Served, call: Call[None]) -> answers.Subscriptions:
    """The subscriptions of a topic and whether they delay; nothing is counted for it."""
    return answers.Subscriptions(subscriptions=subscriptions_of(await served.topic(call.topic_name)))


async def list_scheduled(served: Served, call: Call[List]) -> answers.PageAnswer:
    """Scheduled messages, in order of time and position.

    A page may end early, `next` is null at the end. A list of nothing is an answer.
    """
    asked = call.asked
    selector, after = requests.conditions_of(asked), requests.page_token_of(asked.after)
    schedule = _schedule(served, await served.topic(call.topic_name), asked.subscription)
    messages, following = await list_messages(
        schedule, selector, limit=asked.limit, after=after, has_payload=asked.payload
    )
    return answers.PageAnswer(messages=messages, next=None if following is None else str(following))


async def histogram(served: Served, call: Call[Count]) -> answers.HistogramAnswer:
    """How much is due when; without from and until, of all that is selected.

    413 where a key or property selects more than a request can look at.
    """
    asked, caller = call.asked, call.caller
    selector = requests.conditions_of(asked)
    is_of_all = selector.filter.is_trivial
    # By a key or a property, a count tells these, too.
    if not is_of_all and caller is not None and not caller.may_read(call.topic_name):
        raise RefusalError(403, "The role is not allowed to count by key or property")
    topic = await served.topic(call.topic_name)
    schedule = _schedule(served, topic, asked.subscription, has_in_hand=not is_of_all)
    if is_of_all:
        found = await schedule.histogram(selector.from_ms, selector.until_ms, asked.buckets)
    else:
        found = await schedule.histogram_of(selector.wanted, selector.filter, asked.buckets)
    spans = zip(found.edges[:-1], found.edges[1:], found.counts.tolist(), strict=True)
    return answers.HistogramAnswer(
        total=found.totals.count,
        **counts_of(found.totals),
        buckets=[answers.Bucket(from_ms=begin, until_ms=end, count=count) for begin, end, count in spans],
        undelayed=undelayed(_named(topic, asked.subscription)),
    )


async def cancel(served: Served, call: Call[SelectionRequest]) -> answers.Cancelled:
    """Cancel messages: no consumer gets them that has not got them already; durable when it is answered."""
    asked, selector = call.asked, requests.selector_of(call.asked)
    topic = await served.topic(call.topic_name)
    with served.begin(call.request.headers.get(OPERATION_ID), "cancel", topic.name) as progress:
        operations = operations_of(served, topic, asked.subscription, progress)
        outcome = await (operations.look_at_cancel if asked.dry_run else operations.cancel)(selector)
        answer = _outcome(answers.Cancelled, outcome, asked)
        if not asked.dry_run:
            answer.cancelled = outcome.changed
        return answer


async def reschedule(served: Served, call: Call[NewTime]) -> answers.Rescheduled:
    """Give messages another time: exactly one of the old and the new one is ever delivered.

    A message that is due already stays, unless a pause has held it since before its time.
    """
    new_time = requests.new_time_of(call.asked, served.service.now_ms())
    answer, outcome = await _move(served, call, "reschedule", new_time, answers.Rescheduled)
    if not call.asked.dry_run:
        answer.rescheduled, answer.already_shifted = outcome.changed, outcome.already_shifted
    return answer


async def deliver_now(served: Served, call: Call[SelectionRequest]) -> answers.Delivered:
    """Let messages be due at once, as copies with new ids."""
    answer, outcome = await _move(served, call, "deliver-now", None, answers.Delivered)
    if not call.asked.dry_run:
        answer.delivered = outcome.changed
    return answer


async def pause(served: Served, call: Call[Pause]) -> answers.PausesAnswer:
    """Hold everything of a subscription that is due, what has no delay included; across restarts.

    Without a subscription: of all there are and of those that are made meanwhile; 404 where there is none. A note
    that is new takes the place of an earlier one, with its author.
    """
    topic, name, note = await served.topic(call.topic_name), call.asked.subscription, call.asked.note
    if not topic.subscriptions:
        advice = "Pause it once it has a subscription; later ones then join the pause"
        raise RefusalError(404, "The topic has no subscription to pause", field="subscription", advice=advice)
    # A subscription that is made while another's pause is being stored is found by the next round.
    while to_pause := [one for one in _named(topic, name) if not _is_paused(one, note, is_of_topic=name is None)]:
        for subscription in to_pause:
            pause = subscription.pause
            if not pause.is_paused:
                pause = PauseState(served.service.now_ms())
            if not pause.author or note is not None:
                pause = replace(pause, author=call.role or call.address, note=note)
            await subscription.set_pause(replace(pause, is_of_topic=pause.is_of_topic or name is None))
    return _pauses(topic, name)


async def resume(served: Served, call: Call[Resume]) -> answers.PausesAnswer:
    """Let go what is held, each key in order; with ratePerSecond smoothly, until nothing waits any more."""
    topic, name = await served.topic(call.topic_name), call.asked.subscription
    for subscription in _named(topic, name):
        if subscription.pause != NOT_PAUSED:
            await subscription.set_pause(PauseState(rate_per_second=call.asked.rate_per_second))
    return _pauses(topic, name)


async def explain(served: Served, call: Call[Explain]) -> answers.Explanation:
    """Where a message is, or the unacknowledged messages of a key or an own id are, and why."""
    asked = call.asked
    key = requests.key_of(asked.key, asked.key_base64)
    own_ids = None if asked.id is UNSET else frozenset({asked.id})
    if [asked.message_id is not UNSET, key is not None, own_ids is not None].count(True) != 1:
        advice = "Give messageId for one message, key for the messages of a key, or id for those of an own id"
        raise RefusalError(400, "one of messageId, key and id must be given", field="messageId", advice=advice)
    topic = await served.topic(call.topic_name)
    schedule = _schedule(served, topic, asked.subscription, has_all_types=True, has_in_hand=True)
    now_ms, ttl_ms = served.service.now_ms(), served.service.config.ttl_ms
    if asked.message_id is not UNSET:
        message_id = requests.message_id_of("messageId", asked.message_id)
        of_one = await explain_message(schedule, message_id, now_ms=now_ms, ttl_ms=ttl_ms)
        if of_one is None:
            advice = "It never was, or every subscription has acknowledged it and its ledger was trimmed"
            raise RefusalError(404, f"{topic.name} has no message {message_id}", field="messageId", advice=advice)
        return of_one
    what = "key" if own_ids is None else "id"
    found = await explain_found(schedule, Selector(key=key, own_ids=own_ids), now_ms=now_ms, ttl_ms=ttl_ms)
    if not found.answer.messages:
        error = f"{topic.name} has no unacknowledged message of this {what}"
        if not found.is_whole:
            error = (
                f"{topic.name} has no scheduled message of this {what}, "
                f"and no other one among its first {found.searched} unacknowledged entries"
            )
        raise RefusalError(404, error, field=what, advice=_NO_KEY_ADVICE if own_ids is None else _NO_ID_ADVICE)
    return found.answer


async def keys(served: Served, call: Call[Key]) -> KeyStatusAnswer:
    """The consumer of a key of a Key_Shared subscription, and what it waits for."""
    asked = call.asked
    key = requests.key_of(asked.key, asked.key_base64)
    advice = "Give the subscription, and key or keyBase64"
    if key is None:
        raise RefusalError(400, "key must be given", field="key", advice=advice)
    if asked.subscription is UNSET:
        raise RefusalError(400, "subscription must be given", field="subscription", advice=advice)
    (subscription,) = _named(await served.topic(call.topic_name), asked.subscription)
    return key_status(key, subscription)


async def get_operation(served: Served, call: Call[None]) -> answers.OperationAnswer:
    """How far a cancel, reschedule, deliver-now or backup is."""
    name, caller = call.part("operation"), call.caller
    found = served.operation(name, (lambda _: True) if caller is None else caller.may_see)
    if found is None:
        advice = f"Send the header {OPERATION_ID} with a request, and ask by it while that is answered"
        raise RefusalError(404, f"There is no operation {name}", field="operation", advice=advice)
    return found


async def list_trail(served: Served, call: Call[ListTrail]) -> TrailAnswer:
    """Who changed what, when, and how much of it, the last change first; of topics from which the caller may consume.

    A super user sees all; those of grants, policies and whole namespaces are for super users alone.
    """
    caller, asked = call.caller, TopicName.parse(call.asked.topic).short if call.asked.topic else ""
    found = (
        one
        for one in served.service.trail.newest_first()
        if asked in ("", one.topic)
        and (
            caller is None
            or caller.is_super_user
            or (not one.is_for_super_users and caller.may_read(TopicName.parse(one.topic)))
        )
    )
    return TrailAnswer(entries=list(islice(found, call.asked.limit)))


Moved = TypeVar("Moved", bound=answers.Moved)


async def _move(
    served: Served,
    call: Call[SelectionRequest] | Call[NewTime],
    kind: answers.Kind,
    new_time: Rescheduling | None,
    type_: type[Moved],
) -> tuple[Moved, ChangeOutcome]:
    asked, selector = call.asked, requests.selector_of(call.asked)
    operation_id = call.request.headers.get(OPERATION_ID)
    topic = await served.topic(call.topic_name)
    with served.begin(operation_id, kind, topic.name) as progress:
        operations = operations_of(served, topic, asked.subscription, progress)

        def check(movable: Rows) -> None:
            if new_time is not None:
                _check_new_times(served, topic, movable, new_time)

        if asked.dry_run:
            outcome = await operations.look_at_move(selector, check)
            return _outcome(type_, outcome, asked), outcome
        now_ms = served.service.now_ms()
        outcome = await operations.move(
            selector,
            new_time.all_of if new_time is not None else lambda deliver_at_ms: np.full_like(deliver_at_ms, now_ms),
            kind=kind,
            check=check,
            shifted_by=_shifted_by(operation_id, new_time),
        )
        answer = _outcome(type_, outcome, asked)
        if selector.message_ids is not None:
            # Each as it was named, and the other chunks of its message.
            moved = outcome.moved
            named = [one for one in dict.fromkeys(selector.message_ids) if one in moved]
            answer.ids = {str(old): str(moved[old]) for old in [*named, *(moved.keys() - set(named))]}
        return answer, outcome


def _check_new_times(served: Served, topic: Topic, movable: Rows, new_time: Rescheduling) -> None:
    if not len(movable):
        return
    now_ms = served.service.now_ms()
    first, last = (new_time.of(int(movable.deliver_at_ms[row])) for row in (0, -1))
    if new_time.deliver_at_ms is None and first < now_ms:
        advice = "Shift by less, or narrow from and until; deliver what is to come at once with deliver-now"
        raise RefusalError(400, "some of them would be due in the past", field=new_time.field, advice=advice)
    if last > requests.TIME_MS_MAX:
        error = "some of them would be due after the year 9999"
        raise RefusalError(400, error, field=new_time.field, advice="Shift by less")
    if topic.delay_ms_max and last - now_ms > topic.delay_ms_max:
        advice = f"Choose a time within {topic.delay_ms_max} milliseconds from now, or raise the policy's limit"
        raise RefusalError(400, "that is longer than the topic's longest delay", field=new_time.field, advice=advice)


def operations_of(served: Served, topic: Topic, name: str | None, progress: Progress) -> Operations:
    """Return the operations on messages of a subscription, or of all that delay.

    Raises:
        RefusalError: There is no such subscription, or it does not delay.
    """
    service = served.service

    def new_schedule() -> TopicSchedule:
        return _schedule(served, topic, name, is_to_change=True, has_in_hand=True)

    # An unknown subscription is refused before the change has its turn.
    new_schedule()
    return Operations(
        topic,
        new_schedule,
        now_ms=service.now_ms,
        early_ms=early_ms_of(topic, is_strict=service.config.tracker.is_deliver_at_time_strict),
        progress=progress,
        is_for_all=name is None,
    )


def _schedule(
    served: Served,
    topic: Topic,
    name: str | None,
    *,
    is_to_change: bool = False,
    has_all_types: bool = False,
    has_in_hand: bool = False,
) -> TopicSchedule:
    """Return the schedule for a subscription, or for all that delay."""
    chosen = _named(topic, name)
    delaying = chosen if has_all_types else [one for one in chosen if one.has_delays]
    if is_to_change and name is not None and not delaying:
        advice = "Only Shared and Key_Shared subscriptions delay; this one gets everything at once"
        raise RefusalError(409, f"Subscription {name} delays nothing", field="subscription", advice=advice)
    return TopicSchedule(topic, served.service.catalog, delaying, served.service.now_ms, has_in_hand=has_in_hand)


def _shifted_by(operation_id: str | None, new_time: Rescheduling | None) -> str | None:
    """Return what the copies of a shift are marked with, where it has an id: repeated, it must move no copy again.

    All other changes can be repeated as they are. The shift is part of the mark, as an id may be used again.
    """
    if not operation_id or new_time is None or new_time.field != "shiftMs":
        return None
    return f"{operation_id} {new_time.shift_ms}"


def _outcome(type_: type[Outcome], outcome: ChangeOutcome, asked: SelectionRequest) -> Outcome:
    """Return an outcome as an answer; refuse one of nothing."""
    if not outcome.matched and not outcome.damaged:
        given = requests.selectors_of(asked)[0]
        error = "none of these ids is scheduled" if given == "messageIds" else "nothing that is scheduled is meant"
        raise RefusalError(404, error, field=given, advice=_NOTHING_ADVICE)
    answer = type_(
        matched=outcome.matched,
        already_due=outcome.already_due,
        in_hand=outcome.in_hand,
        unknown=outcome.unknown,
        gone=UNSET if asked.dry_run else outcome.gone,
    )
    if outcome.damaged:
        found = [str(Position(ledger_id, at)) for ledger_id, ids in sorted(outcome.damaged.items()) for at in ids]
        answer.damaged, answer.damaged_count = found[: answers.IDS_TOLD_MAX], outcome.damaged_count
    return answer


def _named(topic: Topic, name: str | None) -> list[Subscription]:
    if name is None:
        return list(topic.subscriptions.values())
    if name not in topic.subscriptions:
        there = ", ".join(sorted(topic.subscriptions)) or "none"
        advice = f"The topic's subscriptions: {there}"
        raise RefusalError(404, f"There is no subscription {name}", field="subscription", advice=advice)
    return [topic.subscriptions[name]]


def _is_paused(subscription: Subscription, note: str | None, *, is_of_topic: bool) -> bool:
    """Whether a subscription is paused with a note; where a pause of the whole topic is wanted, by such a one."""
    pause = subscription.pause
    return pause.is_paused and (pause.is_of_topic or not is_of_topic) and note in (None, pause.note)


def _pauses(topic: Topic, name: str | None) -> answers.PausesAnswer:
    return answers.PausesAnswer(
        subscriptions=[answers.SubscriptionPause(name=one.name, **pause_of(one)) for one in _named(topic, name)]
    )
