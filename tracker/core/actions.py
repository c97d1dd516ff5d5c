"""The calls that the core asks its shell to make, and their answers.

A call is of one bucket, by its `serial`, which is never used twice in a tracker's life. Each call is answered once, by
its value or by `CallFailed`; it counts if its bucket still waits for just this call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.segment_table import SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class ReadHead:
    """Read a snapshot's metadata: its segments and positions. The answer is `Head`."""

    serial: int
    bucket_id: int


@dataclass(frozen=True, slots=True, eq=False)
class CreateSnapshot:
    """Sort, cut and encode rows, and store them as a snapshot. The answer is `Stored`."""

    serial: int
    bucket_key: str
    parts: Sequence[DelayedIndexes]
    """The rows, in any order."""
    tracked: Mapping[int, BitMap]
    """The first row of each of these positions is stored, and no other."""
    segment_row_count_max: int
    """The most rows of one segment, -1 for no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeSource:
    """One snapshot that goes into a merge."""

    bucket_id: int
    segment_count: int
    loaded_row_count: int
    """So many of the first rows were loaded. Where another row has the position too, such a one may be handed out and
    over, and the message added again with a later time."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeSnapshots:
    """Store one snapshot of the rows of several. The answer is `Stored`."""

    serial: int
    bucket_key: str
    sources: Sequence[MergeSource]
    tracked: Mapping[int, BitMap]
    """The first row of each of these positions is stored, if there is one that was not loaded the first of those."""
    segment_row_count_max: int
    """The most rows of one segment, -1 for no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadSegments:
    """Read and decode segments, both ends included; the first one is number 1. The answer is their rows, in order."""

    serial: int
    bucket_id: int
    first_segment: int
    last_segment: int
    row_count: int
    """How many rows they have, as the metadata says."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteSnapshot:
    """Delete a snapshot; one that does not exist, or is another cursor's, counts as deleted. The answer is None."""

    serial: int
    bucket_id: int
    is_own: bool
    """Whether it is known to be this cursor's; otherwise look before."""


@dataclass(frozen=True, slots=True, eq=False)
class PutName:
    """Write the property of the cursor that names a snapshot, durably. The answer is None."""

    serial: int
    bucket_key: str
    bucket_id: int


@dataclass(frozen=True, slots=True, eq=False)
class RemoveName:
    """Remove a property of the cursor, durably. The answer is None."""

    serial: int
    bucket_key: str


Call = ReadHead | CreateSnapshot | MergeSnapshots | LoadSegments | DeleteSnapshot | PutName | RemoveName


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A snapshot is durable."""

    bucket_id: int
    size_bytes: int
    table: SegmentTable


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The content of entry 0 of a snapshot."""

    size_bytes: int
    table: SegmentTable
    bitmaps: Mapping[int, BitMap]
    """The positions of all segments: entry ids by ledger."""


@dataclass(frozen=True, slots=True, eq=False)
class CallFailed:
    """A call had no effect, or an unknown one."""

    reason: str
    is_lost: bool = False
    """Whether the snapshot is gone or unreadable for good; otherwise the call may succeed later."""
    is_alien: bool = False
    """Whether the snapshot is another cursor's, which counts as lost, and is not ours to delete."""
    lost_bucket_id: int | None = None
    """The snapshot that is lost, as far as the error says: a merge reads several."""


Answer = Stored | Head | DelayedIndexes | None | CallFailed
