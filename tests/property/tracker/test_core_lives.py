"""Random lives of a core beside its dispatcher: nothing lost, nothing early, each once, in order, at any storage.

And what must not be left out of the core is missed: each of these changes is noticed within a few lives.
"""

from collections import Counter

import pytest

from tests.helpers.core_lives import HastyLife, RandomLife
from tests.helpers.seeds import seeds
from tracker.columns.row_order import RowKey, last_key_at
from tracker.core import handing_out
from tracker.core.state import TrackerState

LIVES = 12


@pytest.mark.slow
@pytest.mark.parametrize("rows_of_a_bucket_min", [1, 128])
@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("kind", [RandomLife, HastyLife])
def test_a_random_life_brings_each_message_once(
    monkeypatch: pytest.MonkeyPatch, seed: int, kind: type[RandomLife], rows_of_a_bucket_min: int
) -> None:
    monkeypatch.setattr("tracker.core.loading.ROWS_OF_A_BUCKET_MIN", rows_of_a_bucket_min)
    counts: Counter[str] = Counter()
    for number in range(LIVES):
        life = kind(1_000 * seed + number)
        life.live(150)
        counts += life.counts
    assert min(counts[what] for what in ("sealed", "merged", "crashes", "delivered")) > 0


def _no_barrier(state: TrackerState, now_ms: int) -> RowKey:
    return last_key_at(state.due_through_ms(now_ms))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replacement", "life"),
    [
        (f"{handing_out.__name__}.hand_out_through", _no_barrier, RandomLife),
        # One of fifty hasty lives, and of a thousand others, hands out what a head brings that is read later.
        (f"{handing_out.__name__}._keep_gone", lambda state, rows: None, HastyLife),
        ("tracker.core.deleting.read_again", lambda state, ledgers: None, RandomLife),
    ],
    ids=["barrier", "gone", "read again"],
)
def test_what_is_left_out_is_missed(
    monkeypatch: pytest.MonkeyPatch, name: str, replacement: object, life: type[RandomLife]
) -> None:
    monkeypatch.setattr(name, replacement)
    with pytest.raises(AssertionError):
        _live(life)


def _live(life: type[RandomLife]) -> None:
    for seed in range(300):
        life(seed).live(150)
