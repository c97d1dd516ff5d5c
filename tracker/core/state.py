"""All that a tracker's core knows, in one place. Only `transitions` changes it.

    mutable     the bucket that takes what is added                  (PIP-195's last mutable bucket)
    buckets     the immutable ones, by serial, each with its state    `bucket`
    rows        when: what may be handed out next                     `due_rows`
    positions   whether: each position and where it is tracked        `positions`
    cache       which buckets' positions are wanted, or cached        `position_cache`
    loads       which segments to load next                           `load_queue`
    barriers    how far hand-out may go                               `barriers`
    calls       when the storage may be called                        `circuit_breakers`
    timers      what to look at, and when                             `timers`

A value that is kept beside the state it follows from has one function that updates it; `checks` compares it with a slow
computation.

A service has a tracker for each subscription, and most of them have no bucket. So what is empty at first is small: sets
are the keys of a dict (64 bytes instead of 216), and queues are lists in reverse order (56 instead of 760 for a deque).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.row_order import NEVER
from tracker.config import UNLIMITED, TrackerConfig
from tracker.core.actions import Action, ListSnapshots
from tracker.core.attempts import NO_FAILURES, Attempts
from tracker.core.barriers import Barriers
from tracker.core.bucket import Bucket
from tracker.core.circuit_breakers import Calls
from tracker.core.due_rows import DueRows
from tracker.core.load_queue import LoadQueue
from tracker.core.position_cache import PositionCache
from tracker.core.positions.tracked_positions import TrackedPositions
from tracker.core.recovery import Recovery
from tracker.core.single_adds import SingleAdds
from tracker.core.timers import Timers

NO_LEDGER = -1


@dataclass(slots=True)
class MutableBucket:
    """The ledgers of the mutable bucket; its rows and positions are among the others."""

    row_count_max: int
    first_ledger_id: int = NO_LEDGER
    last_ledger_id: int = NO_LEDGER
    ledger_id: int = NO_LEDGER
    """Of what was added last."""
    singles: SingleAdds = field(default_factory=SingleAdds)
    """Messages that were added one by one and are not among the rows yet."""


@dataclass(slots=True)
class Merging:
    """The merge that is under way, and those to come."""

    target: Bucket | None = None
    """The bucket that is being merged, which has sources, or the one that was merged last."""
    planned: list[list[int]] = field(default_factory=list)
    """The serials of buckets that are to be merged after those, where many merges were decided on together; the next
    merge is last."""
    attempts: Attempts = NO_FAILURES


@dataclass(slots=True)
class OrphanSearch:
    """The search for snapshots that no property names."""

    is_wanted: bool = False
    in_flight: ListSnapshots | None = None
    attempts: Attempts = NO_FAILURES
    malformed_ids: frozenset[int] = frozenset()
    """Snapshots that malformed properties seem to name; they are never deleted."""


@dataclass(slots=True)
class Reports:
    """News of the core that the shell has not taken yet."""

    untracked_ranges: list[LedgerRange] = field(default_factory=list)
    """The ledgers of lost buckets whose positions are not known; they are to be read from the log again."""
    losses: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of buckets that were given up."""


class TrackerState:
    """Everything that one tracker's core knows."""

    def __init__(
        self,
        config: TrackerConfig,
        *,
        acknowledged_in: Callable[[int], BitMap],
        rng: Random,
        keeps_positions: bool,
        cached_bytes_max: int,
        reads_ahead: bool = False,
    ) -> None:
        self.config = config
        self.timers = Timers()
        self.now_ms = -1
        """The time that was seen last."""
        self.lead_ms = 0
        """How early rows count as due."""
        row_count_max = config.index_count_per_bucket_max
        if row_count_max == UNLIMITED:
            # The limit of rows without a snapshot holds for a ledger that never ends, too.
            row_count_max = max(config.index_count_per_bucket_min, config.unsealed_row_count_max)
        self.mutable = MutableBucket(row_count_max)
        self.buckets: dict[int, Bucket] = {}
        """Every bucket that is not gone, by serial."""
        self.last_serial = 0
        self.cleared: list[Bucket] = []
        """Buckets of an index that was cleared, which are not among the others and still to be deleted."""
        self.keys: dict[str, None] = {}
        """The property keys that no new bucket may have."""
        self.ranges = LedgerRanges()
        """The ranges of the buckets that are served, by serial."""
        self.rows = DueRows(config.loaded_row_count_max)
        self.positions = TrackedPositions(acknowledged_in, self.ranges)
        self.cache = PositionCache(
            self.timers, keeps_all=keeps_positions, bytes_max=cached_bytes_max, reads_ahead=reads_ahead
        )
        self.calls = Calls(config, rng, self.timers)
        self.recovery = Recovery()
        self.barriers = Barriers(self.buckets, self.recovery, config.order_wait_ms_max, self.timers)
        self.loads = LoadQueue(self.buckets, self.barriers.by_serial, self.calls.loads, self.timers)
        self.overlaps_changed: dict[int, None] = {}
        """Which buckets with a range that overlaps, as `positions` has it, have changed since it was last looked."""
        self.ending: list[tuple[int, int]] = []
        """Of sealed buckets whose rows are all in memory, a heap of when the last one is due, and the serial."""
        self.held_row_count = 0
        """How many rows came with the metadata of all buckets together, and are not loaded yet."""
        self.merging = Merging()
        self.orphans = OrphanSearch()
        self.reports = Reports()
        self.failed: dict[type[Action], set[int]] = {}
        """For which buckets a kind of action has failed; also for some that succeeded, or are gone, since."""
        self.unloaded_count = 0
        """How many messages are in segments that are not loaded, of all buckets together."""

    # Questions about the whole state.

    def due_through_ms(self, now_ms: int, ahead_ms: int = 0) -> int:
        """Return the last time that counts as due, now or so long ahead of now."""
        return min(now_ms + self.lead_ms + ahead_ms, NEVER - 1)

    def covering(self, ledger_id: int) -> list[Bucket]:
        """Return the buckets that are served and whose range holds a ledger."""
        return [self.buckets[serial] for serial in self.ranges.covering(ledger_id)]

    @property
    def is_creating(self) -> bool:
        """Whether a snapshot exists or may come to exist whose id is not known."""
        return bool(len(self.calls.creates))
