"""The service as `soak` runs it: the same, and on SIGUSR1 it writes down what lies in its memory.

Objects by class, caches by bytes, and what the C library has from the system: enough to tell a leak from a buffer. The
census is one line of JSON in the file that the environment names.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.reading.block_cache import BlockCache
from postdate.broker.cli.common import configure_logging
from postdate.broker.configuration.config import load_config
from postdate.broker.event_loop import run_on_service_loop
from postdate.broker.server.server import serve
from postdate.broker.tuning import tune_process

CENSUS_FILE: Final = "POSTDATE_SOAK_CENSUS"

WATCHED: Final = (
    "Topic",
    "Subscription",
    "Cursor",
    "Dispatcher",
    "Reader",
    "Outbox",
    "BucketDelayedDeliveryTracker",
    "TrackerCore",
    "Bucket",
    "SharedIndexView",
    "Connection",
    "Consumer",
    "Producer",
    "Task",
    "TimerHandle",
    "BitMap",
)
"""Classes of which a service has few, or as many as there are subscriptions, clients or buckets."""


class _MallocInfo(ctypes.Structure):
    """glibc's `mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "_")
    )


def malloc_bytes() -> dict[str, int]:
    """Return what the C library has from the system: used, and free in its heaps; zeros without glibc."""
    try:
        mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return {"used": 0, "free": 0}
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return {"used": info.uordblks + info.hblkhd, "free": info.fordblks}


def census() -> dict[str, Any]:
    """Count what there is now; takes some tenths of a second."""
    gc.collect()
    # The service exempts what is old from collections, so cycles among that stay: they are to be seen here.
    gc.unfreeze()
    objects = gc.get_objects()
    gc.freeze()
    classes = Counter(type(one).__name__ for one in objects)
    caches = [one for one in objects if isinstance(one, BlockCache)]
    return {
        "objects": len(objects),
        "watched": {name: classes[name] for name in WATCHED},
        "classes": dict(classes.most_common(40)),
        "cached_bytes": sum(cache.bytes_used for cache in caches),
        "malloc": malloc_bytes(),
        "traced": traced_bytes(),
        "rocksdb": rocksdb_bytes(one for one in objects if isinstance(one, RocksDatabase)),
    }


def rocksdb_bytes(databases: Iterable[RocksDatabase]) -> dict[str, int]:
    """Return what RocksDB says that the log's buffers, block cache and open tables take."""
    names = {
        "buffers": "rocksdb.cur-size-all-mem-tables",
        "tables": "rocksdb.estimate-table-readers-mem",
        "blocks": "rocksdb.block-cache-usage",
    }
    sizes = dict.fromkeys(names, 0)
    for database in databases:
        for family in database._families.values():
            for name, key in names.items():
                size = int(family.property_int_value(key) or 0)
                # The families share one cache.
                sizes[name] = max(sizes[name], size) if name == "blocks" else sizes[name] + size
    return sizes


def traced_bytes() -> dict[str, int]:
    """Return which lines hold how much of Python's memory, the most first; nothing unless that is traced."""
    if not tracemalloc.is_tracing():
        return {}
    statistics = tracemalloc.take_snapshot().statistics("lineno")
    return {str(one.traceback[0]): one.size for one in statistics}


def main(overrides: list[str]) -> int:
    """Serve until SIGTERM."""
    configure_logging("warning")
    config = load_config(None, environment={}, overrides=overrides)
    tune_process()
    path = Path(os.environ[CENSUS_FILE])

    def write_census() -> None:
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(census()))
        beside.replace(path)

    def announce() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, write_census)

    return run_on_service_loop(serve(config, announce=announce))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
