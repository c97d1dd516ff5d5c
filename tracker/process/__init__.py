"""Snapshot work in a process of its own, so that no add and no poll shares an interpreter with it.

A program uses `snapshot_process`; `__main__` is the other process, `child` its parent's side, and `messages` go
between.
"""

from tracker.process.snapshot_process import SnapshotProcess

__all__ = ["SnapshotProcess"]
