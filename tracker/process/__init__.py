"""Snapshot work in a process of its own, so that no add and no poll shares an interpreter with it.

`snapshot_process` is what a program uses, `__main__` is the other process, `channel` is what is between them.
"""

from tracker.process.snapshot_process import SnapshotProcess

__all__ = ["SnapshotProcess"]
