"""The event loop of the service, with a histogram of its turns, and the tuning of garbage collection.

    select returns ─► callbacks that are ready ─► select is called again
                   └────────── one turn ────────┘

While a turn lasts, the loop receives and sends nothing, and no timer fires. So the longest turn bounds the lateness
that the service itself causes. Time in which other threads hold the interpreter counts, sleeping does not.

Python's collector of cyclic garbage would be the longest by far: with 10,000 topics a full collection looks at over two
million objects, for half a second. So objects that have survived one full collection are exempt from later ones
(`spare_old_objects`). They are freed by their reference counts, as most objects are; cycles among them are not found.
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
"""The upper ends of the histogram's ranges; one more range is for longer turns."""

_COLLECTION_THRESHOLDS: Final = (700, 10, 4)
"""Python's own but for the last: a full collection comes after some 30,000 new objects, and takes 4 ms."""


class TurnHistogram:
    """The number of turns by duration, since the start."""

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
    """A selector that measures the time between its calls."""

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
    """An event loop that measures its turns.

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
    """Limit full collections to objects made since the one before, for the whole process."""
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
