"""The event loop of the service: asyncio's own, with histograms of its turns.

    select returns ─► new events, then callbacks that are ready ─► select is called again
                   └──────────────── one turn ────────────────┘

While a turn lasts, the loop receives nothing, and no timer fires. Time in which other threads hold the interpreter
counts, sleeping does not. A second histogram has the processor time of the loop's thread in each turn. It tells long
work from waiting for a processor. Turns are kept short by those who make work: loops over many things give way
(`postdate.broker.slices`), and few topics are opened at one time (`postdate.broker.service.topic_lives`).
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from managed_ledger.durations import DurationHistogram

T = TypeVar("T")

TURN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The upper ends of the histogram's ranges; one more range is for longer turns."""


class LoopTurns(NamedTuple):
    """The turns of a loop, counted in two ways."""

    by_clock: DurationHistogram
    of_processor: DurationHistogram
    """By the processor time of the loop's thread."""


class _TurnSelector(selectors.DefaultSelector):
    """A selector that measures the time between its calls."""

    def __init__(self, turns: LoopTurns, monotonic: Callable[[], float], processor_s: Callable[[], float]) -> None:
        super().__init__()
        self._turns = turns
        self._monotonic = monotonic
        self._processor_s = processor_s
        self._woken_at: float | None = None
        self._woken_at_processor_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._woken_at is not None:
            self._turns.by_clock.note(self._monotonic() - self._woken_at)
            self._turns.of_processor.note(self._processor_s() - self._woken_at_processor_s)
        events = super().select(timeout)
        self._woken_at, self._woken_at_processor_s = self._monotonic(), self._processor_s()
        return events


class ServiceEventLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop, which measures its turns.

    Args:
        monotonic: A clock that never goes back, in seconds.
        processor_s: The processor time of the thread that it is called on.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, processor_s: Callable[[], float] = time.thread_time
    ) -> None:
        self.turns = LoopTurns(DurationHistogram(TURN_SECONDS), DurationHistogram(TURN_SECONDS))
        super().__init__(_TurnSelector(self.turns, monotonic, processor_s))


def run_on_service_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run the service in this thread until it ends; it stops at the first Ctrl-C as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
        return runner.run(work)


def turns_of(loop: asyncio.AbstractEventLoop) -> LoopTurns | None:
    """Return the histograms of a loop that has them."""
    return loop.turns if isinstance(loop, ServiceEventLoop) else None
