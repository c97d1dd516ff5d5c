"""Give memory back to the system that the C library keeps after large pieces were freed.

Sealing and loading go through megabytes of columns and protobuf in worker threads. glibc keeps what they free in the
heaps of the threads, 50 MiB after a burst of adds, where it looks like memory that the index takes. So the process that
does this work trims its heaps, and so does the one that receives the results. Without glibc these functions do nothing.
"""

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

from tracker.shell.snapshot_merge import RunBlocking

TRIM_INTERVAL_S: Final = 5.0
"""A trim takes some milliseconds, and freed memory will often be needed again at once."""

ROWS_FREED_MIN: Final = 100_000
"""Fewer rows, at some hundred bytes each on their way, are not worth it."""


def trim_of_c_library() -> Callable[[], None]:
    """Return what gives free memory back; it does nothing without glibc."""
    try:
        trim = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: trim(0)


class Heap:
    """Trims the process's heaps some time after much was freed.

    Args:
        run_blocking: Runs what takes long.
        trim: Gives free memory back.
    """

    def __init__(self, run_blocking: RunBlocking, trim: Callable[[], None]) -> None:
        self._run_blocking = run_blocking
        self._trim = trim
        self._rows_freed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._trimming: asyncio.Future[None] | None = None

    def note_freed(self, row_count: int) -> None:
        """Note that so many rows were encoded or decoded; on the event loop."""
        self._rows_freed += row_count
        loop = asyncio.get_running_loop()
        # A timer of an event loop that has ended never comes.
        is_planned = self._timer is not None and loop.time() <= self._timer.when()
        if self._rows_freed >= ROWS_FREED_MIN and not is_planned:
            self._timer = loop.call_later(TRIM_INTERVAL_S, self._start)

    def _start(self) -> None:
        self._rows_freed = 0
        self._timer = None
        self._trimming = asyncio.ensure_future(self._run_blocking(self._trim))
