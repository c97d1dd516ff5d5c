"""Stand-ins for what a tracker meets: a cursor, a clock, and a worker that works at once.

For tests and benchmarks, of this package and of those who embed a tracker.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from pyroaring import BitMap

from managed_ledger.position import Position

T = TypeVar("T")


class FakeCursor:
    """A cursor in memory."""

    def __init__(self) -> None:
        self.mark_delete_position = Position(0, -1)
        self.properties: dict[str, str] = {}
        self.acknowledged: dict[int, BitMap] = {}
        self.property_error: Exception | None = None

    def acknowledge(self, ledger_id: int, *entry_ids: int) -> None:
        """Acknowledge entries of a ledger."""
        self.acknowledged.setdefault(ledger_id, BitMap()).update(entry_ids)

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """See `TrackedCursor`."""
        return self.acknowledged.get(ledger_id, BitMap())

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        """See `TrackedCursor`."""
        if self.property_error is not None:
            raise self.property_error
        self.properties.update(put)
        for key in remove:
            self.properties.pop(key, None)


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
