"""When a call may start: how many at once, and how patiently after failures.

Reads of the storage, writes to it and writes to the cursor have a lane each, as each can be down by itself. First tries
always start. Retries go one at a time, that of the bucket which has failed least first, after a wait that doubles up to
a limit; one retry that succeeds lets all go at once. So a storage that is down for an hour costs a handful of calls a
minute, and buckets that cannot be read keep none of the others waiting.
"""

import heapq
from collections.abc import Callable
from random import Random

from snapshot_storage.backoff import backoff_ms
from tracker.columns.row_order import NEVER, RowKey
from tracker.config import TrackerConfig
from tracker.core.actions import Call

IsWaiting = Callable[[int, RowKey], bool]
"""Whether a bucket, by its serial, still waits for the call that it was queued for with this key."""


class Lane:
    """The calls of one kind: which wait, which may start.

    Args:
        config: How many calls at once, and how long to wait after failures.
        rng: For the jitter of the waits.
    """

    __slots__ = (
        "_config",
        "_failures",
        "_first_tries",
        "_retries",
        "_retry",
        "_rng",
        "in_flight",
        "retry_at_ms",
        "stuck_since_ms",
    )

    def __init__(self, config: TrackerConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self.in_flight = 0
        self._first_tries: list[tuple[RowKey, int]] = []
        """A heap by key and serial. Here and below, a bucket that has gone on is left until it comes up."""
        self._retries: list[tuple[int, RowKey, int]] = []
        """A heap by failures, key and serial."""
        self._retry: Call | None = None
        """The retry in flight."""
        self._failures = 0
        """How many retries have failed in a row, and the call before them."""
        self.retry_at_ms = -1
        """When the next retry may start."""
        self.stuck_since_ms: int | None = None
        """Since when first tries wait for the calls in flight, none of which has succeeded meanwhile."""

    @property
    def is_full(self) -> bool:
        """Whether only an answer makes room for another call."""
        return self.in_flight >= self._config.operations_in_flight_max

    @property
    def is_failing(self) -> bool:
        """Whether a call that has failed is still to be made."""
        return bool(self._retries) or self._retry is not None

    def failed_serials(self) -> list[int]:
        """Return the buckets whose failed call waits for another try; some may have gone on."""
        return [serial for _, _, serial in self._retries]

    def want(self, serial: int, key: RowKey, failures: int) -> None:
        """Queue a bucket for its call: the lowest key goes first."""
        if failures:
            heapq.heappush(self._retries, (failures, key, serial))
        else:
            heapq.heappush(self._first_tries, (key, serial))

    def next_first_try(self, is_waiting: IsWaiting) -> int | None:
        """Return the bucket whose first try is next, None if none waits; it stays queued."""
        while self._first_tries:
            key, serial = self._first_tries[0]
            if is_waiting(serial, key):
                return serial
            heapq.heappop(self._first_tries)
        return None

    def start_first_try(self) -> None:
        """Count the first try that is next as started."""
        heapq.heappop(self._first_tries)
        self.in_flight += 1

    def next_retry(self, is_waiting: IsWaiting, now_ms: int) -> int | None:
        """Return the bucket whose retry may start now, None if there is none; it stays queued."""
        if self._retry is not None or now_ms < self.retry_at_ms or self.is_full:
            return None
        while self._retries:
            _, key, serial = self._retries[0]
            if is_waiting(serial, key):
                return serial
            heapq.heappop(self._retries)
        return None

    def start_retry(self, call: Call) -> None:
        """Count the retry that is next as started."""
        heapq.heappop(self._retries)
        self._retry = call
        self.in_flight += 1

    def count_success(self, call: Call) -> bool:
        """Count a call as answered; if it was a retry, all others may go at once. Return whether it was."""
        self.in_flight -= 1
        self.stuck_since_ms = None
        if call is not self._retry:
            return False
        self._retry = None
        self.end_waits()
        return True

    def count_failure(self, call: Call, now_ms: int) -> None:
        """Count a call as failed; the next retry waits longer if this was one."""
        self.in_flight -= 1
        if not self.is_failing:
            self._failures = 0
        elif call is not self._retry:
            return
        self._retry = None
        self._failures += 1
        config = self._config
        self.retry_at_ms = now_ms + backoff_ms(
            self._failures, min_ms=config.retry_backoff_ms_min, max_ms=config.retry_backoff_ms_max, chance=self._rng
        )

    def end_waits(self) -> None:
        """Let all retries go at once, as first tries."""
        for _, key, serial in self._retries:
            heapq.heappush(self._first_tries, (key, serial))
        self._retries = []
        self._failures, self.retry_at_ms = 0, -1

    def next_look_ms(self) -> int:
        """Return when a retry may start that has only to wait, `NEVER` if there is none."""
        return self.retry_at_ms if self._retries and self._retry is None and not self.is_full else NEVER

    def first_key(self) -> RowKey | None:
        """Return the key of the first try that is next, None if none waits or only an answer makes room."""
        return self._first_tries[0][0] if self._first_tries and not self.is_full else None
