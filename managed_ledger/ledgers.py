"""The ledgers of one managed ledger in order, and arithmetic on positions across them.

A position is *confirmed* when its entry is durable; everything here but `appended` speaks of confirmed entries.
Each ledger knows its *ordinal*: how many entries the ledgers before it held when this store was opened, trimmed
ones since then included. Differences of ordinals count entries between positions in O(1).
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pyroaring import BitMap

from managed_ledger.positions.position import Position

_RECORD = struct.Struct("<q?QQqq")
TIME_UNKNOWN = -(2**63)
"""The latest time in a ledger without entries."""


class LedgerTotals(NamedTuple):
    """The figures about its entries in the record of a ledger."""

    entries: int = 0
    bytes: int = 0
    publish_time_ms_max: int = TIME_UNKNOWN
    due_ms_max: int = TIME_UNKNOWN
    """Latest of publish and delivery times: expiry of the last of the entries counts from here."""


NOTHING = LedgerTotals()


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as others see it."""

    ledger_id: int
    entries: int
    bytes: int
    created_ms: int
    is_open: bool
    """Whether entries are appended to it."""
    has_ended: bool
    """Whether no entry can become durable any more: it is not open, and no commit of it is under way."""


@dataclass(slots=True, eq=False)
class Ledger:
    """One ledger; the last one is open, unless the managed ledger is closed."""

    ledger_id: int
    created_ms: int
    ordinal: int = 0
    is_open: bool = True
    is_recorded: bool = False
    """Whether a durable record of it exists."""
    entries: int = 0
    """Durable entries; the same as `durable.entries`, kept apart because acknowledging asks for it so often."""
    appended: int = 0
    """Entries with a position, durable or not."""
    durable: LedgerTotals = NOTHING
    written: LedgerTotals = NOTHING
    """The figures that will be durable once the commits under way are."""
    lost: BitMap | None = None
    """Entries that a repair found lost: they are never read, and every cursor has them acknowledged."""

    @property
    def has_ended(self) -> bool:
        """Whether no entry can become durable any more."""
        return not self.is_open and self.entries == self.appended

    def info(self) -> LedgerInfo:
        """A copy for others."""
        return LedgerInfo(
            self.ledger_id, self.entries, self.durable.bytes, self.created_ms, self.is_open, self.has_ended
        )

    def settle(self, totals: LedgerTotals) -> None:
        """A commit is durable, and these are the totals with it."""
        assert totals.entries >= self.entries

        self.durable = totals
        self.entries = totals.entries

    def abandon(self) -> None:
        """Close at the last durable entry; entries that were appended behind it will never be there."""
        self.is_open = False
        self.written = self.durable
        self.appended = self.entries

    def record(self) -> bytes:
        """The record of this ledger as it is once the commits under way are durable."""
        return _RECORD.pack(self.created_ms, self.is_open, *self.written)

    @classmethod
    def decode(cls, ledger_id: int, record: bytes) -> "Ledger":
        """The ledger of a stored record."""
        created_ms, is_open, *numbers = _RECORD.unpack(record)
        totals = LedgerTotals(*numbers)
        return cls(
            ledger_id,
            created_ms,
            is_open=is_open,
            is_recorded=True,
            entries=totals.entries,
            appended=totals.entries,
            durable=totals,
            written=totals,
        )


class Ledgers:
    """Ledgers by id, in order; never empty once the managed ledger is open."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._by_id: dict[int, Ledger] = {}
        self._next_ordinal = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Ledger]:
        return map(self._by_id.__getitem__, self._ids)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._by_id

    @property
    def first(self) -> Ledger:
        """The oldest ledger kept."""
        return self._by_id[self._ids[0]]

    @property
    def last(self) -> Ledger:
        """The newest ledger."""
        return self._by_id[self._ids[-1]]

    @property
    def end_ordinal(self) -> int:
        """Ordinal of the next entry to become durable."""
        for ledger_id in reversed(self._ids):
            ledger = self._by_id[ledger_id]
            if ledger.entries:
                return ledger.ordinal + ledger.entries
        return self.first.ordinal

    def add(self, ledger: Ledger) -> None:
        """Append a newer ledger."""
        assert not self._ids or ledger.ledger_id > self._ids[-1]

        ledger.ordinal = self.last.ordinal + self.last.appended if self._ids else self._next_ordinal
        self._ids.append(ledger.ledger_id)
        self._by_id[ledger.ledger_id] = ledger

    def remove(self, ledger_id: int) -> None:
        """Forget a ledger."""
        ledger = self._by_id.pop(ledger_id)
        del self._ids[bisect_left(self._ids, ledger_id)]
        self._next_ordinal = ledger.ordinal + ledger.entries

    def get(self, ledger_id: int) -> Ledger | None:
        """A ledger, when it is still there."""
        return self._by_id.get(ledger_id)

    def after(self, ledger_id: int) -> Ledger | None:
        """The next ledger."""
        index = bisect_right(self._ids, ledger_id)
        return self._by_id[self._ids[index]] if index < len(self._ids) else None

    def normalized(self, position: Position) -> Position:
        """The first confirmed position at or after this one, or the one that will be confirmed next."""
        index = bisect_left(self._ids, position.ledger_id)
        if index == len(self._ids):
            last = self.last
            return Position(last.ledger_id, last.entries)
        entry_id = position.entry_id
        while True:
            ledger = self._by_id[self._ids[index]]
            if ledger.ledger_id != position.ledger_id or entry_id < 0:
                entry_id = 0
            if entry_id < ledger.entries:
                return Position(ledger.ledger_id, entry_id)
            if not ledger.has_ended or index + 1 == len(self._ids):
                return Position(ledger.ledger_id, ledger.entries)
            index += 1

    def before(self, position: Position) -> Position:
        """The last confirmed entry before this position, or entry -1 of the first ledger kept."""
        normalized = self.normalized(position)
        if normalized.entry_id > 0:
            return Position(normalized.ledger_id, normalized.entry_id - 1)
        for ledger_id in reversed(self._ids[: bisect_left(self._ids, normalized.ledger_id)]):
            entries = self._by_id[ledger_id].entries
            if entries:
                return Position(ledger_id, entries - 1)
        return Position(self._ids[0], -1)

    def ordinal(self, position: Position) -> int:
        """How many confirmed entries lie before this position, in the count that ordinals use."""
        normalized = self.normalized(position)
        return self._by_id[normalized.ledger_id].ordinal + normalized.entry_id

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry, or entry -1 of the first ledger kept."""
        last = self.last
        return self.before(Position(last.ledger_id, last.entries))
