"""Give memory back to the system that the C library keeps after large pieces were freed.

Sealing and loading go through megabytes of columns and protobuf in worker threads. glibc keeps what they free in the
heaps of the threads, 50 MiB after a burst of adds, where it looks like memory that the index takes. Where there is no
glibc, nothing is done.
"""

import ctypes
from collections.abc import Callable
from typing import Final

TRIM_INTERVAL_MS: Final = 5_000
"""A trim takes some milliseconds, and what is freed will often be needed again at once."""

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
    """Says when it is time to trim the process's heaps, for all trackers of a factory.

    Args:
        trim: Gives free memory back.
    """

    def __init__(self, trim: Callable[[], None]) -> None:
        self._trim = trim
        self._rows_freed = 0
        self._trimmed_ms = -TRIM_INTERVAL_MS

    def note_freed(self, row_count: int) -> None:
        """Note that so many rows were encoded or decoded."""
        self._rows_freed += row_count

    def take_trim(self, now_ms: int) -> Callable[[], None] | None:
        """Return what to call now in a worker thread, if it is time."""
        # A clock that is put back must not make the wait longer.
        self._trimmed_ms = min(self._trimmed_ms, now_ms)
        if self._rows_freed < ROWS_FREED_MIN or now_ms < self._trimmed_ms + TRIM_INTERVAL_MS:
            return None
        self._rows_freed = 0
        self._trimmed_ms = now_ms
        return self._trim
