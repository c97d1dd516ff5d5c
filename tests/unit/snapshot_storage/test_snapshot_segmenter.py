"""Where segments end, by the examples that were checked against Pulsar."""

import numpy as np
import pytest

from snapshot_storage.encoding.segmenter import ROWS_UNLIMITED, segment_ends

_INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("step_ms", "rows_max", "timestamps", "ends"),
    [
        pytest.param(10, -1, [100, 109, 110, 119], [2, 4], id="the end of a step is excluded"),
        pytest.param(10, -1, [10, 20, 30, 40, 50], [1, 2, 3, 4, 5], id="five of one"),
        pytest.param(1, -1, [100, 100, 101, 102], [2, 3, 4], id="equal times share a step of one"),
        pytest.param(0, -1, [100, 100, 101, 102], [1, 2, 3, 4], id="a step of 0 splits equal times too"),
        pytest.param(3_600_000, 5, list(range(20)), [5, 10, 15, 20], id="cut by rows"),
        pytest.param(10, 2, [100, 101, 102, 110, 111], [2, 4, 5], id="a row limit starts the step anew"),
        pytest.param(10, -1, [], [], id="no rows"),
        pytest.param(10, -1, [0, 9, 10], [2, 3], id="time zero"),
        pytest.param(10, -1, [_INT64_MAX - 3, _INT64_MAX], [2], id="the end of time"),
    ],
)
def test_segments_end_where_pulsars_do(step_ms: int, rows_max: int, timestamps: list[int], ends: list[int]) -> None:
    """Each limit alone, both together, and the edges."""
    assert segment_ends(np.array(timestamps, np.int64), step_ms=step_ms, rows_max=rows_max) == ends


def test_any_view_can_be_cut() -> None:
    """A column of a table is not contiguous."""
    table = np.array([[100, 0], [101, 0], [200, 0]])

    assert segment_ends(table[:, 0], step_ms=10, rows_max=ROWS_UNLIMITED) == [2, 3]
