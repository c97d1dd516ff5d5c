"""A forgotten timer fails: each call that sets one is left out in turn, and lives of the core meet it.

Without its timer, wanted work would wait for ever or for too long: a load, a retry, a delete, a merge. Three things
notice it: the core's own check, a copy of the state that is looked at without timers, and an orphan that is left at the
end.
"""

import asyncio
from collections.abc import Iterator

import pytest

from tests.helpers.core_lives import RandomLife
from tests.helpers.core_scenes import SCENES, answer_one, restarted
from tests.helpers.forgotten_timers import TimerCall, timer_calls, timers_but
from tracker.core.actions import LoadSegments, ReadMetadata, ReadPositions

# The lives take a minute, and three with coverage on a slow stretch of the machine.
pytestmark = pytest.mark.timeout(600)

LIVES = 80
STEPS = 150


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def _live(runner: asyncio.Runner, life: int, left_out: TimerCall | None = None) -> set[TimerCall]:
    """Live one life, and return the calls that it met; the first lives are the scenes."""
    met: set[TimerCall] = set()
    with timers_but(left_out, met):
        if life < len(SCENES):
            SCENES[life](runner)
        else:
            RandomLife(runner, life).live(STEPS)
    return met


def _is_noticed(runner: asyncio.Runner, left_out: TimerCall, lives: list[int]) -> bool:
    for life in lives:
        try:
            _live(runner, life, left_out)
        except Exception:
            # A check has failed, or a defect has followed.
            return True
    return False


def test_no_wanted_work_is_without_a_timer(runner: asyncio.Runner) -> None:
    """In the scenes and in a life, at every step; `test_transitions` lives more lives, which look at the same."""
    met = [_live(runner, life) for life in range(len(SCENES) + 1)]

    assert all(met)


@pytest.fixture(scope="module")
def lives(runner: asyncio.Runner) -> dict[TimerCall, list[int]]:
    """The lives that meet each call."""
    found: dict[TimerCall, list[int]] = {}
    for life in range(LIVES):
        for call in _live(runner, life):
            found.setdefault(call, []).append(life)
    return found


@pytest.mark.exhaustive
def test_each_call_that_sets_a_timer_is_met(lives: dict[TimerCall, list[int]]) -> None:
    assert {call[:2] for call in lives} == {call[:2] for call in timer_calls()}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("file", "line"), sorted(call[:2] for call in timer_calls()))
def test_a_forgotten_timer_is_noticed(
    runner: asyncio.Runner, lives: dict[TimerCall, list[int]], file: str, line: int
) -> None:
    """Whichever call it is that does not set it, and for each reason that the call sets one for."""
    calls = [call for call in lives if call[:2] == (file, line)]

    assert [call for call in calls if not _is_noticed(runner, call, lives[call])] == []


def test_positions_that_a_load_needs_are_read_though_there_is_no_room_for_rows(runner: asyncio.Runner) -> None:
    """The bucket has rows without a bit, holds up hand-out, and was waited for in vain, for ever."""
    life = restarted(runner, [[1_000, 1_000], [1_001, 1_001]], loaded_row_count_max=1)
    life.reads_apart = True
    life.look()
    for _ in range(2):
        answer_one(life, ReadMetadata)
    life.now_ms += 1_001
    life.look()
    answer_one(life, LoadSegments, fails=True)
    # The rows of the other bucket take the room.
    answer_one(life, LoadSegments)
    life.has_stale_rows = True
    handed_out = 0

    for _ in range(40):
        life.answer_all()
        life.look()
        handed_out += len(life.core.pop_due(now_ms=life.now_ms, limit=10))
        life.now_ms += 1

    assert handed_out == 4


def test_a_read_that_waits_for_room_starts_when_a_bucket_leaves_the_cache(runner: asyncio.Runner) -> None:
    """The bucket has been loaded whole. The read waited for two seconds more."""
    life = restarted(runner, [[1_000, 1_000], [9_000, 9_000]], loaded_row_count_max=1_000)
    life.reads_apart = True
    life.look()
    for _ in range(2):
        answer_one(life, ReadMetadata)
    life.core.want(0)
    life.look()
    answer_one(life, ReadPositions)
    life.core.want(1)
    life.now_ms += 1_000
    life.look()
    assert not any(isinstance(one, ReadPositions) for one in life.pending)

    answer_one(life, LoadSegments)

    assert any(isinstance(one, ReadPositions) for one in life.pending)
