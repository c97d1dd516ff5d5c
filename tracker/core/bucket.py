"""The buckets: the last mutable one, which takes what is added, and the immutable ones with their snapshots.

    RECOVERING ──────────┐                ┌─► DELETING ─► UNNAMING ─► gone
    SEALING ─┐           ▼                │
             ├─► NAMING ─► SEALED ────────┤
    MERGING ─┘                            └─► gone, where nothing is stored

Order matters for crash safety: a snapshot is durable before its name is written, and is deleted before its name is
removed. A crash in between leaves a snapshot without a name, which the owner's sweep finds, or a name of nothing.
"""

from dataclasses import dataclass, field
from enum import Enum

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.row_order import NEVER, RowKey, first_key_at, last_key_at
from tracker.columns.row_queue import RowQueue
from tracker.columns.segment_table import SegmentTable
from tracker.config import UNLIMITED
from tracker.core.actions import Call

NO_LEDGER = -1
NO_BARRIER = last_key_at(NEVER)


class Phase(Enum):
    """The purpose of a bucket's next call."""

    RECOVERING = "recovering"
    """A property named it; what its snapshot has is not known yet."""
    SEALING = "sealing"
    """Its rows are in memory; the snapshot is being stored."""
    MERGING = "merging"
    """Its rows are still its sources'; the snapshot is being made of theirs."""
    NAMING = "naming"
    """The snapshot is durable; the property is being written."""
    SEALED = "sealed"
    """Snapshot and property are durable; segments are loaded when their time comes."""
    DELETING = "deleting"
    """It is not served any more; the snapshot is being deleted."""
    UNNAMING = "unnaming"
    """The snapshot is gone; the property is being removed."""


@dataclass(slots=True, eq=False)
class ImmutableBucket:
    """A closed range of ledgers, its snapshot, and how much of that is loaded."""

    serial: int
    ledgers: LedgerRange
    """Where its rows are; after a recovery what the key says, until the head is read."""
    key: str
    """The property's key; its range may be wider, see `free_key`."""
    phase: Phase
    bucket_id: int | None = None
    size_bytes: int = 0
    table: SegmentTable | None = None
    """The snapshot's segments, in spans; None while they are not known."""
    has_name: bool = False
    """Whether its property may exist."""
    segment_row_count_max: int = UNLIMITED
    """The most rows of a segment of the snapshot that is to be stored."""
    rows: RowQueue | None = None
    """Its rows, in memory until snapshot and name are durable."""
    sources: tuple[int, ...] = ()
    """Serials of the buckets that are merged into this one, until it has taken over."""
    is_source: bool = False
    """Whether it is being merged into another one; until that has taken over, this one stays."""
    is_unwanted: bool = False
    """Whether it is to be deleted when its call in flight is over."""
    loaded_spans: int = 0
    loaded_key: RowKey | None = None
    """The last row that was loaded, if any was."""
    barrier: RowKey = NO_BARRIER
    """The last row that may be handed out before more of it is read; `NO_BARRIER` where nothing is left to be read."""
    wanted_since_ms: int | None = None
    """Since when hand-out may wait for its head or its next span; None while neither is wanted."""
    call: Call | None = None
    """The one call in flight."""
    failures: int = 0
    """How often in a row that call has failed."""

    @property
    def is_served(self) -> bool:
        """Whether it counts: all do but those that are being deleted, and merges that have not taken over."""
        return not (self.is_unwanted or self.sources or self.phase in (Phase.DELETING, Phase.UNNAMING))

    def update_barrier(self) -> None:
        """Set the barrier by what is loaded.

        Rows of one time may be in two spans; then it is the last row loaded of that time. Otherwise it is just before
        its first ledger at the next span's time: of many buckets that are due at one instant, the first can be handed
        out while the others are not loaded.
        """
        if self.phase is Phase.RECOVERING:
            self.barrier = first_key_at(-1)
        elif self.phase is not Phase.SEALED or self.table is None or self.loaded_spans == len(self.table):
            self.barrier = NO_BARRIER
        else:
            next_deliver_at_ms = int(self.table.first_times[self.loaded_spans])
            if self.loaded_key is not None and self.loaded_key.deliver_at_ms == next_deliver_at_ms:
                self.barrier = self.loaded_key
            else:
                self.barrier = RowKey(next_deliver_at_ms, self.ledgers.first_ledger_id, -1)

    def spans_without_tie(self, spans: int) -> int:
        """Return how many of the first so many spans there are of which no row has the time of the next span."""
        table = self.table
        assert table is not None
        while 0 < spans < len(table) and table.last_times[spans - 1] == table.first_times[spans]:
            spans -= 1
        return spans


@dataclass(slots=True)
class LastMutableBucket:
    """The bucket that takes what is added; its rows are stored nowhere yet."""

    row_count_max: int
    rows: RowQueue = field(default_factory=RowQueue)
    first_ledger_id: int = NO_LEDGER
    last_ledger_id: int = NO_LEDGER
    ledger_id: int = NO_LEDGER
    """Of what was added last."""
    times: list[int] = field(default_factory=list)
    entry_ids: list[int] = field(default_factory=list)
    """Time and entry of messages of that ledger that were added one by one and are not among the rows yet."""
    bit_count: int = 0
    """How many of those messages have a bit: `TrackerState.tracked` sets the bits of the others."""
    room: int = 0
    """How many may be added one by one before anything else is looked at."""

    def __len__(self) -> int:
        return len(self.rows) + len(self.times)
