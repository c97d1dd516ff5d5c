"""Compare a log with the rows that the index of a cursor has of it.

A cursor's positions are cut into stretches that leave no gap, so rows of trimmed ledgers are looked at as well. Memory
holds the rows of one stretch and one bucket at a time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.positions.position import Position
from postdate.index.acknowledged import Acknowledged
from postdate.index.ledger_ranges import HeaderRange, LedgerExtent, split_ranges
from postdate.index.log_folder import LogFolder
from snapshot_storage.bucket_key import parse_bucket_key
from snapshot_storage.encoding.codec import decode_metadata, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from tracker.columns.row_order import NEVER

FIRST_POSITION, LAST_POSITION = Position(0, 0), Position(2**63 - 1, 2**32)

STRETCH_ENTRIES_MAX = 500_000


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
class Stretch:
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
class Compared:
    """The findings about a stretch."""

    topic: str
    cursor: str
    positions: dict[IndexFinding, DelayedIndexes] = field(default_factory=dict)
    """Without harmless ones, which are only counted."""
    counts: dict[IndexFinding, int] = field(default_factory=dict)
    log_rows: int = 0
    index_rows: int = 0


def stretches(
    cursor: CursorName,
    ledgers: Sequence[LedgerExtent],
    infos: Sequence[BucketSnapshotInfo],
    acknowledged: Acknowledged,
    sealed_through: Position,
) -> Iterator[Stretch]:
    """Cut all positions of a cursor into stretches without a gap, so that ledgers which are gone are looked at too.

    Args:
        cursor: The subscription.
        ledgers: The ledgers of its topic.
        infos: Its own buckets.
        acknowledged: What it has acknowledged.
        sealed_through: The last position that a bucket has.
    """
    wanted = [ledger for ledger in ledgers if not acknowledged.covers_ledger(ledger.ledger_id)]
    parts = list(split_ranges(wanted, entries_max=STRETCH_ENTRIES_MAX)) or [()]
    begins = [FIRST_POSITION, *(Position(ranges[0].ledger_id, ranges[0].first) for ranges in parts[1:])]
    for ranges, begin, end in zip(parts, begins, [*begins[1:], LAST_POSITION], strict=True):
        buckets = tuple(info for info in infos if _may_have(info, begin, end))
        yield Stretch(*cursor, ranges, begin, end, buckets, acknowledged, sealed_through)


def _may_have(info: BucketSnapshotInfo, begin: Position, end: Position) -> bool:
    ledgers = parse_bucket_key(info.bucket_key)
    return ledgers is None or (begin.ledger_id <= ledgers.last_ledger_id and ledgers.first_ledger_id <= end.ledger_id)


async def sealed_through(storage: BucketSnapshotStorage, buckets: Mapping[str, int]) -> Position:
    """Return the last position that a bucket has; the end of its range where it is damaged.

    Args:
        storage: The storage.
        buckets: The snapshot of each key.

    Raises:
        SnapshotStorageError: The storage does not answer.
    """
    by_end: defaultdict[int, set[int]] = defaultdict(set)
    for key, bucket_id in buckets.items():
        ledgers = parse_bucket_key(key)
        if ledgers is not None:
            by_end[ledgers.last_ledger_id].add(bucket_id)
    last = Position(-1, -1)
    for bucket_id in by_end[max(by_end)] if by_end else ():
        try:
            segments = decode_metadata(await storage.get_bucket_snapshot_metadata(bucket_id))
            for segment in segments:
                for ledger_id in segment.bitmaps:
                    # Positions of entry 0 outside of the key's ledgers do not count, as in the live tracker.
                    if last.ledger_id <= ledger_id <= max(by_end) and segment.bitmap(ledger_id):
                        last = max(last, Position(ledger_id, segment.bitmap(ledger_id).max()))
        except (SnapshotCorruptedError, BucketNotFoundError):
            last = max(last, Position(max(by_end), LAST_POSITION.entry_id))
    return last


async def compare_stretch(log: LogFolder, storage: BucketSnapshotStorage, stretch: Stretch, *, now_ms: int) -> Compared:
    """Compare a stretch of a log with its buckets; the rows of a damaged one are missing.

    Raises:
        LedgerError: The log cannot be read.
        SnapshotStorageError: The storage does not answer, so that what is missing is not known.
    """
    compared = Compared(stretch.topic, stretch.cursor)
    parts = []
    for info in stretch.buckets:
        with suppress(SnapshotCorruptedError, BucketNotFoundError):
            # A tracker that recovers cannot use a bucket without entry 0, though every segment be whole.
            decode_metadata(await storage.get_bucket_snapshot_metadata(info.bucket_id))
            data = await storage.get_bucket_snapshot_segment(info.bucket_id, 1, max(1, info.segment_count))
            parts.append(_within(decode_segments(data), stretch.begin, stretch.end))
    index = DelayedIndexes.concatenate(parts)
    in_log = DelayedIndexes.concatenate([log.read_times(part) for part in stretch.ranges])
    in_log = in_log.take(in_log.deliver_at_ms > NOT_DELAYED)
    compared.log_rows, compared.index_rows = len(in_log), len(index)
    found = compare(index, in_log, stretch.acknowledged, sealed_through=stretch.sealed_through, now_ms=now_ms)
    compared.counts = {finding: len(rows) for finding, rows in found.items()}
    compared.positions = {finding: rows for finding, rows in found.items() if finding not in HARMLESS and len(rows)}
    return compared


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
