"""Delayed delivery trackers: which positions are delayed, and which are due.

The index that a tracker holds is derived from the log and can always be rebuilt from it. `core` decides, purely
and synchronously; `bucket_tracker` is the asyncio shell around it; `in_memory` is the tracker without snapshots.
Start reading at `delayed_delivery_tracker`, the interface that a dispatcher sees.
"""
