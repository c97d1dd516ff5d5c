"""For tests of programs that embed a tracker: time that does not wait, a cursor that fails, a storage that fails.

Not imported by `import postdate`. The core install is enough.
"""

from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan, Operation
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tracker.testing import FakeClock, FakeCursor, run_inline, run_virtually, virtual_now_ms

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
