"""The messages between the two processes, each sent by `multiprocessing.connection.Connection`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.core.actions import SegmentsLoaded

FEW_ROWS: Final = 512
"""Rows of loads are sent together if a load has fewer, on average: three columns of its own cost it 20 us on both
sides. Larger ones keep memory of their own, as some may wait for long."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the `StorageWorker`; answered by one `Answer` of the same number, unless it is cancelled."""

    number: int
    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller does not wait for the call of this number any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of the call of this number, or the error that it raised."""

    number: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class LoadsTogether:
    """The answers to several loads: numbers in lists, and the rows of all in common columns."""

    numbers: list[tuple[int, int, int, int]]
    """Of each load: serial, first segment, last segment, and the sum of its positions."""
    row_ends: list[int]
    columns: bytes
    """Times, ledger ids and entry ids of all, one column after the other."""

    @classmethod
    def of(cls, loads: Sequence[SegmentsLoaded]) -> Self:
        """Take the answers together."""
        rows = DelayedIndexes.concatenate([load.rows for load in loads])
        return cls(
            [(load.serial, load.first_segment, load.last_segment, load.position_sum) for load in loads],
            np.cumsum([len(load.rows) for load in loads]).tolist(),
            b"".join(column.tobytes() for column in (rows.deliver_at_ms, rows.ledger_ids, rows.entry_ids)),
        )

    def loads(self) -> list[SegmentsLoaded]:
        """Return the answers."""
        rows = DelayedIndexes(*np.frombuffer(self.columns, np.int64).reshape(3, -1))
        starts = [0, *self.row_ends[:-1]]
        return [
            SegmentsLoaded(serial, first, last, rows.slice(start, end), position_sum)
            for (serial, first, last, position_sum), start, end in zip(self.numbers, starts, self.row_ends, strict=True)
        ]


def together(value: Any) -> Any:
    """Return a result as it is sent: loads of few rows each as one, anything else as it is."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(one, SegmentsLoaded) for one in value):
        return value
    return LoadsTogether.of(value) if sum(len(load.rows) for load in value) < FEW_ROWS * len(value) else value


def apart(value: Any) -> Any:
    """Return a result as it was before `together`."""
    return value.loads() if isinstance(value, LoadsTogether) else value
