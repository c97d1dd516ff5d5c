"""The highest sequence id of each producer of a log, stored in the synced write that has its entries.

    appended ─► `set` ─► a change accompanies the commit ─┬─ durable: `durable` has it
                                                          └─ failed: all is as `durable` says

So after a crash they say what is in the log: no snapshot is taken, and nothing is replayed. A disk may keep a write
that it reported as failed, so the next commit says what is durable of the producers that were in it.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from managed_ledger.disk import keys
from managed_ledger.disk.database import Batch
from managed_ledger.disk.keys import Family
from managed_ledger.errors import LedgerWriteError

if TYPE_CHECKING:
    from managed_ledger.writing.appender import Companion

_LAST_USE: Final = struct.Struct("<QQ")


class LastUse(NamedTuple):
    """The last that a producer has published."""

    sequence_id: int
    """The highest one."""
    time_ms: int
    """When, by the wall clock."""


def decode(rows: Iterator[tuple[bytes, bytes]]) -> dict[str, LastUse]:
    """Last uses by producer, from the rows of `prefix_range(b"d", owner_id)`.

    Raises:
        struct.error: They are damaged.
    """
    return {key[9:].decode(): LastUse(*_LAST_USE.unpack(value)) for key, value in rows}


class SequenceIds(Mapping[str, LastUse]):
    """The highest sequence id by producer, and when it was published, of entries that are durable or on their way.

    Args:
        owner_id: The owner id of the managed ledger.
        durable: Those that are stored.
        accompany: Has a companion in the commit of the entries that were appended last.
    """

    def __init__(self, owner_id: int, durable: Mapping[str, LastUse], accompany: "Callable[[Companion], None]") -> None:
        self.owner_id = owner_id
        self.durable = dict(durable)
        self._highest = dict(durable)
        self._accompany = accompany
        self._change: _Change | None = None

    def __getitem__(self, producer_name: str) -> LastUse:
        """The highest sequence id of a producer."""
        return self._highest[producer_name]

    def __iter__(self) -> Iterator[str]:
        """The names of producers."""
        return iter(self._highest)

    def __len__(self) -> int:
        """How many producers there are."""
        return len(self._highest)

    def set(self, producer_name: str, use: LastUse | None) -> None:
        """Set the highest sequence id of a producer, None to remove it, in the commit that is being filled."""
        if self._change is None:
            self._change = _Change(self)
            self._accompany(self._change)
        self._change.values[producer_name] = use
        _set(self._highest, producer_name, use)

    def is_put(self) -> None:
        """What is set from now on is in the commit after."""
        self._change = None

    def go_back(self, producer_name: str) -> None:
        """A commit failed: what is durable counts."""
        _set(self._highest, producer_name, self.durable.get(producer_name))


class _Change:
    """The sequence ids of one commit (appender's `Companion`)."""

    def __init__(self, ids: SequenceIds) -> None:
        self.values: dict[str, LastUse | None] = {}
        self._ids = ids
        self._has_failed = False

    def put(self, batch: Batch) -> None:
        if not self._has_failed:
            self._ids.is_put()
        for producer_name, use in self.values.items():
            key = keys.sequence_id_key(self._ids.owner_id, producer_name)
            if use is None:
                batch.delete(Family.META, key)
            else:
                batch.put(Family.META, key, _LAST_USE.pack(*use))

    def settle(self, error: LedgerWriteError | None) -> bool:
        if error is None:
            for producer_name, use in self.values.items():
                _set(self._ids.durable, producer_name, use)
            return False
        if not self._has_failed:
            # It may not have been put yet.
            self._ids.is_put()
            self._has_failed = True
            for producer_name in self.values:
                self._ids.go_back(producer_name)
            self.values = {producer_name: self._ids.durable.get(producer_name) for producer_name in self.values}
        return True


def _set(values: dict[str, LastUse], producer_name: str, use: LastUse | None) -> None:
    if use is None:
        values.pop(producer_name, None)
    else:
        values[producer_name] = use
