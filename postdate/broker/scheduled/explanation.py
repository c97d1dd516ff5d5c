"""Explain the state of a message and the reason for it, in one sentence and as fields.

delayed        its time has not come
held           it is due, and a pause holds it
waiting        it is due, and its consumer cannot take it yet
pending        a consumer has it and has not acknowledged it
damaged        the log is damaged where it is, so no consumer gets it
acknowledged   delivered and acknowledged, or cancelled, or replaced by a copy with another time
expired        its time to live ended before it was acknowledged

A subscription notes what expired (`postdate.broker.topics.expired_entries`), within bounds. Where the note cannot be
complete, the state of a message whose time to live has ended is `acknowledged`, and the field `mayHaveExpired` is true.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import Final

import numpy as np
from msgspec.structs import asdict
from pyroaring import BitMap

from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders
from managed_ledger.errors import DAMAGE_REMEDY
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from postdate.broker.scheduled.answers import ExplainedMessage, Explanation, State, both
from postdate.broker.scheduled.messages import READ_ENTRIES, described, described_without_entry
from postdate.broker.scheduled.operations import Selector
from postdate.broker.scheduled.selection import Wanted
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.topics.delayed_range import delays_through
from postdate.broker.topics.subscription import Subscription
from postdate.command_line.output import iso
from tracker.columns.row_order import key_of

_ENDS: Final = {"expired": 1, "acknowledged": 2}
MESSAGES_MAX: Final = 100
"""The most messages of a key in one answer."""
SEARCHED_ENTRIES_MAX: Final = 1_000_000
"""The most unacknowledged entries whose headers are looked at for the undelayed messages of a key."""


@dataclass(frozen=True, slots=True)
class FoundExplanation:
    """The messages found of a key or an own id, and how far the search for undelayed ones went."""

    answer: Explanation
    searched: int
    """Entries of the backlog whose headers were looked at."""
    is_whole: bool
    """Whether that was the whole backlog."""


async def explain_message(
    schedule: TopicSchedule, message_id: Position, *, now_ms: int, ttl_ms: int
) -> Explanation | None:
    """Return the state of a message, None where the log has none of this id.

    Raises:
        LedgerError: The log cannot be read.
    """
    log = schedule.topic.ledger
    ledger_id, entry_id = message_id
    headers = await log.read_headers_at([ledger_id], [entry_id])
    if not len(headers):
        return None
    (entry,), damaged = await log.read_intact_payloads([ledger_id], [entry_id])
    if entry is None and not damaged:
        return None
    found = _explained(schedule, entry, headers, 0, now_ms, ttl_ms)
    return Explanation(sentence=found.sentence, messages=[found])


async def explain_found(schedule: TopicSchedule, selector: Selector, *, now_ms: int, ttl_ms: int) -> FoundExplanation:
    """Return the states of the unacknowledged messages of a key or an own id, in order of time.

    That is of delayed, due, undelayed and pending ones. The columns find the delayed ones. Others are looked for in the
    headers of the backlog, by the hash of the key or the id.

    Raises:
        LedgerError: The log cannot be read.
    """
    wanted = selector.wanted
    found: list[tuple[int, ExplainedMessage]] = []

    async def take(headers: EntryHeaders) -> None:
        entries, damaged = await schedule.topic.ledger.read_intact_payloads(headers.ledger_ids, headers.entry_ids)
        for row, entry in enumerate(entries):
            # A damaged one was found by the hash of its key, which is in its header.
            is_damaged = int(headers.entry_ids[row]) in damaged.get(int(headers.ledger_ids[row]), ())
            if not is_damaged and (entry is None or not selector.filter.matches(entry)):
                continue
            explained = _explained(schedule, entry, headers, row, now_ms, ttl_ms)
            # It may have been acknowledged meanwhile.
            if any(one.state not in _ENDS for one in explained.subscriptions):
                found.append((_time_ms(headers, row), explained))

    while len(found) <= MESSAGES_MAX:
        rows = await schedule.page(wanted, MESSAGES_MAX)
        if not len(rows):
            break
        wanted = replace(wanted, after=key_of(rows, -1))
        await take(await schedule.topic.ledger.read_headers_at(rows.ledger_ids, rows.entry_ids))
    search = _BacklogSearch(schedule)
    async for part in search.of(wanted):
        await take(part)
        if len(found) > 2 * MESSAGES_MAX:
            break
    # Stable: messages of one time stay in the order of the log.
    found.sort(key=lambda one: one[0])
    messages = [one for _, one in found[:MESSAGES_MAX]]
    sentence = ""
    if messages:
        count = str(len(messages)) if len(found) <= MESSAGES_MAX else f"more than {MESSAGES_MAX}"
        what = "key" if selector.own_ids is None else "id"
        what = f"1 message of this {what} is" if count == "1" else f"{count} messages of this {what} are"
        sentence = f"{what} not acknowledged; the first one: {messages[0].sentence}"
    return FoundExplanation(Explanation(sentence=sentence, messages=messages), search.searched, search.is_whole)


class _BacklogSearch:
    """Looks for a hash in the headers of the entries that some subscription has not acknowledged."""

    def __init__(self, schedule: TopicSchedule) -> None:
        self.searched = 0
        self.is_whole = True
        """Whether it has not ended before the end of the backlog."""
        self._schedule = schedule
        self._cursors = [one.cursor for one in schedule.subscriptions]
        self._not_to_search: dict[int, BitMap] = {}

    async def of(self, wanted: Wanted) -> AsyncIterator[EntryHeaders]:
        """Yield the entries of a hash that are not scheduled, in the order of the log, a slice at a time."""
        log = self._schedule.topic.ledger
        position = min((one.next_unacknowledged_position for one in self._cursors), default=AFTER_EVERYTHING)
        last = log.last_position
        self._not_to_search = await self._schedule.not_to_search()
        while position <= last:
            entries_max = min(READ_ENTRIES, SEARCHED_ENTRIES_MAX - self.searched)
            if entries_max <= 0:
                self.is_whole = False
                return
            read = await log.read_headers(position, entries_max=entries_max, skip=self._skipped_in, through=last)
            self.searched += len(read.headers)
            headers = read.headers
            if wanted.id_hashes is None:
                is_wanted = headers.sticky_hashes == wanted.sticky_hash
            else:
                is_wanted = np.isin(headers.id_hashes, list(wanted.id_hashes))
            yield self._not_scheduled(headers.where(is_wanted))
            if read.next_position <= position:
                return
            position = read.next_position
            # Headers in memory are read without suspending.
            await asyncio.sleep(0)

    def _skipped_in(self, ledger_id: int) -> BitMap:
        skipped = reduce(and_, (one.acknowledged_in(ledger_id) for one in self._cursors))
        return skipped | self._not_to_search.get(ledger_id, BitMap())

    def _not_scheduled(self, headers: EntryHeaders) -> EntryHeaders:
        columns = zip(
            headers.ledger_ids.tolist(), headers.entry_ids.tolist(), headers.deliver_at_ms.tolist(), strict=True
        )
        is_other = [not self._schedule.is_scheduled(Position(*at), deliver_at_ms) for *at, deliver_at_ms in columns]
        return headers.where(np.array(is_other, np.bool_))


def _time_ms(headers: EntryHeaders, row: int) -> int:
    """Return when an entry is due: at its delivery time, or since it was published."""
    deliver_at_ms = int(headers.deliver_at_ms[row])
    return int(headers.publish_time_ms[row]) if deliver_at_ms == NOT_DELAYED else deliver_at_ms


def _explained(
    schedule: TopicSchedule, entry: bytes | None, headers: EntryHeaders, row: int, now_ms: int, ttl_ms: int
) -> ExplainedMessage:
    """Explain one message; `entry` is None where the log is damaged."""
    is_ahead = int(headers.deliver_at_ms[row]) > now_ms
    message = (
        described_without_entry(row, headers) if entry is None else described(entry, row, headers, has_payload=False)
    )
    states = [
        _with_ignored_delay(
            _of_subscription(schedule, one, headers, row, now_ms, ttl_ms, is_damaged=entry is None),
            one,
            is_ahead=is_ahead,
        )
        for one in schedule.subscriptions
    ]
    if not states:
        sentence = f"{message.message_id} is in the log, and the topic has no subscription that would get it."
    else:
        # A state before the acknowledgement says more than one after it.
        first = min(states, key=lambda one: _ENDS.get(one.state, 0))
        sentence = first.sentence
        if len(states) > 1:
            sentence = f"{first.subscription}: {sentence}"
    return ExplainedMessage(**asdict(message), sentence=sentence, subscriptions=states)


def _of_subscription(
    schedule: TopicSchedule,
    subscription: Subscription,
    headers: EntryHeaders,
    row: int,
    now_ms: int,
    ttl_ms: int,
    *,
    is_damaged: bool,
) -> State:
    position = Position(int(headers.ledger_ids[row]), int(headers.entry_ids[row]))
    answer = partial(
        State,
        subscription=subscription.name,
        consumer=None,
        since_ms=None,
        since=None,
        slot=None,
        reason=None,
        may_have_expired=False,
    )
    deliver_at_ms = int(headers.deliver_at_ms[row])
    is_delayed = (
        deliver_at_ms != NOT_DELAYED
        and subscription.has_delays
        and position <= delays_through(subscription.cursor, schedule.topic.delayed_delivery)
    )
    if schedule.moment.is_acknowledged(subscription, position):
        lives_from_ms = max(deliver_at_ms, int(headers.publish_time_ms[row]))
        is_over = 0 < ttl_ms <= now_ms - lives_from_ms
        ended = f" {iso(lives_from_ms + ttl_ms)}" if is_over else ""
        if subscription.expiry.has(position):
            # Without the end: the configuration may have another time to live by now.
            sentence = f"{position} expired: its time to live ended{ended} before it was acknowledged."
            return answer(state="expired", sentence=sentence, may_have_expired=True)
        ends = "delivered, cancelled, or replaced by a copy with another time"
        if is_over:
            ends += f", or it expired: its time to live ended{ended}"
        sentence = f"{position} is acknowledged: it was {ends}."
        return answer(state="acknowledged", sentence=sentence, may_have_expired=is_over)
    if is_damaged:
        return answer(
            state="damaged",
            sentence=f"{position} cannot be read, as the log is damaged where it is, so no consumer gets it. "
            f"{DAMAGE_REMEDY}.",
            reason="the log is damaged where it is",
        )
    dispatcher = subscription.dispatcher
    status = None if dispatcher is None else dispatcher.entry_status(position, int(headers.sticky_hashes[row]))
    if status is not None and status.consumer is not None:
        given = "" if status.given_ms is None else f" at {iso(status.given_ms)}"
        return answer(
            state="pending",
            sentence=f"{position} was given to consumer {status.consumer}{given}, which has not acknowledged it.",
            consumer=status.consumer,
            **both("since", status.given_ms),
            slot=status.slot,
        )
    pause = subscription.pause
    if is_delayed and deliver_at_ms > now_ms:
        held = f"; then {pause} holds it" if pause.is_paused else ""
        return answer(
            state="delayed",
            sentence=f"{position} is delayed until {iso(deliver_at_ms)}{held}.",
            **both("since", int(headers.publish_time_ms[row])),
        )
    due = f"has been due since {iso(deliver_at_ms)}" if is_delayed else "is due"
    if pause.is_paused:
        return answer(
            state="held",
            sentence=f"{position} {due}, and {pause} holds it.",
            **both("since", pause.paused_since_ms),
        )
    if status is None:
        reason, owner, slot = "no consumer is connected", None, None
    else:
        reason = status.reason or ("it is about to be sent" if status.is_waiting else "it is about to be read")
        owner, slot = status.draining_at or status.owner, status.slot
    behind = "" if owner is None else f" behind consumer {owner}"
    return answer(
        state="waiting",
        sentence=f"{position} {due} and waits{behind}: {reason}.",
        consumer=owner,
        **both("since", deliver_at_ms if is_delayed else int(headers.publish_time_ms[row])),
        slot=slot,
        reason=reason,
    )


def _with_ignored_delay(state: State, subscription: Subscription, *, is_ahead: bool) -> State:
    """Say in the sentence why a message whose time is to come is not delayed."""
    kind = subscription.type_without_delays
    if not is_ahead or state.state not in ("held", "waiting", "pending"):
        return state
    if kind is not None:
        reason = f"its subscription is {kind.value}, which does not delay"
    elif state.state != "pending":
        reason = "delayed delivery is switched off for its topic"
    else:
        # It may have come a tick early.
        return state
    state.sentence = f"{state.sentence.removesuffix('.')}; {reason}."
    return state
