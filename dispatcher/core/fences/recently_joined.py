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
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from pyroaring import BitMap

from dispatcher.core.acknowledgements.deliverable import Acknowledgements
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.fence import Consumers, OrderFence
from dispatcher.core.items import ENTRY, LEDGER, Item, Key
from dispatcher.stats import NewcomerStats
from managed_ledger.ledgers import LedgerInfo
from managed_ledger.positions.position import Position
from tracker.columns.position_set import PositionSet

Ledgers: TypeAlias = Callable[[], list[LedgerInfo]]

_NONE_AWAITED: Final[Key] = (2**63 - 1, 0)


class RecentlyJoinedFence(OrderFence):
    """The newcomers with their bounds.

    Args:
        cursor: The acknowledgements.
        ledgers: The ledgers of the log, in order.
    """

    reason = "its consumer joined lately, and what came before that is not all acknowledged"
    # A bound is a position. By time, an entry beyond it could stand before one that must be acknowledged to lift it.
    is_by_position = True

    def __init__(self, cursor: Acknowledgements, ledgers: Ledgers) -> None:
        self.bounds: dict[int, Position] = {}
        """By consumer, in the order in which they joined, which is that of the bounds."""
        self.bounds_when_joining: dict[int, Position] = {}
        """The bound that each consumer had when it joined, also after it was lifted, for the stats."""
        self._cursor = cursor
        self._ledgers = ledgers

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
        if len(consumers) > 1 and bound > self._first_awaited():
            # A bound never lies before an earlier one: entries that were sent or read stay so.
            self.bounds[consumer.index] = max(bound, *self.bounds.values()) if self.bounds else bound

    def _first_awaited(self) -> Key:
        """Return the first position that newcomers wait for."""
        return self._cursor.next_unacknowledged_position

    def leaves(self, consumer: ConsumerState, consumers: Consumers, waiting: Collection[int]) -> list[int]:
        """Forget a consumer's bound; the last consumer has no other one to be fenced from."""
        before = len(self.bounds)
        self.bounds.pop(consumer.index, None)
        self.bounds_when_joining.pop(consumer.index, None)
        if len(consumers) <= 1:
            self.bounds.clear()
        return list(waiting) if len(self.bounds) != before else []

    def can_release(self) -> bool:
        return bool(self.bounds) and next(iter(self.bounds.values())) <= self._first_awaited()

    def release(self, waiting: Collection[int]) -> list[int]:
        first_awaited = self._first_awaited()
        self.bounds = {index: bound for index, bound in self.bounds.items() if bound > first_awaited}
        return list(waiting)

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

    def __init__(self, cursor: Acknowledgements, ledgers: Ledgers) -> None:
        super().__init__(cursor, ledgers)
        self._awaited = PositionSet()
        """Entries that consumers held at another's join; acknowledged ones leave from the front."""

    def _first_awaited(self) -> Key:
        # Once a ledger is deleted, the cursor does not tell that its entries are acknowledged.
        self._awaited.remove_below(self._cursor.next_unacknowledged_position.ledger_id)
        for ledger_id in sorted(self._awaited.bitmaps):
            self._awaited.subtract(ledger_id, self._cursor.acknowledged_in(ledger_id))
            if ledger_id in self._awaited.bitmaps:
                return (ledger_id, self._awaited.bitmaps[ledger_id].min())
        return _NONE_AWAITED

    def clear(self) -> None:
        super().clear()
        self._awaited = PositionSet()

    def _bound(self, consumers: Consumers, read_position: Position) -> Position:
        """Return the read position; a newcomer waits for all that consumers hold now."""
        _add(self._awaited, [position for consumer in consumers.values() for position in consumer.pending.items])
        return read_position

    def position_when_joining(self, consumer_index: int) -> Position | None:
        """Return the read position of that moment."""
        return self.bounds_when_joining.get(consumer_index)


class LastSentPositionFence(RecentlyJoinedFence):
    """PIP-282: a newcomer's bound is the first position that was never sent."""

    def __init__(self, cursor: Acknowledgements, ledgers: Ledgers) -> None:
        super().__init__(cursor, ledgers)
        self._waits_again = PositionSet()

    def note_taken_back(self, positions: Collection[Key]) -> None:
        """Remember entries that wait again, which count as sent."""
        self._waits_again.remove_below(self._cursor.next_unacknowledged_position.ledger_id)
        _add(self._waits_again, positions)

    def leaves(self, consumer: ConsumerState, consumers: Consumers, waiting: Collection[int]) -> list[int]:
        if not consumers:
            self._waits_again = PositionSet()
        return super().leaves(consumer, consumers, waiting)

    def clear(self) -> None:
        super().clear()
        self._waits_again = PositionSet()

    def _bound(self, consumers: Consumers, read_position: Position) -> Position:
        return self.first_unsent(consumers)

    def first_unsent(self, consumers: Consumers) -> Position:
        """Return the first position that was never sent; it need not exist yet."""
        after = first = self._cursor.next_unacknowledged_position
        for ledger, sent in self._sent_from(first, consumers):
            begin = first.entry_id if ledger.ledger_id == first.ledger_id else 0
            unsent = BitMap(range(max(begin, 0), ledger.entries)) - sent
            if unsent:
                return Position(ledger.ledger_id, unsent.min())
            if ledger.entries:
                # A ledger without confirmed entries tells nothing: one before it may have some that are being written.
                after = max(after, Position(ledger.ledger_id, ledger.entries))
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
        ledgers = [one for one in self._ledgers() if one.ledger_id < position.ledger_id and one.entries]
        return Position(ledgers[-1].ledger_id, ledgers[-1].entries - 1) if ledgers else Position(position.ledger_id, -1)

    def individually_sent(self, consumers: Consumers) -> dict[int, BitMap]:
        """Return the entries sent at or beyond the first unsent position, by ledger."""
        first = self.first_unsent(consumers)
        found = {ledger.ledger_id: sent for ledger, sent in self._sent_from(first, consumers)}
        if first.ledger_id in found:
            found[first.ledger_id] -= BitMap(range(first.entry_id))
        return {ledger_id: sent for ledger_id, sent in found.items() if sent}

    def _sent_from(self, first: Position, consumers: Consumers) -> Iterator[tuple[LedgerInfo, BitMap]]:
        """Give each ledger from that of `first` on, with the entries that were sent or are acknowledged."""
        pending = PositionSet.of(self._waits_again.bitmaps.items())
        _add(pending, [position for consumer in consumers.values() for position in consumer.pending.items])
        for ledger in self._ledgers():
            if ledger.ledger_id >= first.ledger_id:
                sent = pending.bitmaps.get(ledger.ledger_id, BitMap())
                yield ledger, sent | self._cursor.acknowledged_in(ledger.ledger_id)


def _add(entries: PositionSet, positions: Collection[Key]) -> None:
    if positions:
        columns = np.array(list(positions), dtype=np.int64)
        entries.add(columns[:, 0], columns[:, 1])
