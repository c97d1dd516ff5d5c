"""A forecast as pictures: deliveries over time with the peak, and how far ahead the deliveries of each topic are.

Drawn without a screen. A few deliveries far away would squeeze all others into a line, so the first chart ends where
nearly all are delivered, and says how many come later.
"""

import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from numpy.typing import NDArray

from postdate.pipeline.jobs.forecast import MINUTE_MS, PERCENTS, Ahead, Forecast, Minutes

Float64Array = NDArray[np.float64]

POINTS_MAX = 400
MINUTES_PER_DAY = 24 * 60
SHARE_SHOWN = 0.999
"""The first chart ends when this share of all is delivered."""
MINUTE_SHOWN_MAX = 4_200_000_000
"""In the year 9955: dates end soon after."""

_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22")
_GREY, _RED = "#9aa0a6", "#d62728"
_NAME_LENGTH_MAX = 44
_MINUTE, _HOUR, _DAY = MINUTE_MS, 60 * MINUTE_MS, 24 * 60 * MINUTE_MS
_SPANS = (
    *((count * _MINUTE, f"{count} min") for count in (1, 5, 15)),
    *((count * _HOUR, f"{count} h") for count in (1, 2, 4, 12)),
    *((count * _DAY, f"{count} d") for count in (1, 2, 4, 7, 14, 30, 90, 180)),
    *((count * 365 * _DAY, f"{count:,} y") for count in (1, 10, 100, 10_000, 1_000_000)),
)


def draw_forecast(found: Forecast, folder: Path) -> list[Path]:
    """Write `deliveries.png` and `ahead.png`; nothing where nothing is ahead."""
    summaries = found.summaries()
    if not summaries:
        return []
    paths = [folder / "deliveries.png", folder / "ahead.png"]
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # A sign that the font lacks is drawn as a box; the tables beside the pictures have every name whole.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        _deliveries(found, summaries).savefig(paths[0])
        _ahead(summaries[: 1 + len(_COLORS)]).savefig(paths[1])
    return paths


def _deliveries(found: Forecast, summaries: list[Ahead]) -> Figure:
    total, *topics = summaries
    grid = _grid(found)
    later = int(found.total.deliveries[found.total.minutes >= grid.end].sum())
    figure, axes = _figure(5.2)
    below = np.zeros(grid.points + 1)
    for name, color, rate in _layers(found, topics, grid):
        above = below + np.append(rate, rate[-1])
        axes.fill_between(grid.times, below, above, step="post", color=color, label=name, linewidth=0)
        below = above
    _mark_peak(axes, total, grid)
    axes.set_title(
        f"{total.deliveries:,} deliveries ahead" + (f", {later:,} of them later than shown" if later else "")
    )
    axes.set_ylabel("deliveries a minute" + (f", mean of {grid.width:,} minutes" if grid.width > 1 else ""))
    axes.set_xlabel("time (UTC)")
    axes.xaxis_date(UTC)
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:,.4g}" if value < 100 else f"{value:,.0f}")
    axes.set_xlim(grid.times[0], grid.times[-1])
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize=9)
    return figure


class _Grid(NamedTuple):
    """Minutes from `first` to before `end`, in points of `width` minutes."""

    first: int
    width: int
    points: int

    @property
    def end(self) -> int:
        return self.first + self.width * self.points

    @property
    def times(self) -> Float64Array:
        """Where the points begin, and where the last one ends; in days, as matplotlib counts dates."""
        return (self.first + self.width * np.arange(self.points + 1)) / MINUTES_PER_DAY

    def rates(self, minutes: Minutes) -> Float64Array:
        """Deliveries a minute, of each point."""
        places = (minutes.minutes - self.first) // self.width
        is_shown = places < self.points
        sums = np.bincount(places[is_shown], minutes.deliveries[is_shown], minlength=self.points)
        return np.asarray(sums / self.width, np.float64)


def _grid(found: Forecast) -> _Grid:
    delivered = np.cumsum(found.total.deliveries)
    last = int(found.total.minutes[np.searchsorted(delivered, delivered[-1] * SHARE_SHOWN)])
    first = min(found.now_ms // MINUTE_MS, MINUTE_SHOWN_MAX)
    span = max(1, min(last, MINUTE_SHOWN_MAX) + 1 - first)
    width = -(-span // POINTS_MAX)
    return _Grid(first, width, -(-span // width))


def _layers(found: Forecast, topics: list[Ahead], grid: _Grid) -> Iterator[tuple[str, str, Float64Array]]:
    """Give the areas of the first chart from below: a topic each, and one for all others."""
    rest = grid.rates(found.total)
    for ahead, color in zip(topics, _COLORS, strict=False):
        rates = grid.rates(found.by_topic[str(ahead.topic)])
        rest = rest - rates
        yield _short(ahead), color, rates
    if len(topics) > len(_COLORS):
        yield f"{len(topics) - len(_COLORS):,} other topics", _GREY, rest


def _mark_peak(axes: Axes, total: Ahead, grid: _Grid) -> None:
    minute = total.peak_ms // MINUTE_MS
    if minute < grid.end:
        said = f"peak: {total.peak_deliveries:,} in the minute of {_time_of(minute):%Y-%m-%d %H:%M}"
        axes.axvline(minute / MINUTES_PER_DAY, color=_RED, linewidth=1, linestyle="--", label=said)


def _ahead(summaries: list[Ahead]) -> Figure:
    """Draw a line for each topic from half to 99 of a hundred deliveries, the busiest topic on top."""
    figure, axes = _figure(1.6 + 0.42 * len(summaries))
    values = np.array([[ahead.ahead_p50_ms, ahead.ahead_p90_ms, ahead.ahead_p99_ms] for ahead in summaries])
    places = np.arange(len(summaries))
    axes.hlines(places, values[:, 0], values[:, -1], color=_GREY, linewidth=2, zorder=1)
    for column, (percent, color, marker) in enumerate(zip(PERCENTS, _COLORS, "osD", strict=False)):
        axes.scatter(values[:, column], places, s=42, color=color, marker=marker, label=f"p{percent}", zorder=2)
    axes.set_yticks(places, [f"{_short(ahead)} ({ahead.deliveries:,})" for ahead in summaries])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(values.min() / 1.5, values.max() * 1.5)
    ticks = [(ms, name) for ms, name in _SPANS if values.min() / 1.5 <= ms <= values.max() * 1.5]
    if ticks:
        axes.set_xticks([ms for ms, _ in ticks], [name for _, name in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", color="#e4e6ea", zorder=0)
    axes.set_title("How far ahead deliveries are")
    axes.set_xlabel("from now, to the end of the minute")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _time_of(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * MINUTE_MS / 1_000, UTC)


def _short(ahead: Ahead) -> str:
    """The end of a topic's name, which tells it from others."""
    if ahead.topic is None:
        return "all topics"
    # A dollar sign would begin a formula.
    name = ahead.topic if len(ahead.topic) <= _NAME_LENGTH_MAX else "\u2026" + ahead.topic[1 - _NAME_LENGTH_MAX :]
    return name.replace("$", r"\$")
