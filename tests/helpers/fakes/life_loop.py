"""A loop that begins at a time and has no threads: executors run their calls on it, in virtual time.

A service with such a loop is the same step by step in each run. Its clock can be put back and forth. A loop that never
comes to a pause is an error.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final

from tests.helpers.fakes.virtual_time import START_MS, SimulationLoop

TURNS_MAX: Final = 50_000
"""Turns of the loop without a moment's pause after which it is taken to spin."""

_TURNS_A_TICK: Final = 1_000
_TICK_S: Final = 1e-9
"""The resolution of asyncio's clock. It fires a timer as much too early; a loop that then looks at the clock and waits
again would do so for ever if no time passed. Real clocks move on."""

_MOMENT_S_MAX: Final = 1e-6


class LoopExecutor(Executor):
    """Runs calls on a loop after a while, as many at a time as a pool has threads.

    Args:
        loop: Where they run.
        workers: With one, calls end in the order in which they were submitted.
        latency_s: Says how long a call takes.
    """

    def __init__(self, loop: SimulationLoop, workers: int, latency_s: Callable[[], float]) -> None:
        self._loop = loop
        self._is_in_order = workers == 1
        self._latency_s = latency_s
        self._queue: deque[Callable[[], None]] = deque()
        self._free_at = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            # As in a thread pool, the future takes every error that is raised.
            except BaseException as error:
                future.set_exception(error)

        at = self._loop.time() + self._latency_s()
        if not self._is_in_order:
            self._loop.call_at(at, run)
            return future
        self._free_at = at = max(at, self._free_at)
        self._queue.append(run)
        self._loop.call_at(at, lambda: self._queue.popleft()())
        return future


class BusyError(Exception):
    """A task or callback goes on for ever without waiting for anything."""


class LifeLoop(SimulationLoop):
    """A loop that begins at a time, has no threads, and counts what it runs."""

    def __init__(self, start_s: float, new_executor: Callable[["LifeLoop", int], Executor]) -> None:
        super().__init__()
        self._virtual_selector.elapsed_seconds = start_s
        self._turns_at = start_s
        self._turns = 0
        self._pool = new_executor(self, 4)
        self.timers_set = 0

    def pass_until(self, at_s: float) -> None:
        """Let time pass in which nothing runs."""
        self._virtual_selector.elapsed_seconds = max(self.time(), at_s)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Run a call in the loop itself where the default pool is asked for."""
        return super().run_in_executor(executor or self._pool, func, *args)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self.timers_set += 1
        return super().call_at(when, callback, *args, context=context)

    def _run_once(self) -> None:
        if self.time() - self._turns_at > _MOMENT_S_MAX:
            self._turns_at, self._turns = self.time(), 0
        self._turns += 1
        if self._turns % _TURNS_A_TICK == 0:
            self._virtual_selector.elapsed_seconds += _TICK_S
        if self._turns > TURNS_MAX:
            raise BusyError(f"the loop is busy for ever at one moment; what is ready: {list(self._ready)[:3]}")
        super()._run_once()  # type: ignore[misc]  # a method of asyncio's base, to be overridden for this

    def _write_to_self(self) -> None:
        """Do nothing: there are no other threads that could wake the loop."""


class Clock:
    """The wall clock of all lives: the loop's time, put back and forth."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self.loop: LifeLoop | None = None

    def now_ms(self) -> int:
        assert self.loop is not None
        return START_MS + round(self.loop.time() * 1_000) + self.offset_ms

    def now_s(self) -> float:
        assert self.loop is not None
        return self.loop.time()
