"""Problems that are found in snapshots: each kind of contradiction, and none where there is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from snapshot_storage.encoding.codec import decode_segment
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from snapshot_storage.inspection import (
    BucketProperty,
    ProblemKind,
    TimeHistogram,
    matched,
    metadata_problems,
    orphans,
    ownership_problems,
    segment_problems,
    segments_per_read,
)
from snapshot_storage.storage import BucketSnapshotInfo

KEY = "#pulsar.internal.delayed.bucket_1_5"
INFO = BucketSnapshotInfo(7, KEY, "orders", "billing", segment_count=3, length_bytes=100)
PROPERTY = BucketProperty("orders", "billing", KEY, "7")
ROWS = DelayedIndexes.of([10, 20, 20, 400, 900], [1, 1, 2, 5, 5], [0, 3, 3, 1, 0])


def _snapshot() -> Snapshot:
    return build_snapshot(ROWS, step_ms=100, rows_max=-1)


def _problems(number: int, rows: DelayedIndexes | None = None, **changes: object) -> list[str]:
    """Check a segment of the snapshot, with other rows or other metadata."""
    snapshot = _snapshot()
    metadata = snapshot.segment_metadata[number - 1]._replace(**changes)  # type: ignore[arg-type]
    rows = rows if rows is not None else decode_segment(snapshot.segments[number - 1])
    return segment_problems(metadata, rows, previous_end_ms=0)


def test_what_was_built_is_right() -> None:
    snapshot = _snapshot()

    assert metadata_problems(INFO, snapshot.segment_metadata) == []
    assert [_problems(number) for number in (1, 2, 3)] == [[], [], []]


@given(
    st.lists(st.tuples(st.integers(0, 10**4), st.integers(1, 5), st.integers(0, 2**32 - 1)), min_size=1, unique=True),
    st.integers(0, 1_000),
    st.sampled_from([-1, 1, 3]),
)
def test_whatever_was_built_is_right(rows: list[tuple[int, int, int]], step_ms: int, rows_max: int) -> None:
    snapshot = build_snapshot(DelayedIndexes.from_rows(rows).sorted(), step_ms=max(1, step_ms), rows_max=rows_max)
    info = INFO._replace(segment_count=len(snapshot.segments))

    assert metadata_problems(info, snapshot.segment_metadata) == []
    for metadata, data in zip(snapshot.segment_metadata, snapshot.segments, strict=True):
        assert segment_problems(metadata, decode_segment(data), previous_end_ms=0) == []


def test_each_contradiction_of_a_segment_is_named() -> None:
    one_less = DelayedIndexes.of([10, 20], [1, 2], [0, 3])
    moved = DelayedIndexes.of([10, 20, 20], [1, 1, 2], [0, 4, 3])
    unsorted = DelayedIndexes.of([20, 10, 20], [1, 1, 2], [3, 0, 3])

    assert _problems(1, DelayedIndexes.empty()) == ["it has no rows"]
    assert _problems(1, one_less) == ["ledger 1: 1 positions of its bitmap have no row, 0 rows are not in it"]
    assert _problems(1, moved) == ["ledger 1: 1 positions of its bitmap have no row, 1 rows are not in it"]
    assert _problems(1, unsorted) == ["its rows are not in order of time and position"]
    assert _problems(1, deliver_at_ms_min=9) == ["it begins at 10, entry 0 says 9"]
    assert _problems(1, deliver_at_ms_max=21) == ["it ends at 20, entry 0 says 21"]
    assert _problems(2, bitmaps={}) == ["ledger 5: 0 positions of its bitmap have no row, 1 rows are not in it"]


def test_a_bitmap_may_be_spelled_differently() -> None:
    """Runs or not is the writer's choice."""
    rows = DelayedIndexes.of([10] * 100, [1] * 100, list(range(100)))
    metadata = build_snapshot(rows, step_ms=100, rows_max=-1).segment_metadata[0]
    plain = BitMap(optimize=False)
    for entry_id in range(100):
        plain.add(entry_id)
    assert plain.serialize() != metadata.bitmaps[1]

    assert segment_problems(metadata._replace(bitmaps={1: plain.serialize()}), rows, previous_end_ms=0) == []


def test_the_first_version_of_the_format_did_not_say_when_a_segment_begins() -> None:
    """There the end of the one before stands for it, which is never later."""
    metadata = _snapshot().segment_metadata[1]._replace(deliver_at_ms_min=20)
    rows = decode_segment(_snapshot().segments[1])

    assert segment_problems(metadata, rows, previous_end_ms=20) == []
    assert segment_problems(metadata, rows, previous_end_ms=19) == ["it begins at 400, entry 0 says 20"]


def test_entry_0_is_compared_with_the_storage() -> None:
    segments = _snapshot().segment_metadata
    elsewhere = INFO._replace(bucket_key="#pulsar.internal.delayed.bucket_2_5")

    assert metadata_problems(INFO, segments[:2]) == ["entry 0 tells of 2 segments, 3 are stored"]
    assert metadata_problems(INFO, [segments[1], segments[0], segments[2]]) == [
        "segment 2 begins before segment 1 ends"
    ]
    assert metadata_problems(elsewhere, segments) == ["positions of ledger 1 are outside of its range"]
    assert metadata_problems(INFO._replace(bucket_key="x"), segments) == ["its key x names no ledgers"]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ([PROPERTY], []),
        ([], [ProblemKind.ORPHANED]),
        ([PROPERTY, PROPERTY._replace(key=KEY + "0", value="8")], [ProblemKind.MISSING]),
        ([PROPERTY._replace(topic_name="reminders")], [ProblemKind.ALIEN]),
        ([PROPERTY._replace(cursor_name="shipping")], [ProblemKind.ALIEN]),
        ([PROPERTY._replace(key=KEY + "0")], [ProblemKind.ALIEN]),
        ([PROPERTY, PROPERTY._replace(cursor_name="shipping")], [ProblemKind.ALIEN]),
        ([PROPERTY, PROPERTY._replace(value="seven")], [ProblemKind.MALFORMED]),
        # The snapshot that it seems to name is not garbage.
        ([PROPERTY._replace(key="#pulsar.internal.delayed.bucket_oops")], [ProblemKind.MALFORMED]),
    ],
)
def test_snapshots_and_properties_are_compared_both_ways(
    properties: list[BucketProperty], expected: list[ProblemKind]
) -> None:
    problems = ownership_problems([INFO], properties)

    assert [problem.kind for problem in problems] == expected
    assert bool(orphans([INFO], properties)) == (ProblemKind.ORPHANED in expected)


def test_a_copy_may_be_what_has_the_same_names_and_size() -> None:
    others = [INFO._replace(bucket_id=1), INFO._replace(bucket_id=2, length_bytes=1), INFO._replace(bucket_id=3)]

    assert matched([INFO], others) == {7: [1, 3]}
    assert matched([INFO._replace(cursor_name="other")], others) == {7: []}


def test_a_piece_has_about_as_many_bytes_as_it_may() -> None:
    assert segments_per_read(INFO._replace(segment_count=1_000, length_bytes=10**6), bytes_max=10**4) == 10
    assert segments_per_read(INFO._replace(segment_count=2, length_bytes=10**9), bytes_max=10**4) == 1
    assert segments_per_read(INFO._replace(segment_count=0, length_bytes=0), bytes_max=10**4) == 1


@given(st.lists(st.integers(0, 10**7), min_size=1), st.integers(1, 20))
def test_every_row_is_counted_once(times_ms: list[int], bins_max: int) -> None:
    times = np.array(times_ms, np.int64)
    histogram = TimeHistogram.between(min(times_ms), max(times_ms), bins_max=bins_max)

    for part in np.array_split(times, 3):
        histogram.add(part)

    begins = [histogram.first_ms + number * histogram.span_ms for number in range(len(histogram.counts))]
    assert len(begins) <= bins_max
    assert histogram.counts.tolist() == [sum(a <= one < a + histogram.span_ms for one in times_ms) for a in begins]
