"""Half of the buckets cannot be read for long: the others' messages come all the same, late by the order wait at most.

The obvious rule, that no call starts while some have failed, left one in eight of them undelivered for an hour.
"""

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from pyroaring import BitMap

from snapshot_storage.encoding.columns import DelayedIndexes
from tests.helpers.core_disk import Disk
from tracker.config import TrackerConfig
from tracker.core.actions import Call, CallFailed, LoadSegments, PutName, RemoveName
from tracker.core.tracker_core import TrackerCore

BUCKETS = 300
ROWS = 10
HOUR_MS = 3_600_000
START_MS = 10**9
FIRST_DUE_MS = START_MS + 60_000
CONFIG = TrackerConfig(index_count_per_bucket_min=ROWS)


class UnreadableBuckets:
    """A core with 300 buckets of ten messages each, due within an hour, on a storage that fails.

    Args:
        unreadable_buckets: So many cannot be loaded, ever.
        down_ms: So long after the first message is due the storage answers no call.
    """

    def __init__(self, *, unreadable_buckets: int, down_ms: int) -> None:
        self.now_ms = START_MS
        self.down_until_ms = FIRST_DUE_MS + down_ms
        self.disk = Disk(CONFIG)
        self.unreadable_ids: set[int] = set()
        chance = np.random.default_rng(3)
        for ledger_id in range(BUCKETS):
            times = np.sort(FIRST_DUE_MS + chance.integers(0, HOUR_MS, ROWS))
            rows = DelayedIndexes(times, np.full(ROWS, ledger_id), np.arange(ROWS))
            stored = self.disk.store([rows], {ledger_id: BitMap(range(ROWS))}, rows_max=5_000)
            self.disk.properties[f"#pulsar.internal.delayed.bucket_{ledger_id}_{ledger_id}"] = str(stored.bucket_id)
            if ledger_id < unreadable_buckets:
                self.unreadable_ids.add(stored.bucket_id)
        self.core = TrackerCore(CONFIG, acknowledged_in=self.disk.acknowledged_in, rng=Random(1))
        self.core.recover(self.disk.properties, now_ms=self.now_ms)
        self.failures_by_minute: dict[int, int] = {}

    def _answer(self, call: Call) -> None:
        is_down = FIRST_DUE_MS <= self.now_ms < self.down_until_ms and not isinstance(call, PutName | RemoveName)
        if is_down or (isinstance(call, LoadSegments) and call.bucket_id in self.unreadable_ids):
            minute = self.now_ms // 60_000
            self.failures_by_minute[minute] = self.failures_by_minute.get(minute, 0) + 1
            self.core.handle(call, CallFailed("it does not answer"), now_ms=self.now_ms)
        else:
            self.core.handle(call, self.disk.answer(call), now_ms=self.now_ms)

    def handed_out(self) -> Iterator[tuple[int, int]]:
        """Play two hours; yield ledger and lateness in ms of each message."""
        while self.now_ms < FIRST_DUE_MS + 2 * HOUR_MS:
            while calls := self.core.plan(now_ms=self.now_ms):
                for call in calls:
                    self._answer(call)
            for deliver_at_ms, ledger_id, _ in self.core.pop_due(now_ms=self.now_ms, limit=1_000).to_rows():
                yield ledger_id, self.now_ms - deliver_at_ms
            wakeup_ms = self.core.next_wakeup_ms(now_ms=self.now_ms)
            step_ms = 5_000 if wakeup_ms is None else wakeup_ms - self.now_ms
            self.now_ms += min(max(1, step_ms), 5_000)


@pytest.mark.parametrize("unreadable_buckets", [30, 150, 299])
def test_what_can_be_read_comes_late_by_the_order_wait_at_most(unreadable_buckets: int) -> None:
    outage = UnreadableBuckets(unreadable_buckets=unreadable_buckets, down_ms=0)

    handed_out = list(outage.handed_out())

    assert len(handed_out) == (BUCKETS - unreadable_buckets) * ROWS
    assert min(ledger_id for ledger_id, _ in handed_out) == unreadable_buckets
    assert max(late_ms for _, late_ms in handed_out) <= CONFIG.order_wait_ms_max


def test_while_all_is_down_few_calls_are_made_and_then_everything_comes() -> None:
    outage = UnreadableBuckets(unreadable_buckets=0, down_ms=HOUR_MS)

    handed_out = list(outage.handed_out())

    assert len(handed_out) == BUCKETS * ROWS
    # The first minute has the first try of each bucket that is due in it, the last one the end.
    failures = sorted(outage.failures_by_minute.values())
    assert failures[len(failures) // 2] <= 20, failures
    assert max(late_ms for _, late_ms in handed_out) <= HOUR_MS + 2 * CONFIG.retry_backoff_ms_max
