"""The event loop of the service, with histograms of its turns, and the tuning of garbage collection.

    select returns ─► new events, then callbacks that are ready ─► select is called again
                   └──────────────── one turn ────────────────┘

While a turn lasts, the loop receives nothing, and no timer fires. Time in which other threads hold the interpreter
counts, sleeping does not. A second histogram has the processor time of the loop's thread in each turn. It tells long
work from waiting for a processor. When thousands of topics are opened, more callbacks are ready than a turn should
take: it takes what came in and the timers that are due, and of the others only some (`ServiceEventLoop.call_soon`).

Python's collector of cyclic garbage would make the longest turns: with 10,000 topics a full collection looks at over
two million objects, for half a second. So objects that have survived one collection are exempt from later ones, and a
collection comes between two turns (`spare_old_objects`). Old objects are freed by their reference counts, as most
objects are; cycles among them are not found. asyncio makes one with every connection, which is broken at its end.
"""

import asyncio
import gc
import selectors
import time
from asyncio import selector_events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple

from managed_ledger.durations import DurationHistogram

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The upper ends of the histogram's ranges; one more range is for longer turns."""

TURN_S: Final = 0.002
"""After so long a turn begins no other callback beside events; the longest, as the first read of a subscription, take
0.5 ms on a quiet machine. A turn costs 0.02 ms."""

COLLECTED_OBJECTS_MIN: Final = 2_000
"""So many new objects: a collection looks at these alone, and takes 0.3 to 1.7 ms.

By Python's own generations an object that stays is looked at two or three times, in the middle of a turn. Without this
bound, objects of requests under way would be taken for old ones, and cycles among them not found.
"""

COUNTED_AFTER_S: Final = 0.005
"""After so much time in turns the new objects are counted one by one, 6 ns each. Python's own counter goes down with
each old object that is freed: where as many came as went, it knew of none when there were 100,000."""


class LoopTurns(NamedTuple):
    """The turns of a loop, counted in two ways."""

    by_clock: DurationHistogram
    of_processor: DurationHistogram
    """By the processor time of the loop's thread."""


class _TurnSelector(selectors.DefaultSelector):
    """A selector that measures the time between its calls, and collects garbage before a call when it is time."""

    def __init__(self, turns: LoopTurns, monotonic: Callable[[], float], processor_s: Callable[[], float]) -> None:
        super().__init__()
        self._turns = turns
        self._monotonic = monotonic
        self._processor_s = processor_s
        self._woken_at: float | None = None
        self._woken_at_processor_s = 0.0
        self._uncounted_s = 0.0

    @property
    def turn_s(self) -> float:
        """How long the present turn has taken."""
        return 0.0 if self._woken_at is None else self._monotonic() - self._woken_at

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._uncounted_s += self.turn_s
        if self._uncounted_s >= COUNTED_AFTER_S:
            self._uncounted_s = 0.0
            _collect_if_due()
        if self._woken_at is not None:
            self._turns.by_clock.note(self.turn_s)
            self._turns.of_processor.note(self._processor_s() - self._woken_at_processor_s)
        events = super().select(timeout)
        self._woken_at, self._woken_at_processor_s = self._monotonic(), self._processor_s()
        return events


class ServiceEventLoop(asyncio.SelectorEventLoop):
    """An event loop that measures its turns and keeps them short.

    asyncio runs all callbacks that are ready before it looks for events again. So callbacks wait in a queue of this
    class, and one callback a turn, behind the events, runs a part of it in its order.

    Args:
        monotonic: A clock that never goes back, in seconds.
        processor_s: The processor time of the thread that it is called on.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, processor_s: Callable[[], float] = time.thread_time
    ) -> None:
        self.turns = LoopTurns(DurationHistogram(TURN_SECONDS), DurationHistogram(TURN_SECONDS))
        self._turn = _TurnSelector(self.turns, monotonic, processor_s)
        self._work: deque[asyncio.Handle] = deque()
        self._is_working = False
        self._at_end: list[asyncio.Handle] = []
        super().__init__(self._turn)

    def call_at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        """Call this when the callbacks of this turn have run, and return True; False if none are to run in it."""
        if self._is_working:
            self._at_end.append(asyncio.Handle(callback, (), self))
        return self._is_working

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if not self._is_working:
            self._work_soon()
        work = asyncio.Handle(callback, args, self, context)
        self._work.append(work)
        return work

    def close(self) -> None:
        super().close()
        self._work.clear()
        self._at_end.clear()
        self._is_working = False

    def _work_for_a_turn(self) -> None:
        # Callbacks that are added meanwhile have their turn after new events.
        left = len(self._work)
        try:
            while left:
                left -= 1
                _run(self._work.popleft())
                if self._turn.turn_s >= TURN_S:
                    break
            while self._at_end:
                _run(self._at_end.pop(0))
        finally:
            self._is_working = False
            if self._work:
                self._work_soon()

    def _work_soon(self) -> None:
        # A timer that is due: asyncio calls it behind the events of a turn.
        self.call_later(0, self._work_for_a_turn)
        self._is_working = True


def _run(work: asyncio.Handle) -> None:
    if not work.cancelled():
        # As asyncio's own loop does; an error goes to the loop's handler.
        work._run()


def run_on_service_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run the service in this thread until it ends; call once everything is imported.

    It stops at the first Ctrl-C as `asyncio.run` does.
    """
    spare_old_objects()
    with asyncio.Runner(loop_factory=ServiceEventLoop) as runner:
        return runner.run(work)


def turns_of(loop: asyncio.AbstractEventLoop) -> LoopTurns | None:
    """Return the histograms of a loop that has them."""
    return loop.turns if isinstance(loop, ServiceEventLoop) else None


def call_at_end_of_turn(callback: Callable[[], None]) -> bool:
    """Call this at the end of the running loop's turn, and return True; False where that is now, or not known."""
    loop = asyncio.get_running_loop()
    return isinstance(loop, ServiceEventLoop) and loop.call_at_end_of_turn(callback)


def spare_old_objects() -> None:
    """Look for garbage between the loop's turns, and among objects made since the last time only; for the process."""
    gc.disable()
    gc.callbacks.append(_freeze_survivors)
    # Imported modules are looked at now: in the first collection of the loop they would take 30 ms.
    gc.collect()
    _free_ended_transports()


def _free_ended_transports() -> None:
    """Break the cycles of each connection at its end: asyncio's transport keeps methods of its own, which keep it.

    The attributes are asyncio's own, of the whole process, and there is no other way to them.
    """
    transports: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    end = transports._call_connection_lost

    def end_and_forget(transport: Any, error: Exception | None) -> None:
        try:
            end(transport, error)
        finally:
            # asyncio reads and writes nothing any more when it calls this. The second is there since Python 3.12.
            transport._read_ready_cb = transport._write_ready = None

    transports._call_connection_lost = end_and_forget


def _collect_if_due() -> None:
    # Survivors are exempt, so all that is not is in the youngest generation.
    if not gc.isenabled() and len(gc.get_objects(generation=0)) >= COLLECTED_OBJECTS_MIN:
        gc.collect(0)


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    del info
    if phase == "stop":
        gc.freeze()
