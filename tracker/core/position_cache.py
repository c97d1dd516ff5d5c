"""Of which buckets the unread positions are wanted, and how long they stay known.

A bucket is *cold*: nothing in memory says which positions its segments hold. Whoever reads its part of the log (after a
start, or behind a backlog) has to know, and asks. Then the bitmaps of its unread segments are read, and kept until
nobody has asked for a while; the bucket is *warm* meanwhile. Asking never waits, so the answer may be that it is not
known yet.

Memory is bounded, but a question about one ledger needs all buckets that have it at the same time, whatever they take.
So none of them cools while another one with a ledger in common is still to be read; and where there is no room for
long, the one that has waited longest becomes warm all the same, with all that overlap with it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.position_set import PositionSet
from tracker.columns.row_queue import NEVER
from tracker.core.actions import ReadPositions
from tracker.core.bucket import Bucket, BucketState
from tracker.core.circuit_breakers import Lane

COOL_AFTER_MS: Final = 10_000
"""A bucket stays warm for so long after someone has asked."""

COOL_AFTER_MS_WHEN_FULL: Final = 1_000
"""The same, while others wait to become warm."""

WARM_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bitmaps of warm buckets take so much memory together; beyond it, others wait for a while."""

FULL_FOR_MS_MAX: Final = 2 * COOL_AFTER_MS_WHEN_FULL
"""Who still waits when it was full for so long does not wait for room any more."""

READS_IN_FLIGHT_MAX: Final = 4
"""Each holds the whole metadata of a snapshot for a moment."""

_COOLING_STEP_MS: Final = 500

_COOLING_STEP_MS_WHEN_KEPT: Final = 5_000
"""The same where positions stay known anyway, and only those of buckets that were loaded whole go."""


class Questions:
    """The buckets that are to become warm, and those that are.

    Args:
        keeps_all: Every bucket is to be warm, always; memory is not bounded then.
    """

    def __init__(self, *, keeps_all: bool) -> None:
        self.keeps_all = keeps_all
        self.warm: dict[int, Bucket] = {}
        """By serial; with some that are not warm any more, until the next look."""
        self.next_read_ms = NEVER
        """When a read may start that has only to wait for this time."""
        self.next_cooling_ms = NEVER
        self._wanted: dict[int, Bucket] = {}
        """By serial, in the order in which they were asked for."""
        self._readable: dict[int, Bucket] = {}
        """Those of which the metadata was read; with some that are wanted no more, until the next look."""
        self._reads: dict[int, Bucket] = {}
        """Those whose positions are being read; likewise."""
        self._granted: frozenset[int] = frozenset()
        """Serials of those that become warm although there is no room."""
        self._full_since_ms: int | None = None
        """Since when others have waited for room, None while there is some."""
        self._bytes_max = 0
        """No less than the warm buckets' bitmaps take; what has cooled may be in it."""

    def ask(self, bucket: Bucket) -> bool:
        """Return whether a bucket's positions are known, and want them if they are not."""
        if bucket.is_warm:
            bucket.unread.is_asked = True
            return True
        self._wanted.setdefault(bucket.serial, bucket)
        self.note(bucket)
        return False

    def note(self, bucket: Bucket) -> None:
        """Take a bucket as it is now: it may have become readable, or warm."""
        if bucket.is_warm:
            self._wanted.pop(bucket.serial, None)
        elif bucket.state is BucketState.SEALED and bucket.serial in self._wanted:
            self._readable[bucket.serial] = bucket

    def forget(self, serial: int) -> None:
        """Want nothing of a bucket."""
        self._wanted.pop(serial, None)

    def is_wanted(self, serial: int) -> bool:
        """Whether a bucket waits to become warm."""
        return serial in self._wanted

    def pass_on(self, sources: Iterable[Bucket], target: Bucket) -> None:
        """Let whoever asked for a merge's sources wait for its target."""
        if self.keeps_all or any(source.serial in self._wanted for source in sources):
            self._wanted[target.serial] = target

    def open(self, bucket: Bucket, known: PositionSet) -> None:
        """Let a bucket be warm without anyone having asked, if there is room."""
        has_room = self.keeps_all or self._has_room(known.size_bytes())
        if bucket.has_unloaded and has_room:
            bucket.unread.warm(known)
            self.note_warm(bucket)

    def note_warm(self, bucket: Bucket) -> None:
        """Take care of a bucket that has become warm."""
        self._bytes_max += bucket.unread.known_bytes
        self._wanted.pop(bucket.serial, None)
        self.warm[bucket.serial] = bucket
        if self.next_cooling_ms == NEVER:
            self.next_cooling_ms = -1

    def forget_wait(self) -> None:
        """Look again at once: the clock was put back."""
        self._full_since_ms = None
        self.next_cooling_ms = -1 if self.warm else NEVER

    def _has_room(self, size_bytes: int) -> bool:
        """Whether bitmaps of this size may become warm; they are counted only when their sum may have got too large."""
        if self._bytes_max + size_bytes > WARM_BYTES_MAX:
            known = (bucket.unread for bucket in self.warm.values() if bucket.unread.known is not None)
            self._bytes_max = sum(unread.known_bytes for unread in known)
        return self._bytes_max + size_bytes <= WARM_BYTES_MAX

    def plan(self, lane: Lane, now_ms: int) -> Iterator[ReadPositions]:
        """Yield the reads to start, in the order in which buckets were asked for."""
        self.next_read_ms = NEVER
        self._granted &= self._wanted.keys()
        self._note_room(now_ms)
        self._reads = {serial: bucket for serial, bucket in self._reads.items() if bucket.unread.question is not None}
        unwanted: list[int] = []
        for serial, bucket in self._readable.items():
            if len(self._reads) >= READS_IN_FLIGHT_MAX or lane.is_full:
                break
            if serial not in self._wanted:
                unwanted.append(serial)
            elif bucket.unread.question is None and self._may_start(bucket, lane, now_ms):
                yield self._read_of(bucket)
                lane.started()
                self._reads[serial] = bucket
        for serial in unwanted:
            del self._readable[serial]

    def _may_start(self, bucket: Bucket, lane: Lane, now_ms: int) -> bool:
        starts_at_ms = lane.starts_at_ms(bucket.unread.retry)
        if starts_at_ms > now_ms:
            self.next_read_ms = min(self.next_read_ms, starts_at_ms)
            return False
        return self._is_admitted(bucket, now_ms)

    def _note_room(self, now_ms: int) -> None:
        """Look whether there is room for another one, and since when there is none."""
        if not self._wanted or self.keeps_all or self._has_room(1):
            self._full_since_ms = None
        elif self._full_since_ms is None:
            self._full_since_ms = now_ms

    def _is_admitted(self, bucket: Bucket, now_ms: int) -> bool:
        """Whether a bucket may become warm; without room, one after another, with all that overlap with it."""
        if self._full_since_ms is None or bucket.serial in self._granted:
            return True
        if self._granted:
            return False
        if now_ms < self._full_since_ms + FULL_FOR_MS_MAX:
            self.next_read_ms = min(self.next_read_ms, self._full_since_ms + FULL_FOR_MS_MAX)
            return False
        overlaps = _overlap_with([bucket.ledgers])
        self._granted = frozenset(serial for serial, other in self._wanted.items() if overlaps(other.ledgers))
        self._full_since_ms = now_ms
        return True

    def note_failed(self, bucket: Bucket) -> None:
        """Let a bucket that could not be read hold up no other one that waits for room."""
        self._granted -= {bucket.serial}

    @staticmethod
    def _read_of(bucket: Bucket) -> ReadPositions:
        assert bucket.bucket_id is not None
        assert bucket.table is not None
        first_segment = bucket.table.segments_before(bucket.loaded_spans) + 1
        bucket.unread.question = ReadPositions(bucket.serial, bucket.bucket_id, first_segment)
        return bucket.unread.question

    def cool(self, now_ms: int) -> None:
        """Let go of positions that nobody has asked about for a while."""
        if now_ms < self.next_cooling_ms:
            return
        after_ms = COOL_AFTER_MS if self._full_since_ms is None else COOL_AFTER_MS_WHEN_FULL
        is_needed = _overlap_with(bucket.ledgers for bucket in self._wanted.values())
        for serial, bucket in list(self.warm.items()):
            unread = bucket.unread
            # Who asks about a ledger needs all that have it.
            if unread.is_asked or is_needed(bucket.ledgers):
                unread.is_asked, unread.asked_ms = False, now_ms
            # A clock that is put back must not make it longer.
            unread.asked_ms = min(unread.asked_ms, now_ms)
            is_idle = now_ms - unread.asked_ms >= after_ms and not self.keeps_all and not unread.needs_known
            if not bucket.has_unloaded or is_idle:
                unread.known = None
            if unread.known is None:
                del self.warm[serial]
        step_ms = _COOLING_STEP_MS_WHEN_KEPT if self.keeps_all else _COOLING_STEP_MS
        self.next_cooling_ms = now_ms + step_ms if self.warm else NEVER


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
