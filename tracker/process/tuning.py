"""Settings of the process: how threads take turns, and how the C library keeps memory.

All concern the whole process, so its owner makes them: the service's command, the process for snapshots, and benchmarks
that measure the service. Libraries leave them alone.
"""

import ctypes
import gc
import os
import sys
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

SNAPSHOTS_MMAP_BYTES_MIN: Final = 2**17
"""The same for the process for snapshots, which has the columns of whole buckets only while it makes a snapshot.

Memory that glibc keeps for them stays with the process for long. With 5 million delayed messages, adding took 32 MiB
above empty processes at its peak instead of 41 with 512 KiB, and 58 without this and `HEAPS_MAX`. The other process has
small columns of the index: with 10 million, 2 MiB there raise the peaks of both by 0.5 MiB, and 4 MiB by 2. The price:
a bucket of 50,000 rows costs 15 ms instead of 13.
"""

_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3


def tune_process(*, mmap_bytes_min: int = MMAP_BYTES_MIN) -> None:
    """Let worker threads hand over early and share heaps, and collect no garbage where none can be.

    Call once everything is imported, and before threads are started: a full collection looks at some hundred thousand
    objects of modules otherwise, which stops every thread for 10 to 20 ms. Without glibc, heaps stay as they are.

    Args:
        mmap_bytes_min: From which size on memory comes from the system.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with suppress(OSError, AttributeError):
        glibc = ctypes.CDLL("libc.so.6")
        glibc.mallopt(_M_ARENA_MAX, HEAPS_MAX)
        glibc.mallopt(_M_MMAP_THRESHOLD, mmap_bytes_min)
    gc.collect()
    gc.freeze()


def leave_first_processor() -> None:
    """Leave the first of several processors to others, from now on; call before any thread is started.

    Otherwise the kernel moves this process next to the one that has sent it something, and both wait for each other:
    draining a million messages took a quarter longer on two processors. The price: where an event loop runs on one of
    the others, it may wait for a slice of the kernel, 4 ms.
    """
    if sys.platform == "linux":
        processors = os.sched_getaffinity(0)
        if len(processors) > 1:
            # Where it is not allowed, it is no reason not to run.
            with suppress(OSError):
                os.sched_setaffinity(0, processors - {min(processors)})
