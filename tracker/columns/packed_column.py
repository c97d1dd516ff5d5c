"""A column of numbers that are near their neighbours, kept in blocks as distances from each block's lowest number.

Databases call it frame of reference. Loaded rows wait in memory for their times, and take 24 bytes each as they come.
But the times of 64 rows in a row differ by seconds, their entries by some ten thousand and their ledgers mostly not at
all: so 4.4 bytes say the same.
"""

from typing import Final, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from managed_ledger.value_types import Int64Array

BLOCK_ROWS: Final = 64
"""A block's lowest number is 8 bytes. With more rows, times often differ by more than the 65 s of two bytes."""

_DISTANCE_MAX: Final = 2**32 - 1
"""Numbers that are farther apart are kept as they are."""


class PackedColumn:
    """Numbers that are not negative and never change; read as an array is, which gives int64 again."""

    __slots__ = ("_distances", "_lowest", "_row_count")

    def __init__(self, values: Int64Array) -> None:
        self._row_count = len(values)
        self._lowest: Int64Array = np.minimum.reduceat(values, np.arange(0, len(values), BLOCK_ROWS))
        distances = values - self._lowest.repeat(BLOCK_ROWS)[: len(values)]
        farthest = int(distances.max())
        kind = np.min_scalar_type(farthest) if farthest <= _DISTANCE_MAX else np.dtype(np.int64)
        self._distances: NDArray[np.integer] | None = distances.astype(kind) if farthest else None
        """None where all are 0."""

    def __len__(self) -> int:
        return self._row_count

    @overload
    def __getitem__(self, rows: int) -> int: ...
    @overload
    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Int64Array: ...
    def __getitem__(self, rows: int | slice | NDArray[np.intp]) -> int | Int64Array:
        values: Int64Array
        if isinstance(rows, slice):
            start, end, _ = rows.indices(self._row_count)
            if start >= end:
                # At the end of the last block, if that is full, there is no further one.
                return np.empty(0, np.int64)
            first = start // BLOCK_ROWS
            if end <= (first + 1) * BLOCK_ROWS and self._distances is not None:
                # PERFORMANCE: few rows of each of many runs, at each merge.
                values = np.add(self._distances[start:end], self._lowest[first], dtype=np.int64)
                return values
            before = first * BLOCK_ROWS
            values = self._lowest[first : end // BLOCK_ROWS + 1].repeat(BLOCK_ROWS)[start - before : end - before]
        elif isinstance(rows, int):
            return int(self._lowest[rows // BLOCK_ROWS]) + (
                0 if self._distances is None else int(self._distances[rows])
            )
        else:
            values = self._lowest[rows // BLOCK_ROWS]
        if self._distances is not None:
            values += self._distances[rows]
        return values

    def searchsorted(self, value: int, side: Literal["left", "right"]) -> int:
        """Return where a value belongs in a column that is in order, as numpy's."""
        block = int(self._lowest.searchsorted(value, side)) - 1
        if block < 0:
            return 0
        start = block * BLOCK_ROWS
        end = min(start + BLOCK_ROWS, self._row_count)
        if self._distances is None:
            return end
        distance = value - int(self._lowest[block])
        distances = self._distances[start:end]
        if distance > distances[-1]:
            return end
        # A key of another type would have the distances converted to it.
        return start + int(distances.searchsorted(distances.dtype.type(distance), side))

    def from_block(self, block: int) -> Self:
        """Return the numbers from a block on, in memory of their own."""
        rest = object.__new__(type(self))
        rest._row_count = self._row_count - block * BLOCK_ROWS
        rest._lowest = self._lowest[block:].copy()
        rest._distances = None if self._distances is None else self._distances[block * BLOCK_ROWS :].copy()
        return rest
