"""When storage calls may start: how many at once, and how patiently after failures.

There is one lane for each thing that can be down by itself: reads of the snapshot storage, creates, deletes (a full
disk refuses the second alone), and the cursor's properties. After a few failures in a row a lane sends one call at a
time, and waits longer after each; the first success opens it again. So what is down for an hour costs two or three
calls a minute, whatever number of buckets wait for it and whatever else goes well.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from tracker.actions import (
    Action,
    DeleteSnapshot,
    Event,
    MergeBuckets,
    PersistBucket,
    PropertyPut,
    PropertyRemoved,
    PutProperty,
    RemoveProperty,
    SnapshotCreated,
    SnapshotDeleted,
)
from tracker.buckets import Bucket, BucketState
from tracker.config import TrackerConfig
from tracker.due_queue import NEVER

FAILURES_BEFORE_PROBING: Final = 3
"""One failing call may be the fault of one bucket; so many in a row are the storage's."""


def backoff_ms(config: TrackerConfig, attempts: int, rng: Random) -> int:
    """Return how long to wait after this many failures: doubled each time, with a jitter of up to a half."""
    wait_ms = min(config.retry_backoff_ms_max, config.retry_backoff_ms_min << min(attempts - 1, 30))
    return wait_ms - rng.randrange(wait_ms // 2 + 1)


class Lane:
    """Counts calls in flight and failures, and holds the buckets whose state needs a call of this kind."""

    def __init__(self, config: TrackerConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._failures = 0
        self._probe_at_ms = -1
        self.in_flight = 0
        self.work: dict[int, Bucket] = {}
        """Buckets whose state has an action of this lane, by serial, in the order in which they came to it."""

    @property
    def is_probing(self) -> bool:
        """Whether the thing behind the lane seems to be down."""
        return self._failures >= FAILURES_BEFORE_PROBING

    def has_room(self, now_ms: int) -> bool:
        """Whether a call may start now."""
        if self.is_probing:
            return self.in_flight == 0 and now_ms >= self._probe_at_ms
        return self.in_flight < self._config.operations_in_flight_max

    def started(self) -> None:
        """Note that a call was started."""
        self.in_flight += 1

    def succeeded(self) -> None:
        """Note that a call came back."""
        self.in_flight -= 1
        self._failures = 0
        assert self.in_flight >= 0

    def failed(self, now_ms: int) -> None:
        """Note that a call failed."""
        self.in_flight -= 1
        self._failures += 1
        assert self.in_flight >= 0
        if self.is_probing:
            attempts = self._failures - FAILURES_BEFORE_PROBING + 1
            self._probe_at_ms = now_ms + backoff_ms(self._config, attempts, self._rng)

    def forget_wait(self) -> None:
        """Let the next call start at once."""
        self._probe_at_ms = -1

    def earliest_start_ms(self) -> int:
        """Return when a call may start, `NEVER` if only an answer to another one makes room."""
        if self.is_probing:
            return NEVER if self.in_flight else self._probe_at_ms
        return -1 if self.in_flight < self._config.operations_in_flight_max else NEVER


class Lanes:
    """The lanes of one tracker."""

    def __init__(self, config: TrackerConfig, rng: Random) -> None:
        self.reads, self.creates, self.deletes, self.properties = (Lane(config, rng) for _ in range(4))
        self.all = (self.reads, self.creates, self.deletes, self.properties)

    def of_state(self, state: BucketState) -> Lane:
        """Return the lane of a state's action."""
        match state:
            case BucketState.SEALING | BucketState.MERGING:
                return self.creates
            case BucketState.DELETING:
                return self.deletes
            case BucketState.REGISTERING | BucketState.UNREGISTERING:
                return self.properties
            case _:
                return self.reads

    def of(self, call: Action | Event) -> Lane:
        """Return the lane of an action, or of its answer if it did not fail."""
        match call:
            case PersistBucket() | MergeBuckets() | SnapshotCreated():
                return self.creates
            case DeleteSnapshot() | SnapshotDeleted():
                return self.deletes
            case PutProperty() | RemoveProperty() | PropertyPut() | PropertyRemoved():
                return self.properties
            case _:
                return self.reads

    def forget(self, serial: int) -> None:
        """Let a bucket be in no lane."""
        for lane in self.all:
            lane.work.pop(serial, None)

    def waiting(self) -> Iterator[Bucket]:
        """Yield the buckets whose state has an action."""
        return (bucket for lane in self.all for bucket in tuple(lane.work.values()))
