"""A stretch of a log against its index: every kind of finding, and what is no finding."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyroaring import BitMap

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.positions.position import Position
from postdate.index import comparing
from postdate.index.acknowledged import Acknowledged
from postdate.index.comparing import (
    FIRST_POSITION,
    LAST_POSITION,
    Compared,
    IndexFinding,
    compare,
    compare_stretch,
    stretches,
)
from postdate.index.ledger_ranges import LedgerExtent
from postdate.index.log_folder import LogFolder
from postdate.pipeline.tasks.bucket_rows import build_bucket
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import SnapshotUnavailableError
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


def _compared(
    tmp_path: Path, buckets: list[tuple[bytes, list[bytes]]], away: Callable[[list[int]], list[int]] = lambda _ids: []
) -> Compared:
    """Compare four messages with buckets, some of which the storage does not answer for."""
    times = [2_000] * 4
    write_log(tmp_path, {"a": times})

    async def main() -> Compared:
        faulty = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage(), dropped_after_failures=None)
        async with RetryingBucketSnapshotStorage(faulty, Retries(tries_max=3, min_ms=1, max_ms=1)) as storage:
            names = {"bucket_key": "#pulsar.internal.delayed.bucket_1_1", "topic_name": "a", "cursor_name": "sub"}
            ids = [await storage.create_bucket_snapshot(*bucket, **names) for bucket in buckets]
            infos = await storage.list_bucket_snapshots()
            faulty.unreadable_ids = set(away(ids))
            with closing(LogFolder(tmp_path / "ledgers")) as log:
                (stretch,) = stretches(CursorName("a", "sub"), log.ledgers(), infos, Acknowledged(), Position(1, 3))
                return await compare_stretch(log, storage, stretch, now_ms=NOW_MS)

    return asyncio.run(main())


def _bucket(*entries: int) -> tuple[bytes, list[bytes]]:
    rows = DelayedIndexes.of([2_000] * len(entries), [1] * len(entries), list(entries))
    made = build_bucket(rows, step_ms=1, rows_max=-1)
    return made.metadata, made.segments


def _missing(compared: Compared) -> list[tuple[int, int]]:
    return [row[1:] for row in compared.positions[IndexFinding.MISSING].to_rows()]


def test_a_snapshot_that_the_storage_does_not_answer_for_is_no_finding(tmp_path: Path) -> None:
    """Nor are the positions that it may have: which of them are missing is not known in an outage."""
    sound = _compared(tmp_path / "sound", [_bucket(0, 1), _bucket(2, 3)])

    assert (sound.positions, sound.log_rows, sound.index_rows) == ({}, 4, 4)
    for away in (list, lambda ids: ids[1:]):
        with pytest.raises(SnapshotUnavailableError, match="cannot be read now"):
            _compared(tmp_path / str(id(away)), [_bucket(0, 1), _bucket(2, 3)], away)


def test_the_rows_of_a_snapshot_that_cannot_be_read_are_missing(tmp_path: Path) -> None:
    """Others are compared. Though every segment is whole, a tracker that recovers cannot use one without entry 0."""
    torn = _compared(tmp_path / "torn", [_bucket(0, 1), (b"", [b"\xff"])])
    metadata, segments = _bucket(0, 1, 2)
    headless = _compared(tmp_path / "headless", [(b"\xff" + metadata, segments), _bucket(3)])

    assert (_missing(torn), torn.log_rows, torn.index_rows) == ([(1, 2), (1, 3)], 4, 2)
    assert _missing(headless) == [(1, 0), (1, 1), (1, 2)]


def test_the_rows_count_and_not_what_entry_0_says_of_them(tmp_path: Path) -> None:
    promising = _compared(tmp_path, [(_bucket(0, 1, 2)[0], _bucket(0, 1)[1]), _bucket(3)])

    assert _missing(promising) == [(1, 2)]


@pytest.mark.parametrize("entries_max", [1, 3, 100])
def test_stretches_leave_no_gap(entries_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "STRETCH_ENTRIES_MAX", entries_max)
    ledgers = [LedgerExtent("a", ledger_id, entries, False, 0, 0) for ledger_id, entries in ((2, 4), (5, 1), (9, 7))]

    found = list(stretches(CursorName("a", "sub"), ledgers, [], Acknowledged(Position(4, 0)), Position(9, 6)))

    assert (found[0].begin, found[-1].end) == (FIRST_POSITION, LAST_POSITION)
    assert [one.end for one in found[:-1]] == [one.begin for one in found[1:]]
    assert sum(part.entries for one in found for part in one.ranges) == 8
