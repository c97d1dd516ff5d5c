"""A stretch of a log against its index: every kind of finding, and what is no finding."""

import asyncio
from pathlib import Path

from pyroaring import BitMap

from managed_ledger.position import Position
from postdate.pipeline.index.acknowledged import Acknowledged
from postdate.pipeline.logs.header_log import HeaderRange
from postdate.pipeline.logs.log_folder import LogFolder
from postdate.pipeline.tasks.audit_rows import (
    FIRST_POSITION,
    LAST_POSITION,
    Audited,
    AuditTask,
    IndexFinding,
    audit_task,
    compare,
)
from postdate.pipeline.tasks.bucket_rows import build_bucket
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.spark.bulk_data import write_log

NOW_MS = 1_000


def test_every_position_is_judged_once() -> None:
    """Missing, stray, duplicate, acknowledged, unsealed, mistimed; due and indexed are in order."""
    in_log = DelayedIndexes.of([2_000] * 6 + [500, 2_000], [5, 5, 5, 5, 6, 7, 5, 6], [0, 1, 2, 3, 0, 0, 9, 1])
    index = DelayedIndexes.of([2_000] * 7, [5, 5, 5, 4, 6, 3, 5], [0, 1, 1, 7, 0, 3, 8])
    gone = Acknowledged(Position(3, 10), {6: BitMap([0]).serialize()})

    found = compare(index, in_log, gone, sealed_through=Position(6, 1), now_ms=NOW_MS)

    assert {finding: [row[1:] for row in rows.to_rows()] for finding, rows in found.items()} == {
        IndexFinding.MISSING: [(5, 2), (5, 3), (6, 1)],
        IndexFinding.STRAY: [(4, 7), (5, 8)],
        IndexFinding.DUPLICATE: [(5, 1)],
        IndexFinding.MISTIMED: [],
        IndexFinding.ACKNOWLEDGED: [(3, 3), (6, 0)],
        IndexFinding.UNSEALED: [(7, 0)],
    }


def test_a_row_with_another_time_than_the_log_has_is_found() -> None:
    """Too early, too late, or in a message that has no delay; "never" is stored as the last time but one."""
    never = 2**63 - 1
    in_log = DelayedIndexes.of([2_000, 2_000, 2_000, -1, never, 2_000], [5] * 6, [3, 2, 1, 0, 4, 9])
    index = DelayedIndexes.of([7, 1_999, 2_000, 2_001, never - 1, 7], [5] * 6, [0, 1, 2, 3, 4, 8])

    found = compare(index, in_log, Acknowledged(), sealed_through=Position(5, 9), now_ms=NOW_MS)

    assert found[IndexFinding.MISTIMED].to_rows() == [(7, 5, 0), (1_999, 5, 1), (2_001, 5, 3)]
    assert [row[1:] for row in found[IndexFinding.STRAY].to_rows()] == [(5, 8)]


def test_nothing_and_nothing_agree() -> None:
    """An empty input is fine."""
    empty = DelayedIndexes.empty()

    found = compare(empty, empty, Acknowledged(), sealed_through=Position(-1, -1), now_ms=NOW_MS)

    assert not any(map(len, found.values()))


def test_a_snapshot_that_the_storage_does_not_answer_for_is_no_finding(tmp_path: Path) -> None:
    """Nor are the positions that it may have: a repair would rebuild for an outage."""
    times = [2_000] * 4
    write_log(tmp_path, {"a": times})
    parts = [
        build_bucket(DelayedIndexes.of(times[:2], [1, 1], entries), step_ms=1, rows_max=-1)
        for entries in ([0, 1], [2, 3])
    ]

    async def main() -> list[Audited]:
        faulty = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage(), dropped_after_failures=None)
        async with RetryingBucketSnapshotStorage(faulty, Retries(tries_max=3, min_ms=1, max_ms=1)) as storage:
            names = {"bucket_key": "#pulsar.internal.delayed.bucket_1_1", "topic_name": "a", "cursor_name": "sub"}
            ids = [await storage.create_bucket_snapshot(one.metadata, one.segments, **names) for one in parts]
            buckets = tuple(await storage.list_bucket_snapshots())
            ranges = (HeaderRange("a", 1, 0, 4),)
            last = Position(1, 3)
            task = AuditTask("a", "sub", ranges, FIRST_POSITION, LAST_POSITION, buckets, Acknowledged(), last)
            found = []
            for away in ([], ids[1:], ids):
                faulty.unreadable_ids = set(away)
                found.append(await audit_task(LogFolder(tmp_path / "ledgers"), storage, task, now_ms=NOW_MS))
                assert list(found[-1].unavailable) == away
            return found

    sound, *in_outage = asyncio.run(main())

    assert (sound.positions, sound.corrupt, sound.log_rows, sound.index_rows) == ({}, {}, 4, 4)
    for audited in in_outage:
        assert (audited.positions, audited.corrupt, audited.counts) == ({}, {}, {})
        assert all("cannot be read now" in why for why in audited.unavailable.values())


def test_a_snapshot_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    """The audit goes on: rows that only it held are missing, and others are compared."""
    times = [2_000] * 4
    write_log(tmp_path, {"a": times})
    good = build_bucket(DelayedIndexes.of(times[:2], [1, 1], [0, 1]), step_ms=1, rows_max=-1)

    async def main() -> Audited:
        async with MemoryBucketSnapshotStorage() as storage:
            names = {"bucket_key": "#pulsar.internal.delayed.bucket_1_1", "topic_name": "a", "cursor_name": "sub"}
            await storage.create_bucket_snapshot(good.metadata, good.segments, **names)
            await storage.create_bucket_snapshot(b"", [b"\xff"], **names)
            buckets = tuple(await storage.list_bucket_snapshots())
            ranges = (HeaderRange("a", 1, 0, 4),)
            last = Position(1, 3)
            task = AuditTask("a", "sub", ranges, FIRST_POSITION, LAST_POSITION, buckets, Acknowledged(), last)
            return await audit_task(LogFolder(tmp_path / "ledgers"), storage, task, now_ms=NOW_MS)

    audited = asyncio.run(main())

    assert len(audited.corrupt) == 1
    assert [row[1:] for row in audited.positions[IndexFinding.MISSING].to_rows()] == [(1, 2), (1, 3)]
    assert (audited.log_rows, audited.index_rows) == (4, 2)


def _audited(tmp_path: Path, metadata: bytes, segments: list[bytes]) -> Audited:
    """Audit four messages of which a snapshot with such entries is the only bucket but for a later, healthy one."""
    times = [2_000] * 4
    write_log(tmp_path, {"a": times})
    later = build_bucket(DelayedIndexes.of([2_000], [1], [3]), step_ms=1, rows_max=-1)

    async def main() -> Audited:
        async with MemoryBucketSnapshotStorage() as storage:
            names = {"bucket_key": "#pulsar.internal.delayed.bucket_1_1", "topic_name": "a", "cursor_name": "sub"}
            await storage.create_bucket_snapshot(metadata, segments, **names)
            await storage.create_bucket_snapshot(later.metadata, later.segments, **names)
            buckets = tuple(await storage.list_bucket_snapshots())
            ranges = (HeaderRange("a", 1, 0, 4),)
            task = AuditTask("a", "sub", ranges, FIRST_POSITION, LAST_POSITION, buckets, Acknowledged(), Position(1, 3))
            return await audit_task(LogFolder(tmp_path / "ledgers"), storage, task, now_ms=NOW_MS)

    return asyncio.run(main())


_THREE = build_bucket(DelayedIndexes.of([2_000] * 3, [1] * 3, [0, 1, 2]), step_ms=1, rows_max=-1)
_TWO = build_bucket(DelayedIndexes.of([2_000] * 2, [1] * 2, [0, 1]), step_ms=1, rows_max=-1)


def test_a_damaged_entry_0_is_found_in_any_bucket(tmp_path: Path) -> None:
    """Though every segment is whole: a tracker that recovers cannot use the bucket, so its rows are missing."""
    audited = _audited(tmp_path, b"\xff" + _THREE.metadata, _THREE.segments)

    assert len(audited.corrupt) == 1
    assert [row[1:] for row in audited.positions[IndexFinding.MISSING].to_rows()] == [(1, 0), (1, 1), (1, 2)]


def test_an_entry_0_that_contradicts_the_segments_is_found(tmp_path: Path) -> None:
    """It promises a position that has no row, or it tells of fewer segments than there are; the rows count."""
    promising = _audited(tmp_path / "promising", _THREE.metadata, _TWO.segments)
    silent = _audited(tmp_path / "silent", b"", _THREE.segments)

    (why,) = promising.corrupt.values()
    assert "1 positions of its bitmap have no row" in why
    assert [row[1:] for row in promising.positions[IndexFinding.MISSING].to_rows()] == [(1, 2)]
    (why,) = silent.corrupt.values()
    assert "entry 0 tells of 0 segments, 1 are stored" in why
    assert silent.positions == {}


def test_a_whole_bucket_is_none_of_that(tmp_path: Path) -> None:
    audited = _audited(tmp_path, _THREE.metadata, _THREE.segments)

    assert (audited.corrupt, audited.positions) == ({}, {})
