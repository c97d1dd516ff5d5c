"""The event loop of the service, which keeps a histogram of how long its turns take, and what else may stop it.

    select returns ─► callbacks that are ready ─► select is called again
                   └────────── one turn ────────┘

While a turn lasts, nothing else is received, sent or timed: the longest one is how late a delivery can be because of
the service itself. Time that other threads hold the interpreter is in it, sleeping is not.

Python's collector of cyclic garbage would be the longest by far: with 10,000 topics a full collection looks at over two
million objects, for half a second. So what has survived one full collection is old for good (`spare_old_objects`): it
is given back when nothing refers to it any more, as most objects are, and nobody looks for cycles among it.
"""

import asyncio
import gc
import selectors
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The upper ends of the histogram's ranges; one more is for what is longer."""

_COLLECTION_THRESHOLDS: Final = (700, 10, 4)
"""Python's own but for the last: a full collection comes after some 30,000 new objects, and takes 4 ms."""


class TurnHistogram:
    """How many turns took how long, since the start."""

    def __init__(self) -> None:
        self.counts = [0] * (len(TURN_SECONDS) + 1)
        """By range, not cumulative."""
        self.sum_s = 0.0
        self.longest_s = 0.0

    def note(self, seconds: float) -> None:
        """Count one turn."""
        self.counts[bisect_left(TURN_SECONDS, seconds)] += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)


class _TurnSelector(selectors.DefaultSelector):
    """Waits as any other, and measures the time in between."""

    def __init__(self, turns: TurnHistogram, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._turns = turns
        self._monotonic = monotonic
        self._woken_at: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._woken_at is not None:
            self._turns.note(self._monotonic() - self._woken_at)
        ready = super().select(timeout)
        self._woken_at = self._monotonic()
        return ready


class ServiceEventLoop(asyncio.SelectorEventLoop):
    """An event loop that knows how long its turns take.

    Args:
        monotonic: A clock that never goes back, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.turns = TurnHistogram()
        super().__init__(_TurnSelector(self.turns, monotonic))


def run_on_service_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run the service in this thread until it ends; call once everything is imported.

    It stops at the first Ctrl-C as `asyncio.run` does.
    """
    spare_old_objects()
    with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
        return runner.run(work)


def turns_of(loop: asyncio.AbstractEventLoop) -> TurnHistogram | None:
    """Return the histogram of a loop that has one."""
    return loop.turns if isinstance(loop, ServiceEventLoop) else None


def spare_old_objects() -> None:
    """Let a full collection look at what came since the one before, and at nothing older; for the whole process."""
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
