"""The service's event loop: how long its turns took, and what the collector of garbage looks at."""

import asyncio
import gc
import inspect
import socket
import subprocess
import sys
import textwrap
from itertools import pairwise
from typing import Any

import pytest

from postdate.broker.event_loop import TURN_S, ServiceEventLoop, call_at_end_of_turn, turns_of
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


def test_many_ready_callbacks_take_many_short_turns_in_their_order() -> None:
    clock, ran = _LoopClock(), []

    def work(number: int) -> None:
        clock.now += 0.001
        ran.append(number)

    async def story() -> None:
        for number in range(100):
            asyncio.get_running_loop().call_soon(work, number)
        # Behind them.
        await asyncio.sleep(0)

    loop = ServiceEventLoop(clock)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(story())

        assert ran == sorted(ran)
        assert loop.turns.by_clock.longest_s <= TURN_S + 0.001


def test_what_ends_a_turn_is_called_once_its_callbacks_have_run() -> None:
    called: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        for name in "ab":
            loop.call_soon(called.append, name)
        assert call_at_end_of_turn(lambda: called.append("end"))
        loop.call_soon(called.append, "c")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def elsewhere() -> bool:
        return call_at_end_of_turn(lambda: called.append("never"))

    with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
        runner.run(story())
    assert called in (["a", "b", "c", "end"], ["end", "a", "b", "c"])
    assert not asyncio.run(elsewhere())


def test_data_and_timers_come_before_callbacks_that_are_ready() -> None:
    order: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            loop.add_reader(ours, lambda: (order.append("data"), loop.remove_reader(ours)))
            theirs.send(b"x")
            loop.call_at(loop.time() - 1, order.append, "timer")
            for _ in range(100):
                loop.call_soon(order.append, "work")
            # Behind them.
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
        runner.run(story())

    assert sorted(order[:2]) == ["data", "timer"]
    assert order[2:] == ["work"] * 100


def test_what_is_cancelled_before_its_turn_is_not_called_and_an_error_stops_no_other() -> None:
    order: list[str] = []
    errors: list[str] = []

    def fail() -> None:
        raise ValueError("the first one")

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        cancelled = loop.call_soon(order.append, "cancelled")
        loop.call_soon(fail)
        loop.call_soon(order.append, "next")
        cancelled.cancel()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
        runner.run(story())

    assert order == ["next"]
    assert errors == ["the first one"]


def test_a_closed_loop_takes_no_work() -> None:
    loop = ServiceEventLoop()
    loop.call_soon(print)
    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)


def test_ctrl_c_ends_the_loop_and_what_waits_is_called_when_it_runs_again() -> None:
    order: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop = ServiceEventLoop()
    loop.call_soon(interrupt)
    loop.call_soon(order.append, "next")
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    assert order == ["next"]


def test_work_of_other_threads_is_run() -> None:
    async def story() -> int:
        return sum(await asyncio.gather(*(asyncio.to_thread(int, 1) for _ in range(100))))

    with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
        assert runner.run(story()) == 100


def test_a_full_collection_looks_at_no_object_twice() -> None:
    """In a process of its own, as it is the whole process's."""
    program = """
        import gc
        from postdate.broker.event_loop import spare_old_objects

        spare_old_objects()
        # What was imported is spared from the start.
        print(len(gc.get_objects(generation=2)) < 1_000)
        kept = [[] for _ in range(200_000)]
        gc.collect()
        # What is left for the next one is what came since.
        print(gc.get_freeze_count() > 200_000, len(gc.get_objects(generation=2)) < 10_000)
        # An old object goes when nothing refers to it any more.
        before = gc.get_freeze_count()
        del kept
        print(before - gc.get_freeze_count() > 199_000)
    """
    assert _printed_by(program) == ["True"] * 4
    assert not any(getattr(one, "__name__", "") == "_freeze_survivors" for one in gc.callbacks)


def test_new_objects_are_collected_while_as_many_old_ones_are_freed() -> None:
    """In a process of its own, as it is the whole process's."""
    program = """
        import asyncio
        import gc
        from postdate.broker.event_loop import COLLECTED_OBJECTS_MIN, COUNTED_AFTER_S, ServiceEventLoop, spare_old_objects

        old = [[] for _ in range(300_000)]
        spare_old_objects()
        most_at_once = 0

        def note(phase, info):
            global most_at_once
            if phase == "start":
                most_at_once = max(most_at_once, len(gc.get_objects(generation=0)))

        async def story():
            new = []
            for first in range(0, len(old), 1_000):
                for place in range(first, first + 1_000):
                    old[place] = None
                    new.append([])
                loop_clock.now += COUNTED_AFTER_S / 2
                await asyncio.sleep(0)
            print(len(gc.get_objects(generation=0)) < 3 * COLLECTED_OBJECTS_MIN)

        loop_clock = _LoopClock()
        gc.callbacks.append(note)
        with asyncio.Runner(loop_factory=lambda: ServiceEventLoop(loop_clock)) as runner:
            runner.run(story())
        print(COLLECTED_OBJECTS_MIN <= most_at_once < 3 * COLLECTED_OBJECTS_MIN)
    """
    assert _printed_by(program) == ["True"] * 2


def test_cycles_of_work_under_way_are_found_when_it_has_ended() -> None:
    """In a process of its own, as it is the whole process's. aiohttp makes such a cycle for each unknown path."""
    program = """
        import asyncio
        import weakref
        from postdate.broker.event_loop import COLLECTED_OBJECTS_MIN, COUNTED_AFTER_S, ServiceEventLoop, spare_old_objects

        class Node:
            pass

        nodes = weakref.WeakSet()

        async def work():
            node = Node()
            node.itself = node
            nodes.add(node)
            for _ in range(3):
                loop_clock.now += COUNTED_AFTER_S
                await asyncio.sleep(0)

        async def story():
            for _ in range(4 * COLLECTED_OBJECTS_MIN):
                await work()

        loop_clock = _LoopClock()
        spare_old_objects()
        with asyncio.Runner(loop_factory=lambda: ServiceEventLoop(loop_clock)) as runner:
            runner.run(story())
        print(0 < len(nodes) <= COLLECTED_OBJECTS_MIN)
    """
    assert _printed_by(program) == ["True"]


def test_an_ended_connection_leaves_no_transport() -> None:
    """In a process of its own, as it is the whole process's."""
    program = """
        import asyncio
        import gc
        import socket
        import weakref
        from postdate.broker.event_loop import ServiceEventLoop, spare_old_objects

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                transports.add(transport)

        transports = weakref.WeakSet()

        async def story():
            loop = asyncio.get_running_loop()
            server = await loop.create_server(Protocol, "127.0.0.1", 0)
            callers = []
            for number in range(300):
                callers.append(socket.create_connection(server.sockets[0].getsockname()))
                while len(transports) <= number:
                    await asyncio.sleep(0)
            # From here on no collection looks at them.
            gc.collect()
            print(len(transports))
            for transport in list(transports)[150:]:
                transport.abort()
            del transport
            for caller in callers:
                caller.close()
            try:
                async with asyncio.timeout(20):
                    while transports:
                        await asyncio.sleep(0.001)
            except TimeoutError:
                pass
            gc.collect()
            print(len(transports))
            server.close()

        spare_old_objects()
        with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
            runner.run(story())
    """
    assert _printed_by(program) == ["300", "0"]


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


def test_many_pieces_of_work_begin_few_at_a_turn_and_wait_together() -> None:
    """One that takes long holds up no other, and each error is told."""

    async def scenario() -> None:
        begun: list[int] = []
        may_end = asyncio.Event()

        async def work(number: int) -> None:
            begun.append(number)
            if number == 0:
                await may_end.wait()
                raise ValueError("the first one")

        all_of_them = asyncio.ensure_future(side_by_side((work(number) for number in range(100)), has_errors=True))
        counts = []
        while len(begun) < 100:
            await asyncio.sleep(0)
            counts.append(len(begun))
        assert max(after - before for before, after in pairwise([0, *counts])) == BEGUN_A_TURN_MAX
        assert not all_of_them.done()
        may_end.set()
        assert [str(error) for error in await all_of_them] == ["the first one"]
        with pytest.raises(ValueError, match="the first one"):
            await side_by_side([work(0)])

    asyncio.run(scenario())


class CountedFuture(asyncio.Future[None]):
    """Counts how often it is asked to tell of its end."""

    asked = 0

    def add_done_callback(self, *args: Any, **kwargs: Any) -> None:
        CountedFuture.asked += 1
        super().add_done_callback(*args, **kwargs)


def test_no_turn_takes_on_the_ends_of_many_pieces_of_work() -> None:
    async def scenario() -> int:
        works: list[Any] = [CountedFuture() for _ in range(5 * BEGUN_A_TURN_MAX)]
        all_of_them = asyncio.ensure_future(side_by_side(works))
        most = before = CountedFuture.asked
        while not all_of_them.done():
            await asyncio.sleep(0)
            most, before = max(most, CountedFuture.asked - before), CountedFuture.asked
            if before:
                for work in works:
                    if not work.done():
                        work.set_result(None)
        return most

    assert 0 < asyncio.run(scenario()) <= BEGUN_A_TURN_MAX


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
