"""When storage calls may start: how many at once, and how patiently after failures.

There is one lane for each thing that can be down by itself: segments, metadata, other reads of the snapshot storage,
creates, deletes (a full disk refuses the second alone), and the cursor's properties. After a few failures in a row a
lane sends one call at a time, and waits longer after each; the first success opens it again. So what is down for an
hour costs a handful of calls a minute, whatever number of buckets wait for it and whatever else goes well.

Where some buckets fail and others do not, each of the former waits by itself (`Retry`). A failure says that the lane is
down only if nothing has succeeded since the same bucket failed before; and when one call at a time is sent, who has
failed least is tried first. So those that fail cannot keep the lane from the others.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from tracker.columns.row_queue import NEVER
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    DeleteSnapshot,
    Event,
    LoadSegments,
    MergeBuckets,
    MetadataRead,
    PersistBucket,
    PropertyPut,
    PropertyRemoved,
    PutProperty,
    ReadMetadata,
    RemoveProperty,
    SegmentsLoaded,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotIsAlien,
)
from tracker.core.bucket import Bucket, BucketState
from tracker.core.retry import Retry, backoff_ms

FAILURES_BEFORE_PROBING: Final = 3
"""One failing call may be the fault of one bucket; so many in a row are the storage's."""

METADATA_PER_CALL: Final = 8
"""Of so many buckets the metadata may be in flight for each other call: the shell reads that of several at once."""

FIRST_TRY_WAIT_MS_MAX: Final = 7_500
"""A load that has not failed yet waits no longer while loads seem to be down: its messages may be such that come."""


class Lane:
    """Counts calls in flight and failures, and holds the buckets whose state needs a call of this kind."""

    def __init__(
        self, config: TrackerConfig, rng: Random, first_try_wait_ms_max: int = NEVER, *, buckets_per_call: int = 1
    ) -> None:
        self._config = config
        self._in_flight_max = config.operations_in_flight_max * buckets_per_call
        self._rng = rng
        self._first_try_wait_ms_max = first_try_wait_ms_max
        self._failures = 0
        self._successes = 0
        self._failed_at_ms = -1
        self._was_down = False
        """The thing behind the lane seemed to be down, and no call that had failed has succeeded since."""
        self._wait_ms = 0
        self.in_flight = 0
        self.work: dict[int, Bucket] = {}
        """Buckets whose state has an action of this lane, by serial, in the order in which they came to it."""

    @property
    def is_probing(self) -> bool:
        """Whether the thing behind the lane seems to be down."""
        return self._failures >= FAILURES_BEFORE_PROBING

    @property
    def is_full(self) -> bool:
        """Whether only an answer makes room for another call."""
        return self.in_flight >= (1 if self.is_probing else self._in_flight_max)

    def starts_at_ms(self, retry: Retry) -> int:
        """Return when a call may start, `NEVER` if only an answer to another one makes room."""
        if self.is_full:
            return NEVER
        if not self.is_probing:
            return retry.at_ms
        # A little less for who has failed less.
        wait_ms = self._wait_ms - self._wait_ms // (8 * (retry.attempts + 1))
        if not retry.attempts:
            wait_ms = min(wait_ms, self._first_try_wait_ms_max)
        return max(retry.at_ms, self._failed_at_ms + wait_ms)

    def started(self) -> None:
        """Note that a call was started."""
        self.in_flight += 1

    def succeeded(self, *, had_failed: bool = False) -> bool:
        """Note that a call came back, one that had failed before or not; return whether an outage has ended with it.

        It has not while all that succeeds had never failed: then some buckets can be read, and others cannot.
        """
        has_ended = self._was_down and had_failed
        self._was_down = self._was_down and not had_failed
        self.in_flight -= 1
        self._failures = 0
        self._successes += 1
        assert self.in_flight >= 0
        return has_ended

    def refused(self, retry: Retry, now_ms: int) -> None:
        """Note that a call came back in vain: what it needs is not there."""
        self.succeeded()
        self._put_off(retry, now_ms)

    def failed(self, retry: Retry, now_ms: int) -> None:
        """Note that a call failed, and when it is to be tried again."""
        self.in_flight -= 1
        assert self.in_flight >= 0
        is_alone = retry.attempts > 0 and retry.successes_before != self._successes
        self._put_off(retry, now_ms)
        # Of calls that were sent together, some say as much as all.
        if is_alone or (self.is_probing and self.in_flight):
            return
        self._failures += 1
        self._failed_at_ms = now_ms
        self._was_down = self._was_down or self.is_probing
        if self.is_probing:
            attempts = self._failures - FAILURES_BEFORE_PROBING + 1
            self._wait_ms = backoff_ms(self._config, attempts, self._rng)

    def _put_off(self, retry: Retry, now_ms: int) -> None:
        retry.attempts += 1
        retry.at_ms = now_ms + backoff_ms(self._config, retry.attempts, self._rng)
        retry.successes_before = self._successes

    def forget_wait(self) -> None:
        """Let the next call start at once."""
        self._failed_at_ms = -1
        self._wait_ms = 0


class Lanes:
    """The lanes of one tracker."""

    def __init__(self, config: TrackerConfig, rng: Random) -> None:
        self.loads = Lane(config, rng, FIRST_TRY_WAIT_MS_MAX)
        self.metadata = Lane(config, rng, buckets_per_call=METADATA_PER_CALL)
        self.reads, self.creates, self.deletes, self.properties = (Lane(config, rng) for _ in range(4))
        self.all = (self.loads, self.metadata, self.reads, self.creates, self.deletes, self.properties)

    def of_state(self, state: BucketState) -> Lane:
        """Return the lane of a state's action."""
        match state:
            case BucketState.SEALING | BucketState.MERGING:
                return self.creates
            case BucketState.DELETING:
                return self.deletes
            case BucketState.REGISTERING | BucketState.UNREGISTERING:
                return self.properties
            case BucketState.RECOVERING:
                return self.metadata
            case _:
                return self.reads

    def of(self, call: Action | Event) -> Lane:
        """Return the lane of an action, or of its answer if it did not fail."""
        match call:
            case LoadSegments() | SegmentsLoaded():
                return self.loads
            case PersistBucket() | MergeBuckets() | SnapshotCreated():
                return self.creates
            case DeleteSnapshot() | SnapshotDeleted():
                return self.deletes
            case PutProperty() | RemoveProperty() | PropertyPut() | PropertyRemoved():
                return self.properties
            case ReadMetadata() | MetadataRead() | SnapshotIsAlien():
                return self.metadata
            case _:
                return self.reads

    def forget(self, serial: int) -> None:
        """Let a bucket be in no lane."""
        for lane in self.all:
            lane.work.pop(serial, None)

    def waiting(self) -> Iterator[Bucket]:
        """Yield the buckets whose state has an action."""
        return (bucket for lane in self.all for bucket in tuple(lane.work.values()))
