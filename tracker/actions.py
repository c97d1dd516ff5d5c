"""What the core asks its shell to do, and what the shell reports back.

An action names a bucket by its `serial`, which is never used twice in a tracker's life; so an answer that comes
after the bucket has gone is recognised and ignored. Every action is answered by exactly one event: its own kind,
or `ActionFailed`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.codec import SegmentMetadata
from snapshot_storage.columns import DelayedIndexes

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """The segments of a snapshot, in order: three columns of one length."""

    first_times: Int64Array
    """The time of each segment's first row."""
    last_times: Int64Array
    """The time of each segment's last row."""
    row_ends: Int64Array
    """How many rows the snapshot has up to the end of each segment."""

    def __len__(self) -> int:
        return len(self.first_times)

    @property
    def row_count(self) -> int:
        """How many rows the snapshot has."""
        return int(self.row_ends[-1]) if len(self.row_ends) else 0


@dataclass(frozen=True, slots=True, eq=False)
class PersistBucket:
    """Sort, cut and encode the rows, and store them as a snapshot."""

    serial: int
    bucket_key: str
    parts: Sequence[DelayedIndexes]


@dataclass(frozen=True, slots=True, eq=False)
class MergeSource:
    """One snapshot that goes into a merge."""

    bucket_id: int
    row_ends: Int64Array
    """How many rows there are up to the end of each segment, as entry 0 says."""

    @property
    def segment_count(self) -> int:
        """How many segments it has."""
        return len(self.row_ends)

    def row_count(self, first_segment: int, last_segment: int) -> int:
        """Return how many rows a range of segments holds; the first one is number 1, both ends are included."""
        rows_before = int(self.row_ends[first_segment - 2]) if first_segment > 1 else 0
        return int(self.row_ends[last_segment - 1]) - rows_before


@dataclass(frozen=True, slots=True, eq=False)
class MergeBuckets:
    """Store one snapshot of all rows of the sources whose positions are in `tracked`."""

    serial: int
    bucket_key: str
    sources: Sequence[MergeSource]
    tracked: Mapping[int, BitMap]


@dataclass(frozen=True, slots=True, eq=False)
class PutProperty:
    """Write a property of the cursor, durably."""

    serial: int
    bucket_key: str
    bucket_id: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadMetadata:
    """Read a snapshot's metadata entry; its bitmaps are not decoded yet."""

    serial: int
    bucket_id: int
    through_ms: int
    """First segments that begin by this time are kept if they come with the same read."""
    row_count_max: int
    """They are kept up to this many rows."""


@dataclass(frozen=True, slots=True, eq=False)
class UniteBitmaps:
    """Decode the bitmaps of these segments into one bitmap per ledger."""

    serial: int
    segments: Sequence[SegmentMetadata]


@dataclass(frozen=True, slots=True, eq=False)
class LoadSegments:
    """Read and decode a range of segments; the first one is number 1, both ends are included."""

    serial: int
    bucket_id: int
    first_segment: int
    last_segment: int
    data: Sequence[bytes] = ()
    """The segments, if they were read before; then they are decoded only."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteSnapshot:
    """Delete a snapshot; one that does not exist, or is another cursor's, counts as deleted."""

    serial: int
    bucket_id: int
    is_own: bool
    """Whether it is known to be this cursor's; otherwise look before."""


@dataclass(frozen=True, slots=True, eq=False)
class RemoveProperty:
    """Remove a property of the cursor, durably."""

    serial: int
    bucket_key: str


@dataclass(frozen=True, slots=True, eq=False)
class ListSnapshots:
    """List the ids of all snapshots of this topic and cursor."""

    serial: int


Action = (
    PersistBucket
    | MergeBuckets
    | PutProperty
    | ReadMetadata
    | UniteBitmaps
    | LoadSegments
    | DeleteSnapshot
    | RemoveProperty
    | ListSnapshots
)


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotCreated:
    """A snapshot is durable: the answer to `PersistBucket` and `MergeBuckets`."""

    serial: int
    bucket_id: int
    size_bytes: int
    table: SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class PropertyPut:
    """A property is durable."""

    serial: int


@dataclass(frozen=True, slots=True, eq=False)
class MetadataRead:
    """A snapshot's metadata; the bitmaps in `segments` are still encoded."""

    serial: int
    size_bytes: int
    table: SegmentTable
    segments: Sequence[SegmentMetadata]
    ledgers: LedgerRange | None
    """From the first to the last ledger that has a row; None where there is no row."""
    first_segments: Sequence[bytes] = ()
    """Segments 1 to k, which came with the same read and are wanted soon."""


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotIsAlien:
    """The snapshot that a property names is another cursor's: the answer to `ReadMetadata`."""

    serial: int
    owner: str


@dataclass(frozen=True, slots=True, eq=False)
class BitmapsUnited:
    """One bitmap per ledger, over the segments asked for."""

    serial: int
    bitmaps: Mapping[int, BitMap]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentsLoaded:
    """The rows of a range of segments, in order."""

    serial: int
    first_segment: int
    last_segment: int
    rows: DelayedIndexes


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotDeleted:
    """A snapshot does not exist any more."""

    serial: int


@dataclass(frozen=True, slots=True, eq=False)
class PropertyRemoved:
    """A property does not exist any more."""

    serial: int


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotsListed:
    """All snapshots of this topic and cursor, as they were at some moment since the action was issued."""

    serial: int
    bucket_ids: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class ActionFailed:
    """An action had no effect, or an unknown one.

    `is_lost` means that the snapshot is gone or unreadable for good; otherwise the action may succeed later.
    """

    action: Action
    is_lost: bool
    reason: str


Event = (
    SnapshotCreated
    | PropertyPut
    | MetadataRead
    | SnapshotIsAlien
    | BitmapsUnited
    | SegmentsLoaded
    | SnapshotDeleted
    | PropertyRemoved
    | SnapshotsListed
    | ActionFailed
)
