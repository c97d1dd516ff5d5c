"""The inspection of snapshots: their content and their damage, for the tools that look at a storage from outside.

Two kinds of findings: a snapshot that contradicts itself (its rows against what entry 0 says of them), and snapshots
and cursor properties that do not belong to each other. Those are pure functions; the caller reads, a few segments at a
time.

`readable_infos` lists the snapshots of a storage that may be damaged. A list leaves out what it cannot read, or ends
there, and a tool must not: on S3 one object that is cut short is enough. Only the property that names such a snapshot
can say which cursor owns it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX, LedgerRange, parse_bucket_id, parse_bucket_key
from snapshot_storage.encoding.codec import SegmentMetadata, segment_metadata
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotStorageError,
    SnapshotUnreadableError,
    StorageCorruptedError,
)
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


class ProblemKind(StrEnum):
    """The kinds of problems."""

    DAMAGED = "damaged"
    """Bytes that no writer wrote: a checksum, or no segment at all."""
    UNAVAILABLE = "unavailable"
    """The storage does not answer for a snapshot now, or refuses it."""
    INCONSISTENT = "inconsistent"
    """Well-formed, but segments and entry 0 contradict each other."""
    MISSING = "missing"
    """A property names a snapshot that is not there."""
    ORPHANED = "orphaned"
    """A snapshot that no property names."""
    ALIEN = "alien"
    """A property names a snapshot of another topic, cursor or range, or one that another property names, too."""
    MALFORMED = "malformed"
    """A property with the prefix of buckets that names none."""


class SnapshotProblem(NamedTuple):
    """One finding."""

    kind: ProblemKind
    bucket_id: int | None
    topic_name: str
    cursor_name: str
    what: str


class BucketProperty(NamedTuple):
    """A property of a cursor that says, or should say, which snapshot a bucket has."""

    topic_name: str
    cursor_name: str
    key: str
    value: str

    @property
    def bucket_id(self) -> int | None:
        """The id that the value names, if it is one."""
        return parse_bucket_id(self.value)


def is_bucket_property(key: str) -> bool:
    """Whether a property is about a bucket, well-formed or not."""
    return key.startswith(BUCKET_KEY_PREFIX)


def ownership_problems(
    infos: Sequence[BucketSnapshotInfo], properties: Sequence[BucketProperty]
) -> list[SnapshotProblem]:
    """Compare the stored snapshots with those that the cursors' properties name, in both directions."""
    problems: list[SnapshotProblem] = []
    by_id = {info.bucket_id: info for info in infos}
    named_by: dict[int, BucketProperty] = {}
    for one in properties:
        kind, what = _property_problem(one, by_id, named_by)
        if kind is not None:
            problems.append(SnapshotProblem(kind, one.bucket_id, one.topic_name, one.cursor_name, what))
        if one.bucket_id is not None:
            named_by.setdefault(one.bucket_id, one)
    for info in orphans(infos, properties):
        what = f"no property names it; it was {info.bucket_key}"
        problems.append(SnapshotProblem(ProblemKind.ORPHANED, info.bucket_id, info.topic_name, info.cursor_name, what))
    return problems


def _property_problem(
    one: BucketProperty, by_id: dict[int, BucketSnapshotInfo], named_by: dict[int, BucketProperty]
) -> tuple[ProblemKind | None, str]:
    if one.bucket_id is None or parse_bucket_key(one.key) is None:
        return ProblemKind.MALFORMED, f"{one.key}={one.value}"
    if one.bucket_id in named_by:
        other = named_by[one.bucket_id]
        return ProblemKind.ALIEN, f"{one.key} names it, and so does {other.key} of {other.topic_name}"
    info = by_id.get(one.bucket_id)
    if info is None:
        return ProblemKind.MISSING, f"{one.key} names it, and the storage does not have it"
    if (info.topic_name, info.cursor_name, info.bucket_key) != (one.topic_name, one.cursor_name, one.key):
        return (
            ProblemKind.ALIEN,
            f"{one.key} names it; it is {info.bucket_key} of {info.cursor_name}, {info.topic_name}",
        )
    return None, ""


def orphans(infos: Iterable[BucketSnapshotInfo], properties: Iterable[BucketProperty]) -> list[BucketSnapshotInfo]:
    """Return the snapshots that no property names, not even one that is malformed or another cursor's."""
    named = {one.bucket_id for one in properties}
    return [info for info in infos if info.bucket_id not in named]


def missing(infos: Iterable[BucketSnapshotInfo], properties: Iterable[BucketProperty]) -> dict[int, BucketProperty]:
    """Return the ids that properties name and no snapshot has, with a property that names each."""
    found = {info.bucket_id for info in infos}
    return {one.bucket_id: one for one in properties if one.bucket_id is not None and one.bucket_id not in found}


def metadata_problems(info: BucketSnapshotInfo, segments: Sequence[SegmentMetadata]) -> list[str]:
    """Compare entry 0 with what the storage says of the snapshot, and its segments with each other."""
    problems: list[str] = []
    if len(segments) != info.segment_count:
        problems.append(f"entry 0 tells of {len(segments)} segments, {info.segment_count} are stored")
    for number, (before, after) in enumerate(pairwise(segments), start=2):
        if after.deliver_at_ms_min < before.deliver_at_ms_max:
            problems.append(f"segment {number} begins before segment {number - 1} ends")
    ledgers = parse_bucket_key(info.bucket_key)
    if ledgers is None:
        problems.append(f"its key {info.bucket_key} names no ledgers")
    else:
        problems += _ledgers_outside(ledgers, segments)
    return problems


def _ledgers_outside(ledgers: LedgerRange, segments: Sequence[SegmentMetadata]) -> list[str]:
    first, last = ledgers
    outside = {ledger_id for segment in segments for ledger_id in segment.bitmaps if not first <= ledger_id <= last}
    return [f"positions of ledger {ledger_id} are outside of its range" for ledger_id in sorted(outside)]


def segment_problems(metadata: SegmentMetadata, rows: DelayedIndexes, *, previous_end_ms: int) -> list[str]:
    """Compare the rows of a segment with what entry 0 says of it.

    Args:
        metadata: The decoded entry 0.
        rows: All rows of the segment.
        previous_end_ms: When the segment before ends, 0 for the first one. The first version of Pulsar's format does
            not have the beginning of a segment, and this stands for it.

    Raises:
        SnapshotCorruptedError: A bitmap is none.
    """
    if not len(rows):
        return ["it has no rows"]
    problems: list[str] = []
    if not rows.is_sorted():
        problems.append("its rows are not in order of time and position")
        rows = rows.sorted()
    found = segment_metadata(rows)
    begins_at = metadata.deliver_at_ms_min
    if begins_at != found.deliver_at_ms_min and (begins_at != previous_end_ms or begins_at > found.deliver_at_ms_min):
        problems.append(f"it begins at {found.deliver_at_ms_min}, entry 0 says {begins_at}")
    if metadata.deliver_at_ms_max != found.deliver_at_ms_max:
        problems.append(f"it ends at {found.deliver_at_ms_max}, entry 0 says {metadata.deliver_at_ms_max}")
    for ledger_id in sorted(metadata.bitmaps.keys() | found.bitmaps.keys()):
        # Bitmaps of the same positions may be spelled differently.
        if metadata.bitmaps.get(ledger_id) != found.bitmaps.get(ledger_id):
            promised, stored = metadata.bitmap(ledger_id), found.bitmap(ledger_id)
            if promised != stored:
                problems.append(
                    f"ledger {ledger_id}: {len(promised - stored):,} positions of its bitmap have no row, "
                    f"{len(stored - promised):,} rows are not in it"
                )
    return problems


@dataclass(slots=True, eq=False)
class TimeHistogram:
    """How many messages are due when, in equal spans of time; rows come piece by piece.

    >>> histogram = TimeHistogram.between(0, 99, bins_max=5)
    >>> histogram.add(np.array([0, 19, 20, 99]))
    >>> histogram.counts.tolist(), histogram.span_ms
    ([2, 1, 0, 0, 1], 20)
    """

    first_ms: int
    span_ms: int
    counts: NDArray[np.int64]

    @classmethod
    def between(cls, first_ms: int, last_ms: int, *, bins_max: int) -> "TimeHistogram":
        """Return an empty histogram of this range, both ends included; spans above a second are whole seconds."""
        assert first_ms <= last_ms
        span_ms = -(-(last_ms - first_ms + 1) // bins_max)
        if span_ms > 1_000:
            span_ms = -(-span_ms // 1_000) * 1_000
        bins = -(-(last_ms - first_ms + 1) // span_ms)
        return cls(first_ms, span_ms, np.zeros(bins, np.int64))

    def add(self, deliver_at_ms: NDArray[np.int64]) -> None:
        """Count rows; times outside of the range go to its ends."""
        bins = np.clip((deliver_at_ms - self.first_ms) // self.span_ms, 0, len(self.counts) - 1)
        self.counts += np.bincount(bins, minlength=len(self.counts))


def segments_per_read(info: BucketSnapshotInfo, *, bytes_max: int) -> int:
    """Return how many segments of a snapshot to read at a time, so that they take about so many bytes."""
    return max(1, info.segment_count * bytes_max // max(1, info.length_bytes))


def matched(sources: Sequence[BucketSnapshotInfo], targets: Sequence[BucketSnapshotInfo]) -> dict[int, list[int]]:
    """Return, for each source, the ids of targets that have its names and its size, and so may be copies of it."""
    by_identity: dict[tuple[str, str, str, int, int], list[int]] = {}
    for target in targets:
        by_identity.setdefault(_identity(target), []).append(target.bucket_id)
    return {source.bucket_id: by_identity.get(_identity(source), []) for source in sources}


def _identity(info: BucketSnapshotInfo) -> tuple[str, str, str, int, int]:
    return info.topic_name, info.cursor_name, info.bucket_key, info.segment_count, info.length_bytes


class ReadableInfos(NamedTuple):
    """The snapshots of a storage."""

    infos: list[BucketSnapshotInfo]
    """Those that can be read, in order of topic, cursor and id."""
    faults: dict[int | None, SnapshotStorageError]
    """The faults of the others, by id as far as known: damage, or a storage that does not answer for them now."""


async def readable_infos(
    storage: BucketSnapshotStorage,
    named_ids: Collection[int],
    *,
    topic_name: str | None = None,
    cursor_name: str | None = None,
) -> ReadableInfos:
    """List the snapshots that can be found, by a list or by the ids that properties name.

    Args:
        storage: The storage.
        named_ids: The ids that properties name; each is looked at, though a list leaves it out.
        topic_name: Only snapshots of this topic; of those with a fault, whose owner is unknown, those that are named.
        cursor_name: The same for a cursor.

    Raises:
        SnapshotStorageError: The storage does not answer.
    """
    faults: dict[int | None, SnapshotStorageError] = {}
    infos: list[BucketSnapshotInfo] = []
    is_filtered = topic_name is not None or cursor_name is not None
    try:
        infos = await storage.list_bucket_snapshots(topic_name, cursor_name)
        left_out = await _left_out(storage, infos)
        known = {None, *named_ids}
        faults |= {bucket_id: one for bucket_id, one in left_out.items() if not is_filtered or bucket_id in known}
    except (SnapshotUnreadableError, StorageCorruptedError) as error:
        faults[_bucket_id_of(error)] = error
    found = {info.bucket_id for info in infos}
    for bucket_id in sorted(set(named_ids) - found - faults.keys()):
        try:
            infos.append((await storage.get_bucket_snapshot_head(bucket_id)).info)
        except SnapshotUnreadableError as error:
            faults[bucket_id] = error
        except BucketNotFoundError:
            continue
    return ReadableInfos(sorted(infos, key=lambda info: (info.topic_name, info.cursor_name, info.bucket_id)), faults)


async def _left_out(
    storage: BucketSnapshotStorage, infos: list[BucketSnapshotInfo]
) -> Mapping[int | None, SnapshotStorageError]:
    """Return the faults of snapshots that a list leaves out."""
    found = {info.bucket_id for info in infos}
    faults = {_bucket_id_of(error): error for error in await storage.find_damage()}
    return {bucket_id: error for bucket_id, error in faults.items() if bucket_id not in found}


def _bucket_id_of(error: SnapshotStorageError) -> int | None:
    return error.bucket_id if isinstance(error, SnapshotUnreadableError) else None
