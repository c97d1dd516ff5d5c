"""Actions, which the core asks its shell to do, and events, which the shell reports back.

An action names a bucket by its `serial`, which is never used twice in a tracker's life; so an answer that comes
after the bucket has gone is recognised and ignored. Every action is answered by exactly one event: its own kind,
or `ActionFailed`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.segment_table import SegmentTable


class _Message:
    """Is pickled as the arguments of its class: the way of frozen dataclasses takes several times as long."""

    __slots__ = ()
    __match_args__: tuple[str, ...]

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple([getattr(self, name) for name in self.__match_args__])


@dataclass(frozen=True, slots=True, eq=False)
class PersistBucket(_Message):
    """Sort, cut and encode the rows, and store them as a snapshot."""

    serial: int
    bucket_key: str
    parts: Sequence[DelayedIndexes]
    segment_row_count_max: int
    """The most rows of one segment, -1 for no limit."""
    tracked: Mapping[int, BitMap] | None = None
    """The positions of which the first row is stored, and no other; None where that is every row."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeSource(_Message):
    """One snapshot that goes into a merge."""

    bucket_id: int
    table: SegmentTable
    loaded_spans: int
    """How many of its first spans are loaded: rows of these count only if they are still in memory."""
    is_cut: bool = False
    """Whether the snapshot has more segments than the table: no row of them counts."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeBuckets(_Message):
    """Store one snapshot of the sources' rows that are still to be handed out, the first one of each position."""

    serial: int
    bucket_key: str
    sources: Sequence[MergeSource]
    segment_row_count_max: int
    """The most rows of one segment, -1 for no limit."""
    loaded: Mapping[int, BitMap]
    """Positions of loaded rows that are still tracked; other rows of loaded segments are left out."""
    settled: Mapping[int, BitMap]
    """Positions whose rows are left out even if they are not loaded: handed out from elsewhere, or refused."""
    first_ledger_id: int
    """Rows of ledgers below this one are left out."""
    may_repeat: bool
    """Whether two sources may have the same position."""


@dataclass(frozen=True, slots=True, eq=False)
class PutProperty(_Message):
    """Write a property of the cursor, durably."""

    serial: int
    bucket_key: str
    bucket_id: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadMetadata(_Message):
    """Read from a snapshot's metadata entry which segments it has, and its positions if it has few bitmaps."""

    serial: int
    bucket_id: int
    through_ms: int
    """First segments that begin by this time are kept if they come with the same read."""
    row_count_max: int
    """They are kept up to this many rows."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadPositions(_Message):
    """Read from a snapshot's metadata entry which positions its segments hold, from number `first_segment` on."""

    serial: int
    bucket_id: int
    first_segment: int


@dataclass(frozen=True, slots=True, eq=False)
class LoadSegments(_Message):
    """Read and decode a range of segments; the first one is number 1, both ends are included."""

    serial: int
    bucket_id: int
    first_segment: int
    last_segment: int
    row_count: int
    """How many rows they have, as the metadata says."""
    data: Sequence[bytes] = ()
    """The segments, if they were read before; then they are decoded only."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteSnapshot(_Message):
    """Delete a snapshot; one that does not exist, or is another cursor's, counts as deleted."""

    serial: int
    bucket_id: int
    is_own: bool
    """Whether it is known to be this cursor's; otherwise look before."""


@dataclass(frozen=True, slots=True, eq=False)
class RemoveProperty(_Message):
    """Remove a property of the cursor, durably."""

    serial: int
    bucket_key: str


@dataclass(frozen=True, slots=True, eq=False)
class ListSnapshots(_Message):
    """List the ids of all snapshots of this topic and cursor."""

    serial: int


StorageAction = PersistBucket | MergeBuckets | ReadMetadata | ReadPositions | LoadSegments | DeleteSnapshot
"""The actions on snapshots of a tracker's own. `ListSnapshots` is asked of the storage together for many trackers."""

PropertyAction = PutProperty | RemoveProperty
"""The actions that write to the cursor."""

Action = StorageAction | PropertyAction | ListSnapshots


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotCreated(_Message):
    """A snapshot is durable: the answer to `PersistBucket` and `MergeBuckets`."""

    serial: int
    bucket_id: int
    size_bytes: int
    table: SegmentTable
    span_ends: tuple[Int64Array, Int64Array] | None = None
    """The ledger and entry id of the last row of each span, shape (spans,); None of a merge."""


@dataclass(frozen=True, slots=True, eq=False)
class PropertyPut(_Message):
    """A property is durable."""

    serial: int


@dataclass(frozen=True, slots=True, eq=False)
class MetadataRead(_Message):
    """The segments of a snapshot, from its metadata."""

    serial: int
    size_bytes: int
    table: SegmentTable
    ledgers: LedgerRange | None
    """From the first to the last ledger that has a row; None where there is no row."""
    first_segments: Sequence[bytes] = ()
    """Segments 1 to k, which came with the same read and are wanted soon."""
    positions: "PositionsRead | None" = None
    """All positions, where so few bitmaps cost less to decode than another read."""


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotIsAlien(_Message):
    """The snapshot that a property names is another cursor's: the answer to `ReadMetadata`."""

    serial: int
    owner: str


@dataclass(frozen=True, slots=True, eq=False)
class PositionsRead(_Message):
    """One bitmap per ledger, over the segments asked for."""

    serial: int
    first_segment: int
    bitmaps: Mapping[int, BitMap]
    has_repeats: bool
    """Whether a position is in more than one of the segments."""
    position_sum: int
    """The sum of the positions of each segment (`position_sums`); its rows must add up to the same."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentsLoaded(_Message):
    """The rows of a range of segments, in order."""

    serial: int
    first_segment: int
    last_segment: int
    rows: DelayedIndexes
    position_sum: int
    """The sum (`position_sums`) of their positions."""


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotDeleted(_Message):
    """A snapshot does not exist any more."""

    serial: int


@dataclass(frozen=True, slots=True, eq=False)
class PropertyRemoved(_Message):
    """A property does not exist any more."""

    serial: int


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotsListed(_Message):
    """All snapshots of this topic and cursor, as they were at some moment since the action was issued."""

    serial: int
    bucket_ids: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class ActionFailed(_Message):
    """An action had no effect, or an unknown one.

    `is_lost` means that the snapshot is gone or unreadable for good; otherwise the action may succeed later.
    """

    action: Action
    is_lost: bool
    reason: str
    lost_bucket_id: int | None = None
    """The snapshot that is lost, as far as the error says: a merge reads several."""


Event = (
    SnapshotCreated
    | PropertyPut
    | MetadataRead
    | SnapshotIsAlien
    | PositionsRead
    | SegmentsLoaded
    | SnapshotDeleted
    | PropertyRemoved
    | SnapshotsListed
    | ActionFailed
)
