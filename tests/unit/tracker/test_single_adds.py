"""Adds one by one mean what a batch of them means, for all questions and calls that follow."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from postdate.testing import FakeCursor
from tests.helpers.core_state import state_of
from tracker.config import TrackerConfig
from tracker.core.single_adds import SINGLES_MAX, SingleAdds
from tracker.core.tracker_core import TrackerCore

NOW_MS = 1_000
ROWS = [(1, 4, 90), (1, 5, 20), (1, 4, 30), (2, 0, 5), (2, 1, 70), (1, 6, 20), (1, 7, 2**63 + 5), (1, 8, 2**62)]
ROWS += [(1, 9, 50), (1, 10, 40)]
"""Ledger, entry and delay: in no order, some twice, and times that are hardly ever reached."""


def _core(cap: int = -1) -> TrackerCore:
    config = TrackerConfig(
        index_count_per_bucket_min=3, index_count_per_bucket_max=cap, is_deliver_at_time_strict=True, tick_time_ms=1
    )
    core = TrackerCore(config, acknowledged_in=FakeCursor().acknowledged_in, rng=Random(1))
    core.recover({}, now_ms=NOW_MS)
    core.plan(now_ms=NOW_MS)
    return core


QUESTIONS: dict[str, Callable[[TrackerCore], Any]] = {
    "count": lambda core: core.message_count,
    "contains": lambda core: [core.contains_message(1, entry_id) for entry_id in range(12)],
    "tracked in": lambda core: list(core.tracked_in(1) or ()),
    "ledgers": lambda core: sorted(core.tracked_ledger_ids()),
    "next": lambda core: core.next_deliver_at_ms(),
    "wakeup": lambda core: core.next_wakeup_ms(now_ms=NOW_MS),
    "has due": lambda core: [core.has_due(now_ms=NOW_MS + delay_ms) for delay_ms in (4, 5, 100)],
    "pause": lambda core: core.should_pause(now_ms=NOW_MS),
    "rows": lambda core: core.loaded_row_count,
    "buckets": lambda core: core.bucket_total,
    "pop": lambda core: core.pop_due(now_ms=NOW_MS + 100, limit=100).to_rows(),
    "plan": lambda core: [type(action).__name__ for action in core.plan(now_ms=NOW_MS)],
    "seal": lambda core: (core.seal(index_count_min=1), core.has_work, core.bucket_total),
    "trim": lambda core: (core.trim(2), core.message_count),
    "clear": lambda core: (core.clear(), core.message_count),
    "refuse": lambda core: (core.add_message(1, 5, NOW_MS, NOW_MS), core.message_count),
    "a batch": lambda core: (core.add_messages([1], [11], [NOW_MS + 1], now_ms=NOW_MS), core.next_deliver_at_ms()),
}


@pytest.mark.parametrize("cap", [-1, 3])
@pytest.mark.parametrize("question", QUESTIONS)
def test_after_single_adds_every_answer_is_that_after_a_batch(question: str, cap: int) -> None:
    """It is the first thing that is asked, and nothing is missing from it."""
    singly, batched = _core(cap), _core(cap)
    for ledger_id, entry_id, delay_ms in ROWS:
        assert singly.add_message(ledger_id, entry_id, NOW_MS + delay_ms, NOW_MS)
        time_ms = min(NOW_MS + delay_ms, 2**63 - 1)
        assert batched.add_messages([ledger_id], [entry_id], [time_ms], now_ms=NOW_MS).all()

    assert QUESTIONS[question](singly) == QUESTIONS[question](batched)
    singly.check()


ASKING = [name for name in QUESTIONS if name not in ("pop", "plan", "seal", "trim", "clear", "refuse", "a batch")]


@pytest.mark.parametrize("question", ASKING)
def test_a_question_leaves_single_adds_where_they_are(question: str) -> None:
    core = _core()
    for ledger_id, entry_id, delay_ms in ROWS:
        core.add_message(ledger_id, entry_id, NOW_MS + delay_ms, NOW_MS)
    state = state_of(core)
    singles, mutable_rows = state.mutable.singles, state.rows.mutable
    times, entry_ids, row_count = singles.deliver_at_ms, [*singles.entry_ids], len(mutable_rows)
    assert entry_ids

    QUESTIONS[question](core)

    assert state.mutable.singles is singles
    assert singles.deliver_at_ms is times
    assert singles.entry_ids == entry_ids
    assert state.rows.mutable is mutable_rows
    assert len(mutable_rows) == row_count


def test_single_adds_that_wait_are_bounded_and_that_is_no_limit_for_what_is_tracked() -> None:
    """In memory, and in the time that taking them over takes: they are taken over in between, and then it goes on."""
    singles = SingleAdds(row_count_max=3)
    held = []
    for entry_id in range(10):
        if len(singles.deliver_at_ms) >= singles.room:
            singles.take()
            singles.open(1, 1_000, None)
        singles.deliver_at_ms.append(NOW_MS)
        singles.entry_ids.append(entry_id)
        held.append(len(singles.deliver_at_ms))
    core = _core()
    for entry_id in range(3 * SINGLES_MAX):
        assert core.add_message(1, entry_id, NOW_MS + 10, NOW_MS)

    assert held == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert core.message_count == 3 * SINGLES_MAX


def test_a_question_after_each_single_add_knows_it() -> None:
    """It knows the earlier adds too, and nothing else."""
    core = _core()
    for entry_id in range(20):
        assert core.add_message(1, entry_id, NOW_MS + 10, NOW_MS)
        assert core.contains_message(1, entry_id)
        assert core.contains_message(1, entry_id // 2)
        assert not core.contains_message(1, entry_id + 1)
        assert not core.contains_message(2, entry_id)


def test_the_count_after_each_single_add_is_that_after_a_batch_of_one() -> None:
    """Whether its position was added before, in the same stretch or in one that was taken over, or not."""
    singly, batched = _core(), _core()
    for number, (ledger_id, entry_id, delay_ms) in enumerate(3 * ROWS):
        time_ms = min(NOW_MS + delay_ms, 2**63 - 1)
        assert singly.add_message(ledger_id, entry_id, time_ms, NOW_MS)
        assert batched.add_messages([ledger_id], [entry_id], [time_ms], now_ms=NOW_MS).all()
        assert singly.message_count == batched.message_count
        if number % 7 == 0:
            assert singly.next_deliver_at_ms() == batched.next_deliver_at_ms()
    singly.check()
