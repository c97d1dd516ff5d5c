"""Merge snapshots piece by piece: read some rows of each source, take what is safe, cut and encode it.

The live tracker and the bulk job both merge with it: the caller says how rows are read and where segments go. In memory
are some segments of each source and the target's metadata, however large the sources are, and for a moment a source's
entry 0: it says which positions the rows must have.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from managed_ledger.value_types import Int64Array
from snapshot_storage.encoding.codec import encode_metadata_of, encode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segmenter import segment_ends
from snapshot_storage.errors import SnapshotCorruptedError
from tracker.columns.position_set import PositionSet
from tracker.columns.position_sums import subtract, sum_of
from tracker.columns.positions import is_in
from tracker.columns.row_order import key_of, row_count_through
from tracker.columns.segment_table import SegmentTable, spans_of
from tracker.core.actions import MergeBuckets, MergeSource, PositionsRead, ReadPositions
from tracker.core.merge_windows import WINDOW_MAX

MERGE_ROWS_MAX = 65_536
"""A merge reads about this many rows of each source at a time, fewer of many sources."""

_NO_ROWS: Final = np.empty(0, np.int64)

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a function where it may take long, and awaits it."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return what the function returns, and raise what it raises."""


ReadSegments = Callable[[int, int, int], Awaitable[DelayedIndexes]]
"""Reads the rows of a snapshot's segments: its id, the first segment, the last."""
ReadBitmaps = Callable[[ReadPositions], Awaitable[PositionsRead]]


def source_readers(
    action: MergeBuckets,
    read: ReadSegments,
    read_positions: ReadBitmaps,
    *,
    rows_held_max: int = WINDOW_MAX * MERGE_ROWS_MAX,
) -> "list[SourceReader]":
    """Return a reader of each source; together they hold about so many rows at most, at 24 bytes each."""
    rows_max = min(MERGE_ROWS_MAX, rows_held_max // len(action.sources))
    return [SourceReader(action, source, read, read_positions, rows_max) for source in action.sources]


async def merged_segments(
    readers: "Sequence[SourceReader]", cutter: "SegmentCutter", run: RunBlocking
) -> AsyncIterator[list[bytes]]:
    """Give the segments of the merged bucket in order, some at a time; then the cutter has the metadata.

    Raises:
        SnapshotCorruptedError: A source does not hold what its entry 0 says.
    """
    while True:
        for reader in readers:
            await reader.fill()
        rows = take_safe(readers)
        if rows is None:
            break
        yield await run(partial(cutter.add, rows))
    yield await run(cutter.finish)


class SourceReader:
    """Reads one source of a merge, some spans at a time, and keeps the rows that are still to be handed out."""

    def __init__(
        self,
        action: MergeBuckets,
        source: MergeSource,
        read: ReadSegments,
        read_positions: ReadBitmaps,
        rows_max: int,
    ) -> None:
        self._action = action
        self._source = source
        self._read = read
        self._read_positions = read_positions
        self._rows_max = rows_max
        self._spans_read = 0
        self._position_sum: int | None = None
        self._has_stale_rows = False
        self.rows = DelayedIndexes.empty()

    @property
    def is_at_end(self) -> bool:
        """Whether no row comes after those in `rows`."""
        return self._spans_read == len(self._source.table)

    async def fill(self) -> None:
        """Make sure that there are rows, unless the source has ended."""
        while not len(self.rows) and not self.is_at_end:
            first = self._spans_read
            end = self._end_of_read(first)
            rows = await self._read_spans(first, end)
            self._spans_read = end
            await self._check(rows)
            self.rows = rows.take(self._is_wanted(rows, is_loaded=end <= self._source.loaded_spans))

    def _end_of_read(self, first: int) -> int:
        table = self._source.table
        # Loaded and other rows are told apart by the span they are in.
        limit = self._source.loaded_spans if first < self._source.loaded_spans else len(table)
        rows_through = table.rows_before(first) + self._rows_max
        return min(limit, max(first + 1, int(table.row_ends.searchsorted(rows_through, "right"))))

    async def _read_spans(self, first: int, end: int) -> DelayedIndexes:
        table, bucket_id = self._source.table, self._source.bucket_id
        first_segment, last_segment = table.segments_before(first) + 1, table.segments_before(end)
        rows = await self._read(bucket_id, first_segment, last_segment)
        row_count = table.rows_before(end) - table.rows_before(first)
        if len(rows) > row_count:
            # Rows without a bit are stale, and left out: the others are counted here, and their sum means nothing.
            positions = await self._read_positions(ReadPositions(self._action.serial, bucket_id, first_segment))
            rows = rows.take(is_in(positions.bitmaps, rows.ledger_ids, rows.entry_ids))
            self._has_stale_rows = True
        if len(rows) < row_count:
            # Otherwise the rows that are missing would go with the sources.
            reason = f"segments {first_segment} to {last_segment} are not what entry 0 says"
            raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
        return rows

    async def _check(self, rows: DelayedIndexes) -> None:
        """Refuse, at the end, rows that are as many as the positions of entry 0, but not those."""
        if self._source.is_cut:
            return
        bucket_id = self._source.bucket_id
        if self._position_sum is None:
            named = await self._read_positions(ReadPositions(self._action.serial, bucket_id, 1))
            self._position_sum = named.position_sum
        self._position_sum = subtract(self._position_sum, sum_of(rows.ledger_ids, rows.entry_ids))
        if self.is_at_end and self._position_sum and not self._has_stale_rows:
            raise SnapshotCorruptedError("its rows are not those that entry 0 names", bucket_id=bucket_id)

    def _is_wanted(self, rows: DelayedIndexes, *, is_loaded: bool) -> NDArray[np.bool_]:
        if is_loaded:
            return is_in(self._action.loaded, rows.ledger_ids, rows.entry_ids)
        is_settled = is_in(self._action.settled, rows.ledger_ids, rows.entry_ids)
        is_unloaded: NDArray[np.bool_] = ~is_settled & (rows.ledger_ids >= self._action.first_ledger_id)
        return is_unloaded


def take_safe(readers: Sequence[SourceReader]) -> DelayedIndexes | None:
    """Take the rows that no row which was not read yet can precede, in order; None at the end of all."""
    if all(not len(reader.rows) for reader in readers):
        return None
    through = min((key_of(reader.rows, -1) for reader in readers if not reader.is_at_end), default=None)
    parts: list[DelayedIndexes] = []
    for reader in readers:
        rows = reader.rows
        end = len(rows) if through is None else row_count_through(rows, through)
        parts.append(rows.slice(0, end))
        reader.rows = rows.slice(end, len(rows))
    return DelayedIndexes.concatenate(parts).sorted()


class SegmentCutter:
    """Cuts and encodes sorted rows that come piece by piece, to what `build_snapshot` makes of all at once.

    Keeps what entry 0 will say, encoded, and 24 bytes a segment.
    """

    def __init__(self, *, step_ms: int, rows_max: int, may_repeat: bool) -> None:
        self._step_ms = step_ms
        self._rows_max = rows_max
        self._stored = PositionSet() if may_repeat else None
        self._open = DelayedIndexes.empty()
        self._metadata: list[bytes] = []
        self._columns: list[tuple[Int64Array, Int64Array, Int64Array]] = [(_NO_ROWS, _NO_ROWS, _NO_ROWS)]
        self.segment_bytes = 0

    def add(self, rows: DelayedIndexes) -> list[bytes]:
        """Take the next rows, and return the segments that are complete.

        Rows of positions that came before are left out.
        """
        if self._stored is not None:
            rows = rows.take(self._stored.note(rows.ledger_ids, rows.entry_ids))
        rows = DelayedIndexes.concatenate([self._open, rows])
        ends = segment_ends(rows.deliver_at_ms, step_ms=self._step_ms, rows_max=self._rows_max)
        # The last segment may go on with the next rows.
        self._open = rows.slice(ends[-2] if len(ends) > 1 else 0, len(rows))
        return self._encode(rows, ends[:-1])

    def finish(self) -> list[bytes]:
        """Return the last segment, if there is one."""
        return self._encode(self._open, [len(self._open)] if len(self._open) else [])

    def metadata(self) -> bytes:
        """Return entry 0: encoded lists that follow each other are one list."""
        return b"".join(self._metadata)

    def table(self, span_rows: int) -> SegmentTable:
        """Return the columns of all segments, in spans."""
        firsts, lasts, counts = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        return spans_of(firsts, lasts, counts, np.array([len(firsts)]), span_rows)[0]

    def _encode(self, rows: DelayedIndexes, ends: list[int]) -> list[bytes]:
        if not ends:
            return []
        rows = rows.slice(0, ends[-1])
        segments = encode_segments(rows, ends)
        self.segment_bytes += sum(map(len, segments))
        self._metadata.append(encode_metadata_of(rows, ends))
        row_counts: Int64Array = np.array(ends, np.int64) - np.array([0, *ends[:-1]], np.int64)
        lasts = rows.deliver_at_ms[np.array(ends, np.intp) - 1]
        firsts = rows.deliver_at_ms[np.array([0, *ends[:-1]], np.intp)]
        self._columns.append((firsts, lasts, row_counts))
        return segments
