"""The rows of an index after bulk jobs, worked out one position at a time: the judge of the random differential.

The oracle knows the log, the acknowledged positions of each subscription, and the rows of each index. It shares no code
with the jobs: sets and dictionaries, and loops over them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from managed_ledger.cursors.cursor_properties import CursorName
from tests.helpers.spark.bulk_data import Headers

Position = tuple[int, int]
Row = tuple[int, int, int]
"""Ledger, entry, delivery time."""
Index = list[list[Row]]
"""The rows of each bucket that a subscription's properties name."""


@dataclass
class BulkOracle:
    """The log and its indexes as they must be."""

    headers: Headers
    now_ms: int
    acknowledged: dict[CursorName, set[Position]] = field(default_factory=dict)
    index: dict[CursorName, set[Row]] = field(default_factory=dict)

    def waiting(self, name: CursorName) -> dict[Position, int]:
        """The delivery times, by position, of the delayed messages of a subscription."""
        found = {}
        for ledger_id, entry_id, time in self.headers[name.topic]:
            if time > self.now_ms and (ledger_id, entry_id) not in self.acknowledged[name]:
                found[ledger_id, entry_id] = time
        return found

    def rebuilt(self, names: Iterable[CursorName]) -> None:
        """The index of these becomes what is to be delivered."""
        for name in names:
            self.index[name] = {(*position, time) for position, time in self.waiting(name).items()}

    def added(self, name: CursorName, rows: Iterable[Row]) -> None:
        """Rows came; of several of one position in one batch, the earliest."""
        earliest: dict[Position, int] = {}
        for ledger_id, entry_id, time in rows:
            if time > self.now_ms:
                earliest[ledger_id, entry_id] = min(time, earliest.get((ledger_id, entry_id), time))
        self.index[name] = self.index[name] | {(*position, time) for position, time in earliest.items()}

    def cancelled(self, name: CursorName, positions: Iterable[Position], *, has_own_index: bool) -> int:
        """Positions are acknowledged, and their rows gone; returns how many were not acknowledged before."""
        there = {header[:2] for header in self.headers[name.topic]}
        gone = {position for position in positions if position in there}
        new = gone - self.acknowledged[name]
        self.acknowledged[name] |= gone
        if has_own_index:
            self.index[name] = {row for row in self.index[name] if row[:2] not in gone}
        return len(new)

    def findings(self, name: CursorName, buckets: Index, last_sealed: Position) -> dict[str, int]:
        """How many positions a check must find, of each kind that is wrong."""
        times = {header[:2]: header[2] for header in self.headers[name.topic] if header[2] >= 0}
        counts = Counter(row[:2] for bucket in buckets for row in bucket)
        of_index = {row[:2]: row[2] for bucket in reversed(buckets) for row in reversed(bucket)}
        acknowledged = self.acknowledged[name]
        found: Counter[str] = Counter()
        for position, count in counts.items():
            found["duplicate"] += count > 1
            if position in times and position not in acknowledged:
                found["mistimed"] += times[position] != of_index[position]
            elif position not in acknowledged:
                found["stray"] += 1
        for position in self.waiting(name):
            found["missing"] += position not in counts and position <= last_sealed
        return {kind: count for kind, count in found.items() if count}


def differences(expected: Mapping[CursorName, set[Row]], found: Mapping[CursorName, Index]) -> dict[CursorName, str]:
    """Say of which subscriptions the rows are not what they must be, and how they differ."""
    wrong = {}
    for name, rows in expected.items():
        there = {row for bucket in found[name] for row in bucket}
        if there != rows:
            wrong[name] = f"missing {sorted(rows - there)[:5]}, too many {sorted(there - rows)[:5]}"
    return wrong
