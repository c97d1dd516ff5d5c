"""Delayed delivery trackers: they know which positions are delayed, and which are due.

The index that a tracker holds is derived from the log and can always be rebuilt from it. The modules that other rooms
use are in this folder: `delayed_delivery_tracker` is the interface that a dispatcher sees, `bucket_tracker` and
`in_memory` are the trackers, `config`, `stats` and `errors` belong to them; `bucket_properties` and
`residual_snapshots` are about snapshots whose cursor has no tracker. Within:

    columns/   rows and positions, as arrays and bitmaps                        pure
    core/      every decision about buckets                                     pure
    shell/     runs the core's actions on an event loop
    shared/    one index for all subscriptions of a topic
"""
