"""Random lives of a core beside its dispatcher: nothing lost, nothing early, each once, in order, at any storage.

And what must not be left out of the core is missed: each of these changes is noticed within a few lives.
"""

from collections import Counter

import pytest

from tests.helpers.core_lives import RandomLife
from tests.helpers.seeds import seeds
from tracker.columns.row_order import RowKey, last_key_at
from tracker.core import handing_out
from tracker.core.state import TrackerState

LIVES = 12


@pytest.mark.slow
@pytest.mark.parametrize("rows_of_a_bucket_min", [1, 128])
@pytest.mark.parametrize("seed", seeds())
def test_a_random_life_brings_each_message_once(
    monkeypatch: pytest.MonkeyPatch, seed: int, rows_of_a_bucket_min: int
) -> None:
    monkeypatch.setattr("tracker.core.loading.ROWS_OF_A_BUCKET_MIN", rows_of_a_bucket_min)
    counts: Counter[str] = Counter()
    for number in range(LIVES):
        life = RandomLife(1_000 * seed + number)
        life.live(150)
        counts += life.counts
    assert min(counts[what] for what in ("sealed", "merged", "crashes", "delivered")) > 0


def _no_barrier(state: TrackerState, now_ms: int) -> RowKey:
    return last_key_at(state.due_through_ms(now_ms))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replacement", "first_seed"),
    [
        (f"{handing_out.__name__}.hand_out_through", _no_barrier, 0),
        # Of a thousand lives, one hands out what a head brings that is read later.
        (f"{handing_out.__name__}._keep_gone", lambda state, rows: None, 900),
        ("tracker.core.deleting.read_again", lambda state, ledgers: None, 0),
    ],
    ids=["barrier", "gone", "read again"],
)
def test_what_is_left_out_is_missed(
    monkeypatch: pytest.MonkeyPatch, name: str, replacement: object, first_seed: int
) -> None:
    monkeypatch.setattr(name, replacement)
    with pytest.raises(AssertionError):
        _live(range(first_seed, first_seed + 200))


def _live(seeds: range) -> None:
    for seed in seeds:
        RandomLife(seed).live(150)
