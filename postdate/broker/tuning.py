"""Settings of the process: how threads take turns, how the C library keeps memory, and how garbage is collected.

All concern the whole process, so its owner makes them: the service's command, and benchmarks that measure the service.
Libraries leave them alone.

Python's collector looks for cycles of objects. With 10,000 topics a full collection looks at over two million objects,
for half a second. So what stays is exempt from later ones (`gc.freeze`): modules after the import, and topics once they
are open. Frozen objects are freed by their reference counts, as most objects are.
"""

import ctypes
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

SWITCH_INTERVAL_S: Final = 0.001
"""How long a worker thread may keep the interpreter when the event loop wants it, and the other way round.

With Python's own 5 ms, an add that gives it away once (any numpy call on more than 500 values does) waits up to 5 ms
while a bucket is encoded, and a batch several times that; some 40 turns of the event loop take longer than 10 ms when
10,000 topics of 100 due messages open again after a kill. With 0.5 ms, changing hands takes longer: for 2,000 such
topics 3.9 s instead of 3.4, which are the same with 2 and with 3 ms.
"""

HEAPS_MAX: Final = 2
"""How many heaps glibc may keep: its default is eight a core, and memory that a worker thread frees stays in its own.

Threads that hold Python's interpreter allocate one at a time anyway. With 20 million delayed messages, adding took
53 MiB instead of 76 at its peak, delivery 46 instead of 54.
"""

MMAP_BYTES_MIN: Final = 2**21
"""From this size on, memory comes from the system and goes back at once; glibc begins with 128 KiB and learns.

A ledger of 50,000 headers is 1.6 MB, and pages that the system gives are empty ones: the first page of a list of a
million scheduled messages took 171 to 180 ms with 128 KiB, and 94 to 133 with 2 or 4 MiB.
"""

TRIM_INTERVAL_S: Final = 10.0
"""How often the service gives free memory back.

Sealing and loading go through megabytes of columns and protobuf in threads, and glibc keeps what they free in the heaps
of the threads, where it looks like memory that the index takes.
"""

COLLECTION_THRESHOLDS: Final = (10_000, 10, 1_000_000)
"""How many new objects begin a collection of these, 2 ms, and after how many of them ten times as many are looked at.
With Python's own 700, each opening of a topic begins some. A full collection comes before a freeze alone."""

FREEZE_INTERVAL_S: Final = 1.0
"""How often the service looks whether there is much that is not frozen."""

FROZEN_COLLECTIONS_MAX: Final = 3
"""After so many collections of 100,000 new objects these are frozen while more come, as thousands of topics are opened:
the collection before that takes 50 ms. After one they are frozen when no more come."""

THAWED_ENDINGS_MIN: Final = 10_000
"""After so many connections and topics have ended, frozen objects are looked at once more.

asyncio keeps a cycle of 1.5 KB with each connection, and one that was frozen is not found before: 15 MB at most.
"""

_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3


def tune_process() -> None:
    """Let worker threads hand over early and share heaps, and look for garbage seldom and among new objects alone.

    Call once everything is imported, and before threads are started: a full collection looks at some hundred thousand
    objects of modules otherwise, which stops every thread for 10 to 20 ms. Without glibc, heaps stay as they are.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with suppress(OSError, AttributeError):
        glibc = ctypes.CDLL("libc.so.6")
        glibc.mallopt(_M_ARENA_MAX, HEAPS_MAX)
        glibc.mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES_MIN)
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    gc.collect()
    gc.freeze()


class OldObjects:
    """Exempts objects that stay from collections of garbage, once openings of topics have become quiet.

    Args:
        ended: Gives how many topics and connections have ended.
    """

    def __init__(self, ended: Callable[[], int]) -> None:
        self._ended = ended
        self._frozen_at = self._before = _middle_collections()
        self._thawed_at = 0

    def freeze(self) -> None:
        """Freeze what there is, if much is new and no more comes, or very much is; call it periodically."""
        collections = _middle_collections()
        new, is_quiet = collections - self._frozen_at, collections == self._before
        self._before = collections
        if not new or not (is_quiet or new >= FROZEN_COLLECTIONS_MAX):
            return
        ended = self._ended()
        if ended - self._thawed_at >= THAWED_ENDINGS_MIN:
            gc.unfreeze()
            self._thawed_at = ended
        # Garbage that was frozen would stay.
        gc.collect()
        gc.freeze()
        self._frozen_at = self._before = _middle_collections()


def _middle_collections() -> int:
    """Return how often Python has looked at the objects that had survived one collection."""
    collections: int = gc.get_stats()[1]["collections"]
    return collections


def trim_of_c_library() -> Callable[[], None]:
    """Return what gives free memory back, in some milliseconds; it does nothing without glibc."""
    try:
        trim = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: trim(0)
