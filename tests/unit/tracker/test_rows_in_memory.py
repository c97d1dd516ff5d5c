"""Rows in memory, read as one sequence: positions go from one bucket to another while others are handed out."""

from random import Random

from postdate.testing import FakeCursor
from tests.helpers.core_checks import check
from tracker.config import TrackerConfig
from tracker.core.tracker_core import TrackerCore

START_MS = 5


def _core(count_min: int = 100) -> TrackerCore:
    config = TrackerConfig(index_count_per_bucket_min=count_min, is_deliver_at_time_strict=True)
    core = TrackerCore(config, acknowledged_in=FakeCursor().acknowledged_in, rng=Random(1))
    core.recover({}, now_ms=START_MS)
    return core


def _add(core: TrackerCore, *rows: tuple[int, int, int]) -> None:
    for deliver_at_ms, ledger_id, entry_id in rows:
        assert core.add_message(ledger_id, entry_id, deliver_at_ms, START_MS)


def _pop(core: TrackerCore, now_ms: int, limit: int) -> list[tuple[int, int, int]]:
    return core.pop_due(now_ms=now_ms, limit=limit).to_rows()


def test_a_position_that_was_handed_out_and_added_again_is_handed_out_again() -> None:
    """Its first life is forgotten late; while it waits behind others, that must not take its second along."""
    core = _core()
    _add(core, (10, 1, 0), (20, 2, 1), (30, 2, 3))
    assert _pop(core, 40, 1) == [(10, 1, 0)]

    _add(core, (25, 2, 2), (40, 1, 0))

    # To look before would be to forget the first life in time.
    assert _pop(core, 40, 2) == [(20, 2, 1), (25, 2, 2)]
    assert core.contains_message(1, 0)
    assert _pop(core, 40, 5) == [(30, 2, 3), (40, 1, 0)]
    assert core.tracked.count == 0
    check(core)


def test_a_position_that_two_buckets_have_is_handed_out_once() -> None:
    """Added again while its bucket is sealed, later than before."""
    core = _core()
    _add(core, (10, 1, 0), (20, 1, 1))
    core.seal(index_count_min=1)
    _add(core, (15, 1, 0), (30, 1, 2))

    assert _pop(core, 30, 10) == [(10, 1, 0), (20, 1, 1), (30, 1, 2)]
    assert core.tracked.count == 0
    check(core)
