"""Cancel, reschedule, deliver now, schedule by an own id: what is meant is found first, then changed in portions.

Cancelling acknowledges a message. Rescheduling appends a copy with another time and acknowledges the old message in the
same synced write (`managed_ledger.replacing`). Delivering now appends a copy that is due. Scheduling by an own id
appends a message and acknowledges those of the same id. So the log and the cursors alone hold the fate of a message,
independent of the delayed index.

A due message is not moved, since a consumer may have got it and would get the copy too. The exception is a message that
a pause has held since before its time: no consumer can have got it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Final, NamedTuple

from pyroaring import BitMap

from dispatcher.slots import sticky_hash
from managed_ledger.completion import completed
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.entries.message_metadata import OWN_ID_PROPERTY, id_hash
from managed_ledger.entries.messages import MessageFilter
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Clock, Int64Array
from managed_ledger.reading.unread_entries import united
from managed_ledger.replacing import Entries, NewEntry, Replacement, by_ledger
from postdate.broker.protocol.entries import with_delivery_time
from postdate.broker.scheduled.matched import match_ids
from postdate.broker.scheduled.portions import Portion, portions
from postdate.broker.scheduled.selection import Rows, Wanted
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.slices import Turns
from postdate.broker.topics.change_order import CANCEL, SCHEDULE, ScheduledChange
from postdate.broker.topics.figures import SubscriptionCounters
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from tracker.columns.positions import bitmap_of, ledger_groups

ORIGINAL_PUBLISH_TIME: Final = "postdate.originalPublishTime"
"""The property of a copy that says when the first one was published, in milliseconds."""

MOVED_TOLD_MAX: Final = 10_000
"""The most copies whose positions an answer has: as many as a request can select by ids."""

_CANCEL_ENTRIES: Final = 100
"""Acknowledged in one step: each is looked for at every consumer."""
_MOVE_ENTRIES: Final = 256
_MOVE_BYTES: Final = 4 * 1024 * 1024


class Selector(NamedTuple):
    """Selects messages: by their ids, or by conditions that all must hold."""

    message_ids: Sequence[Position] | None = None
    key: bytes | None = None
    properties: Mapping[str, str] | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    own_ids: frozenset[str] | None = None

    @property
    def wanted(self) -> Wanted:
        """The conditions that the columns can decide."""
        hashed = None if self.key is None else sticky_hash(self.key)
        id_hashes = None if self.own_ids is None else frozenset(id_hash(one.encode()) for one in self.own_ids)
        return Wanted(self.from_ms, self.until_ms, hashed, id_hashes=id_hashes)

    @property
    def ids(self) -> frozenset[Position] | None:
        """The ids, None where conditions select."""
        return None if self.message_ids is None else frozenset(self.message_ids)

    @property
    def filter(self) -> MessageFilter:
        """The conditions that need the entries themselves."""
        properties = (self.properties or {}).items()
        return _SelectorFilter(
            () if self.key is None else (self.key,),
            tuple((name.encode(), value.encode()) for name, value in properties),
            self.own_ids,
        )


@dataclass(frozen=True, slots=True)
class _SelectorFilter(MessageFilter):
    """Conditions on keys, properties and own ids."""

    own_ids: frozenset[str] | None = None
    """One of these; None for any message."""

    @property
    def is_trivial(self) -> bool:
        return self.own_ids is None and not (self.keys or self.properties)

    def _has_properties(self, properties: Mapping[str, str]) -> bool:
        is_of_ids = self.own_ids is None or properties.get(OWN_ID_PROPERTY) in self.own_ids
        return is_of_ids and MessageFilter._has_properties(self, properties)


Moved = dict[Position, Position]
"""The positions of copies, by the positions of the old entries."""


@dataclass(slots=True)
class Progress:
    """The progress of an operation: messages are searched for first, and changed then."""

    searching: bool = True
    searched: int = 0
    """How many entries the search has looked at."""
    matched: int = 0
    """How many messages are meant, as far as the search is."""
    done: int = 0

    def sentence(self) -> str:
        """Say how far it is."""
        if self.searching:
            return f"it has looked at {self.searched} entries to find what it means"
        return f"it has done {self.done} of {self.matched} messages"

    def note_search(self, searched: int, matched: int) -> None:
        """Count entries that were looked at, and those of them that match."""
        self.searched += searched
        self.matched += matched


def early_ms_of(topic: Topic, *, is_strict: bool) -> int:
    """Return how early a topic's messages may be delivered: by a tick of its policies, unless times are strict."""
    return 0 if is_strict else topic.delayed_delivery.tick_time_ms


def _nothing(_: Rows) -> None:
    """No caller checks what it moves."""


@dataclass(slots=True)
class ChangeOutcome:
    """The outcome of a change, or of a look at it: how many messages were meant, and what became of them."""

    matched: int = 0
    changed: int = 0
    """Messages that were cancelled, which no consumer has got nor gets; or that were moved."""
    already_due: int = 0
    """Due, and in no hand. They are cancelled, but not moved, as a consumer may have had them."""
    in_hand: int = 0
    """In the hand of a consumer, or on the way to it; changed for the other subscriptions alone."""
    gone: int = 0
    """Acknowledged, expired or trimmed while the change was under way."""
    already_shifted: int = 0
    """Copies that the same shift has made before."""
    unknown: int = 0
    """Ids of nothing that is scheduled."""
    moved: Moved = field(default_factory=dict)
    """The first copies."""
    damaged: dict[int, BitMap] = field(default_factory=dict)
    """Entries that were left out, as the log is damaged where they are, by ledger."""

    @property
    def damaged_count(self) -> int:
        """How many entries were left out."""
        return sum(map(len, self.damaged.values()))


class Scheduled(NamedTuple):
    """Messages that were scheduled by own ids."""

    positions: Sequence[Position]
    replaced: int
    """Messages of the same ids that no consumer gets any more."""
    in_hand: int
    """Messages of the same ids that a consumer has, or is about to be sent; replaced for the other subscriptions."""


Append = Callable[[Mapping[Cursor, Entries]], Replacement]
"""Appends new entries; what the cursors are to acknowledge goes into the same write."""


class Operations:
    """The operations on scheduled messages of one topic; made for one request.

    Args:
        topic: The topic.
        new_schedule: Makes the topic's schedule for the subscriptions that are concerned, with what is in hand.
        now_ms: The clock.
        early_ms: How early a message may be delivered.
        progress: Receives the progress.
        is_for_all: Whether all subscriptions are meant. One that does not delay then counts as about to be sent what it
            has not acknowledged: a cancel leaves that to it.
    """

    def __init__(
        self,
        topic: Topic,
        new_schedule: Callable[[], TopicSchedule],
        *,
        now_ms: Clock,
        early_ms: int,
        progress: Progress,
        is_for_all: bool = False,
    ) -> None:
        self._topic = topic
        self._is_for_all = is_for_all
        self._new_schedule = new_schedule
        self._subscriptions: Sequence[Subscription] = ()
        self._now_ms = now_ms
        self._early_ms = early_ms
        self._progress = progress
        self._damaged: dict[int, BitMap] = {}
        self._unknown = 0

    async def look_at_cancel(self, selector: Selector) -> ChangeOutcome:
        """Return what a cancel would do now; it waits for no change that is under way.

        Raises:
            TooManyRowsError: The messages are too many for one operation.
            LedgerError: The log cannot be read.
        """
        schedule, matched = await self._found(selector)
        in_hand = self._not_cancellable(schedule, matched)
        due = matched.take(matched.deliver_at_ms <= self._now_ms())
        already_due = len(due) - self._not_cancellable(schedule, due)
        return self._outcome(matched, already_due=already_due, in_hand=in_hand)

    async def look_at_move(self, selector: Selector, check: Callable[[Rows], None]) -> ChangeOutcome:
        """Return what a move would do now; it waits for no change that is under way.

        Raises:
            TooManyRowsError: The messages are too many for one operation.
            LedgerError: The log cannot be read.
        """
        schedule, matched = await self._found(selector)
        movable, outcome = await self._movable(schedule, matched)
        check(movable)
        outcome.in_hand += self._in_hand_of(schedule, movable)
        return outcome

    @completed
    async def cancel(self, selector: Selector) -> ChangeOutcome:
        """Acknowledge the selected messages for all subscriptions concerned; durable on return.

        Raises:
            ChangeUnderWayError: Another change has been under way for long; nothing has changed.
            TooManyRowsError: The messages are too many for one operation.
            LedgerWriteError: The acknowledgements are in memory but not durable yet; they are written later.
            LedgerError: The log cannot be read.
        """
        async with self._topic.changes.turn(self._change(CANCEL, selector)):
            _, matched = await self._found(selector)
            outcome = self._outcome(matched)
            turns = Turns()
            for begin in range(0, len(matched), _CANCEL_ENTRIES):
                self._cancel_entries(matched.take(slice(begin, begin + _CANCEL_ENTRIES)), outcome)
                await turns.give_way()
            await asyncio.gather(*(subscription.cursor.flush() for subscription in self._subscriptions))
        return outcome

    def _cancel_entries(self, rows: Rows, outcome: ChangeOutcome) -> None:
        """Acknowledge messages in memory, but for subscriptions that have them in hand."""
        positions = rows.positions()
        in_hand: set[tuple[int, int]] = set()
        cancelled: set[tuple[int, int]] = set()
        for subscription in self._subscriptions:
            left = [at for at in positions if not subscription.cursor.is_acknowledged(*at)]
            in_hand_here = subscription.in_hand(left)
            new = [at for at in left if at not in in_hand_here] if in_hand_here else left
            subscription.cancel(new)
            in_hand |= in_hand_here
            cancelled.update(new)
        for subscription in self._without_delays():
            in_hand.update(at for at in cancelled if not subscription.cursor.is_acknowledged(*at))
        cancelled -= in_hand
        now_ms = self._now_ms()
        outcome.changed += len(cancelled)
        outcome.in_hand += len(in_hand)
        outcome.gone += len(positions) - len(cancelled) - len(in_hand)
        outcome.already_due += sum(
            deliver_at_ms <= now_ms and at in cancelled
            for at, deliver_at_ms in zip(positions, rows.deliver_at_ms.tolist(), strict=True)
        )
        self._progress.done += len(positions)

    def _change(self, kind: str, selector: Selector) -> ScheduledChange:
        return ScheduledChange(kind, selector.ids, self._progress.sentence, selector.own_ids)

    async def _found(self, selector: Selector) -> tuple[TopicSchedule, Rows]:
        """Find the selected messages, those in a hand as well."""
        schedule = self._new_schedule()
        self._subscriptions = schedule.subscriptions
        if selector.message_ids is not None:
            matched, self._unknown = await match_ids(schedule, selector.message_ids, self._leave_out)
        else:
            takes = None if selector.filter.is_trivial else selector.filter
            matched = await schedule.rows(selector.wanted, takes, self._progress.note_search, self._leave_out)
        self._progress.matched, self._progress.searching = len(matched), False
        return schedule, matched

    def _outcome(self, matched: Rows, *, already_due: int = 0, in_hand: int = 0) -> ChangeOutcome:
        return ChangeOutcome(
            len(matched), already_due=already_due, in_hand=in_hand, unknown=self._unknown, damaged=self._damaged
        )

    def _leave_out(self, damaged: Mapping[int, BitMap]) -> None:
        self._damaged |= united(self._damaged, damaged)

    def _in_hand_of(self, schedule: TopicSchedule, matched: Rows) -> int:
        """Return how many of some messages are in the hand of a consumer of a subscription concerned."""
        # The moment is for changes of many messages.
        return matched.count_in(schedule.moment.in_any_hand()) if len(matched) else 0

    def _without_delays(self) -> list[Subscription]:
        """Return the subscriptions that get what is cancelled for the others, as they do not delay."""
        return [one for one in self._topic.subscriptions.values() if not one.has_delays] if self._is_for_all else []

    def _not_cancellable(self, schedule: TopicSchedule, matched: Rows) -> int:
        """Return how many of some messages a consumer has in hand, or is about to be sent."""
        without_delays = self._without_delays()
        if not without_delays:
            return self._in_hand_of(schedule, matched)
        entries = schedule.moment.in_any_hand()
        for ledger_id, group in ledger_groups(matched.ledger_ids):
            meant = bitmap_of(matched.entry_ids[group])
            for one in without_delays:
                entries[ledger_id] = entries.get(ledger_id, BitMap()) | (meant - one.cursor.acknowledged_in(ledger_id))
        return matched.count_in(entries)

    async def _movable(self, schedule: TopicSchedule, matched: Rows) -> tuple[Rows, ChangeOutcome]:
        """Leave out messages that a consumer may have had: those that are due and were not held before their time."""
        got_through_ms = min((self._got_through_ms(one) for one in self._subscriptions), default=0)
        is_movable = matched.deliver_at_ms > got_through_ms
        due = await asyncio.to_thread(matched.take, ~is_movable)
        in_hand = self._in_hand_of(schedule, due)
        outcome = self._outcome(matched, already_due=len(due) - in_hand, in_hand=in_hand)
        return await asyncio.to_thread(matched.take, is_movable), outcome

    @completed
    async def move(
        self,
        selector: Selector,
        new_time: Callable[[Int64Array], Int64Array],
        *,
        kind: str = "reschedule",
        check: Callable[[Rows], None] = _nothing,
        shifted_by: str | None = None,
    ) -> ChangeOutcome:
        """Replace the selected messages by copies with another time; durable on return, portion by portion.

        Args:
            selector: Selects the messages.
            new_time: Gives the new times from the old ones.
            kind: The name of the change, for the refusal of others.
            check: Refuses the messages that it would move, in order of delivery, by an exception of its own.
            shifted_by: The operation, if it is not to move what it has moved before: it is repeated, as its outcome was
                not known.

        Raises:
            ChangeUnderWayError: Another change has been under way for long; nothing has changed.
            TooManyRowsError: The messages are too many for one operation.
            LedgerError: The log cannot be read or written; portions before that are moved, the others are unchanged.
        """
        async with self._topic.changes.turn(self._change(kind, selector)):
            schedule, matched = await self._found(selector)
            movable, outcome = await self._movable(schedule, matched)
            check(movable)
            self._progress.done += len(matched) - len(movable)
            await self._move(movable, new_time, shifted_by, outcome)
        return outcome

    async def _move(
        self,
        movable: Rows,
        new_time: Callable[[Int64Array], Int64Array],
        shifted_by: str | None,
        outcome: ChangeOutcome,
    ) -> None:
        rows = await asyncio.to_thread(_in_order_of_appending, movable, new_time(movable.deliver_at_ms))
        seen, damaged_before = 0, outcome.damaged_count
        async for portion in portions(
            self._topic.ledger, rows, entries_max=_MOVE_ENTRIES, bytes_max=_MOVE_BYTES, on_damaged=self._leave_out
        ):
            await self._move_portion(portion, new_time, shifted_by, outcome)
            seen += len(portion.headers)
            self._progress.done += len(portion.headers)
        # Those that were trimmed before their portion was read, without the damaged ones, which portions count as gone.
        outcome.gone += len(rows) - seen - (outcome.damaged_count - damaged_before)

    async def _move_portion(
        self,
        portion: Portion,
        new_time: Callable[[Int64Array], Int64Array],
        shifted_by: str | None,
        outcome: ChangeOutcome,
    ) -> None:
        """Move a portion: no consumer gets the old entries from the moment on in which the copies are appended."""
        headers = portion.headers
        positions = list(map(Position, headers.ledger_ids.tolist(), headers.entry_ids.tolist()))
        new_ms = new_time(headers.deliver_at_ms).tolist()
        await asyncio.sleep(0)
        copies: dict[Position, NewEntry] = {}
        turns = Turns()
        now_ms = self._now_ms()
        for row, entry in enumerate(portion.entries):
            copy = None if entry is None else _copy(entry, portion, row, new_ms[row], now_ms, shifted_by)
            if copy is not None:
                copies[positions[row]] = copy
            elif entry is None:
                outcome.gone += 1
            else:
                outcome.already_shifted += 1
            await turns.give_way()
        # From here to the call of `replace` there is no await, so no consumer can get an entry in between.
        deliver_at_ms = dict(zip(positions, headers.deliver_at_ms.tolist(), strict=True))
        gone, hidden, kept = self._who_gives_up(copies, deliver_at_ms, outcome)
        if not kept:
            return
        given_up = {one: gone[one.cursor] for one in self._subscriptions if gone.get(one.cursor)}
        replacement = self._topic.ledger.replace(
            [copies[position] for position in kept],
            acknowledged={one.cursor: by_ledger(positions) for one, positions in given_up.items()},
            hidden=hidden,
        )
        new = await self._durable(replacement, given_up)
        if len(outcome.moved) < MOVED_TOLD_MAX:
            outcome.moved |= zip(kept, new, strict=True)

    async def _durable(
        self, replacement: Replacement, given_up: Mapping[Subscription, Collection[Position]]
    ) -> Sequence[Position]:
        """Return the positions of new entries once they are durable, with what subscriptions give up for them."""
        for subscription, positions in given_up.items():
            subscription.withdraw(by_ledger(positions))
        try:
            await asyncio.shield(replacement.durable)
        except BaseException:
            for subscription, positions in given_up.items():
                subscription.give_back(by_ledger(positions))
            raise
        for subscription, positions in given_up.items():
            subscription.count(SubscriptionCounters(rescheduled=len(positions)))
        return replacement.positions

    @completed
    async def schedule(self, own_ids: frozenset[str], append: Append) -> Scheduled:
        """Append messages of own ids in place of the scheduled ones of these ids, in one synced write.

        A consumer keeps a message that it has in hand. A crash leaves either the old messages or the new ones.

        Args:
            own_ids: The ids, which the new entries have as their property `OWN_ID_PROPERTY`.
            append: Appends the messages, and acknowledges what it is told in the same write; or refuses to, by an
                exception of its own.

        Raises:
            ChangeUnderWayError: Another change has been under way for long; nothing has changed.
            LedgerError: The log cannot be read or written; nothing has changed.
        """
        async with self._topic.changes.turn(ScheduledChange(SCHEDULE, None, self._progress.sentence, own_ids)):
            _, found = await self._found(Selector(own_ids=own_ids))
            # From here to the call of `append` there is no await, so no consumer can get an old one in between.
            positions = list(starmap(Position, found.positions()))
            given_up: dict[Subscription, set[Position]] = {}
            in_hand: set[tuple[int, int]] = set()
            for one in self._subscriptions:
                left = {at for at in positions if not one.cursor.is_acknowledged(*at)}
                in_hand_here = one.in_hand(left)
                in_hand |= in_hand_here
                if left - in_hand_here:
                    given_up[one] = left - in_hand_here
            replaced: set[tuple[int, int]] = set().union(*given_up.values())
            for subscription in self._without_delays():
                in_hand.update(at for at in replaced if not subscription.cursor.is_acknowledged(*at))
            replacement = append({one.cursor: by_ledger(positions) for one, positions in given_up.items()})
            new = await self._durable(replacement, given_up)
        return Scheduled(new, len(replaced - in_hand), len(in_hand))

    def _who_gives_up(
        self, copies: Mapping[Position, NewEntry], deliver_at_ms: Mapping[Position, int], outcome: ChangeOutcome
    ) -> tuple[dict[Cursor, list[Position]], dict[Cursor, list[int]], list[Position]]:
        """Return by subscription the entries given up and the copies withheld, and all positions that are copied.

        The outcome is told the reasons why others are not.
        """
        gone: dict[Cursor, list[Position]] = {}
        in_hand: set[tuple[int, int]] = set()
        due: set[Position] = set()
        for subscription in self._subscriptions:
            through_ms = self._got_through_ms(subscription)
            cursor = subscription.cursor
            left = [position for position in copies if not cursor.is_acknowledged(*position)]
            given = subscription.in_hand(left)
            in_hand |= given
            due.update(position for position in left if deliver_at_ms[position] <= through_ms)
            gone[cursor] = [
                position for position in left if deliver_at_ms[position] > through_ms and position not in given
            ]
        given_up = {cursor: set(positions) for cursor, positions in gone.items()}
        in_any = set().union(*given_up.values())
        kept = [position for position in copies if position in in_any]
        outcome.changed += len(in_any - in_hand)
        outcome.in_hand += len(in_hand)
        outcome.already_due += len(due - in_any - in_hand)
        outcome.gone += len(copies) - len(in_any | in_hand | due)
        hidden = {
            one.cursor: [place for place, at in enumerate(kept) if at not in given_up.get(one.cursor, ())]
            for one in self._topic.subscriptions.values()
        }
        return (
            gone,
            {cursor: places for cursor, places in hidden.items() if places},
            kept,
        )

    def _got_through_ms(self, subscription: Subscription) -> int:
        """Return the time up to which messages may have been delivered."""
        paused_since_ms = subscription.pause.paused_since_ms
        return (self._now_ms() if paused_since_ms is None else paused_since_ms) + self._early_ms


def _in_order_of_appending(rows: Rows, new_ms: Int64Array) -> Rows:
    """Order rows so that those of one new time are appended in the order in which they would have been delivered.

    Where positions alone decide it, that is the order of the log, which is read the fastest.
    """
    same_time = bool(len(new_ms)) and bool((new_ms == new_ms[0]).all())
    return rows if same_time else rows.take(rows.by_position())


def _copy(
    payload: bytes, portion: Portion, row: int, deliver_at_ms: int, now_ms: int, shifted_by: str | None
) -> NewEntry | None:
    headers = portion.headers
    original = {ORIGINAL_PUBLISH_TIME: str(int(headers.publish_time_ms[row]))}
    entry = with_delivery_time(
        payload,
        deliver_at_ms=deliver_at_ms,
        publish_time_ms=now_ms,
        more_properties=original,
        shifted_by=shifted_by,
    )
    if entry is None:
        return None
    return NewEntry(
        entry,
        now_ms,
        deliver_at_ms,
        int(headers.sticky_hashes[row]),
        int(headers.message_counts[row]),
        int(headers.flags[row]),
    )
