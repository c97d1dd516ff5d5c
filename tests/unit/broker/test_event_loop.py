"""The service's event loop: how long its turns took, and what the collector of garbage looks at."""

import asyncio
import inspect
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from postdate.broker.event_loop import ServiceEventLoop, turns_of
from postdate.broker.slices import BEGUN_A_TURN_MAX, SLICE_S, in_slices, side_by_side


class _LoopClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _printed_by(program: str) -> list[str]:
    """Run a program, which has `_LoopClock`, in a process of its own, and return the words that it prints."""
    source = inspect.getsource(_LoopClock) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_turn_lasts_from_one_look_for_events_to_the_next() -> None:
    clock = _LoopClock()

    async def story() -> None:
        # Each of these is within a turn of its own.
        for seconds in (0.003, 0.3, 0.0):
            clock.now += seconds
            await asyncio.sleep(0)

    loop = ServiceEventLoop(clock)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(story())

        assert loop.turns.by_clock.longest_s == 0.3
        assert loop.turns.by_clock.counts[3] == 1
        assert loop.turns.by_clock.counts[9] == 1
        assert abs(loop.turns.by_clock.sum_s - 0.303) < 1e-9


def test_the_processor_time_of_a_turn_is_counted_apart_from_what_it_waited() -> None:
    clock, processor = _LoopClock(), _LoopClock()

    async def story() -> None:
        clock.now += 0.3
        processor.now += 0.003
        await asyncio.sleep(0)

    loop = ServiceEventLoop(clock, processor)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(story())

        assert loop.turns.by_clock.longest_s == 0.3
        assert loop.turns.of_processor.longest_s == 0.003
        assert loop.turns.of_processor.counts[3] == 1


def test_a_loop_of_another_kind_has_no_histogram() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    assert turns_of(loop) is None


def test_what_waits_is_in_no_turn() -> None:
    clock = _LoopClock()

    async def story() -> None:
        asyncio.get_running_loop().call_later(0, lambda: None)
        await asyncio.sleep(0.01)

    loop = ServiceEventLoop(clock)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(story())

        assert loop.turns.by_clock.sum_s == 0


def test_others_have_a_turn_after_each_slice() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def story() -> list[int]:
        task = asyncio.get_running_loop().create_task(other())
        seen = []
        async for number in in_slices(range(5)):
            seen.append(number)
            # Busy for longer than a slice takes.
            end = asyncio.get_running_loop().time() + SLICE_S
            while asyncio.get_running_loop().time() < end:
                pass
        task.cancel()
        return seen

    assert asyncio.run(story()) == [0, 1, 2, 3, 4]
    assert turns >= 4


def test_all_pieces_of_work_end_with_the_one_that_waits_for_them() -> None:
    async def scenario() -> None:
        works: list[Any] = [asyncio.get_running_loop().create_future() for _ in range(2 * BEGUN_A_TURN_MAX)]
        all_of_them = asyncio.ensure_future(side_by_side(works))
        for _ in range(5):
            await asyncio.sleep(0)

        all_of_them.cancel()
        with pytest.raises(asyncio.CancelledError):
            await all_of_them

        assert all(work.cancelled() for work in works)

    asyncio.run(scenario())


@pytest.mark.slow
def test_nothing_is_left_for_numpy_to_import_on_the_event_loop() -> None:
    program = """
        import sys
        import postdate.broker.server.server
        before = set(sys.modules)
        import numpy as np
        np.unique(np.array([2, 1]))
        print(sorted(set(sys.modules) - before))
    """

    assert _printed_by(program) == ["[]"]
