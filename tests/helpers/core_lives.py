"""Random lives of a tracker's core, on a storage that fails and answers late, by a clock that jumps.

A life is the same for the same seed. At each step the core is checked, and no wanted work may be without a timer.
"""

import asyncio
from dataclasses import replace
from random import Random
from typing import Final, get_args

from pyroaring import BitMap

from postdate.testing import FakeCursor, run_inline
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.forgotten_timers import assert_nothing_forgotten
from tests.helpers.snapshot_work import answer_to
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    ActionFailed,
    Event,
    LoadSegments,
    MergeBuckets,
    MetadataRead,
    PersistBucket,
    ReadMetadata,
    ReadPositions,
    SegmentsLoaded,
)
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_work import SnapshotWork, StorageWork
from tracker.shell.storage_worker import is_lost, lost_bucket_id

CONFIG: Final = TrackerConfig(
    index_count_per_bucket_min=3,
    tick_time_ms=5,
    segment_step_ms_max=20,
    segment_row_count_max=2,
    prefetch_ms=15,
    retry_backoff_ms_min=5,
    retry_backoff_ms_max=40,
    operation_timeout_ms=500,
)
KINDS: Final = (*get_args(Action), *(LoadSegments, ReadPositions, ReadMetadata, MergeBuckets) * 2)


class RandomLife:
    """One random life of a core, which is checked at each step."""

    def __init__(self, runner: asyncio.Runner, seed: int) -> None:
        self.runner = runner
        self.rng = rng = Random(seed)
        self.config = replace(
            CONFIG,
            bucket_count_max=rng.choice([-1, 1, 2, 3]),
            loaded_row_count_max=rng.choice([1, 4, 1_000]),
            order_wait_ms_max=rng.choice([-1, 0, 60]),
            operations_in_flight_max=rng.choice([1, 2, 16]),
            is_deliver_at_time_strict=rng.random() < 0.7,
        )
        self.ledgers = rng.choice([4, 8, 8, 24])
        self.failing = dict.fromkeys(KINDS, rng.choice([0, 0.1, 0.5]))
        for _ in range(rng.randrange(3)):
            self.failing[rng.choice(KINDS)] = 0.9
        self.has_stale_rows = rng.random() < 0.2
        self.reads_apart = rng.random() < 0.5
        """Whether metadata come without the positions, as those of a large snapshot do."""
        self.keeps_positions = rng.random() < 0.25
        self.cached_bytes_max = rng.choice([1, 100, 1 << 20])
        self.reads_ahead = rng.random() < 0.4
        self.now_ms = 10**9
        self.storage = MemoryBucketSnapshotStorage()
        runner.run(self.storage.start())
        self.cursor = FakeCursor()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=lambda: None)
        self.work = SnapshotWork(self.config, context, StorageWork(self.storage, run_inline))
        self.entries: dict[int, int] = {}
        self.late: list[tuple[Action, int]] = []
        """Creates that have failed for the core, and are still on their way to the storage."""
        self.begin()

    def begin(self) -> None:
        self.core = TrackerCore(
            self.config,
            acknowledged_in=self.cursor.acknowledged_in,
            rng=Random(1),
            keeps_positions=self.keeps_positions,
            cached_bytes_max=self.cached_bytes_max,
            reads_ahead=self.reads_ahead,
        )
        self.pending: list[Action] = []
        self.late.clear()
        self.core.trim(self.cursor.mark_delete_position.ledger_id)
        self.core.recover(dict(self.cursor.properties), now_ms=self.now_ms)

    def live(self, steps: int) -> None:
        """Do so many things, then let all come to rest."""
        for _ in range(steps):
            step = self.rng.choice(self.STEPS)
            step(self)
            self.look()
        self.come_to_rest()

    def look(self) -> None:
        self.core.check(self.pending)
        for _ in range(5):
            self.pending += self.core.plan(now_ms=self.now_ms)
            if not self.core.has_work:
                break
        self.core.check(self.pending)
        assert_nothing_forgotten(self.core, self.now_ms, self.cursor)

    # Steps of a life.

    def add(self) -> None:
        ledger_id = self.rng.randrange(self.ledgers)
        for _ in range(self.rng.randrange(1, 8)):
            entry_id = self.entries.get(ledger_id, 0)
            self.entries[ledger_id] = entry_id + 1
            delay_ms = self.rng.choice([0, 10, 20, 40, 90, 300, 1_000, 20_000])
            self.core.add_message(ledger_id, entry_id, self.now_ms + delay_ms, self.now_ms)

    def offer_again(self) -> None:
        ledger_id = max(self.rng.randrange(self.ledgers), self.cursor.mark_delete_position.ledger_id)
        if self.entries.get(ledger_id):
            entry_id = self.rng.randrange(self.entries[ledger_id])
            self.core.add_message(ledger_id, entry_id, self.now_ms + self.rng.choice([-1, 30]), self.now_ms)

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 5, 20, 20, 60, 200, 600, 1_100, 12_000])

    def go_on(self) -> None:
        wakeup_ms = self.core.next_wakeup_ms(now_ms=self.now_ms)
        if wakeup_ms is not None and wakeup_ms < self.now_ms + 60_000:
            self.now_ms = max(self.now_ms, wakeup_ms)

    def put_clock_back(self) -> None:
        if self.rng.random() < 0.4:
            back_ms = self.rng.choice([1, 50, 1_000, 30_000])
            self.now_ms -= back_ms
            self.late = [(action, until_ms - back_ms) for action, until_ms in self.late]

    def poll(self) -> None:
        rows = self.core.pop_due(now_ms=self.now_ms, limit=self.rng.choice([1, 3, 100]))
        for ledger_id, entry_id in zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True):
            self.acknowledge_at_cursor(ledger_id, entry_id)

    def acknowledge_at_cursor(self, ledger_id: int, entry_id: int) -> None:
        if self.rng.random() < 0.7:
            self.cursor.acknowledge(ledger_id, entry_id)

    def acknowledge(self) -> None:
        ledger_id = self.rng.randrange(self.ledgers)
        if self.entries.get(ledger_id):
            entry_id = self.rng.randrange(self.entries[ledger_id])
            self.cursor.acknowledge(ledger_id, entry_id)
            self.core.note_acknowledged(ledger_id, BitMap([entry_id]))

    def read(self) -> None:
        if self.reads_ahead:
            # The program of this life announces nothing.
            return
        for ledger_id in self.rng.sample(range(self.ledgers), self.rng.choice([1, self.ledgers])):
            self.core.want(ledger_id)

    def trim(self) -> None:
        if self.rng.random() < 0.15:
            self.core.trim(self.rng.randrange(self.ledgers // 2))

    def pass_through(self) -> None:
        if self.rng.random() < 0.15:
            self.core.pass_through(self.rng.randrange(self.ledgers // 2), self.rng.randrange(4))

    def clear(self) -> None:
        if self.rng.random() < 0.05:
            self.core.clear()

    def set_tick_time(self) -> None:
        if self.rng.random() < 0.3:
            self.core.set_tick_time(self.rng.choice([0, 5, 100]))

    def seal(self) -> None:
        if self.rng.random() < 0.3:
            self.core.seal(index_count_min=1)

    def start_again(self) -> None:
        if self.rng.random() < 0.3:
            self.begin()

    def answer(self) -> None:
        """Let one action run or fail; some creates take effect only after they have failed."""
        if not self.pending:
            return
        action = self.pending.pop(self.rng.randrange(len(self.pending)))
        if self.rng.random() >= self.failing.get(type(action), 0):
            self.core.handle(self.run(action), now_ms=self.now_ms)
            return
        if self.rng.random() < 0.5 and not isinstance(action, PersistBucket | MergeBuckets):
            self.run(action)
        elif isinstance(action, PersistBucket | MergeBuckets):
            self.late.append((action, self.now_ms + self.config.operation_timeout_ms))
        is_lost = isinstance(action, LoadSegments | ReadPositions | ReadMetadata) and self.rng.random() < 0.1
        self.core.handle(ActionFailed(action, is_lost, "down"), now_ms=self.now_ms)

    def answer_all(self) -> None:
        for _ in range(len(self.pending)):
            self.answer()

    def run(self, action: Action) -> Event:
        try:
            answer = self.runner.run(answer_to(self.work, action))
        except Exception as error:
            return ActionFailed(action, is_lost(error), str(error), lost_bucket_id(error))
        if self.reads_apart and isinstance(answer, MetadataRead):
            return replace(answer, positions=None)
        if self.has_stale_rows and isinstance(answer, SegmentsLoaded):
            # As from a merge of Pulsar's: the last row has no bit of its own.
            rows = answer.rows
            stale = DelayedIndexes(rows.deliver_at_ms[-1:], rows.ledger_ids[-1:], rows.entry_ids[-1:] + 1_000)
            return replace(answer, rows=DelayedIndexes.concatenate([rows, stale]))
        return answer

    def late_create(self) -> None:
        """A storage gives up a call when its time is over, as the core does, and no sooner."""
        if self.late:
            action, until_ms = self.late.pop()
            if self.now_ms < until_ms:
                self.run(action)

    STEPS = (
        *(add,) * 4,
        *(answer,) * 6,
        *(answer_all,) * 3,
        *(pass_time,) * 3,
        *(go_on,) * 2,
        *(poll,) * 3,
        *(acknowledge,) * 2,
        offer_again,
        *(read,) * 2,
        trim,
        pass_through,
        clear,
        set_tick_time,
        seal,
        start_again,
        late_create,
        put_clock_back,
    )

    def come_to_rest(self) -> None:
        """Let nothing fail any more; time goes on from timer to timer."""
        self.failing.clear()
        while self.late:
            self.late_create()
        for _ in range(400):
            self.answer_all()
            self.look()
            while len(self.core.pop_due(now_ms=self.now_ms, limit=100)):
                self.look()
            self.look()
            if self.pending or self.core.has_work:
                continue
            wakeup_ms = self.core.next_wakeup_ms(now_ms=self.now_ms)
            if wakeup_ms is None or wakeup_ms > self.now_ms + 100_000:
                break
            self.now_ms = max(self.now_ms, wakeup_ms)
        self.core.check(self.pending)
        stored = {one.bucket_id for one in self.runner.run(self.storage.list_bucket_snapshots("t"))}
        assert stored <= {int(one) for one in self.cursor.properties.values()}, "an orphan is left"
