"""For all rows, a snapshot is cut, described and joined as the slow and obvious way does it."""

from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap

from snapshot_storage.encoding.codec import decode_metadata, decode_segments, merged_bitmaps
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segmenter import segment_ends
from snapshot_storage.encoding.snapshot import build_snapshot

_Row = tuple[int, int, int]

# Few different times, ledgers and entries, so that rows meet; and large ones, so that they span blocks of a
# bitmap.
_ENTRIES = st.integers(0, 12) | st.sampled_from([65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1])
_ROWS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0, 3, 4, 10**12, 2**63 - 1]), _ENTRIES), max_size=60)
_STEPS = st.integers(0, 40)
_ROWS_MAX = st.just(-1) | st.integers(1, 7)


def _segments_one_row_at_a_time(rows: list[_Row], step_ms: int, rows_max: int) -> list[list[_Row]]:
    """Cut as Pulsar's loop does: close the open segment when the next row must not join it."""
    segments: list[list[_Row]] = []
    upper = 0
    for k, row in enumerate(rows):
        is_open = bool(k) and row[0] <= upper and (rows_max == -1 or len(segments[-1]) < rows_max)
        if not is_open:
            segments.append([])
            upper = row[0] + step_ms - 1
        segments[-1].append(row)
    return segments


@given(_ROWS, _STEPS, _ROWS_MAX)
def test_cuts_match_the_row_by_row_rule(rows: list[_Row], step_ms: int, rows_max: int) -> None:
    """The searching cut and the naive cut give the same segments."""
    columns = DelayedIndexes.from_rows(sorted(rows))
    expected = [len(part) for part in _segments_one_row_at_a_time(sorted(rows), step_ms, rows_max)]

    ends = segment_ends(columns.deliver_at_ms, step_ms=step_ms, rows_max=rows_max)

    assert [end - start for start, end in zip([0, *ends[:-1]], ends, strict=False)] == expected


@given(_ROWS, _STEPS, _ROWS_MAX)
def test_a_snapshot_says_what_is_in_it(rows: list[_Row], step_ms: int, rows_max: int) -> None:
    """Times and bitmaps of each segment are those of its rows, and the first row of each position comes back."""
    firsts: dict[tuple[int, int], _Row] = {}
    for row in sorted(rows):
        firsts.setdefault(row[1:], row)
    snapshot = build_snapshot(DelayedIndexes.from_rows(rows).sorted(), step_ms=step_ms, rows_max=rows_max)
    rows = list(firsts.values())
    expected = _segments_one_row_at_a_time(rows, step_ms, rows_max)

    assert decode_metadata(snapshot.metadata) == snapshot.segment_metadata
    assert decode_segments(snapshot.segments).to_rows() == sorted(rows)
    for part, segment in zip(expected, snapshot.segment_metadata, strict=True):
        assert (segment.deliver_at_ms_min, segment.deliver_at_ms_max) == (part[0][0], part[-1][0])
        assert segment.bitmaps == {
            ledger: BitMap([entry for _, other, entry in part if other == ledger]).serialize()
            for ledger in {ledger for _, ledger, _ in part}
        }
        assert segment.row_count == len(part)


@given(_ROWS, _STEPS, _ROWS_MAX)
def test_bitmaps_of_segments_join_to_those_of_the_rows(rows: list[_Row], step_ms: int, rows_max: int) -> None:
    """Recovery joins the bitmaps of the remaining segments to the set of their positions."""
    snapshot = build_snapshot(DelayedIndexes.from_rows(rows).sorted(), step_ms=step_ms, rows_max=rows_max)

    joined = merged_bitmaps(snapshot.segment_metadata)

    assert {(ledger, entry) for ledger, bits in joined.items() for entry in bits} == {row[1:] for row in rows}


@given(_ROWS)
@example([(3, 1, 1), (1, 1, 2), (2, 2, 0), (1, 2, 1)]).via("in order of position")
@example([(1, 2, 0), (1, 1, 5), (1, 1, 4), (0, 9, 9)]).via("in no order")
@example([(1, 1, 2), (1, 1, 1)]).via("decided by the entry")
@example([(1, 2, 1), (1, 1, 2)]).via("decided by the ledger")
@example([(1, 1, 1), (1, 1, 1)]).via("equal")
def test_columns_sort_like_tuples(rows: list[_Row]) -> None:
    """All ways of sorting the rows give the same order."""
    columns = DelayedIndexes.from_rows(rows)

    assert columns.sorted().to_rows() == sorted(rows)
    assert columns.is_sorted() == (rows == sorted(rows))
