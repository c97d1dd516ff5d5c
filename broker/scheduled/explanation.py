"""Explain the state of a message and the reason for it, in one sentence and as fields.

delayed        its time has not come
held           it is due, and a pause holds it
waiting        it is due, and its consumer cannot take it yet
pending        a consumer has it and has not acknowledged it
acknowledged   delivered and acknowledged, or cancelled, or replaced by a copy with another time
expired        its time to live ended before it was acknowledged

A subscription notes what expired (`broker.topics.expired_entries`), within bounds. Where the note cannot be complete,
the state of a message whose time to live has ended is `acknowledged`, and the field `mayHaveExpired` is true.
"""

from dataclasses import replace
from typing import Final

from broker.scheduled.messages import MessageId, both, described
from broker.scheduled.operations import Selector
from broker.scheduled.topic_schedule import TopicSchedule
from broker.topics.subscription import Subscription, delays_through
from broker.topics.topic import Topic
from command_line.output import iso
from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders
from managed_ledger.position import Position
from managed_ledger.value_types import Json

_ENDS: Final = {"expired": 1, "acknowledged": 2}
MESSAGES_MAX: Final = 100
"""The most messages of a key in one answer."""


async def explain_message(schedule: TopicSchedule, message_id: MessageId, *, now_ms: int, ttl_ms: int) -> Json | None:
    """Return the state of a message, None where the log has none of this id.

    Raises:
        LedgerError: The log cannot be read.
    """
    log = schedule.topic.ledger
    ledger_id, entry_id = message_id.position
    headers = await log.read_headers_at([ledger_id], [entry_id])
    entries = await log.read_payloads([ledger_id], [entry_id]) if len(headers) else []
    if not entries or entries[0] is None:
        return None
    found = [
        _explained(schedule, one, json, headers, 0, now_ms, ttl_ms)
        for one, json in described(entries[0], 0, headers, has_payload=False)
        # Of what is no batch, changes take the index 0 as well.
        if message_id.batch_index in (None, one.batch_index or 0)
    ]
    return {"sentence": found[0]["sentence"], "messages": found} if found else None


async def explain_key(schedule: TopicSchedule, key: bytes, *, now_ms: int, ttl_ms: int) -> Json | None:
    """Return the states of a key's scheduled messages, in order of time; None where there is none.

    Raises:
        LedgerError: The log cannot be read.
    """
    log = schedule.topic.ledger
    selector = Selector(key=key)
    wanted = selector.wanted
    found: list[Json] = []
    while len(found) < MESSAGES_MAX:
        rows = await schedule.page(wanted, MESSAGES_MAX)
        if not len(rows):
            break
        wanted = replace(wanted, after=rows.place(len(rows) - 1))
        headers = await log.read_headers_at(rows.ledger_ids, rows.entry_ids)
        entries = await log.read_payloads(headers.ledger_ids, headers.entry_ids)
        for row, entry in enumerate(entries):
            if entry is not None and selector.filter.chosen(entry):
                found += [
                    _explained(schedule, one, json, headers, row, now_ms, ttl_ms)
                    for one, json in described(entry, row, headers, has_payload=False)
                ]
    if not found:
        return None
    del found[MESSAGES_MAX:]
    count = len(found)
    what = "1 message of this key is scheduled" if count == 1 else f"{count} messages of this key are scheduled"
    return {"sentence": f"{what}; the first one: {found[0]['sentence']}", "messages": found}


def _explained(
    schedule: TopicSchedule,
    message_id: MessageId,
    json: Json,
    headers: EntryHeaders,
    row: int,
    now_ms: int,
    ttl_ms: int,
) -> Json:
    deliver_at_ms = int(headers.deliver_at_ms[row])
    states = [
        _of_subscription(schedule.topic, one, message_id, headers, row, now_ms, ttl_ms)
        for one in schedule.subscriptions
    ]
    if deliver_at_ms == NOT_DELAYED:
        json = json | both("deliverAt", None)
    if not states:
        sentence = f"{message_id} is in the log, and the topic has no subscription that would get it."
    else:
        # A state before the acknowledgement says more than one after it.
        first = min(states, key=lambda one: _ENDS.get(one["state"], 0))
        sentence = first["sentence"]
        if len(states) > 1:
            sentence = f"{first['subscription']}: {sentence}"
    return json | {"sentence": sentence, "subscriptions": states}


def _of_subscription(
    topic: Topic,
    subscription: Subscription,
    message_id: MessageId,
    headers: EntryHeaders,
    row: int,
    now_ms: int,
    ttl_ms: int,
) -> Json:
    position = Position(int(headers.ledger_ids[row]), int(headers.entry_ids[row]))
    state: Json = {
        "subscription": subscription.name,
        "state": "",
        "sentence": "",
        "consumer": None,
        **both("since", None),
        "slot": None,
        "reason": None,
        "mayHaveExpired": False,
    }
    deliver_at_ms = int(headers.deliver_at_ms[row])
    is_delayed = (
        deliver_at_ms != NOT_DELAYED
        and subscription.has_delays
        and position <= delays_through(subscription.cursor, topic.delayed_delivery)
    )
    is_over = subscription.cursor.is_acknowledged(*position)
    if message_id.batch_index is not None and not is_over:
        is_over = not subscription.has_part(position, message_id.batch_index)
    if is_over:
        lives_from_ms = max(deliver_at_ms, int(headers.publish_time_ms[row]))
        if subscription.has_expired(position):
            return state | _expired(message_id, lives_from_ms, now_ms, ttl_ms)
        return state | _ended(message_id, lives_from_ms, now_ms, ttl_ms)
    dispatcher = subscription.dispatcher
    status = None if dispatcher is None else dispatcher.entry_status(position, int(headers.sticky_hashes[row]))
    if status is not None and status.consumer is not None:
        given = "" if status.given_ms is None else f" at {iso(status.given_ms)}"
        return state | {
            "state": "pending",
            "sentence": f"{message_id} was given to consumer {status.consumer}{given}, which has not acknowledged it.",
            "consumer": status.consumer,
            **both("since", status.given_ms),
            "slot": status.slot,
        }
    pause = subscription.pause
    if is_delayed and deliver_at_ms > now_ms:
        held = f"; then the pause since {iso(pause.paused_since_ms)} holds it" if pause.paused_since_ms else ""
        return state | {"state": "delayed", "sentence": f"{message_id} is delayed until {iso(deliver_at_ms)}{held}."}
    due = f"has been due since {iso(deliver_at_ms)}" if is_delayed else "is due"
    if pause.paused_since_ms is not None:
        return state | {
            "state": "held",
            "sentence": f"{message_id} {due}, and the pause since {iso(pause.paused_since_ms)} holds it.",
            **both("since", pause.paused_since_ms),
        }
    if status is None:
        reason, owner, slot = "no consumer is connected", None, None
    else:
        reason = status.reason if status.reason not in ("", "nothing waits") else "it is about to be read"
        owner, slot = status.draining_at or status.owner, status.slot
    behind = "" if owner is None else f" behind consumer {owner}"
    return state | {
        "state": "waiting",
        "sentence": f"{message_id} {due} and waits{behind}: {reason}.",
        "consumer": owner,
        "slot": slot,
        "reason": reason,
    }


def _expired(message_id: MessageId, lives_from_ms: int, now_ms: int, ttl_ms: int) -> Json:
    # The configuration may have another time to live by now.
    is_known = 0 < ttl_ms <= now_ms - lives_from_ms
    ended = f" {iso(lives_from_ms + ttl_ms)}" if is_known else ""
    return {
        "state": "expired",
        "sentence": f"{message_id} expired: its time to live ended{ended} before it was acknowledged.",
        "mayHaveExpired": True,
    }


def _ended(message_id: MessageId, lives_from_ms: int, now_ms: int, ttl_ms: int) -> Json:
    ends = "delivered, cancelled, or replaced by a copy with another time"
    may_have_expired = 0 < ttl_ms <= now_ms - lives_from_ms
    if may_have_expired:
        ends += f", or it expired: its time to live ended {iso(lives_from_ms + ttl_ms)}"
    return {
        "state": "acknowledged",
        "sentence": f"{message_id} is acknowledged: it was {ends}.",
        "mayHaveExpired": may_have_expired,
    }
