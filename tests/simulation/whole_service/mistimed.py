"""Snapshots of which some rows have another time than the log, as a wrong program writes them between two lives."""

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import build_snapshot
from snapshot_storage.errors import SnapshotCorruptedError

if TYPE_CHECKING:
    from tests.simulation.whole_service.simulation import Simulation

_EARLY_MS_MAX: Final = 30_000
_LATE_MS_MAX: Final = 3_000
"""So late that rests and rounds, which are longer, need not know of it."""


def mistime_snapshots(sim: "Simulation", chance: Random) -> None:
    """Give about half of the rows of the stored snapshots a time of their own, early or late."""
    tracker = sim.variant.config.tracker
    for bucket_id, stored in list(sim.stored.snapshots.items()):
        try:
            rows = decode_segments(stored.segments)
        except SnapshotCorruptedError:
            continue
        mistimed = sorted((_time(sim, chance, *row), *row[1:]) for row in rows.to_rows())
        snapshot = build_snapshot(
            DelayedIndexes.from_rows(mistimed),
            step_ms=tracker.segment_step_ms_max,
            rows_max=tracker.segment_row_count_max,
        )
        info = stored.info._replace(segment_count=len(snapshot.segments), length_bytes=snapshot.length_bytes)
        sim.stored.snapshots[bucket_id] = replace(
            stored, info=info, metadata=snapshot.metadata, segments=tuple(snapshot.segments)
        )


def _time(sim: "Simulation", chance: Random, deliver_at_ms: int, ledger_id: int, entry_id: int) -> int:
    """Return when the index is to have a row, by the time in the log."""
    entry = sim.oracle.entries.get((ledger_id, entry_id))
    if entry is None or chance.random() < 0.5:
        return deliver_at_ms
    sim.did("a snapshot has another time than the log")
    if chance.random() < 0.3:
        sim.oracle.indexed_late.add(entry.key)
        return entry.deliver_at_ms + chance.randrange(1, _LATE_MS_MAX)
    sim.oracle.indexed_early.add(entry.key)
    return max(0, entry.deliver_at_ms - chance.randrange(1, _EARLY_MS_MAX))
