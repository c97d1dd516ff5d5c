"""Run the core's actions against a storage and a cursor: decode and encode in a worker, and answer with events.

Everything here is stateless: what an action needs is in it. The functions that do O(n) work are module-level, over
arrays, and know no event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypedDict, TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.codec import (
    SegmentMetadata,
    decode_metadata,
    decode_segments,
    encode_metadata,
    encode_segments,
    merged_bitmaps,
    segments_metadata,
)
from snapshot_storage.columns import DelayedIndexes
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.segmenter import segment_ends
from snapshot_storage.snapshot import build_snapshot
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    BucketSnapshotWriter,
)
from tracker.actions import (
    Action,
    DeleteSnapshot,
    Event,
    Int64Array,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    MergeSource,
    MetadataRead,
    PersistBucket,
    PositionsRead,
    PropertyPut,
    PropertyRemoved,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
    SegmentsLoaded,
    SegmentTable,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotIsAlien,
    SnapshotsListed,
)
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.due_queue import RowKey, sorted_rows
from tracker.membership import Membership, is_in

MERGE_ROWS_MAX = 65_536
"""A merge reads about this many rows of each source at a time."""

SPANS_PER_BUCKET: Final = 200
"""A bucket of the least size has about so many spans at most, whatever its times: a tenth of a byte a row."""

BITMAPS_AT_ONCE_MAX: Final = 64
"""Recovery decodes the bitmaps of a snapshot at once up to this number: about 0.1 ms."""

_NO_ROWS: Final = np.empty(0, np.int64)

T = TypeVar("T")

_SingleCall = (
    PersistBucket
    | PutProperty
    | ReadMetadata
    | ReadPositions
    | LoadSegments
    | DeleteSnapshot
    | RemoveProperty
    | ListSnapshots
)


class _Names(TypedDict):
    bucket_key: str
    topic_name: str
    cursor_name: str


class RunBlocking(Protocol):
    """Runs a function where it may take long, and awaits it."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return what the function returns, and raise what it raises."""


def is_lost(error: BaseException) -> bool:
    """Whether an error of a read means that the snapshot is gone or unreadable for good."""
    return isinstance(error, BucketNotFoundError | SnapshotCorruptedError)


class SnapshotWork:
    """Runs one action and gives its answer; raises what the storage and the cursor raise."""

    def __init__(
        self,
        config: TrackerConfig,
        context: TrackerContext,
        storage: BucketSnapshotStorage,
        run_blocking: RunBlocking,
        building: asyncio.Lock,
    ) -> None:
        self._config = config
        self._span_rows = max(1, config.index_count_per_bucket_min // SPANS_PER_BUCKET)
        # Threads share one interpreter: two builds at a time would finish no earlier, and hold the event loop up
        # twice as long.
        self._building = building
        self._context = context
        self._storage = storage
        self._run_blocking = run_blocking

    async def run(self, action: Action) -> Event:
        """Run an action to its end, within the configured time; of a merge, which is many calls, each of them."""
        if isinstance(action, MergeBuckets):
            return await self._merge(action)
        async with self._in_time():
            return await self._run(action)

    def _in_time(self) -> asyncio.Timeout:
        return asyncio.timeout(self._config.operation_timeout_ms / 1_000)

    async def _run(self, action: _SingleCall) -> Event:
        match action:
            case PersistBucket():
                return await self._persist(action)
            case PutProperty():
                await self._context.cursor.update_properties(put={action.bucket_key: str(action.bucket_id)})
                return PropertyPut(action.serial)
            case ReadMetadata():
                return await self._read_metadata(action)
            case ReadPositions():
                return await self._read_positions(action)
            case LoadSegments():
                return await self._load(action)
            case DeleteSnapshot():
                if action.is_own or await self._is_own(action.bucket_id):
                    await self._storage.delete_bucket_snapshot(action.bucket_id)
                return SnapshotDeleted(action.serial)
            case RemoveProperty():
                await self._context.cursor.update_properties(remove=[action.bucket_key])
                return PropertyRemoved(action.serial)
            case ListSnapshots():
                infos = await self._storage.list_bucket_snapshots(self._context.topic_name, self._context.cursor_name)
                return SnapshotsListed(action.serial, [info.bucket_id for info in infos])
            case _:
                assert_never(action)

    async def _persist(self, action: PersistBucket) -> Event:
        config = self._config
        async with self._building:
            snapshot = await self._run_blocking(
                lambda: build_snapshot(
                    _rows_to_store(action),
                    step_ms=config.segment_step_ms_max,
                    rows_max=config.segment_row_count_max,
                )
            )
        bucket_id = await self._storage.create_bucket_snapshot(
            snapshot.metadata, snapshot.segments, **self._names(action.bucket_key)
        )
        table = await self._run_blocking(lambda: table_of(snapshot.segment_metadata, self._span_rows))
        return SnapshotCreated(action.serial, bucket_id, snapshot.length_bytes, table)

    def _names(self, bucket_key: str) -> _Names:
        context = self._context
        return {"bucket_key": bucket_key, "topic_name": context.topic_name, "cursor_name": context.cursor_name}

    async def _read_metadata(self, action: ReadMetadata) -> Event:
        head = await self._storage.read_bucket_snapshot_head(action.bucket_id)
        if not self._is_of_this_cursor(head.info):
            return SnapshotIsAlien(action.serial, f"{head.info.topic_name} / {head.info.cursor_name}")
        return await self._run_blocking(lambda: _metadata_read(action, head, self._span_rows))

    async def _is_own(self, bucket_id: int) -> bool:
        """Whether nobody else can miss this snapshot: it is this cursor's, or there is none that could be read."""
        try:
            head = await self._storage.read_bucket_snapshot_head(bucket_id)
        except (BucketNotFoundError, SnapshotCorruptedError):
            return True
        return self._is_of_this_cursor(head.info)

    def _is_of_this_cursor(self, info: BucketSnapshotInfo) -> bool:
        return info.belongs_to(self._context.topic_name, self._context.cursor_name)

    async def _read_positions(self, action: ReadPositions) -> PositionsRead:
        data = await self._storage.get_bucket_snapshot_metadata(action.bucket_id)
        return await self._run_blocking(lambda: _positions_read(action, data))

    async def _load(self, action: LoadSegments) -> Event:
        if action.data:
            rows = await self._run_blocking(lambda: decode_segments(action.data, first_entry=action.first_segment))
        else:
            rows = await self._segments(action.bucket_id, action.first_segment, action.last_segment)
        return SegmentsLoaded(action.serial, action.first_segment, action.last_segment, rows)

    async def _segments(self, bucket_id: int, first_segment: int, last_segment: int) -> DelayedIndexes:
        data = await self._storage.get_bucket_snapshot_segment(bucket_id, first_segment, last_segment)
        if len(data) != last_segment - first_segment + 1:
            reason = f"asked for segments {first_segment} to {last_segment}, there are {len(data)}"
            raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
        return await self._run_blocking(lambda: decode_segments(data, first_entry=first_segment))

    async def _merge(self, action: MergeBuckets) -> Event:
        """Merge the sources piece by piece; in memory are some segments of each, and the target's metadata."""
        readers = [
            _SourceReader(action, source, self._segments_in_time, self._positions_in_time) for source in action.sources
        ]
        cutter = _Cutter(self._config, may_repeat=action.may_repeat)
        async with self._storage.new_bucket_snapshot(**self._names(action.bucket_key)) as writer:
            while True:
                for reader in readers:
                    await reader.fill()
                rows = _take_safe(readers)
                if rows is None:
                    break
                async with self._building:
                    segments = await self._run_blocking(_bind(cutter.add, rows))
                await self._write(writer, segments)
            await self._write(writer, await self._run_blocking(cutter.finish))
            metadata, table = await self._run_blocking(lambda: (cutter.metadata(), cutter.table(self._span_rows)))
            async with self._in_time():
                bucket_id = await writer.commit(metadata)
        return SnapshotCreated(action.serial, bucket_id, cutter.segment_bytes + len(metadata), table)

    async def _segments_in_time(self, bucket_id: int, first_segment: int, last_segment: int) -> DelayedIndexes:
        async with self._in_time():
            return await self._segments(bucket_id, first_segment, last_segment)

    async def _positions_in_time(self, action: ReadPositions) -> PositionsRead:
        async with self._in_time():
            return await self._read_positions(action)

    async def _write(self, writer: BucketSnapshotWriter, segments: list[bytes]) -> None:
        if segments:
            async with self._in_time():
                await writer.write_segments(segments)


def _bind(function: Callable[[DelayedIndexes], T], rows: DelayedIndexes) -> Callable[[], T]:
    return lambda: function(rows)


def _rows_to_store(action: PersistBucket) -> DelayedIndexes:
    rows = sorted_rows(action.parts)
    if action.tracked is None:
        return rows
    tracked = Membership.of(action.tracked.items())
    return rows.take(tracked.take(rows.ledger_ids, rows.entry_ids))


def table_of(segments: Sequence[SegmentMetadata], span_rows: int) -> SegmentTable:
    """Return the columns of a snapshot's segments, as its metadata has them.

    Args:
        segments: The segments, in order.
        span_rows: Segments that begin within the same so many rows are one span.
    """
    return spans_of(
        np.array([segment.deliver_at_ms_min for segment in segments], np.int64),
        np.array([segment.deliver_at_ms_max for segment in segments], np.int64),
        np.array([segment.row_count for segment in segments], np.int64),
        span_rows,
    )


def spans_of(first_times: Int64Array, last_times: Int64Array, row_counts: Int64Array, span_rows: int) -> SegmentTable:
    """Return the table of segments of which these are the columns."""
    row_ends = np.cumsum(row_counts, dtype=np.int64)
    is_last = np.ones(len(row_ends), np.bool_)
    is_last[:-1] = np.diff((row_ends - row_counts) // span_rows) > 0
    lasts = np.flatnonzero(is_last)
    firsts = np.concatenate((np.zeros(1, np.int64), lasts + 1))[:-1]
    return SegmentTable(
        first_times[firsts], last_times[lasts], row_ends[lasts].astype(np.int32), (lasts + 1).astype(np.int32)
    )


def _metadata_read(action: ReadMetadata, head: BucketSnapshotHead, span_rows: int) -> MetadataRead:
    segments = decode_metadata(head.metadata)
    ledger_ids = {ledger_id for segment in segments for ledger_id in segment.bitmaps}
    ledgers = LedgerRange(min(ledger_ids), max(ledger_ids)) if ledger_ids else None
    # Spans are only as good as the segments that they are made of.
    begins = [segment.deliver_at_ms_min for segment in segments]
    ends = [segment.deliver_at_ms_max for segment in segments]
    if any(begin < end for begin, end in zip(begins[1:], ends, strict=False)):
        raise SnapshotCorruptedError("its segments overlap in time", bucket_id=action.bucket_id)
    table = table_of(segments, span_rows)
    by_time = int(table.first_times.searchsorted(action.through_ms, "right"))
    by_rows = int(table.row_ends.searchsorted(action.row_count_max, "right"))
    by_segments = int(table.segment_ends.searchsorted(len(head.first_segments), "right"))
    kept = head.first_segments[: table.segments_before(min(by_time, by_rows, by_segments))]
    positions = None
    if sum(len(segment.bitmaps) for segment in segments) <= BITMAPS_AT_ONCE_MAX:
        positions = _positions_of(action.serial, 1, segments)
    return MetadataRead(action.serial, head.info.length_bytes, table, ledgers, kept, positions)


def _positions_read(action: ReadPositions, data: bytes) -> PositionsRead:
    return _positions_of(action.serial, action.first_segment, decode_metadata(data)[action.first_segment - 1 :])


def _positions_of(serial: int, first_segment: int, segments: Sequence[SegmentMetadata]) -> PositionsRead:
    bitmaps = merged_bitmaps(segments)
    has_repeats = sum(segment.row_count for segment in segments) > sum(map(len, bitmaps.values()))
    return PositionsRead(serial, first_segment, bitmaps, has_repeats)


class _SourceReader:
    """Reads one source of a merge, some spans at a time, and keeps the rows that are still to be handed out."""

    def __init__(
        self,
        action: MergeBuckets,
        source: MergeSource,
        read: Callable[[int, int, int], Awaitable[DelayedIndexes]],
        read_positions: Callable[[ReadPositions], Awaitable[PositionsRead]],
    ) -> None:
        self._action = action
        self._source = source
        self._read = read
        self._read_positions = read_positions
        self._spans_read = 0
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
            is_loaded = end <= self._source.loaded_spans
            self.rows = rows.take(self._is_loaded_and_tracked(rows) if is_loaded else self._is_unread(rows))

    def _end_of_read(self, first: int) -> int:
        table = self._source.table
        # Loaded and unread rows are told apart by the span they are in.
        limit = self._source.loaded_spans if first < self._source.loaded_spans else len(table)
        rows_through = table.rows_before(first) + MERGE_ROWS_MAX
        return min(limit, max(first + 1, int(table.row_ends.searchsorted(rows_through, "right"))))

    async def _read_spans(self, first: int, end: int) -> DelayedIndexes:
        table, bucket_id = self._source.table, self._source.bucket_id
        first_segment, last_segment = table.segments_before(first) + 1, table.segments_before(end)
        rows = await self._read(bucket_id, first_segment, last_segment)
        row_count = table.rows_before(end) - table.rows_before(first)
        if len(rows) < row_count:
            # Otherwise the rows that are missing would go with the sources.
            reason = f"segments {first_segment} to {last_segment} are not what entry 0 says"
            raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
        if len(rows) > row_count:
            # Some have no bit: they are stale.
            positions = await self._read_positions(ReadPositions(self._action.serial, bucket_id, first_segment))
            rows = rows.take(is_in(positions.bitmaps, rows.ledger_ids, rows.entry_ids))
        return rows

    def _is_loaded_and_tracked(self, rows: DelayedIndexes) -> NDArray[np.bool_]:
        return is_in(self._action.loaded, rows.ledger_ids, rows.entry_ids)

    def _is_unread(self, rows: DelayedIndexes) -> NDArray[np.bool_]:
        is_settled = is_in(self._action.settled, rows.ledger_ids, rows.entry_ids)
        is_unread: NDArray[np.bool_] = ~is_settled & (rows.ledger_ids >= self._action.first_ledger_id)
        return is_unread


def _take_safe(readers: Sequence[_SourceReader]) -> DelayedIndexes | None:
    """Take the rows that no unread row can precede, in order; None at the end of all."""
    if all(not len(reader.rows) for reader in readers):
        return None
    through = min((_last_key(reader.rows) for reader in readers if not reader.is_at_end), default=None)
    parts: list[DelayedIndexes] = []
    for reader in readers:
        rows = reader.rows
        end = len(rows) if through is None else _rows_through(rows, through)
        parts.append(rows.slice(0, end))
        reader.rows = rows.slice(end, len(rows))
    return sorted_rows(parts)


def _last_key(rows: DelayedIndexes) -> RowKey:
    return RowKey(int(rows.deliver_at_ms[-1]), int(rows.ledger_ids[-1]), int(rows.entry_ids[-1]))


def _rows_through(rows: DelayedIndexes, through: RowKey) -> int:
    start = int(rows.deliver_at_ms.searchsorted(through.deliver_at_ms, "left"))
    end = int(rows.deliver_at_ms.searchsorted(through.deliver_at_ms, "right"))
    positions = zip(rows.ledger_ids[start:end].tolist(), rows.entry_ids[start:end].tolist(), strict=True)
    wanted = (through.ledger_id, through.entry_id)
    return start + sum(position <= wanted for position in positions)


class _Cutter:
    """Cuts and encodes sorted rows that come piece by piece, to what `build_snapshot` makes of all at once.

    Keeps what entry 0 will say, encoded, and 24 bytes a segment.
    """

    def __init__(self, config: TrackerConfig, *, may_repeat: bool) -> None:
        self._step_ms = config.segment_step_ms_max
        self._rows_max = config.segment_row_count_max
        self._stored = Membership() if may_repeat else None
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
        return spans_of(firsts, lasts, counts, span_rows)

    def _encode(self, rows: DelayedIndexes, ends: list[int]) -> list[bytes]:
        if not ends:
            return []
        rows = rows.slice(0, ends[-1])
        segments = encode_segments(rows, ends)
        self.segment_bytes += sum(map(len, segments))
        self._metadata.append(encode_metadata(segments_metadata(rows, ends)))
        row_counts: Int64Array = np.array(ends, np.int64) - np.array([0, *ends[:-1]], np.int64)
        lasts = rows.deliver_at_ms[np.array(ends, np.intp) - 1]
        firsts = rows.deliver_at_ms[np.array([0, *ends[:-1]], np.intp)]
        self._columns.append((firsts, lasts, row_counts))
        return segments
