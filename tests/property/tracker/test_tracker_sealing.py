"""Rows of any ledger ids get into a snapshot, and memory holds no more than the mutable bucket."""

import asyncio
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postdate.testing import FakeCursor, run_inline
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.tracker_calls import answer_to
from tracker.columns.positions import LEDGER_ID_MAX
from tracker.config import TrackerConfig
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.tracker_calls import InThreads, TrackerCalls

LEDGERS = st.one_of(st.integers(0, 3), st.integers(0, LEDGER_ID_MAX))
RUNS = st.lists(st.tuples(LEDGERS, st.integers(1, 9)), min_size=1, max_size=40)
DUE_MS = 10_000_000


class SealingWorld:
    """A core whose actions are answered at once."""

    def __init__(self, loop: asyncio.Runner, cap: int) -> None:
        self.loop = loop
        self.config = TrackerConfig(index_count_per_bucket_min=3, index_count_per_bucket_max=cap)
        self.cursor = FakeCursor()
        self.storage = MemoryBucketSnapshotStorage()
        loop.run(self.storage.start())
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=lambda: None)
        self.work = TrackerCalls(self.config, context, self.storage, InThreads(run_inline))
        self.core = self.new_core()

    def new_core(self) -> TrackerCore:
        core = TrackerCore(self.config, acknowledged_in=self.cursor.acknowledged_in, rng=Random(1))
        core.recover(self.cursor.properties, now_ms=0)
        return core

    def settle(self, core: TrackerCore) -> None:
        while actions := core.plan(now_ms=0):
            for action in actions:
                core.handle(action, self.loop.run(answer_to(self.work, action)), now_ms=0)


@pytest.mark.slow
# The range from the first ledger to the last one has one name, which two buckets would need.
@example(runs=[(0, 1), (LEDGER_ID_MAX, 1), (0, 2), (LEDGER_ID_MAX, 1)] * 3, cap=3, is_batched=False, chance=Random(1))
@example(runs=[(0, 1), (LEDGER_ID_MAX, 1), (0, 2), (LEDGER_ID_MAX, 1)] * 3, cap=7, is_batched=True, chance=Random(1))
@given(runs=RUNS, cap=st.sampled_from([3, 4, 7]), is_batched=st.booleans(), chance=st.randoms())
def test_with_a_cap_every_row_gets_into_a_snapshot(
    runs: list[tuple[int, int]], cap: int, is_batched: bool, chance: Random
) -> None:
    """Small ids, large ones, late ones, one ledger in a hundred pieces: in memory are at most `cap` rows.

    And all of it comes back, though ranges overlap and properties are in any order.
    """
    positions: list[tuple[int, int]] = []
    with asyncio.Runner() as loop:
        world = SealingWorld(loop, cap)
        for ledger_id, row_count in runs:
            rows = [(ledger_id, len(positions) + number) for number in range(row_count)]
            positions += rows
            if is_batched:
                world.core.add_messages(*zip(*rows, strict=True), [DUE_MS] * row_count, now_ms=0)
            else:
                for position in rows:
                    world.core.add_message(*position, DUE_MS, now_ms=0)
            world.settle(world.core)
            assert world.core.loaded_row_count <= cap

        world.core.seal(index_count_min=1)
        world.settle(world.core)
        assert world.core.loaded_row_count == 0
        properties = list(world.cursor.properties.items())
        chance.shuffle(properties)
        world.cursor.properties = dict(properties)
        again = world.new_core()
        world.settle(again)
        while any(again.is_recovering(ledger_id) for ledger_id, _ in positions):
            world.settle(again)

    assert again.tracked.count == len(positions)
    assert all(again.contains_message(*position) for position in positions)
