"""Hand-out from buckets that overlap, while they are merged: each message once for each time it was added.

Every run has late messages in ledgers that are sealed already, messages that are added again while they are tracked and
after they were handed out, refusals, and a merge under way most of the time, of which the answer comes after some more
messages have been handed out. A dictionary is compared with all that a program may see: the positions that are handed
out, the positions that are tracked where these are known, and that none are remembered once none can come back.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.helpers.core_state import evict_positions, remembered_ledger_count
from tests.helpers.snapshot_work import answer_to
from tracker.shell.snapshot_work import SnapshotWork, StorageWork
from tracker.shell.storage_worker import is_lost, lost_bucket_id

from postdate.testing import FakeCursor, run_inline
from snapshot_storage.encoding.codec import decode_metadata, decode_segments
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.seeds import seeds
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    ActionFailed,
    Event,
    LoadSegments,
    MergeBuckets,
    PutProperty,
    SnapshotCreated,
)
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext

Position = tuple[int, int]

STEPS = 160
LEDGERS = 4


@dataclass
class Run:
    """A tracker's core, the calls that its storage has still to answer, and the rows the tracker should know."""

    chance: Random
    now_ms: int = 1_000
    tracked: dict[Position, int] = field(default_factory=dict)
    """The earliest time that a tracked position may be handed out at."""
    offered: dict[Position, int] = field(default_factory=dict)
    """The earliest time that was ever offered: an old row may still be in a snapshot."""
    gone: list[Position] = field(default_factory=list)
    pending: list[Action] = field(default_factory=list)
    held: list[Event] = field(default_factory=list)
    merges: int = 0
    handed_out_meanwhile: int = 0

    def __post_init__(self) -> None:
        self.config = config = TrackerConfig(
            index_count_per_bucket_min=self.chance.choice([2, 3, 5]),
            segment_row_count_max=self.chance.choice([1, 2, 3]),
            segment_step_ms_max=self.chance.choice([10, 40, 1_000]),
            bucket_count_max=self.chance.choice([1, 2, 3]),
            prefetch_ms=self.chance.choice([0, 10, 60]),
            loaded_row_count_max=self.chance.choice([2, 10, 1_000]),
            is_deliver_at_time_strict=True,
            order_wait_ms_max=-1,
        )
        self.cursor = cursor = FakeCursor()
        self.storage = MemoryBucketSnapshotStorage()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        self.work = SnapshotWork(config, context, StorageWork(self.storage, run_inline))
        self.keeps_positions = self.chance.random() < 0.3
        self.has_late_messages = self.chance.random() < 0.7
        self.tracked_at: dict[int, set[Position]] = {}
        """The positions that were tracked when a merge was planned, by its serial."""
        self.ever_gone: set[Position] = set()
        self.core = self.new_core()

    def new_core(self) -> TrackerCore:
        acknowledged_in, keeps_positions = self.cursor.acknowledged_in, self.keeps_positions
        return TrackerCore(self.config, acknowledged_in=acknowledged_in, rng=Random(1), keeps_positions=keeps_positions)

    # The calls of a program.

    def add(self, position: Position, delay_ms: int) -> None:
        deliver_at_ms = self.now_ms + delay_ms
        assert self.core.add_message(*position, deliver_at_ms, now_ms=self.now_ms)
        self.tracked[position] = min(deliver_at_ms, self.tracked.get(position, deliver_at_ms))
        self.offered[position] = min(deliver_at_ms, self.offered.get(position, deliver_at_ms))

    def add_new(self) -> None:
        entry_id = len(self.offered)
        ledger_id = self.chance.randint(1, LEDGERS) if self.has_late_messages else 1 + entry_id // 3
        self.add((ledger_id, entry_id), self.chance.randint(1, 120))

    def add_again(self) -> None:
        if self.tracked and self.has_late_messages:
            self.add(self.chance.choice(sorted(self.tracked)), self.chance.randint(1, 120))

    def add_after_hand_out(self) -> None:
        if self.gone and self.has_late_messages:
            self.add(self.gone.pop(self.chance.randrange(len(self.gone))), self.chance.randint(1, 120))

    def refuse(self) -> None:
        """A reader of the log offers a tracked message that is due."""
        if self.tracked:
            position = self.chance.choice(sorted(self.tracked))
            assert not self.core.add_message(*position, self.now_ms, now_ms=self.now_ms)
            self.let_go(position)

    def let_go(self, position: Position) -> None:
        del self.tracked[position]
        self.gone.append(position)
        self.ever_gone.add(position)

    def poll(self, limit: int) -> int:
        rows = self.core.pop_due(now_ms=self.now_ms, limit=limit).to_rows()
        assert rows == sorted(rows)
        for time_ms, *rest in rows:
            position = (rest[0], rest[1])
            assert position in self.tracked, f"{position} comes twice"
            assert self.offered[position] <= time_ms <= self.now_ms
            self.let_go(position)
        self.handed_out_meanwhile += len(rows) * any(isinstance(action, MergeBuckets) for action in self.pending)
        return len(rows)

    def ask(self) -> None:
        for ledger_id in self.ledger_ids():
            known = set(self.core.tracked_in(ledger_id) or ())
            is_recovering = self.core.is_recovering(ledger_id)
            self.core.want(ledger_id)
            tracked = {entry_id for ledger, entry_id in self.tracked if ledger == ledger_id}
            assert known <= tracked if is_recovering else known == tracked

    def ledger_ids(self) -> list[int]:
        return sorted({ledger_id for ledger_id, _ in self.offered})

    def cool(self) -> None:
        """No caller has asked for positions for a while."""
        evict_positions(self.core)

    # The answers of the storage.

    def plan(self) -> None:
        while True:
            planned = self.core.plan(now_ms=self.now_ms)
            for action in planned:
                if isinstance(action, MergeBuckets):
                    self.merges += 1
                    self.tracked_at[action.serial] = set(self.tracked)
            self.pending += planned
            if not self.core.has_work:
                return

    async def take_effect(self) -> None:
        """Do what was asked for; the answer comes later."""
        if self.pending:
            self.held.append(await self.event_of(self.pending.pop(self.chance.randrange(len(self.pending)))))

    async def event_of(self, action: Action) -> Event:
        try:
            event = await answer_to(self.work, action)
            if isinstance(action, MergeBuckets) and isinstance(event, SnapshotCreated):
                await self.check_merge(action, event)
            return event
        except SnapshotStorageError as error:
            # Of a bucket that was given up meanwhile.
            return ActionFailed(action, is_lost(error), str(error), lost_bucket_id(error))

    async def check_merge(self, action: MergeBuckets, event: SnapshotCreated) -> None:
        """Tracked positions are stored, unless they were added again since; positions that were handed out are not."""
        stored = await self.positions_in(event.bucket_id)
        tracked = self.tracked_at[action.serial]
        sources = [await self.positions_in(source.bucket_id) for source in action.sources]
        assert set().union(*sources) & tracked - self.ever_gone <= stored
        assert not {one for one in stored - tracked if one[1] not in self.cursor.acknowledged_in(one[0])}

    async def positions_in(self, bucket_id: int) -> set[Position]:
        segments = decode_metadata(await self.storage.get_bucket_snapshot_metadata(bucket_id))
        if not segments:
            return set()
        data = await self.storage.get_bucket_snapshot_segment(bucket_id, 1, len(segments))
        return {(ledger_id, entry_id) for _, ledger_id, entry_id in decode_segments(data, first_entry=1).to_rows()}

    def deliver(self) -> None:
        if self.held:
            self.core.handle(self.held.pop(self.chance.randrange(len(self.held))), now_ms=self.now_ms)

    async def answer(self) -> None:
        """Answer what is no merge, so that there is something to hand out while one is under way."""
        for action in [action for action in self.pending if not isinstance(action, MergeBuckets)]:
            self.pending.remove(action)
            event = await self.event_of(action)
            if isinstance(action, PutProperty) and self.chance.random() < 0.3:
                self.held.append(event)
            else:
                self.core.handle(event, now_ms=self.now_ms)
            self.plan()

    async def rest(self) -> None:
        while self.pending or self.held:
            await self.take_effect()
            self.deliver()
            self.plan()

    async def restart(self) -> None:
        """Stop in good order and start again; messages that were handed out are acknowledged by then."""
        self.core.seal(index_count_min=1)
        self.plan()
        await self.rest()
        for position in self.gone:
            self.cursor.acknowledge(*position)
        self.gone.clear()
        self.core = self.new_core()
        self.core.recover(self.cursor.properties, now_ms=self.now_ms)
        self.plan()
        self.ask_whether_recovering()
        await self.rest()
        self.read_again()

    def ask_whether_recovering(self) -> list[bool]:
        for ledger_id in self.ledger_ids():
            self.core.want(ledger_id)
        are_recovering = [self.core.is_recovering(ledger_id) for ledger_id in self.ledger_ids()]
        self.plan()
        return are_recovering

    def read_again(self) -> None:
        """Offer what the tracker does not know, as a dispatcher does that reads the log after a start."""
        assert not any(self.ask_whether_recovering())
        for position, deliver_at_ms in list(self.tracked.items()):
            if self.core.contains_message(*position):
                continue
            if not self.core.add_message(*position, deliver_at_ms, now_ms=self.now_ms):
                self.let_go(position)

    async def play(self) -> None:
        await self.storage.start()
        for _ in range(STEPS):
            what = self.chance.random()
            if what < 0.30:
                self.add_new()
            elif what < 0.36:
                self.add_again()
            elif what < 0.42:
                self.add_after_hand_out()
            elif what < 0.45:
                self.refuse()
            elif what < 0.58:
                self.now_ms += self.chance.choice([1, 5, 20])
            elif what < 0.72:
                self.poll(self.chance.randint(1, 3))
            elif what < 0.78:
                await self.take_effect()
            elif what < 0.84:
                self.deliver()
            elif what < 0.94:
                await self.answer()
            elif what < 0.96:
                self.cool()
            elif what < 0.98:
                await self.restart()
            else:
                self.ask()
            self.plan()
            self.core.check()
        await self.finish()

    async def finish(self) -> None:
        """All messages come in the end, and then no position is remembered."""
        self.core.seal(index_count_min=1)
        self.plan()
        await self.rest()
        self.ask()
        await self.rest()
        self.ask()
        self.now_ms += 1_000
        for _ in range(200):
            self.plan()
            await self.rest()
            if not self.poll(5) and not self.core.has_work:
                break
        assert self.tracked == {}
        self.plan()
        await self.rest()
        assert self.core.message_count == 0
        assert await self.storage.list_bucket_snapshots() == []
        assert not remembered_ledger_count(self.core)


@pytest.mark.parametrize("seed", seeds())
def test_each_message_comes_once_whatever_is_merged_meanwhile(seed: int) -> None:
    run = Run(Random(seed))
    asyncio.run(run.play())


@pytest.mark.slow
def test_the_runs_hand_out_from_overlapping_buckets_while_these_are_merged() -> None:
    """Half of the seeds merge several times, and a fifth hand out meanwhile, as they are meant to."""
    runs = [Run(Random(seed)) for seed in seeds()]
    for run in runs:
        asyncio.run(run.play())
    assert sum(run.merges > 3 for run in runs) >= len(runs) // 2
    assert sum(run.handed_out_meanwhile > 3 for run in runs) >= len(runs) // 5


async def _sealed(
    delays_ms: Sequence[Sequence[int]],
    *,
    rows_per_bucket: int,
    rows_per_segment: int,
    keeps_positions: bool | None = None,
) -> Run:
    """Begin a run with a ledger of each of these delays; all but the last are sealed and stored."""
    run = Run(Random(0))
    run.config = TrackerConfig(
        index_count_per_bucket_min=rows_per_bucket,
        segment_row_count_max=rows_per_segment,
        bucket_count_max=1,
        prefetch_ms=10,
        is_deliver_at_time_strict=True,
    )
    if keeps_positions is not None:
        run.keeps_positions = keeps_positions
    run.core = run.new_core()
    await run.storage.start()
    for ledger_id, delays in enumerate(delays_ms, start=1):
        for entry_id, delay_ms in enumerate(delays):
            run.add((ledger_id, entry_id), delay_ms)
        run.plan()
    await run.answer()
    await run.answer()
    return run


def test_what_is_handed_out_of_a_merged_bucket_is_remembered_no_longer_than_it_can_come_again() -> None:
    """Buckets that overlap with none: once their merge has loaded what its sources had, nothing is watched."""

    async def story() -> None:
        run = await _sealed(((20, 500), (30, 600), (10_000,)), rows_per_bucket=2, rows_per_segment=2)
        run.plan()
        assert any(isinstance(action, MergeBuckets) for action in run.pending)
        assert remembered_ledger_count(run.core)
        run.now_ms += 40
        run.plan()
        await run.answer()
        assert run.poll(10) == 2
        await run.rest()
        run.plan()
        await run.rest()
        run.plan()
        run.core.check()
        assert not remembered_ledger_count(run.core)
        assert run.core.message_count == 3

    asyncio.run(story())


def test_what_is_handed_out_during_a_merge_does_not_come_from_its_target_again() -> None:
    """Also where no buckets overlap: the target has it in one segment with rows that are still to be loaded."""

    async def story() -> None:
        delays_ms = ((20, 21, 600, 601, 602), (30, 31, 650, 651, 652), (10_000,))
        run = await _sealed(delays_ms, rows_per_bucket=5, rows_per_segment=3)
        run.plan()
        run.now_ms += 40
        run.plan()
        await run.answer()
        assert run.poll(10) == 4
        assert run.handed_out_meanwhile == 4
        # Otherwise it is known which of the target's positions are still to come.
        run.cool()
        await run.rest()
        run.now_ms += 800
        run.plan()
        await run.rest()
        while run.poll(10):
            run.plan()
            await run.rest()
        assert run.tracked.keys() == {(3, 0)}

    asyncio.run(story())


def test_what_a_source_had_loaded_and_handed_out_during_a_merge_does_not_come_from_its_target_again() -> None:
    """Two buckets have a row of one time; the first one's goes out while the other's segment is still being loaded."""

    async def story() -> None:
        run = await _sealed(
            ((20, 300), (30, 300), (10_000,)), rows_per_bucket=2, rows_per_segment=1, keeps_positions=False
        )
        run.now_ms += 40
        run.plan()
        await run.answer()
        assert run.poll(10) == 2
        run.now_ms += 260
        run.plan()
        loads = {one.serial: one for one in run.pending if isinstance(one, LoadSegments)}
        run.pending = [one for one in run.pending if one not in loads.values()]
        run.core.handle(await run.event_of(loads[1]), now_ms=run.now_ms)
        run.plan()

        assert run.poll(10) == 1
        assert run.tracked.keys() == {(2, 1), (3, 0)}
        # Otherwise it is known which of the target's positions are still to come.
        run.cool()
        (merge,) = [one for one in run.pending if isinstance(one, MergeBuckets)]
        run.pending.remove(merge)
        run.core.handle(await run.event_of(merge), now_ms=run.now_ms)
        run.plan()
        await run.rest()
        run.pending.append(loads[2])
        await run.rest()
        while run.poll(10):
            run.plan()
            await run.rest()

        assert run.tracked.keys() == {(3, 0)}

    asyncio.run(story())
