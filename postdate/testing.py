"""For tests of programs that embed a tracker: time that does not wait, a cursor that fails, a storage that fails.

Not imported by `import postdate`. The core install is enough.
"""

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

from managed_ledger.positions.position import Position
from postdate.memory_cursor import MemoryCursor
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan, Operation
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage

__all__ = [
    "NO_FAULTS",
    "FakeClock",
    "FakeCursor",
    "Fault",
    "FaultInjectingBucketSnapshotStorage",
    "FaultPlan",
    "Operation",
    "run_inline",
    "run_virtually",
    "virtual_now_ms",
]

VIRTUAL_START_MS = 1_000_000
_START_OF_LEDGER_0 = Position(0, -1)

T = TypeVar("T")


class FakeCursor(MemoryCursor):
    """A cursor in memory, at the beginning of ledger 0, whose properties cannot be written while an error is set."""

    def __init__(
        self, *, mark_delete_position: Position = _START_OF_LEDGER_0, properties: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(mark_delete_position=mark_delete_position, properties=properties)
        self.property_error: Exception | None = None

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        if self.property_error is not None:
            raise self.property_error
        await super().update_properties(put=put, remove=remove)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ms


def run_inline(function: Callable[[], T], /) -> Awaitable[T]:
    """Run a function at once; the worker thread of tests."""

    async def run() -> T:
        return function()

    return run()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait: when nothing can run, its time jumps to the next timer.

    For code without threads and sockets. A program that waits for nothing that could come is a deadlock, and fails.
    """

    def __init__(self) -> None:
        self._virtual_s = 0.0
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._virtual_s

    def _jump(self, wait_s: float | None) -> None:
        if wait_s is None:
            raise RuntimeError("deadlock: no timer is set, and nothing can run")
        # Whole microseconds, rounded up, so that a timer is due after the jump that was made for it.
        self._virtual_s += math.ceil(wait_s * 1e6) / 1e6


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._jump(timeout)
        return super().select(0)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual_now_ms() -> int:
    """Return the running loop's time as a wall clock, in ms."""
    return VIRTUAL_START_MS + round(asyncio.get_running_loop().time() * 1_000)
