"""A storage and a cursor for a core under test: calls are made at once, on dictionaries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from snapshot_storage.encoding.codec import decode_metadata_columns, decode_segments
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.segment_table import table_of
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Answer,
    Call,
    CallFailed,
    CreateSnapshot,
    DeleteSnapshot,
    Head,
    LoadSegments,
    MergeSnapshots,
    PutName,
    ReadHead,
    RemoveName,
    Stored,
)
from tracker.shell.snapshot_answers import first_rows


@dataclass
class Disk:
    """Snapshots, the properties that name them, and what is acknowledged."""

    config: TrackerConfig
    span_rows: int = 1
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    aliens: set[int] = field(default_factory=set)
    properties: dict[str, str] = field(default_factory=dict)
    acknowledged: dict[int, BitMap] = field(default_factory=dict)
    first_ledger_id: int = 0
    last_id: int = 1_000

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        return self.acknowledged.get(ledger_id, BitMap()).copy()

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return ledger_id < self.first_ledger_id or entry_id in self.acknowledged.get(ledger_id, ())

    def acknowledge(self, ledger_id: int, entry_id: int) -> None:
        self.acknowledged.setdefault(ledger_id, BitMap()).add(entry_id)

    def store(self, kinds: Sequence[DelayedIndexes], tracked: Mapping[int, BitMap], rows_max: int) -> Stored:
        rows = first_rows(kinds, tracked)
        snapshot = build_snapshot(rows, step_ms=self.config.segment_step_ms_max, rows_max=rows_max)
        table = table_of(decode_metadata_columns(snapshot.metadata), self.span_rows)
        self.last_id += 1
        self.snapshots[self.last_id] = snapshot
        return Stored(self.last_id, snapshot.length_bytes, table)

    def answer(self, call: Call) -> Answer:
        """Make a call."""
        match call:
            case CreateSnapshot():
                rows = DelayedIndexes.concatenate(call.parts)
                return self.store([rows], call.tracked, call.segment_row_count_max)
            case MergeSnapshots():
                missing = [one.bucket_id for one in call.sources if one.bucket_id not in self.snapshots]
                if missing:
                    return CallFailed("missing", is_lost=True, lost_bucket_id=missing[0])
                rows_of = [(self.rows_of(one.bucket_id), one.loaded_row_count) for one in call.sources]
                to_load = DelayedIndexes.concatenate([rows.slice(count, len(rows)) for rows, count in rows_of])
                loaded = DelayedIndexes.concatenate([rows.slice(0, count) for rows, count in rows_of])
                return self.store([to_load, loaded], call.tracked, call.segment_row_count_max)
            case ReadHead():
                if call.bucket_id in self.aliens:
                    return CallFailed("alien", is_lost=True, is_alien=True)
                if call.bucket_id not in self.snapshots:
                    return CallFailed("missing", is_lost=True, lost_bucket_id=call.bucket_id)
                columns = decode_metadata_columns(self.snapshots[call.bucket_id].metadata)
                table = table_of(columns, self.span_rows)
                return Head(1, table, dict(ledger_bitmaps(*columns.positions(0, len(columns)))))
            case LoadSegments():
                if call.bucket_id not in self.snapshots:
                    return CallFailed("missing", is_lost=True, lost_bucket_id=call.bucket_id)
                segments = self.snapshots[call.bucket_id].segments
                return decode_segments(segments[call.first_segment - 1 : call.last_segment])
            case DeleteSnapshot():
                if call.is_own or call.bucket_id not in self.aliens:
                    assert call.bucket_id not in self.aliens
                    self.snapshots.pop(call.bucket_id, None)
            case PutName():
                self.properties[call.bucket_key] = str(call.bucket_id)
            case RemoveName():
                self.properties.pop(call.bucket_key, None)
        return None

    def rows_of(self, bucket_id: int) -> DelayedIndexes:
        segments = self.snapshots[bucket_id].segments
        return decode_segments(segments) if segments else DelayedIndexes.empty()
