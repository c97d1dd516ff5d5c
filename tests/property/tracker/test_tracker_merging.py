"""The choice of buckets to merge, and the rows that the tracker writes over time because of it."""

import asyncio
import itertools
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.merge_curve import least_written_per_row, written_per_row_of
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.merge_windows import WINDOW_MAX, window_to_merge

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


class StorageOfRows(MemoryBucketSnapshotStorage):
    """Keeps count of the rows that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.row_count = 0

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        self.row_count += len(decode_segments(segments, first_entry=1))
        return await super().create_bucket_snapshot(
            metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
        )


@pytest.mark.parametrize("limit", [2, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (3, 4, 10))])
def test_the_curve_is_what_a_tracker_writes(limit: int) -> None:
    """A whole tracker, whose newest bucket is still being sealed when one is too many, stores as many rows."""
    ledger_count = 100
    storage = StorageOfRows()

    async def story() -> None:
        await storage.start()
        config = TrackerConfig(index_count_per_bucket_min=1, bucket_count_max=limit, index_count_at_close_min=-1)
        factory = BucketDelayedDeliveryTrackerFactory(
            config, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(195)
        )
        tracker = factory.new_tracker(
            TrackerContext(topic_name="topic", cursor_name="cursor", cursor=FakeCursor(), on_available=lambda: None)
        )
        for ledger_id in range(ledger_count + 1):
            tracker.add_message(ledger_id, 0, virtual_now_ms() + 10_000_000)
            await asyncio.sleep(0.1)
        assert tracker.stats().bucket_total == limit + 1
        await tracker.close()

    run_virtually(story())

    *_, written_per_row = written_per_row_of([1] * ledger_count, limit)
    assert storage.row_count == round(written_per_row * ledger_count)


def written_per_row(row_counts: Sequence[int], limit: int) -> list[float]:
    """Return rows written per row added, after each ledger."""
    return list(written_per_row_of(row_counts, limit))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [4, 5, 10, 50])
def test_one_message_ledgers_are_rewritten_a_logarithmic_number_of_times(limit: int) -> None:
    """Rows written per row stay below 2 log2(N) for each N."""
    written = written_per_row([1] * 1_000, limit)

    assert all(written[n - 1] < 2 * math.log2(n) for n in range(4, len(written) + 1))


@pytest.mark.parametrize("limit", [5, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (10, 50))])
@pytest.mark.parametrize(
    "law", ["exponential", *(pytest.param(law, marks=pytest.mark.slow) for law in ("equal", "uniform", "heavy"))]
)
def test_realistic_buckets_are_rewritten_a_logarithmic_number_of_times(law: str, limit: int) -> None:
    """The same holds for buckets of any mix of sizes."""
    rng = Random(195)
    draw = {
        "equal": lambda: 50,
        "uniform": lambda: rng.randint(1, 100),
        "exponential": lambda: 1 + int(rng.expovariate(1 / 50)),
        "heavy": lambda: int(50 * rng.paretovariate(1.1)),
    }[law]
    row_counts = [draw() for _ in range(500)]

    assert written_per_row(row_counts, limit)[-1] < 2 * math.log2(len(row_counts))


@pytest.mark.parametrize("limit", [2, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (1, 3, 4))])
def test_a_small_limit_costs_little_more_than_it_must(limit: int) -> None:
    """Below a limit of about 4 no choice stays within 2 log2(N); with one bucket there is only one choice."""
    ledger_count = 500
    least = least_written_per_row(ledger_count, limit)[-1]

    written = written_per_row([1] * ledger_count, limit)[-1]

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
