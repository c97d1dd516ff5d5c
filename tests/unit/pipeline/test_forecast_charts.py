"""Counts to percentiles, peaks, Parquet and pictures."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from postdate.pipeline.jobs.forecast import MINUTE_MAX, MINUTE_MS, Forecast, forecast_of, write_forecast

NOW_MINUTE = 29_000_000
NOW_MS = NOW_MINUTE * MINUTE_MS


def _forecast(*counts: tuple[str, int, int]) -> Forecast:
    """Make one of (topic, minutes ahead, deliveries)."""
    topics, minutes, deliveries = zip(*counts, strict=True) if counts else ((), (), ())
    columns = [
        pa.array(topics, pa.string()),
        pa.array([min(NOW_MINUTE + minute, MINUTE_MAX) for minute in minutes], pa.int64()),
        pa.array(deliveries, pa.int64()),
    ]
    return forecast_of(pa.table(columns, ["topic", "minute", "deliveries"]), now_ms=NOW_MS)


def test_percentiles_and_peaks_equal_those_of_single_deliveries() -> None:
    """Numpy's own nearest rank over every delivery is the judge."""
    random = np.random.default_rng(1)
    minutes = random.permutation(500)[:90]
    counts = random.integers(1, 50, 90)
    found = _forecast(*(("t", int(minute), int(count)) for minute, count in zip(minutes, counts, strict=True)))

    single = (np.repeat(minutes, counts) + 1) * MINUTE_MS
    total, topic = found.summaries()
    expected = [int(np.percentile(single, percent, method="inverted_cdf")) for percent in (50, 90, 99)]
    assert list(topic[2:5]) == list(total[2:5]) == expected
    assert topic.deliveries == counts.sum()
    assert topic.peak_deliveries == counts.max()
    assert (topic.peak_ms - NOW_MS) // MINUTE_MS == minutes[counts == counts.max()].min()


def test_all_topics_together_are_a_sum_of_minutes() -> None:
    """The peak of all need not be the peak of any."""
    found = _forecast(("b", 7, 6), ("a", 5, 5), ("a", 7, 4), ("b", 9, 8))

    total, *topics = found.summaries()

    assert [ahead.topic for ahead in topics] == ["b", "a"]
    assert (total.deliveries, total.peak_deliveries, total.peak_ms) == (23, 10, NOW_MS + 7 * MINUTE_MS)
    assert [ahead.peak_deliveries for ahead in topics] == [8, 5]


def test_a_forecast_is_written_as_parquet(tmp_path: Path) -> None:
    """Minutes and summaries, also of nothing."""
    write_forecast(_forecast(("a", 5, 3), ("b", 5, 4)), str(tmp_path / "some"))
    write_forecast(_forecast(), str(tmp_path / "none"))

    assert pq.read_table(tmp_path / "some" / "minutes.parquet").to_pylist() == [
        {"topic": "a", "minute_ms": NOW_MS + 5 * MINUTE_MS, "deliveries": 3},
        {"topic": "b", "minute_ms": NOW_MS + 5 * MINUTE_MS, "deliveries": 4},
    ]
    topics = pq.read_table(tmp_path / "some" / "topics.parquet").to_pylist()
    assert [(row["topic"], row["ahead_p99_ms"]) for row in topics] == [(t, 6 * MINUTE_MS) for t in (None, "b", "a")]
    assert pq.read_table(tmp_path / "none" / "minutes.parquet").num_rows == 0


def draw_forecast(forecast: Forecast, folder: Path) -> list[Path]:
    # Here, as importing Matplotlib takes a worker that draws nothing half a second.
    from postdate.pipeline.jobs.forecast_charts import draw_forecast

    return draw_forecast(forecast, folder)


@pytest.mark.slow
@pytest.mark.parametrize("far", [0, 1, 10_000, 60 * 24 * 365 * 20_000, MINUTE_MAX])
def test_charts_are_drawn_whatever_is_ahead(far: int, tmp_path: Path) -> None:
    """From this minute to the end of all numbers, of one topic or of many with hard names."""
    few = draw_forecast(_forecast(("t", far, 1)), tmp_path / "few")
    many = draw_forecast(_forecast(*((f"$t_{k}^$" * 9, far + k, k) for k in range(1, 20))), tmp_path / "many")

    assert [path.name for path in few] == [path.name for path in many] == ["deliveries.png", "ahead.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in few + many)


@pytest.mark.slow
def test_nothing_ahead_has_no_chart(tmp_path: Path) -> None:
    """An empty input is fine."""
    assert draw_forecast(_forecast(), tmp_path) == []
