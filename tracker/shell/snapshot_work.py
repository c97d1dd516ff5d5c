"""Run the core's actions against a cursor and a storage, and answer with events.

Actions on the cursor run here and now. Actions on a storage run in its worker (`StorageWorker`): threads of this
process (`StorageWork`), which decode and encode there, or a process of its own (`process.SnapshotProcess`), where the
same `StorageWork` runs. An action carries all that it needs, so it can be sent. The functions that do O(n) work are
module-level, over arrays, and know no event loop.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.codec import decode_metadata_columns, decode_segments, decode_segments_together
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.metadata_columns import MetadataColumns
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, SnapshotStorageError
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    SegmentRange,
)
from tracker.columns.position_set import PositionSet
from tracker.columns.position_sums import sum_of, sums_of, wrapped
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.segment_table import SegmentTable, tables_of
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    DeleteSnapshot,
    Event,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
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
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotIsAlien,
    SnapshotsListed,
)
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.heap import Heap, trim_of_c_library
from tracker.shell.snapshot_creates import SnapshotCreates
from tracker.shell.snapshot_merge import RunBlocking, SegmentCutter, merged_segments, source_readers

SPANS_PER_BUCKET: Final = 200
"""A bucket of the least size has about so many spans at most, for any distribution of times: a tenth of a byte a
row."""

BITMAPS_AT_ONCE_MAX: Final = 64
"""Recovery decodes the bitmaps of a snapshot at once up to this number: about 0.1 ms."""

POSITIONS_AT_ONCE_MAX: Final = 65_536
"""Bitmaps of segments are decoded together up to so many positions, which take some MiB meanwhile."""

DECODED_AT_ONCE_BYTES_MAX: Final = 4_096
"""Data up to this size is decoded on the event loop: some 250 rows, or 50 segments' metadata, in about 0.2 ms."""

P = ParamSpec("P")
T = TypeVar("T")

_SingleCall = PersistBucket | ReadMetadata | ReadPositions | LoadSegments | DeleteSnapshot | ListSnapshots
SmallAction = ReadMetadata | LoadSegments | DeleteSnapshot
"""The actions that run for many buckets in one round."""

StorageAction = _SingleCall | MergeBuckets
"""The actions that need the storage and not the cursor."""


def in_thread(function: Callable[[], T], /) -> Awaitable[T]:
    """Run a function in the event loop's default pool of threads."""
    return asyncio.to_thread(function)


@dataclass(frozen=True, slots=True)
class SnapshotOwner:
    """Whose snapshots an action is about, and how they are made."""

    topic_name: str
    cursor_name: str
    config: TrackerConfig


class StorageWorker(ABC):
    """Does the work on a storage, for any number of trackers, and the little that must be done without one."""

    @property
    @abstractmethod
    def actions_at_once_max(self) -> int:
        """How many actions `run_together` should be given."""

    @abstractmethod
    async def start(self) -> None:
        """Open the storage: see `BucketSnapshotStorage.start`. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Close the storage, and let go of what is still done in the background. Idempotent; never raises."""

    @abstractmethod
    async def run_action(self, owner: SnapshotOwner, action: StorageAction) -> Event:
        """Run an action to its end, within the configured time; of a merge, which is many calls, each of them.

        Raises:
            SnapshotStorageError: As the storage's calls do.
            TimeoutError: It took too long; it may still take effect.
        """

    @abstractmethod
    async def run_together(self, owner: SnapshotOwner, actions: Sequence[SmallAction]) -> Sequence[Event | Exception]:
        """Run several actions of one kind in one round; return the answer to each or what it raised, in this order.

        Raises:
            SnapshotStorageError: None of them was run.
            TimeoutError: It took too long.
        """

    @abstractmethod
    async def list_snapshots(self, topic_name: str | None = None) -> Sequence[BucketSnapshotInfo]:
        """Return the snapshots of a topic, or all: see `BucketSnapshotStorage.list_bucket_snapshots`."""

    @abstractmethod
    async def delete_snapshot(self, bucket_id: int) -> None:
        """Delete a snapshot, whosever it is: see `BucketSnapshotStorage.delete_bucket_snapshot`."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def is_lost(error: BaseException) -> bool:
    """Whether an error of a read means that the snapshot is gone or unreadable for good."""
    return isinstance(error, BucketNotFoundError | SnapshotCorruptedError)


def lost_bucket_id(error: BaseException) -> int | None:
    """Return which snapshot an error of a read is about, None where it does not say."""
    return error.bucket_id if isinstance(error, BucketNotFoundError | SnapshotCorruptedError) else None


class SnapshotWork:
    """Runs one action of one tracker and gives its answer; raises what the storage and the cursor raise."""

    def __init__(self, config: TrackerConfig, context: TrackerContext, worker: StorageWorker) -> None:
        self._owner = SnapshotOwner(context.topic_name, context.cursor_name, config)
        self._cursor = context.cursor
        self._worker = worker

    async def run(self, action: Action) -> Event:
        """Run an action to its end, within the configured time."""
        if isinstance(action, PutProperty | RemoveProperty):
            (event,) = await self.write_properties([action])
            return event
        return await self._worker.run_action(self._owner, action)

    @property
    def actions_at_once_max(self) -> int:
        """How many actions `run_together` should be given."""
        return self._worker.actions_at_once_max

    async def run_together(self, actions: Sequence[SmallAction]) -> Sequence[Event | Exception]:
        """Run several of one kind at once: a way to the storage and back takes longer than what is done there."""
        return await self._worker.run_together(self._owner, actions)

    async def write_properties(self, actions: Sequence[PutProperty | RemoveProperty]) -> Sequence[Event]:
        """Put or remove several properties in one write."""
        put = {action.bucket_key: str(action.bucket_id) for action in actions if isinstance(action, PutProperty)}
        remove = [action.bucket_key for action in actions if isinstance(action, RemoveProperty)]
        async with asyncio.timeout(self._owner.config.operation_timeout_ms / 1_000):
            await self._cursor.update_properties(put=put, remove=remove)
        return [
            PropertyPut(action.serial) if isinstance(action, PutProperty) else PropertyRemoved(action.serial)
            for action in actions
        ]


class StorageWork(StorageWorker):
    """Works on a storage of this process; decoding and encoding are done where `run_blocking` puts them.

    Args:
        storage: The storage.
        run_blocking: Runs what takes long.
        trim: Gives free memory back to the system, by default as the C library does.
        decoded_at_once_bytes_max: Data up to this size is decoded on the event loop.
        bitmaps_at_once_max: Recovery decodes the bitmaps of a snapshot with its metadata up to this number.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        run_blocking: RunBlocking = in_thread,
        *,
        trim: Callable[[], None] | None = None,
        decoded_at_once_bytes_max: int = DECODED_AT_ONCE_BYTES_MAX,
        bitmaps_at_once_max: int = BITMAPS_AT_ONCE_MAX,
    ) -> None:
        # Threads share one interpreter: two builds at a time would finish no earlier, and hold the event loop up
        # twice as long.
        self._building = asyncio.Lock()
        # The first of many answers goes out while the next one is decoded.
        self._decoding = asyncio.Lock()
        self._storage = storage
        self._creates = SnapshotCreates(storage)
        self._run_blocking = run_blocking
        self._heap = Heap(run_blocking, trim if trim is not None else trim_of_c_library())
        self._decoded_at_once_bytes_max = decoded_at_once_bytes_max
        self._bitmaps_at_once_max = bitmaps_at_once_max

    async def run_action(self, owner: SnapshotOwner, action: StorageAction) -> Event:
        """See base."""
        if isinstance(action, MergeBuckets):
            event = await self._merge(owner, action)
        else:
            async with _in_time(owner):
                event = await self._run(owner, action)
        self._heap.note_freed(rows_handled(event))
        return event

    @property
    def actions_at_once_max(self) -> int:
        """See base."""
        return self._storage.snapshots_at_once_max

    async def run_together(self, owner: SnapshotOwner, actions: Sequence[SmallAction]) -> Sequence[Event | Exception]:
        """See base."""
        async with _in_time(owner):
            answers = await self._run_together(owner, actions)
        self._heap.note_freed(sum(map(rows_handled, answers)))
        return answers

    async def _run_together(self, owner: SnapshotOwner, actions: Sequence[SmallAction]) -> Sequence[Event | Exception]:
        reads = [action for action in actions if isinstance(action, ReadMetadata)]
        if reads:
            return await self._read_metadata(owner, reads)
        loads = [action for action in actions if isinstance(action, LoadSegments)]
        if loads:
            return await self._load_together(loads)
        return await self._delete(owner, [action for action in actions if isinstance(action, DeleteSnapshot)])

    async def _read_metadata(
        self, owner: SnapshotOwner, actions: Sequence[ReadMetadata]
    ) -> Sequence[Event | Exception]:
        heads = await self._storage.read_bucket_snapshot_heads([action.bucket_id for action in actions])
        return await self._decode(
            sum(len(head.metadata) for head in heads if isinstance(head, BucketSnapshotHead)),
            lambda: _metadata_answers(owner, actions, heads, self._bitmaps_at_once_max),
        )

    async def _load_together(self, actions: Sequence[LoadSegments]) -> Sequence[Event | Exception]:
        unread = [action for action in actions if not action.data]
        ranges = [SegmentRange(action.bucket_id, action.first_segment, action.last_segment) for action in unread]
        read = await self._storage.read_bucket_snapshot_segments(ranges) if ranges else ()
        answers = iter(read)
        data = [action.data or next(answers) for action in actions]
        size_bytes = sum(sum(map(len, one)) for one in data if not isinstance(one, SnapshotStorageError))
        return await self._decode(size_bytes, lambda: _loaded(actions, data))

    async def _delete(self, owner: SnapshotOwner, actions: Sequence[DeleteSnapshot]) -> Sequence[Event | Exception]:
        errors: dict[int, SnapshotStorageError | None] = {}
        for action in actions:
            try:
                if not (action.is_own or await self._is_deletable(owner, action.bucket_id)):
                    errors[action.serial] = None
            except SnapshotStorageError as error:
                errors[action.serial] = error
        deletable = [action for action in actions if action.serial not in errors]
        answers = await self._storage.delete_bucket_snapshots([action.bucket_id for action in deletable])
        errors |= {action.serial: answer for action, answer in zip(deletable, answers, strict=True)}
        return [errors[action.serial] or SnapshotDeleted(action.serial) for action in actions]

    async def start(self) -> None:
        """See base."""
        await self._storage.start()

    async def close(self) -> None:
        """See base: late creates are watched no longer."""
        await self._storage.close()
        await self._creates.close()

    async def list_snapshots(self, topic_name: str | None = None) -> Sequence[BucketSnapshotInfo]:
        """See base."""
        return await self._storage.list_bucket_snapshots(topic_name)

    async def delete_snapshot(self, bucket_id: int) -> None:
        """See base."""
        await self._storage.delete_bucket_snapshot(bucket_id)

    async def _run(self, owner: SnapshotOwner, action: _SingleCall) -> Event:
        match action:
            case PersistBucket():
                return await self._persist(owner, action)
            case ReadMetadata():
                head = await self._storage.read_bucket_snapshot_head(action.bucket_id)
                (answer,) = await self._decode(
                    len(head.metadata),
                    lambda: _metadata_answers(owner, [action], [head], self._bitmaps_at_once_max),
                )
                if isinstance(answer, Exception):
                    raise answer
                return answer
            case ReadPositions():
                return await self._read_positions(action)
            case LoadSegments():
                return await self._load(action)
            case DeleteSnapshot():
                if action.is_own or await self._is_deletable(owner, action.bucket_id):
                    await self._storage.delete_bucket_snapshot(action.bucket_id)
                return SnapshotDeleted(action.serial)
            case ListSnapshots():
                infos = await self._storage.list_bucket_snapshots(owner.topic_name, owner.cursor_name)
                return SnapshotsListed(action.serial, [info.bucket_id for info in infos])
            case _:
                assert_never(action)

    async def _persist(self, owner: SnapshotOwner, action: PersistBucket) -> Event:
        async with self._building:
            snapshot, table = await self._run_blocking(lambda: _built(action, owner.config))
        bucket_id = await self._creates.create(
            snapshot.metadata,
            snapshot.segments,
            bucket_key=action.bucket_key,
            topic_name=owner.topic_name,
            cursor_name=owner.cursor_name,
        )
        return SnapshotCreated(action.serial, bucket_id, snapshot.length_bytes, table)

    async def _is_deletable(self, owner: SnapshotOwner, bucket_id: int) -> bool:
        """Whether no other cursor can miss this snapshot: it is this cursor's, or it cannot be read."""
        try:
            head = await self._storage.read_bucket_snapshot_head(bucket_id)
        except (BucketNotFoundError, SnapshotCorruptedError):
            return True
        return head.info.belongs_to(owner.topic_name, owner.cursor_name)

    async def _read_positions(self, action: ReadPositions) -> PositionsRead:
        data = await self._storage.get_bucket_snapshot_metadata(action.bucket_id)
        return await self._decode(len(data), lambda: positions_read(action, data))

    async def _load(self, action: LoadSegments) -> Event:
        (answer,) = await self._load_together([action])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _segments(self, bucket_id: int, first_segment: int, last_segment: int) -> DelayedIndexes:
        data = await self._storage.get_bucket_snapshot_segment(bucket_id, first_segment, last_segment)
        return await self._decode(sum(map(len, data)), lambda: _rows_of(bucket_id, data, first_segment, last_segment))

    async def _decode(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Run what takes long in a worker; a way there and back takes longer than a few segments."""
        if size_bytes <= self._decoded_at_once_bytes_max:
            return function()
        async with self._decoding:
            return await self._run_blocking(function)

    async def _merge(self, owner: SnapshotOwner, action: MergeBuckets) -> Event:
        """Merge the sources piece by piece; in memory are some segments of each, and the target's metadata."""
        span_rows = _span_rows(owner.config)
        cutter = SegmentCutter(owner.config, may_repeat=action.may_repeat)
        readers = source_readers(
            action, _each_in_time(owner, self._segments), _each_in_time(owner, self._read_positions)
        )
        async with self._storage.new_bucket_snapshot(
            bucket_key=action.bucket_key, topic_name=owner.topic_name, cursor_name=owner.cursor_name
        ) as writer:
            async for made in merged_segments(readers, cutter, self._build):
                if made:
                    async with _in_time(owner):
                        await writer.write_segments(made)
            metadata, table = await self._run_blocking(lambda: (cutter.metadata(), cutter.table(span_rows)))
            async with _in_time(owner):
                bucket_id = await writer.commit(metadata)
        return SnapshotCreated(action.serial, bucket_id, cutter.segment_bytes + len(metadata), table)

    async def _build(self, function: Callable[[], T]) -> T:
        async with self._building:
            return await self._run_blocking(function)


def rows_handled(value: object) -> int:
    """Return how many rows were encoded or decoded for an answer, which then are free memory."""
    match value:
        case SnapshotCreated() | MetadataRead():
            return value.table.row_count
        case SegmentsLoaded():
            return len(value.rows)
        case _:
            return 0


def worker_on(storage: BucketSnapshotStorage | StorageWorker, run_blocking: RunBlocking = in_thread) -> StorageWorker:
    """Return the worker of a storage: itself if it is one, else threads of this process."""
    return storage if isinstance(storage, StorageWorker) else StorageWork(storage, run_blocking)


def _in_time(owner: SnapshotOwner) -> asyncio.Timeout:
    return asyncio.timeout(owner.config.operation_timeout_ms / 1_000)


def _each_in_time(owner: SnapshotOwner, read: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    async def read_in_time(*args: P.args, **kwargs: P.kwargs) -> T:
        async with _in_time(owner):
            return await read(*args, **kwargs)

    return read_in_time


def _span_rows(config: TrackerConfig) -> int:
    return max(1, config.index_count_per_bucket_min // SPANS_PER_BUCKET)


def _built(action: PersistBucket, config: TrackerConfig) -> tuple[Snapshot, SegmentTable]:
    snapshot = build_snapshot(
        _rows_to_store(action), step_ms=config.segment_step_ms_max, rows_max=config.segment_row_count_max
    )
    (table,) = tables_of(decode_metadata_columns(snapshot.metadata), _span_rows(config))
    return snapshot, table


def _rows_to_store(action: PersistBucket) -> DelayedIndexes:
    rows = DelayedIndexes.concatenate(action.parts).sorted()
    if action.tracked is None:
        return rows
    tracked = PositionSet.of(action.tracked.items())
    return rows.take(tracked.take(rows.ledger_ids, rows.entry_ids))


def _loaded(
    actions: Sequence[LoadSegments], data: Sequence[Sequence[bytes] | SnapshotStorageError]
) -> list[Event | Exception]:
    """Return the answer to each load: its rows, or what is wrong with what was read."""
    whole = [
        one
        for action, one in zip(actions, data, strict=True)
        if not isinstance(one, SnapshotStorageError) and len(one) == action.last_segment - action.first_segment + 1
    ]
    together = decode_segments_together(whole) if len(whole) == len(actions) else None
    if together is None or not set(together.rows.descents().tolist()) <= set(together.ends):
        return [_load_answer(*pair) for pair in zip(actions, data, strict=True)]
    rows, ends = together
    sums = sums_of(rows.ledger_ids, rows.entry_ids, ends)
    return [
        SegmentsLoaded(action.serial, action.first_segment, action.last_segment, rows.slice(start, end), position_sum)
        for action, start, end, position_sum in zip(actions, [0, *ends[:-1]], ends, sums, strict=True)
    ]


def _load_answer(action: LoadSegments, data: Sequence[bytes] | SnapshotStorageError) -> Event | Exception:
    if isinstance(data, SnapshotStorageError):
        return data
    first, last = action.first_segment, action.last_segment
    try:
        rows = _rows_of(action.bucket_id, data, first, last)
    except Exception as error:  # Any error of one snapshot is the answer to it alone.
        return error
    if not rows.is_sorted():
        reason = f"the rows of segments {first} to {last} are not in order"
        return SnapshotCorruptedError(reason, bucket_id=action.bucket_id)
    return SegmentsLoaded(action.serial, first, last, rows, sum_of(rows.ledger_ids, rows.entry_ids))


def _rows_of(bucket_id: int, data: Sequence[bytes], first_segment: int, last_segment: int) -> DelayedIndexes:
    if len(data) != last_segment - first_segment + 1:
        reason = f"asked for segments {first_segment} to {last_segment}, there are {len(data)}"
        raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
    try:
        return decode_segments(data, first_entry=first_segment)
    except SnapshotCorruptedError as error:
        # Bytes do not know whose they are, and a merge has to tell its sources apart.
        raise SnapshotCorruptedError(error.reason, bucket_id=bucket_id, entry=error.entry) from error


def _metadata_answers(
    owner: SnapshotOwner,
    actions: Sequence[ReadMetadata],
    heads: Sequence[BucketSnapshotHead | SnapshotStorageError],
    bitmaps_max: int,
) -> Sequence[Event | Exception]:
    """Return the answer to each read: what its metadata says, or what is wrong with it."""
    answers: dict[int, Event | Exception] = {}
    own: list[tuple[ReadMetadata, BucketSnapshotHead]] = []
    for action, head in zip(actions, heads, strict=True):
        if isinstance(head, SnapshotStorageError):
            answers[action.serial] = head
        elif head.info.belongs_to(owner.topic_name, owner.cursor_name):
            own.append((action, head))
        else:
            answers[action.serial] = SnapshotIsAlien(action.serial, f"{head.info.topic_name} / {head.info.cursor_name}")
    try:
        answers |= {event.serial: event for event in _metadata_read(own, _span_rows(owner.config), bitmaps_max)}
    except Exception as error:  # Any error of one snapshot is the answer to it alone.
        if len(own) == 1:
            answers[own[0][0].serial] = error
        else:
            for action, head in own:
                (answers[action.serial],) = _metadata_answers(owner, [action], [head], bitmaps_max)
    return [answers[action.serial] for action in actions]


def _metadata_read(
    read: Sequence[tuple[ReadMetadata, BucketSnapshotHead]], span_rows: int, bitmaps_max: int
) -> Iterator[MetadataRead]:
    """Yield what the metadata of each snapshot says.

    Raises:
        SnapshotCorruptedError: One of them is damaged.
    """
    columns = decode_metadata_columns(*(head.metadata for _, head in read))
    # Spans are only as good as the segments that they are made of.
    is_back = columns.first_times[1:] < columns.last_times[:-1]
    ends = columns.snapshot_ends
    is_back[ends[(ends > 0) & (ends <= len(is_back))] - 1] = False
    if is_back.any():
        raise SnapshotCorruptedError("its segments overlap in time", bucket_id=read[0][0].bucket_id)
    tables = tables_of(columns, span_rows)
    positions = _positions_of_each([action.serial for action, _ in read], columns, bitmaps_max)
    bitmap_ends = [columns.bitmaps_before(end) for end in ends.tolist()]
    ledger_ids = [columns.ledger_ids[a:b] for a, b in zip([0, *bitmap_ends], bitmap_ends, strict=False)]
    for (action, head), table, ids, known in zip(read, tables, ledger_ids, positions, strict=True):
        ledgers = LedgerRange(int(ids.min()), int(ids.max())) if len(ids) else None
        kept = head.first_segments[: _kept_count(action, table, len(head.first_segments))]
        yield MetadataRead(action.serial, head.info.length_bytes, table, ledgers, kept, known)


def _kept_count(action: ReadMetadata, table: SegmentTable, segment_count: int) -> int:
    """Return how many of the first segments are wanted, in whole spans."""
    if not segment_count or not len(table) or table.first_times[0] > action.through_ms:
        return 0
    by_time = int(table.first_times.searchsorted(action.through_ms, "right"))
    by_rows = int(table.row_ends.searchsorted(action.row_count_max, "right"))
    by_segments = int(table.segment_ends.searchsorted(segment_count, "right"))
    return table.segments_before(min(by_time, by_rows, by_segments))


def _positions_of_each(
    serials: Sequence[int], columns: MetadataColumns, bitmaps_max: int
) -> list[PositionsRead | None]:
    """Return the positions of each snapshot, None of those that have too many bitmaps."""
    segment_ends = [0, *columns.snapshot_ends.tolist()]
    bitmap_ends = [columns.bitmaps_before(end) for end in segment_ends]
    row_ends = np.append(0, columns.row_counts.cumsum())[segment_ends].tolist()
    read: list[PositionsRead | None] = [None] * len(serials)
    end = 0
    while end < len(serials):
        first = end
        while end < len(serials) and bitmap_ends[end + 1] - bitmap_ends[end] <= bitmaps_max:
            if end > first and row_ends[end + 1] - row_ends[first] > POSITIONS_AT_ONCE_MAX:
                break
            end += 1
        ledger_ids, entry_ids = columns.positions(segment_ends[first], segment_ends[end])
        ends = [row_end - row_ends[first] for row_end in row_ends[first + 1 : end + 1]]
        for k, (start, stop, total) in enumerate(
            zip([0, *ends], ends, sums_of(ledger_ids, entry_ids, ends), strict=False), start=first
        ):
            bitmaps = dict(ledger_bitmaps(ledger_ids[start:stop], entry_ids[start:stop]))
            read[k] = PositionsRead(serials[k], 1, bitmaps, stop - start > sum(map(len, bitmaps.values())), total)
        end = max(end, first + 1)
    return read


def positions_read(action: ReadPositions, data: bytes) -> PositionsRead:
    """Return what entry 0 says of positions."""
    columns = decode_metadata_columns(data)
    bitmaps: dict[int, BitMap] = {}
    row_count = position_sum = 0
    for first, end in _pieces(columns.row_counts, action.first_segment - 1):
        ledger_ids, entry_ids = columns.positions(first, end)
        row_count += len(entry_ids)
        position_sum += sum_of(ledger_ids, entry_ids)
        for ledger_id, part in ledger_bitmaps(ledger_ids, entry_ids):
            bitmaps.setdefault(ledger_id, BitMap()).update(part)
    for bitmap in bitmaps.values():
        bitmap.run_optimize()
    has_repeats = row_count > sum(map(len, bitmaps.values()))
    return PositionsRead(action.serial, action.first_segment, bitmaps, has_repeats, wrapped(position_sum))


def _pieces(row_counts: NDArray[np.int64], first: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of stretches of segments from this one on that have not too many rows."""
    row_ends = row_counts.cumsum()
    while first < len(row_ends):
        rows_before = int(row_ends[first]) - int(row_counts[first])
        end = max(first + 1, int(row_ends.searchsorted(rows_before + POSITIONS_AT_ONCE_MAX, "right")))
        yield first, end
        first = end
