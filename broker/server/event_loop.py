"""The event loop of the service, with a histogram of its turns, and the tuning of garbage collection.

    select returns ─► new events, then callbacks that are ready ─► select is called again
                   └──────────────── one turn ────────────────┘

While a turn lasts, the loop receives nothing, and no timer fires. Time in which other threads hold the interpreter
counts, sleeping does not. When thousands of topics are opened, more callbacks are ready than a turn should take: it
takes what came in and the timers that are due, and of the others only a slice (`_ReadyCallbacks`).

Python's collector of cyclic garbage would be the longest by far: with 10,000 topics a full collection looks at over two
million objects, for half a second. So objects that have survived one full collection are exempt from later ones
(`spare_old_objects`). They are freed by their reference counts, as most objects are; cycles among them are not found.
"""

import asyncio
import gc
import selectors
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The upper ends of the histogram's ranges; one more range is for longer turns."""

CALLBACKS_A_TURN_MAX: Final = 16
"""Callbacks of a turn beside events: the first read of a subscription takes 0.3 ms, a turn in between 0.02 ms."""

_COLLECTION_THRESHOLDS: Final = (5_000, 0, 0)
"""A full collection comes after 15,000 new objects, and takes 2 ms. After 35,000 it took up to 10 ms of processor on a
busy machine. An object that stays is looked at twice on average, and three times by Python's own thresholds."""


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


class _ReadyCallbacks:
    """The queue of a loop's ready callbacks, in place of asyncio's: a turn takes all new events and some of the rest.

    asyncio appends the events of sockets and the timers after `select`, asks for the length once, and takes so many.
    The other callbacks keep their order.
    """

    def __init__(self) -> None:
        self._events: deque[asyncio.Handle] = deque()
        self._others: deque[asyncio.Handle] = deque()
        self._are_events_coming = False

    def note_select(self) -> None:
        """Take what is appended from now on for events."""
        self._are_events_coming = True

    # Methods that asyncio calls.

    def append(self, handle: asyncio.Handle) -> None:
        (self._events if self._are_events_coming else self._others).append(handle)

    def popleft(self) -> asyncio.Handle:
        return (self._events or self._others).popleft()

    def clear(self) -> None:
        self._events.clear()
        self._others.clear()

    def __bool__(self) -> bool:
        return bool(self._events or self._others)

    def __len__(self) -> int:
        self._are_events_coming = False
        return len(self._events) + min(len(self._others), CALLBACKS_A_TURN_MAX)


class _TurnSelector(selectors.DefaultSelector):
    """A selector that measures the time between its calls."""

    def __init__(self, turns: TurnHistogram, ready: _ReadyCallbacks, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._turns = turns
        self._ready = ready
        self._monotonic = monotonic
        self._woken_at: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._woken_at is not None:
            self._turns.note(self._monotonic() - self._woken_at)
        self._ready.note_select()
        events = super().select(timeout)
        self._woken_at = self._monotonic()
        return events


class ServiceEventLoop(asyncio.SelectorEventLoop):
    """An event loop that measures its turns and keeps them short.

    Args:
        monotonic: A clock that never goes back, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.turns = TurnHistogram()
        ready = _ReadyCallbacks()
        super().__init__(_TurnSelector(self.turns, ready, monotonic))
        # asyncio has no public way to end a turn before all ready callbacks have run.
        self._ready = ready


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
    # Imported modules are looked at now: in the first full collection of the loop they would take 30 ms.
    gc.collect()


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
