"""The task of the audit: compare a stretch of a log with the rows that the index has of it. Without Spark.

A cursor's positions are cut into stretches that leave no gap, so rows of trimmed ledgers are looked at as well. A task
holds the log's rows of one stretch and one bucket at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.position import Position
from postdate.pipeline.index.acknowledged import Acknowledged
from postdate.pipeline.logs.header_log import HeaderLog, HeaderRange
from postdate.pipeline.tasks.row_checks import split_rows
from snapshot_storage.encoding.codec import decode_metadata, decode_segment
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, SnapshotUnavailableError
from snapshot_storage.inspection import metadata_problems, segment_problems
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from tracker.columns.row_order import NEVER

FIRST_POSITION, LAST_POSITION = Position(0, 0), Position(2**63 - 1, 2**32)


PROBLEMS_SHOWN_MAX = 5
"""Problems of one snapshot that a report names."""


class IndexFinding(StrEnum):
    """The kinds of findings about a position."""

    MISSING = "missing"
    """To be delivered later, within what buckets cover, and in no bucket that can be read."""
    STRAY = "stray"
    """In a bucket, and not to be delivered: the log has no such delayed message."""
    DUPLICATE = "duplicate"
    """In buckets more than once."""
    MISTIMED = "mistimed"
    """In a bucket with another time than the log has; listed with the bucket's."""
    ACKNOWLEDGED = "acknowledged"
    """In a bucket and acknowledged since: harmless, the tracker never hands it out."""
    UNSEALED = "unsealed"
    """To be delivered later, beyond what buckets cover: harmless, the tracker reads it from the log."""


HARMLESS = frozenset({IndexFinding.ACKNOWLEDGED, IndexFinding.UNSEALED})


@dataclass(frozen=True, slots=True, eq=False)
class AuditTask:
    """Positions of a subscription from `begin` to before `end`."""

    topic: str
    cursor: str
    ranges: tuple[HeaderRange, ...]
    """The part of the log that has them."""
    begin: Position
    end: Position
    buckets: tuple[BucketSnapshotInfo, ...]
    """The buckets that may have rows of them."""
    acknowledged: Acknowledged
    sealed_through: Position
    """Later positions are in no bucket yet."""


@dataclass(slots=True, eq=False)
class Audited:
    """The findings of a task."""

    topic: str
    cursor: str
    positions: dict[IndexFinding, DelayedIndexes] = field(default_factory=dict)
    """Without harmless ones, which are only counted."""
    counts: dict[IndexFinding, int] = field(default_factory=dict)
    corrupt: dict[int, str] = field(default_factory=dict)
    """Snapshots that cannot be read, or of which entry 0 and the segments contradict each other, and why."""
    unavailable: dict[int, str] = field(default_factory=dict)
    """Snapshots that the storage does not answer for, and why; with any, the stretch is not compared."""
    log_rows: int = 0
    index_rows: int = 0


async def audit_task(log: HeaderLog, storage: BucketSnapshotStorage, task: AuditTask, *, now_ms: int) -> Audited:
    """Compare a stretch; a damaged bucket is a finding too, and one that the storage does not answer for ends it.

    Entry 0 of each bucket is compared with the segments: a tracker that recovers goes by it, and not by the rows.
    """
    audited = Audited(task.topic, task.cursor)
    parts = []
    for info in task.buckets:
        try:
            rows, problems = await _checked(storage, info)
            parts.append(_within(rows, task.begin, task.end))
            if problems:
                audited.corrupt[info.bucket_id] = "; ".join(problems[:PROBLEMS_SHOWN_MAX])
        except (SnapshotCorruptedError, BucketNotFoundError) as error:
            audited.corrupt[info.bucket_id] = str(error)
        except SnapshotUnavailableError as error:
            audited.unavailable[info.bucket_id] = str(error)
    if audited.unavailable:
        # Which positions are missing is not known: these snapshots may have them.
        return audited
    index = DelayedIndexes.concatenate(parts)
    read = [split_rows(part.topic, log.read_times(part), part.ledger_id)[0] for part in task.ranges]
    in_log = DelayedIndexes.concatenate(read)
    in_log = in_log.take(in_log.deliver_at_ms > NOT_DELAYED)
    audited.log_rows, audited.index_rows = len(in_log), len(index)
    found = compare(index, in_log, task.acknowledged, sealed_through=task.sealed_through, now_ms=now_ms)
    audited.counts = {finding: len(rows) for finding, rows in found.items()}
    audited.positions = {finding: rows for finding, rows in found.items() if finding not in HARMLESS and len(rows)}
    return audited


async def _checked(storage: BucketSnapshotStorage, info: BucketSnapshotInfo) -> tuple[DelayedIndexes, list[str]]:
    """Return the rows of a bucket, and where its entries contradict each other.

    Raises:
        SnapshotCorruptedError: An entry is damaged.
        BucketNotFoundError: The snapshot was deleted meanwhile.
    """
    metadata = decode_metadata(await storage.get_bucket_snapshot_metadata(info.bucket_id))
    data = await storage.get_bucket_snapshot_segment(info.bucket_id, 1, max(1, info.segment_count))
    segments = [decode_segment(segment, entry=number) for number, segment in enumerate(data, start=1)]
    problems = metadata_problems(info, metadata)
    previous_end_ms = 0
    for number, (promised, rows) in enumerate(zip(metadata, segments, strict=False), start=1):
        found = segment_problems(promised, rows, previous_end_ms=previous_end_ms)
        problems += [f"segment {number}: {what}" for what in found]
        previous_end_ms = promised.deliver_at_ms_max
    return DelayedIndexes.concatenate(segments), problems


def compare(
    index: DelayedIndexes, in_log: DelayedIndexes, acknowledged: Acknowledged, *, sealed_through: Position, now_ms: int
) -> Mapping[IndexFinding, DelayedIndexes]:
    """Return the rows of each finding, each position once.

    Args:
        index: The rows of the buckets.
        in_log: The delayed messages of the log, due or not, acknowledged or not.
        acknowledged: Of the subscription.
        sealed_through: The last position that a bucket has.
        now_ms: Rows that are due need not be in the index.
    """
    ledgers = np.unique(np.concatenate((index.ledger_ids, in_log.ledger_ids)))
    index_keys, log_keys = _keys(index, ledgers), _keys(in_log, ledgers)
    _, firsts, counts = np.unique(index_keys, return_index=True, return_counts=True)
    once, once_keys = index.take(firsts), index_keys[firsts]

    log_is_gone = _is_acknowledged(in_log, acknowledged)
    is_mistimed = _differ(once.deliver_at_ms, once_keys, in_log.deliver_at_ms, log_keys)
    is_extra = ~np.isin(once_keys, log_keys[~log_is_gone])
    is_gone = _is_acknowledged(once, acknowledged)
    is_absent = (in_log.deliver_at_ms > now_ms) & ~log_is_gone & ~np.isin(log_keys, index_keys)
    is_sealed = _is_through(in_log, sealed_through)
    return {
        IndexFinding.MISSING: in_log.take(is_absent & is_sealed),
        IndexFinding.STRAY: once.take(is_extra & ~is_gone),
        IndexFinding.DUPLICATE: once.take(counts > 1),
        IndexFinding.MISTIMED: once.take(is_mistimed & ~is_extra),
        IndexFinding.ACKNOWLEDGED: once.take(is_extra & is_gone),
        IndexFinding.UNSEALED: in_log.take(is_absent & ~is_sealed),
    }


def _keys(rows: DelayedIndexes, ledgers: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for each position: the rank of its ledger and its entry."""
    ranks = np.searchsorted(ledgers, rows.ledger_ids).astype(np.int64)
    return (ranks << 32) | rows.entry_ids


def _differ(
    times: NDArray[np.int64], keys: NDArray[np.int64], log_times: NDArray[np.int64], log_keys: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which rows have another time than the log has; none that the log does not have."""
    if not len(log_keys):
        return np.zeros(len(keys), np.bool_)
    order = np.argsort(log_keys, kind="stable")
    places = order[np.minimum(np.searchsorted(log_keys, keys, sorter=order), len(order) - 1)]
    # The largest number means "never" in the tracker's queues, so an index has the one below it.
    is_mistimed: NDArray[np.bool_] = (log_keys[places] == keys) & (np.minimum(log_times[places], NEVER - 1) != times)
    return is_mistimed


def _is_acknowledged(rows: DelayedIndexes, acknowledged: Acknowledged) -> NDArray[np.bool_]:
    is_gone = rows.ledger_ids < acknowledged.mark_delete.ledger_id
    for ledger_id in np.unique(rows.ledger_ids[~is_gone]).tolist():
        places = np.flatnonzero(rows.ledger_ids == ledger_id)
        mask = acknowledged.mask(rows.take(places), ledger_id)
        if mask is not None:
            is_gone[places] = mask
    return is_gone


def _within(rows: DelayedIndexes, begin: Position, end: Position) -> DelayedIndexes:
    return rows.take(~_is_before(rows, begin) & _is_before(rows, end))


def _is_through(rows: DelayedIndexes, last: Position) -> NDArray[np.bool_]:
    return _is_before(rows, Position(last.ledger_id, last.entry_id + 1))


def _is_before(rows: DelayedIndexes, end: Position) -> NDArray[np.bool_]:
    is_before: NDArray[np.bool_] = rows.ledger_ids < end.ledger_id
    is_before |= (rows.ledger_ids == end.ledger_id) & (rows.entry_ids < end.entry_id)
    return is_before
