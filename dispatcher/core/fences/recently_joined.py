"""Newcomers that get nothing beyond a position until everything before it is acknowledged (PIP-282, and before it).

    log        |-- acknowledged --|---- sent, or read ----|------ unsent, or unread ------
    newcomer    may get everything up to its bound ------>|  nothing, until all before the bound is acknowledged

The bound is the first position that a newcomer may not get. With PIP-282 it is the first position that was never sent
when the consumer joined, so the last sent position is the one before it; in the classic mode it is the read position.
Entries that waited already are held to the smallest bound of all newcomers, which is that of the first.

In the classic mode the newcomer waits for what the other consumers held when it joined. In Pulsar it waits for
mark-delete, and so for every delayed message before the bound, for as long as that is delayed; no consumer holds such a
message, so no order depends on it (apache/pulsar#20233 is about these stalls).

PIP-282 keeps a last sent position and a set of individually sent ones up to date with each dispatched entry. Here both
are derived when a consumer joins or a question is asked: an entry was sent if it is acknowledged, is pending, or was
given once and waits again. The weaknesses are the proposals' own (PIP-379 lists them): a stuck message stops newcomers
altogether, and a slot that moves between two consumers that are no newcomers is not fenced.
"""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from pyroaring import BitMap

from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.fence import Consumers, OrderFence
from dispatcher.core.items import ENTRY, LEDGER, Item, Key
from dispatcher.stats import NewcomerStats
from managed_ledger.positions.position import Position
from tracker.columns.position_set import PositionSet

_NONE_AWAITED: Final[Key] = (2**63 - 1, 0)


@dataclass(slots=True)
class LedgerEnd:
    """Where a ledger ends."""

    ledger_id: int
    last_entry_id: int
    """The last durable one."""
    has_ended: bool
    """Whether no entry behind it can become durable. A ledger that was closed may still have commits under way."""


class SubscriptionView(Protocol):
    """The part of the log and of the cursor that a fence needs."""

    @property
    def next_unacknowledged_position(self) -> Position:
        """The first position beyond mark-delete."""

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """The acknowledged entries of a ledger."""

    def ledgers(self) -> list[LedgerEnd]:
        """All ledgers, in order."""


class RecentlyJoinedFence(OrderFence):
    """The newcomers with their bounds.

    Args:
        view: The log and the cursor.
    """

    reason = "its consumer joined lately, and what came before that is not all acknowledged"
    watches_mark_delete = True
    # A bound is a position. By time, an entry beyond it could stand before one that must be acknowledged to lift it.
    is_by_position = True

    def __init__(self, view: SubscriptionView) -> None:
        self.bounds: dict[int, Position] = {}
        """By consumer, in the order in which they joined, which is that of the bounds."""
        self.bounds_when_joining: dict[int, Position] = {}
        """The bound that each consumer had when it joined, also after it was lifted, for the stats."""
        self._view = view

    @property
    def is_active(self) -> bool:
        return bool(self.bounds)

    def blocks(self, item: Item, owner_index: int, *, is_fresh: bool) -> bool:
        bound = self.bounds.get(owner_index)
        if bound is None:
            return False
        if not is_fresh:
            bound = min(bound, next(iter(self.bounds.values())))
        return (item[LEDGER], item[ENTRY]) >= bound

    @abstractmethod
    def _bound(self, consumers: Consumers, read_position: Position) -> Position:
        """Return the first position that a consumer may not get that joins now."""

    @abstractmethod
    def position_when_joining(self, consumer_index: int) -> Position | None:
        """Return what the stats tell of a consumer's join."""

    def joined(self, consumer: ConsumerState, consumers: Consumers, read_position: Position | None) -> None:
        if read_position is None:
            return
        bound = self._bound(consumers, read_position)
        self.bounds_when_joining[consumer.index] = bound
        if len(consumers) > 1 and bound > self._first_awaited(consumers):
            # A bound never lies before an earlier one: entries that were sent or read stay so.
            self.bounds[consumer.index] = max(bound, *self.bounds.values()) if self.bounds else bound

    def _first_awaited(self, consumers: Consumers) -> Key:
        """Return the first position that a consumer would wait for that joins now."""
        return self._view.next_unacknowledged_position

    def leaves(self, consumer: ConsumerState, consumers: Consumers, waiting: Collection[int]) -> list[int]:
        """Forget a consumer's bound; the last consumer has no other one to be fenced from."""
        before = len(self.bounds)
        self.bounds.pop(consumer.index, None)
        self.bounds_when_joining.pop(consumer.index, None)
        if len(consumers) <= 1:
            self.bounds.clear()
        return list(waiting) if len(self.bounds) != before else []

    def note_unacknowledged_from(self, position: Position, waiting: Collection[int]) -> list[int]:
        released = [index for index, bound in self.bounds.items() if bound <= position]
        for index in released:
            del self.bounds[index]
        return list(waiting) if released else []

    def newcomers(self, consumers: Consumers, indices: Collection[int]) -> NewcomerStats:
        return NewcomerStats(
            position_when_joining=[self.position_when_joining(index) for index in indices],
            is_waiting=[index in self.bounds for index in indices],
            last_sent_position=None,
            individually_sent_positions=[],
        )

    def clear(self) -> None:
        self.bounds.clear()
        self.bounds_when_joining.clear()

    def check(self, consumers: Consumers, owners: object) -> None:
        """Assert every invariant, O(n)."""
        assert self.bounds.keys() <= consumers.keys()
        assert list(self.bounds.values()) == sorted(self.bounds.values())
        assert len(consumers) > 1 or not self.bounds


class ReadPositionFence(RecentlyJoinedFence):
    """The classic rule: a newcomer's bound is the read position.

    It goes on when the entries that consumers held at its join are acknowledged.
    """

    def __init__(self, view: SubscriptionView) -> None:
        super().__init__(view)
        self._awaited = PositionSet()
        """Entries that consumers held at another's join; acknowledged ones leave from the front."""

    def _first_awaited(self, consumers: Consumers) -> Key:
        """Let newcomers wait for all that consumers hold now, and return the first of it."""
        _add(self._awaited, [position for consumer in consumers.values() for position in consumer.pending.items])
        return self._drop_acknowledged()

    def _drop_acknowledged(self) -> Key:
        """Return the first position that is awaited still."""
        # Once a ledger is deleted, the cursor does not tell that its entries are acknowledged.
        self._awaited.remove_below(self._view.next_unacknowledged_position.ledger_id)
        for ledger_id in sorted(self._awaited.bitmaps):
            self._awaited.subtract(ledger_id, self._view.acknowledged_in(ledger_id))
            if ledger_id in self._awaited.bitmaps:
                return (ledger_id, self._awaited.bitmaps[ledger_id].min())
        return _NONE_AWAITED

    def note_unacknowledged_from(self, position: Position, waiting: Collection[int]) -> list[int]:
        del position
        return super().note_unacknowledged_from(Position(*self._drop_acknowledged()), waiting)

    def clear(self) -> None:
        super().clear()
        self._awaited = PositionSet()

    def _bound(self, consumers: Consumers, read_position: Position) -> Position:
        return read_position

    def position_when_joining(self, consumer_index: int) -> Position | None:
        """Return the read position of that moment."""
        return self.bounds_when_joining.get(consumer_index)


class LastSentPositionFence(RecentlyJoinedFence):
    """PIP-282: a newcomer's bound is the first position that was never sent."""

    def __init__(self, view: SubscriptionView) -> None:
        super().__init__(view)
        self._waits_again = PositionSet()

    def note_taken_back(self, positions: Collection[Key]) -> None:
        """Remember entries that wait again, which count as sent."""
        _add(self._waits_again, positions)

    def leaves(self, consumer: ConsumerState, consumers: Consumers, waiting: Collection[int]) -> list[int]:
        if not consumers:
            self._waits_again = PositionSet()
        return super().leaves(consumer, consumers, waiting)

    def note_unacknowledged_from(self, position: Position, waiting: Collection[int]) -> list[int]:
        self._waits_again.remove_below(position.ledger_id)
        return super().note_unacknowledged_from(position, waiting)

    def clear(self) -> None:
        super().clear()
        self._waits_again = PositionSet()

    def _bound(self, consumers: Consumers, read_position: Position) -> Position:
        return self.first_unsent(consumers)

    def first_unsent(self, consumers: Consumers) -> Position:
        """Return the first position that was never sent; it need not exist yet."""
        first = self._view.next_unacknowledged_position
        sent_in = self._sent(consumers)
        after = first
        for extent in self._view.ledgers():
            if extent.ledger_id < first.ledger_id:
                continue
            begin = first.entry_id if extent.ledger_id == first.ledger_id else 0
            sent = sent_in.get(extent.ledger_id, BitMap()) | self._view.acknowledged_in(extent.ledger_id)
            unsent = BitMap(range(max(begin, 0), extent.last_entry_id + 1)) - sent
            if unsent:
                return Position(extent.ledger_id, unsent.min())
            if extent.last_entry_id >= 0:
                # A ledger without confirmed entries tells nothing: one before it may have some that are being written.
                after = max(after, Position(extent.ledger_id, extent.last_entry_id + 1))
        return after

    def position_when_joining(self, consumer_index: int) -> Position | None:
        """Return the last sent position of that moment."""
        bound = self.bounds_when_joining.get(consumer_index)
        return None if bound is None else self.before(bound)

    def newcomers(self, consumers: Consumers, indices: Collection[int]) -> NewcomerStats:
        ranges: list[tuple[Position, Position]] = []
        for ledger_id, entries in self.individually_sent(consumers).items():
            ids = np.array(entries.to_array(), dtype=np.int64)
            begins = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
            ends = np.append(begins[1:], len(ids)) - 1
            ranges += [
                (Position(ledger_id, first - 1), Position(ledger_id, last))
                for first, last in zip(ids[begins].tolist(), ids[ends].tolist(), strict=True)
            ]
        return replace(
            super().newcomers(consumers, indices),
            last_sent_position=self.before(self.first_unsent(consumers)),
            individually_sent_positions=ranges,
        )

    def before(self, position: Position) -> Position:
        """Return the position before another one; entry -1 of the first ledger when there is none."""
        if position.entry_id > 0:
            return Position(position.ledger_id, position.entry_id - 1)
        ledgers = [one for one in self._view.ledgers() if one.ledger_id < position.ledger_id and one.last_entry_id >= 0]
        return (
            Position(ledgers[-1].ledger_id, ledgers[-1].last_entry_id) if ledgers else Position(position.ledger_id, -1)
        )

    def individually_sent(self, consumers: Consumers) -> dict[int, BitMap]:
        """Return the entries sent at or beyond the first unsent position, by ledger."""
        first = self.first_unsent(consumers)
        sent_in = self._sent(consumers)
        found: dict[int, BitMap] = {}
        for extent in self._view.ledgers():
            if extent.ledger_id < first.ledger_id:
                continue
            sent = sent_in.get(extent.ledger_id, BitMap()) | self._view.acknowledged_in(extent.ledger_id)
            if extent.ledger_id == first.ledger_id:
                sent -= BitMap(range(first.entry_id))
            if sent:
                found[extent.ledger_id] = sent
        return found

    def _sent(self, consumers: Consumers) -> dict[int, BitMap]:
        """Return the entries that were sent and are not acknowledged, by ledger."""
        sent = PositionSet.of(self._waits_again.bitmaps.items())
        _add(sent, [position for consumer in consumers.values() for position in consumer.pending.items])
        return sent.bitmaps


def _add(entries: PositionSet, positions: Collection[Key]) -> None:
    if positions:
        columns = np.array(list(positions), dtype=np.int64)
        entries.add(columns[:, 0], columns[:, 1])
