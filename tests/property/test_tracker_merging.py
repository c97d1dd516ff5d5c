"""The choice of what to merge, and what it costs over time."""

import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.merge_curve import least_written_per_row
from tracker.merging import WINDOW_MAX, window_to_merge

SIZES = st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=12)


@given(SIZES)
def test_what_is_merged_is_adjacent_and_may_be_merged(buckets: list[tuple[int, bool]]) -> None:
    """A window is found if any two neighbours may be merged, and has two to four of those that may."""
    may_merge = [may for _, may in buckets]

    window = window_to_merge([count for count, _ in buckets], may_merge)

    if window is None:
        assert not any(a and b for a, b in itertools.pairwise(may_merge))
    else:
        assert 2 <= len(window) <= WINDOW_MAX
        assert all(may_merge[index] for index in window)


@given(st.lists(st.integers(10, 20), min_size=2, max_size=12))
def test_of_similar_buckets_a_pair_with_the_fewest_messages_is_merged(row_counts: list[int]) -> None:
    """As the PIP has it: no pair is smaller in both of its buckets."""
    window = window_to_merge(row_counts, [True] * len(row_counts))

    assert window is not None
    assert len(window) == 2
    chosen = sorted(row_counts[index] for index in window)
    for pair in itertools.pairwise(row_counts):
        smaller, larger = sorted(pair)
        assert (smaller, larger) == tuple(chosen) or smaller < chosen[0] or larger > chosen[1] or larger == chosen[1]


def test_the_pips_example() -> None:
    """Of [5, 3, 2, 4, 3] the second and third are merged."""
    assert window_to_merge([5, 3, 2, 4, 3], [True] * 5) == range(1, 3)


def rows_written_per_row(row_counts: list[int], limit: int) -> float:
    """Add buckets one by one, merging down to the limit each time."""
    buckets: list[int] = []
    written = 0
    for row_count in row_counts:
        buckets.append(row_count)
        written += row_count
        while len(buckets) > limit:
            window = window_to_merge(buckets, [True] * len(buckets))
            assert window is not None
            merged = sum(buckets[window.start : window.stop])
            written += merged
            buckets[window.start : window.stop] = [merged]
    return written / sum(row_counts)


@pytest.mark.parametrize("limit", [5, 10, 50])
@pytest.mark.parametrize("ledger_count", [100, 2_000, 10_000])
def test_one_message_ledgers_are_rewritten_a_logarithmic_number_of_times(ledger_count: int, limit: int) -> None:
    """Rows written per row stay below 2 log2(N)."""
    assert rows_written_per_row([1] * ledger_count, limit) < 2 * math.log2(ledger_count)


@pytest.mark.parametrize("limit", [5, 10, 50])
@pytest.mark.parametrize("law", ["equal", "uniform", "exponential", "heavy"])
def test_realistic_buckets_are_rewritten_a_logarithmic_number_of_times(law: str, limit: int) -> None:
    """The same holds for buckets of any mix of sizes."""
    rng = Random(195)
    draw = {
        "equal": lambda: 50_000,
        "uniform": lambda: rng.randint(1, 100_000),
        "exponential": lambda: 1 + int(rng.expovariate(1 / 50_000)),
        "heavy": lambda: int(50_000 * rng.paretovariate(1.1)),
    }[law]
    row_counts = [draw() for _ in range(2_000)]

    assert rows_written_per_row(row_counts, limit) < 2 * math.log2(len(row_counts))


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_small_limit_costs_little_more_than_it_must(limit: int) -> None:
    """Below a limit of about 4 no choice stays within 2 log2(N); with one bucket there is only one choice."""
    ledger_count = 1_000
    least = least_written_per_row(ledger_count, limit)[-1]

    written = rows_written_per_row([1] * ledger_count, limit)

    assert written == least if limit == 1 else least <= written <= 1.5 * least


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_least_that_can_be_written_is_the_best_of_all_choices(limit: int) -> None:
    """Against trying every merge of any window after every ledger."""

    def least_from(buckets: tuple[int, ...], ledgers_left: int) -> int:
        if len(buckets) <= limit and not ledgers_left:
            return 0
        ways = []
        if len(buckets) <= limit:
            ways.append(1 + least_from((*buckets, 1), ledgers_left - 1))
        for first, end in itertools.combinations(range(len(buckets) + 1), 2):
            if end - first > 1 and len(buckets) > limit:
                merged = sum(buckets[first:end])
                ways.append(merged + least_from((*buckets[:first], merged, *buckets[end:]), ledgers_left))
        return min(ways)

    for ledger_count, least in enumerate(least_written_per_row(7, limit), start=1):
        assert least == pytest.approx(least_from((), ledger_count) / ledger_count)
