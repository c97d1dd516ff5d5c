"""One immutable bucket: a closed range of ledgers, its snapshot, and its state.

    SEALING ────┐                                  ┌─► DELETING ─► UNREGISTERING ─► GONE
                ├─► REGISTERING ─────► SEALED ─────┤       ▲
    MERGING ────┘        │               ▲         │       │
       └─────────────────┴─► DISCARDED ──┼─────────┼───────┘
                          RECOVERING ────┴─────────┘

Order matters for crash safety: (1) the snapshot is durable before (2) its property is written, and (3) the
snapshot is deleted before (4) its property is removed. A crash after 1 leaves a snapshot that no property names,
which recovery finds by listing; a crash after 3 leaves a property that names nothing, which recovery removes.

Here are the fields and what follows from them. Only `transitions` changes them; a test holds every other module to it.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from pyroaring import BitMap

from managed_ledger.value_types import Int64Array
from snapshot_storage.bucket_key import LedgerRange, bucket_key
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import LEDGER_ID_MAX
from tracker.columns.row_order import NEVER, RowKey
from tracker.columns.segment_table import SegmentTable, is_in_order
from tracker.config import UNLIMITED
from tracker.core.actions import Action, LoadSegments, ReadPositions, SegmentsLoaded
from tracker.core.attempts import NO_FAILURES, Attempts


class BucketState(Enum):
    """The states of a bucket."""

    SEALING = "sealing"
    """Its rows are in memory; the snapshot is being stored."""
    MERGING = "merging"
    """Its rows are still its sources'; the snapshot is being made of theirs."""
    REGISTERING = "registering"
    """The snapshot is durable; the property is being written. Rows are served as before."""
    RECOVERING = "recovering"
    """A property named it; which segments it has is not known yet."""
    SEALED = "sealed"
    """Snapshot and property are durable; segments are loaded when their time comes."""
    DISCARDED = "discarded"
    """The bucket is not needed any more, and a call in flight may still store its snapshot or its property."""
    DELETING = "deleting"
    """It is not served any more; the snapshot is being deleted."""
    UNREGISTERING = "unregistering"
    """The snapshot is gone; the property is being removed."""
    GONE = "gone"
    """The bucket has been removed."""


NEXT_STATES: Final[dict[BucketState, frozenset[BucketState]]] = {
    BucketState.SEALING: frozenset({BucketState.REGISTERING, BucketState.DISCARDED, BucketState.GONE}),
    BucketState.MERGING: frozenset({BucketState.REGISTERING, BucketState.DISCARDED, BucketState.GONE}),
    BucketState.REGISTERING: frozenset({BucketState.SEALED, BucketState.DISCARDED, BucketState.DELETING}),
    BucketState.RECOVERING: frozenset({BucketState.SEALED, BucketState.DELETING, BucketState.UNREGISTERING}),
    BucketState.SEALED: frozenset({BucketState.DELETING}),
    BucketState.DISCARDED: frozenset({BucketState.DELETING, BucketState.GONE}),
    BucketState.DELETING: frozenset({BucketState.UNREGISTERING, BucketState.GONE}),
    BucketState.UNREGISTERING: frozenset({BucketState.GONE}),
    BucketState.GONE: frozenset(),
}

NOT_SERVED: Final = frozenset(
    {BucketState.DISCARDED, BucketState.DELETING, BucketState.UNREGISTERING, BucketState.GONE}
)
"""States in which a bucket counts no more."""


class NextLoad(NamedTuple):
    """Segments that are to be loaded together, by their numbers, which begin at 1."""

    first_segment: int
    last_segment: int
    row_count: int
    """How many rows that brings."""


@dataclass(slots=True, eq=False)
class Bucket:
    """One immutable bucket as the core knows it."""

    serial: int
    ledgers: LedgerRange
    """Where its rows are; after a recovery what the key says, until the metadata is read."""
    key: str
    """The property's key; its range may be wider, see `free_key`."""
    state: BucketState
    bucket_id: int | None = None
    size_bytes: int = 0
    table: SegmentTable | None = None
    """The snapshot's segments, in spans; None while recovery has not read the metadata."""
    span_ends: tuple[Int64Array, Int64Array] | None = None
    """Ledger and entry id of the last row of each span, while its rows are in memory."""
    has_property: bool = False
    """Whether its property may exist."""

    work: Action | None = None
    """The state's own action, while it is in flight."""
    work_attempts: Attempts = NO_FAILURES
    parts: Sequence[DelayedIndexes] = ()
    """The rows to be stored, until they are."""
    tracked_parts: Mapping[int, BitMap] | None = None
    """The rows to store; None is all."""
    segment_row_count_max: int = UNLIMITED
    """The most rows of a segment of the snapshot that is to be stored."""

    sources: tuple[int, ...] = ()
    """Serials of the buckets that are merged into this one, until it has taken over."""
    merging_into: int | None = None
    """Serial of the bucket that this one is being merged into; until it has taken over, this one stays."""

    is_cut: bool = False
    """Whether its snapshot has more segments than its table: none of their messages is tracked."""
    first_segments: Sequence[bytes] = ()
    """Segments 1 to k as they came with the metadata, until they are loaded."""
    loaded_spans: int = 0
    loaded_key: RowKey | None = None
    """The last row that was loaded, if any was."""
    waited_for_since_ms: int | None = None
    """When the next span, or the metadata, was first wanted; None when nothing is."""
    load: LoadSegments | None = None
    """The load in flight."""
    load_attempts: Attempts = NO_FAILURES

    unloaded_count: int = 0
    """How many messages its unloaded segments hold, as far as that is known without their bitmaps."""
    is_cached: bool = False
    """Whether the positions of its unloaded segments are known."""
    cached_bytes: int = 0
    """About how much memory they took at most."""
    was_cached: bool = False
    """Whether a reader may have passed over its positions in the log, trusting that they come from here."""
    is_cache_used: bool = False
    """Whether the cached positions were looked at since `cache_used_ms`."""
    cache_used_ms: int = -1
    needs_positions: bool = False
    """Whether its segments hold rows that its bitmaps do not: then they cannot be loaded without these."""
    position_sum: int | None = None
    """The sum (`position_sums`) that the rows to come must have; None where entry 0 was not read."""
    read: ReadPositions | None = None
    """The read of its positions in flight."""
    read_attempts: Attempts = NO_FAILURES
    loaded_meanwhile: list[SegmentsLoaded] = field(default_factory=list)
    """Segments that were loaded while that read was in flight."""
    overlap_ms: int = -1
    """Rows up to this time may be handed out from elsewhere before they are loaded."""

    # Properties computed from the fields.

    @property
    def is_served(self) -> bool:
        """Whether it counts: all do but those that are being deleted, and merges that are not done."""
        return self.state not in NOT_SERVED and not self.sources

    @property
    def owns_key(self) -> bool:
        """Whether its property exists, or may come to exist."""
        if self.state is BucketState.DELETING:
            return self.has_property
        return self.state is not BucketState.GONE

    @property
    def is_fully_loaded(self) -> bool:
        """Whether every row of its snapshot is in memory or was handed out."""
        return self.table is not None and self.loaded_spans == len(self.table)

    @property
    def has_unloaded(self) -> bool:
        """Whether it is served from segments, and some are still to be loaded."""
        return self.state is BucketState.SEALED and not self.is_fully_loaded

    @property
    def holds_up(self) -> bool:
        """Whether it has rows that are not loaded, known or not."""
        return self.has_unloaded or self.state is BucketState.RECOVERING

    @property
    def is_known(self) -> bool:
        """Whether it is known which positions it tracks, beside those in memory."""
        if self.state is BucketState.SEALED:
            return self.is_cached or self.is_fully_loaded
        return self.state is not BucketState.RECOVERING

    @property
    def is_overlapped(self) -> bool:
        """Whether a row that it will load may have been handed out from elsewhere."""
        if self.state in NOT_SERVED:
            return False
        if self.state is BucketState.SEALED:
            return self.has_unloaded and self.next_segment_deliver_at_ms <= self.overlap_ms
        return self.overlap_ms >= 0

    @property
    def loaded_row_count(self) -> int:
        """How many rows of its snapshot are loaded, or were."""
        return 0 if self.table is None else self.table.rows_before(self.loaded_spans)

    @property
    def rows_left(self) -> int:
        """How many rows its snapshot has beyond those that are loaded."""
        return 0 if self.table is None else self.table.row_count - self.loaded_row_count

    @property
    def held_row_count(self) -> int:
        """How many rows came with its metadata and are not loaded yet."""
        return 0 if self.table is None else self.table.rows_before(self.table.spans_of(len(self.first_segments)))

    def unloaded_count_through(self, time_ms: int) -> int:
        """Return how many messages are in segments that are not loaded and end by a time."""
        if self.table is None or self.next_segment_deliver_at_ms > time_ms:
            return 0
        span = int(self.table.last_times.searchsorted(time_ms, "right"))
        return min(self.unloaded_count, max(0, self.table.rows_before(span) - self.loaded_row_count))

    @property
    def next_segment_deliver_at_ms(self) -> int:
        """The time of the first row that is not loaded, `NEVER` if all are, -1 if it is not known."""
        if self.table is None:
            return -1
        if self.is_fully_loaded:
            return NEVER
        return int(self.table.first_times[self.loaded_spans])

    @property
    def last_loaded_ms(self) -> int:
        """The time of the last row that is loaded, -1 if none is."""
        assert self.table is not None
        return int(self.table.last_times[self.loaded_spans - 1]) if self.loaded_spans else -1

    @property
    def last_ms(self) -> int:
        """The time of its last row."""
        assert self.table is not None
        return int(self.table.last_times[-1]) if len(self.table) else -1

    @property
    def barrier(self) -> RowKey:
        """The last row that may be handed out before the next span is loaded.

        Rows of one time may be in two spans; then it is the last row loaded of that time. Otherwise it is just before
        the bucket's first ledger at the next span's time: of many buckets that are due at one instant, the first can
        be handed out while the others are not loaded.
        """
        next_deliver_at_ms = self.next_segment_deliver_at_ms
        if self.loaded_key is not None and self.loaded_key.deliver_at_ms == next_deliver_at_ms:
            return self.loaded_key
        return RowKey(next_deliver_at_ms, self.ledgers.first_ledger_id, -1)

    def next_load(self, through_ms: int, row_count_max: int) -> NextLoad:
        """Return the segments of the next load.

        Those that came with the metadata are taken as they are. Else it is at least one span; further ones as long as
        they begin by `through_ms` and the rows stay within the limit. With widely spread times a segment has few rows,
        and one call each would be most of the cost.
        """
        assert self.table is not None
        table, first = self.table, self.loaded_spans
        rows_before = table.rows_before(first)
        if not first and self.first_segments:
            return NextLoad(1, len(self.first_segments), self.held_row_count)
        end = len(table)
        # All of a bucket that is overdue or small is wanted.
        if table.first_times[-1] > through_ms:
            end = int(table.first_times.searchsorted(through_ms, "right"))
        if table.row_ends[-1] > rows_before + row_count_max:
            end = min(end, int(table.row_ends.searchsorted(rows_before + row_count_max, "right")))
        end = max(first + 1, end)
        return NextLoad(
            table.segments_before(first) + 1, table.segments_before(end), table.rows_before(end) - rows_before
        )

    def spans_before(self, time_ms: int) -> int:
        """Return how many leading spans end before a time, with no row of theirs at the next one's start."""
        assert self.table is not None
        count = int(self.table.last_times.searchsorted(time_ms, "left"))
        while 0 < count < len(self.table) and self.table.last_times[count - 1] == self.table.first_times[count]:
            count -= 1
        return count

    def spans_through(self, time_ms: int, *, row_count_max: int | None = None) -> int:
        """Return how many leading spans hold all rows up to a time.

        Args:
            time_ms: The time.
            row_count_max: The most rows, though they do not reach the time then; None for no limit.
        """
        assert self.table is not None
        count = int(self.table.first_times.searchsorted(time_ms, "right"))
        if row_count_max is not None:
            count = min(count, int(self.table.row_ends.searchsorted(row_count_max, "right")))
        return count

    def check(self) -> None:
        """Assert every invariant of a single bucket."""
        assert (self.parts != ()) <= (self.state is BucketState.SEALING)
        if self.state in (BucketState.REGISTERING, BucketState.SEALED, BucketState.RECOVERING):
            assert self.bucket_id is not None
        if self.state is BucketState.DISCARDED:
            assert self.work is not None
        if self.state is BucketState.SEALED:
            assert self.has_property
            assert self.table is not None
        else:
            assert self.load is None
        assert self.has_unloaded or not self.is_cached
        if self.table is not None:
            assert is_in_order(self.table)
            assert 0 <= self.loaded_spans <= len(self.table)
            assert 0 <= self.unloaded_count <= self.rows_left
            if self.load is not None:
                row_count = self.table.rows_before(self.table.spans_of(self.load.last_segment)) - self.loaded_row_count
                assert self.load.row_count == row_count


def free_key(ledgers: LedgerRange, taken: Container[str]) -> str:
    """Return what `free_key_or_none` does, where a name is left for sure: ledgers are not at both ends of all."""
    key = free_key_or_none(ledgers, taken)
    assert key is not None, f"every name of a range around {ledgers} is taken"
    return key


def free_key_or_none(ledgers: LedgerRange, taken: Container[str]) -> str | None:
    """Return the property key of the range, or of a wider one that no other bucket has; None where all are taken.

    A ledger that is sealed in several pieces, or a merge with an enclosing bucket, would otherwise need one key
    twice. The wider range is a name and nothing else: it says where rows can be, not where they are.

    >>> free_key_or_none(LedgerRange(7, 7), {"#pulsar.internal.delayed.bucket_7_7"})
    '#pulsar.internal.delayed.bucket_6_7'
    """
    first, last = ledgers
    while (key := bucket_key(first, last)) in taken:
        # The range grows downwards first, as no message comes for past ledgers.
        if first > 0:
            first -= 1
        elif last < LEDGER_ID_MAX:
            last += 1
        else:
            # Other buckets have all these names, up to the one from the first ledger to the last.
            return None
    return key
