"""An event loop whose time passes only while nothing is ready to run.

When every task waits, the clock jumps to the next timer. So hours of a scenario take milliseconds, and two runs are
equal step by step: nothing depends on how fast the machine is. A loop with nothing ready and no timer is stuck, which
is an error: in a simulation that is a lost wake-up.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

START_MS = 1_800_000_000_000


class StuckError(Exception):
    """All tasks wait and no timer is set."""


class _VirtualSelector(selectors.SelectSelector):
    """Passes time instead of waiting for sockets."""

    elapsed_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("every task waits and no timer is set")
        self.elapsed_seconds += max(timeout, 0.0)
        return []


class SimulationLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own."""

    def __init__(self) -> None:
        self._virtual_selector = _VirtualSelector()
        super().__init__(self._virtual_selector)

    def time(self) -> float:
        """Seconds since the start of the simulation."""
        return self._virtual_selector.elapsed_seconds

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as the clock of the simulation has it."""
        return START_MS + round(self.time() * 1000)


def now_ms() -> int:
    """Return the time of the running virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulationLoop)
    return loop.now_ms()


def run(scenario: Coroutine[Any, Any, Result]) -> Result:
    """Run a scenario in virtual time."""
    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        return runner.run(scenario)
