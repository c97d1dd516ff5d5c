"""Cancel, reschedule, deliver now: the selected messages are found first, then changed in portions.

Cancelling acknowledges a message. Rescheduling appends a copy with another time and acknowledges the old message in the
same synced write (`managed_ledger.replacing`). Delivering now appends a copy that is due. So the log and the cursors
alone hold the fate of a message, independent of the delayed index.

A due message is not moved, since a consumer may have got it and would get the copy too. The exception is a message that
a pause has held since before its time: no consumer can have got it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyroaring import BitMap

from broker.protocol.entries import with_delivery_time
from broker.scheduled.matched import Matched, match_ids
from broker.scheduled.portions import Portion, portions
from broker.scheduled.selection import Rows, Wanted
from broker.scheduled.topic_schedule import TopicSchedule
from broker.slices import Turns
from broker.topics.figures import SubscriptionCounters
from broker.topics.subscription import Subscription
from broker.topics.topic import Topic
from dispatcher.slots import sticky_hash
from managed_ledger.completion import completed
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.entries.headers import NO_CHUNK
from managed_ledger.entries.messages import MessageFilter
from managed_ledger.position import Position
from managed_ledger.reading.unread_entries import united
from managed_ledger.replacing import Entries, NewEntry, Replacement, by_ledger
from managed_ledger.value_types import Clock, Int64Array

logger = logging.getLogger(__name__)

ORIGINAL_PUBLISH_TIME: Final = "postdate.originalPublishTime"
"""The property of a copy that says when the first one was published, in milliseconds."""

MOVED_TOLD_MAX: Final = 10_000
"""The most copies whose positions an answer has: as many as a request can select by ids."""

_CANCEL_ENTRIES: Final = 200
_CANCEL_ENTRIES_MIN: Final = 10
_MOVE_ENTRIES: Final = 256
_MOVE_BYTES: Final = 4 * 1024 * 1024
_PORTIONS_MAX: Final = 4
_HOLDERS_PER_TURN: Final = 2_000
_LOG_INTERVAL_S: Final = 5.0


class Selector(NamedTuple):
    """Selects messages: by their ids, or by conditions that all must hold."""

    message_ids: Sequence[Position] | None = None
    key: bytes | None = None
    properties: Mapping[str, str] | None = None
    from_ms: int | None = None
    until_ms: int | None = None

    @property
    def wanted(self) -> Wanted:
        """The conditions that the columns can decide."""
        hashed = None if self.key is None else sticky_hash(self.key)
        return Wanted(self.from_ms, self.until_ms, hashed)

    @property
    def filter(self) -> MessageFilter:
        """The conditions that need the entries themselves."""
        properties = (self.properties or {}).items()
        return MessageFilter(
            () if self.key is None else (self.key,),
            tuple((name.encode(), value.encode()) for name, value in properties),
        )


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

    def note_search(self, searched: int, matched: int) -> None:
        """Count entries that were looked at, and those of them that match."""
        self.searched += searched
        self.matched += matched


def early_ms_of(topic: Topic, *, is_strict: bool) -> int:
    """Return how early a topic's messages may be delivered: by a tick of its policies, unless times are strict."""
    return 0 if is_strict else topic.delayed_delivery.tick_time_ms


class Operations:
    """The operations on scheduled messages of one topic; made for one request.

    Args:
        schedule: The topic's schedule for the subscriptions that are concerned.
        now_ms: The clock.
        early_ms: How early a message may be delivered.
        progress: Receives the progress.
    """

    def __init__(self, schedule: TopicSchedule, *, now_ms: Clock, early_ms: int, progress: Progress) -> None:
        self._schedule = schedule
        self._topic = schedule.topic
        self._subscriptions = schedule.subscriptions
        self._now_ms = now_ms
        self._early_ms = early_ms
        self._progress = progress
        self.damaged: dict[int, BitMap] = {}
        """Entries that were left out, as the log is damaged where they are."""
        self._logged_s = asyncio.get_running_loop().time()

    async def find(self, selector: Selector) -> Matched:
        """Find the selected messages.

        Raises:
            TooManyRowsError: The messages are too many for one operation.
            LedgerError: The log cannot be read.
        """
        if selector.message_ids is not None:
            matched = await match_ids(self._schedule, selector.message_ids)
        else:
            takes = None if selector.filter.is_trivial else selector.filter
            rows = await self._schedule.rows(selector.wanted, takes, self._progress.note_search, self._leave_out)
            matched = Matched(rows)
        self._progress.matched, self._progress.searching = len(matched), False
        return matched

    @property
    def damaged_count(self) -> int:
        """How many entries were left out."""
        return sum(map(len, self.damaged.values()))

    def _leave_out(self, damaged: Mapping[int, BitMap]) -> None:
        self.damaged = united(self.damaged, damaged)

    def due_count(self, matched: Matched) -> int:
        """Return how many of the messages are due already."""
        return matched.due_count(self._now_ms())

    async def movable(self, matched: Matched) -> Matched:
        """Leave out messages that a consumer may have got: those that are due and were not held before their time."""
        rows = matched.rows
        got_through_ms = min((self._got_through_ms(one) for one in self._subscriptions), default=0)
        return Matched(await asyncio.to_thread(rows.take, rows.deliver_at_ms > got_through_ms), matched.unknown)

    async def cancel(self, matched: Matched) -> int:
        """Acknowledge the found messages for all subscriptions concerned; durable on return.

        Raises:
            LedgerWriteError: The acknowledgements are in memory but not durable yet; they are written later.
        """
        count = len(matched)
        if count > _CANCEL_ENTRIES_MIN:
            return await self._cancel_many(matched)
        # Tasks would cost as much as the acknowledgement: nothing is left to do but to wait for the disk. Most topics
        # have one subscription.
        done = self._cancel_entries(matched, 0, count)
        if len(self._subscriptions) == 1:
            await self._subscriptions[0].cursor.flush()
        else:
            await self._flush()
        return done

    @completed
    async def _cancel_many(self, matched: Matched) -> int:
        done, turns, portion = 0, Turns(), self._cancel_portion
        for begin in range(0, len(matched), portion):
            done += self._cancel_entries(matched, begin, begin + portion)
            await turns.give_way()
        await self._flush()
        return done

    def _cancel_entries(self, matched: Matched, begin: int, end: int) -> int:
        """Acknowledge messages in memory; return how many of them were not acknowledged."""
        positions = matched.positions(begin, end)
        is_new: set[tuple[int, int]] = set()
        for subscription in self._subscriptions:
            new = [at for at in positions if not subscription.cursor.is_acknowledged(*at)]
            subscription.cancel(new)
            is_new.update(new)
        self._note(len(positions))
        return len(is_new)

    async def _flush(self) -> None:
        await asyncio.gather(*(subscription.cursor.flush() for subscription in self._subscriptions))

    @completed
    async def move(
        self, matched: Matched, new_time: Callable[[Int64Array], Int64Array], *, shifted_by: str | None = None
    ) -> tuple[int, Moved]:
        """Replace the found messages by copies with another time; durable on return, portion by portion.

        Args:
            matched: The result of `movable`.
            new_time: Gives the new times from the old ones.
            shifted_by: The operation, if it is not to move what it has moved before: it is repeated, as its outcome was
                not known.

        Returns:
            The number of messages moved, and for the first copies their positions by the old positions. Messages that
            were delivered or cancelled meanwhile do not count, nor do `damaged` ones.

        Raises:
            LedgerError: The log cannot be read or written; portions before that are moved, the others are unchanged.
        """
        rows = await asyncio.to_thread(_in_order_of_appending, matched.rows, new_time(matched.rows.deliver_at_ms))
        moved: Moved = {}
        count = 0
        under_way: deque[asyncio.Task[_MovedPortion]] = deque()

        async def take_one() -> None:
            nonlocal count, moved
            done = await under_way.popleft()
            count += len(done.moved)
            if len(moved) < MOVED_TOLD_MAX:
                moved |= done.moved
            self._note(done.messages)

        try:
            async for portion in portions(
                self._topic.ledger,
                rows,
                entries_max=_MOVE_ENTRIES,
                bytes_max=_MOVE_BYTES,
                on_damaged=self._leave_out,
            ):
                under_way.append(await self._move_portion(portion, new_time, shifted_by))
                # Cached rows and finished portions are taken without suspending.
                await asyncio.sleep(0)
                # Several at a time, as the cost of a synced write does not depend on its size.
                if len(under_way) > _PORTIONS_MAX:
                    await take_one()
            while under_way:
                await take_one()
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)
        return count, moved

    async def _move_portion(
        self, portion: Portion, new_time: Callable[[Int64Array], Int64Array], shifted_by: str | None
    ) -> "asyncio.Task[_MovedPortion]":
        """Begin to move a portion: from the return on no consumer gets the old entries, and the copies are pending."""
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
            await turns.give_way()
        # From here to the call of `replace` there is no await, so no consumer can get an entry in between.
        deliver_at_ms = dict(zip(positions, headers.deliver_at_ms.tolist(), strict=True))
        gone, hidden, kept = self._who_gives_up(copies, deliver_at_ms)
        if not kept:
            return asyncio.ensure_future(_nothing_moved(len(headers)))
        replacement = self._topic.ledger.replace(
            [copies[position] for position in kept],
            acknowledged={cursor: by_ledger(given_up) for cursor, given_up in gone.items()},
            hidden=hidden,
        )
        withdrawn: list[_Withdrawn] = []
        for subscription in self._subscriptions:
            given_up = gone.get(subscription.cursor)
            if given_up:
                withdrawn.append(_Withdrawn(subscription, by_ledger(given_up), len(given_up)))
                subscription.withdraw(withdrawn[-1].entries)
        moved = _MovedPortion(len(headers), dict(zip(kept, replacement.positions, strict=True)))
        return asyncio.ensure_future(self._settle(replacement, withdrawn, moved))

    async def _settle(
        self, replacement: Replacement, withdrawn: list["_Withdrawn"], moved: "_MovedPortion"
    ) -> "_MovedPortion":
        try:
            await asyncio.shield(replacement.durable)
        except BaseException:
            for one in withdrawn:
                one.subscription.give_back(one.entries)
            raise
        for one in withdrawn:
            one.subscription.count(SubscriptionCounters(rescheduled=one.messages))
        return moved

    def _who_gives_up(
        self, copies: Mapping[Position, NewEntry], deliver_at_ms: Mapping[Position, int]
    ) -> tuple[dict[Cursor, list[Position]], dict[Cursor, list[int]], list[Position]]:
        """Return by subscription the entries given up and the copies withheld, and all positions that are copied."""
        gone: dict[Cursor, list[Position]] = {}
        for subscription in self._subscriptions:
            through_ms = self._got_through_ms(subscription)
            cursor = subscription.cursor
            given = subscription.in_hand(copies.keys())
            gone[cursor] = [
                position
                for position in copies
                if deliver_at_ms[position] > through_ms
                and position not in given
                and not cursor.is_acknowledged(*position)
            ]
        given_up = {cursor: set(positions) for cursor, positions in gone.items()}
        in_any = set().union(*given_up.values())
        kept = [position for position in copies if position in in_any]
        hidden = {
            one.cursor: [place for place, at in enumerate(kept) if at not in given_up.get(one.cursor, ())]
            for one in self._topic.subscriptions.values()
        }
        return (
            {cursor: positions for cursor, positions in gone.items() if positions},
            {cursor: places for cursor, places in hidden.items() if places},
            kept,
        )

    def _got_through_ms(self, subscription: Subscription) -> int:
        """Return the time up to which messages may have been delivered."""
        paused_since_ms = subscription.pause.paused_since_ms
        return (self._now_ms() if paused_since_ms is None else paused_since_ms) + self._early_ms

    @property
    def _cancel_portion(self) -> int:
        """Return how many entries to acknowledge in one step: each is looked for at every consumer."""
        consumers = max((len(subscription.consumers) for subscription in self._subscriptions), default=0)
        return max(_CANCEL_ENTRIES_MIN, min(_CANCEL_ENTRIES, 10 * _HOLDERS_PER_TURN // max(1, consumers)))

    def _note(self, count: int) -> None:
        self._progress.done += count
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            logger.info(
                "%s: %d of %d scheduled messages", self._topic.name, self._progress.done, self._progress.matched
            )


class _Withdrawn(NamedTuple):
    """Entries that a subscription has given up, until it is known that their copies are durable."""

    subscription: Subscription
    entries: Entries
    messages: int


class _MovedPortion(NamedTuple):
    """The outcome of a portion: how many messages it has, and those of them that were moved."""

    messages: int
    moved: Moved


async def _nothing_moved(messages: int) -> _MovedPortion:
    return _MovedPortion(messages, {})


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
        int(headers.flags[row]) | (0 if portion.may_have_chunks else NO_CHUNK),
    )
