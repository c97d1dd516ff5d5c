"""The cache of positions in unloaded segments: the buckets for which it is wanted, and those for which it is filled.

A tracker does not keep in memory which positions a bucket's segments hold. A reader of its part of the log (after a
start, or behind a backlog) has to know them, and says so. Then the bitmaps of its unloaded segments are read. They stay
in the cache until they have not been wanted for a while. As long as no reader has ever announced a ledger, the buckets
are read by turns, a few a second: a program that only waits for an answer gets it, too.

The cache is bounded, but a question about one ledger needs all buckets that have it at the same time, even beyond the
bound. So a bucket is not evicted while another one with a ledger in common is still to be read. Where there has been no
room for long, the bucket that has waited longest is read all the same, with all that overlap with it.

Left out: the cached positions (`positions`).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Final

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.row_order import NEVER
from tracker.core.bucket import Bucket, BucketState
from tracker.core.timers import Timers, Why

CACHED_FOR_MS: Final = 10_000
"""Positions stay in the cache for so long after the last question about them."""

CACHED_FOR_MS_WHEN_FULL: Final = 1_000
"""So long while other positions wait for room."""

CACHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Cached bitmaps take so much memory together; beyond it, others wait for a while."""

FULL_FOR_MS_MAX: Final = 2 * CACHED_FOR_MS_WHEN_FULL
"""A bucket that still waits after the cache was full for so long is read even without room."""

READS_IN_FLIGHT_MAX: Final = 4
"""Each holds the whole metadata of a snapshot for a moment."""

EVICTION_STEP_MS: Final = 500

READ_AHEAD_STEP_MS: Final = 1_000
"""So often a few buckets are read while no reader has announced a ledger."""

READ_AHEAD_MAX: Final = READS_IN_FLIGHT_MAX
"""How many buckets these are. They are known for ten seconds, so all of some forty stay known."""

_NO_SERIALS: Final[frozenset[int]] = frozenset()


class PositionCache:
    """The buckets whose positions are wanted, and those whose are cached.

    Args:
        timers: Is told when a read may start, and when to evict.
        keeps_all: Every bucket's positions are to be cached, always; memory is not bounded then.
        bytes_max: Memory that cached bitmaps may take.
        reads_ahead: Whether buckets are read by turns until a reader announces a ledger.
    """

    def __init__(self, timers: Timers, *, keeps_all: bool, bytes_max: int, reads_ahead: bool) -> None:
        self._timers = timers
        self.keeps_all = keeps_all
        self.reads_ahead = reads_ahead
        """Off when a reader announces its ledgers: only these are wanted from then on."""
        self._read_ahead_from = 0
        """The place among all buckets behind the one that was read last without being announced."""
        self._bytes_max = bytes_max
        self.buckets: dict[int, Bucket] = {}
        """Buckets whose positions are cached, by serial."""
        self._wanted: dict[int, Bucket] = {}
        """By serial, in the order in which they were wanted."""
        self._readable: dict[int, Bucket] = {}
        """Wanted buckets whose metadata was read, by serial; also some that are wanted no more, until the next look."""
        self._in_flight: dict[int, Bucket] = {}
        """Buckets whose positions are being read, by serial; also some that are wanted no more, until the next look."""
        self._admitted = _NO_SERIALS
        """Serials of buckets that are read although there is no room."""
        self._full_since_ms: int | None = None
        """Since when wanted buckets have waited for room, None while there is room."""
        self._bytes_bound = 0
        """No less than the cached bitmaps take; evicted positions may be in it."""

    def is_wanted(self, serial: int) -> bool:
        """Whether a bucket's positions are still to be read."""
        return serial in self._wanted

    def want(self, bucket: Bucket) -> None:
        """Want a bucket's positions, which are not known."""
        if bucket.serial not in self._wanted:
            self._wanted[bucket.serial] = bucket
            self.note(bucket)

    def note(self, bucket: Bucket) -> None:
        """Take a bucket as it is now: it may have become readable, or known."""
        if bucket.is_known:
            self.forget(bucket.serial)
        elif bucket.state is BucketState.SEALED and bucket.serial in self._wanted:
            self._readable[bucket.serial] = bucket
            self._timers.wake(Why.CACHE)

    def forget(self, serial: int) -> None:
        """Want nothing of a bucket."""
        if self._wanted.pop(serial, None) is not None:
            self._timers.wake(Why.CACHE)

    def take_ahead(self, serials: Sequence[int], is_unknown: Callable[[int], bool]) -> Sequence[int]:
        """Return which buckets are to be read next although no reader has come to them; all come in turn.

        No bucket behind these is looked at, as there may be thousands.

        Args:
            serials: All buckets, by their ledgers.
            is_unknown: Whether a bucket has positions that are not known and not wanted.
        """
        # Where earlier buckets have gone meanwhile, some are passed over until the next round.
        start = min(self._read_ahead_from, len(serials))
        in_turn = chain(range(start, len(serials)), range(start))
        places = list(islice((place for place in in_turn if is_unknown(serials[place])), READ_AHEAD_MAX))
        if places:
            self._read_ahead_from = places[-1] + 1
        return [serials[place] for place in places]

    def pass_on(self, sources: Iterable[Bucket], target: Bucket) -> None:
        """Note that a merge's target is wanted if one of its sources is."""
        if self.keeps_all or any(source.serial in self._wanted for source in sources):
            self._wanted[target.serial] = target

    def note_cached(self, bucket: Bucket) -> None:
        """Take care of a bucket whose positions have come into the cache."""
        self._bytes_bound += bucket.cached_bytes
        self.forget(bucket.serial)
        self.buckets[bucket.serial] = bucket
        if self._timers.when(Why.EVICTION) == NEVER and not self.keeps_all:
            self._timers.wake(Why.EVICTION)

    def note_evicted(self, serial: int) -> None:
        """Let go of a bucket whose positions are not cached any more; another may wait for the room."""
        if self.buckets.pop(serial, None) is not None and self._wanted:
            self._timers.wake(Why.CACHE)

    def clear(self) -> None:
        """Want nothing, and hold nothing."""
        self._wanted, self._readable, self._in_flight, self.buckets = {}, {}, {}, {}

    def forget_waits(self) -> None:
        """Look again at once: the clock was put back. Reads that wait go on with all other calls."""
        self._full_since_ms = None
        for why in (Why.EVICTION, Why.READ_AHEAD):
            self._timers.wake(why)

    def has_room(self, size_bytes: int) -> bool:
        """Whether bitmaps of this size fit; they are counted only when their sum may have got too large."""
        if self._bytes_bound + size_bytes > self._bytes_max:
            self._bytes_bound = sum(bucket.cached_bytes for bucket in self.buckets.values())
        return self._bytes_bound + size_bytes <= self._bytes_max

    def startable(self, now_ms: int) -> Iterator[Bucket]:
        """Yield the buckets to read, in the order in which they were wanted, as long as they are started."""
        if self._admitted:
            self._admitted &= self._wanted.keys()
        self._note_room(now_ms)
        self._in_flight = {serial: bucket for serial, bucket in self._in_flight.items() if bucket.read is not None}
        unwanted: list[int] = []
        for serial, bucket in self._readable.items():
            if len(self._in_flight) >= READS_IN_FLIGHT_MAX:
                break
            if serial not in self._wanted:
                unwanted.append(serial)
            elif bucket.read is None and self._is_admitted(bucket, now_ms):
                yield bucket
        for serial in unwanted:
            del self._readable[serial]

    def note_started(self, bucket: Bucket) -> None:
        """Note that a read of a bucket's positions is in flight."""
        self._in_flight[bucket.serial] = bucket

    def _note_room(self, now_ms: int) -> None:
        """Look whether there is room for another one, and since when there is none."""
        if not self._wanted or self.keeps_all or self.has_room(1):
            self._full_since_ms = None
        elif self._full_since_ms is None:
            self._full_since_ms = now_ms

    def _is_admitted(self, bucket: Bucket, now_ms: int) -> bool:
        """Whether a bucket may be read; without room, one after another, with all that overlap with it."""
        if self._full_since_ms is None or bucket.serial in self._admitted:
            return True
        if self._admitted:
            return False
        if now_ms < self._full_since_ms + FULL_FOR_MS_MAX:
            self._timers.at(Why.CACHE, self._full_since_ms + FULL_FOR_MS_MAX)
            return False
        overlaps = _overlap_with([bucket.ledgers])
        self._admitted = frozenset(serial for serial, other in self._wanted.items() if overlaps(other.ledgers))
        self._full_since_ms = now_ms
        return True

    def note_failed(self, bucket: Bucket) -> None:
        """Let a bucket that could not be read hold up no other one that waits for room.

        The answer to the read has set the timer.
        """
        if bucket.serial in self._admitted:
            self._admitted -= {bucket.serial}

    @property
    def cached_for_ms(self) -> int:
        """How long positions stay that are not looked at."""
        return CACHED_FOR_MS if self._full_since_ms is None else CACHED_FOR_MS_WHEN_FULL

    def needed(self) -> Callable[[LedgerRange], bool]:
        """Return a function that says whether a range has a ledger in common with a bucket that is still to be read."""
        return _overlap_with(bucket.ledgers for bucket in self._wanted.values())

    def check(self) -> None:
        """Assert that the bound of memory holds, and that nothing that is wanted and can be read is missing."""
        assert self._bytes_bound >= sum(bucket.cached_bytes for bucket in self.buckets.values())
        for serial, bucket in self._wanted.items():
            assert not bucket.is_known
            assert bucket.state is not BucketState.SEALED or bucket.read is not None or serial in self._readable


def _overlap_with(ranges: Iterable[LedgerRange]) -> Callable[[LedgerRange], bool]:
    """Return a function that says whether a range has a ledger in common with any of these.

    Runtime complexity: O(n log n), and O(log n) for each answer.
    """
    in_order = sorted(ranges)
    firsts = [first for first, _ in in_order]
    lasts_max = list(accumulate((last for _, last in in_order), max))

    def overlaps(ledgers: LedgerRange) -> bool:
        place = bisect_right(firsts, ledgers.last_ledger_id)
        return place > 0 and lasts_max[place - 1] >= ledgers.first_ledger_id

    return overlaps
