"""Names entries that cannot be read, and what an operator can do about damage."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from pyroaring import BitMap

from managed_ledger.errors import (
    DAMAGE_REMEDY,
    EntriesDamagedError,
    EntriesUnreadableError,
    LedgerError,
    StoreCorruptedError,
)

_RANGES_NAMED_MAX: Final = 10


class UnreadEntries:
    """Collects the entries that a read of one topic did not get, and raises for them.

    Args:
        name: The name of the managed ledger.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._damaged: dict[int, BitMap] = {}
        self._failed: dict[int, BitMap] = {}
        self._causes: dict[bool, LedgerError | None] = {}
        """The first one, of damage and of other failures."""

    def add(self, ledger_id: int, unread: Mapping[int, LedgerError | None]) -> None:
        """Add entries of a ledger, each with the error of its read; None where the log lacks it."""
        for entry_id, error in unread.items():
            is_damaged = error is None or isinstance(error, StoreCorruptedError)
            entries = self._damaged if is_damaged else self._failed
            entries.setdefault(ledger_id, BitMap()).add(entry_id)
            self._causes.setdefault(is_damaged, error)

    def raise_if_any(self) -> None:
        """Raise for the damaged entries, or else for the others.

        Raises:
            EntriesDamagedError: Some are damaged.
            EntriesUnreadableError: None is, and a read failed.
        """
        if self._damaged:
            text = f"{self._name}: the log is damaged at {named(self._damaged)}. {DAMAGE_REMEDY}"
            raise EntriesDamagedError(text, self._damaged) from self._causes[True]
        if self._failed:
            text = f"{self._name}: {named(self._failed)} could not be read: {self._causes[False]}"
            raise EntriesUnreadableError(text, self._failed) from self._causes[False]


def united(some: Mapping[int, BitMap], others: Mapping[int, BitMap]) -> dict[int, BitMap]:
    """Return the entries of both."""
    return {
        ledger_id: some.get(ledger_id, BitMap()) | others.get(ledger_id, BitMap())
        for ledger_id in some.keys() | others.keys()
    }


def named(entries: Mapping[int, BitMap]) -> str:
    """Return entries as text: ranges of one ledger each, the first ones.

    >>> named({1: BitMap([2, 3, 4, 9]), 2: BitMap([0])})
    '1:2-4, 1:9, 2:0'
    """
    shown: list[str] = []
    ranges = ((ledger_id, *run) for ledger_id in sorted(entries) for run in runs(entries[ledger_id]))
    for number, (ledger_id, first, last) in enumerate(ranges):
        if number == _RANGES_NAMED_MAX:
            return f"{', '.join(shown)} and others, {sum(map(len, entries.values()))} entries in all"
        shown.append(f"{ledger_id}:{first}" if first == last else f"{ledger_id}:{first}-{last}")
    return ", ".join(shown)


def runs(entry_ids: BitMap) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of entries.

    >>> list(runs(BitMap([1, 2, 3, 7])))
    [(1, 3), (7, 7)]
    """
    ids = np.frombuffer(entry_ids.to_array(), dtype=np.uint32).astype(np.int64)
    for run in np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1])
