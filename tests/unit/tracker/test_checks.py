"""Values that are kept for speed, and timers of wanted work, are compared with the state: a wrong one is noticed."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from random import Random

import pytest

from postdate.testing import FakeCursor, run_inline
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.core_state import evict_positions, state_of
from tests.helpers.snapshot_work import answer_to
from tracker.columns.ledger_ranges import LedgerRanges
from tracker.columns.row_order import NEVER
from tracker.config import TrackerConfig
from tracker.core.actions import Action, ActionFailed, LoadSegments
from tracker.core.bucket import Bucket
from tracker.core.circuit_breakers import BUCKETS_PER_CALL
from tracker.core.state import TrackerState
from tracker.core.timers import Why
from tracker.core.tracker_core import TrackerCore
from tracker.core.transitions.deleting import REMOVALS_MAX
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_work import SnapshotWork, StorageWork

CONFIG = TrackerConfig(
    index_count_per_bucket_min=4,
    bucket_count_max=4,
    segment_step_ms_max=10,
    segment_row_count_max=2,
    prefetch_ms=20,
    loaded_row_count_max=4,
    is_deliver_at_time_strict=True,
)


class SpoiledCore:
    """A core with five sealed buckets, of which one overlaps, one is cached, and one is being loaded."""

    def __init__(self, runner: asyncio.Runner, config: TrackerConfig = CONFIG, *, ledgers: int = 6) -> None:
        storage = MemoryBucketSnapshotStorage()
        self.runner = runner
        runner.run(storage.start())
        cursor = FakeCursor()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        self.work = SnapshotWork(config, context, StorageWork(storage, run_inline))
        self.core = TrackerCore(config, acknowledged_in=cursor.acknowledged_in, rng=Random(1))
        self.state: TrackerState = state_of(self.core)
        self.now_ms = 1_000
        self.pending: list[Action] = []
        self.core.recover({}, now_ms=self.now_ms)
        for ledger_id in range(ledgers):
            for entry_id in range(8):
                self.core.add_message(ledger_id, entry_id, 5_000 + ledger_id * 100 + entry_id * 15, self.now_ms)
            self.answer_all()
        # A late message of a sealed ledger.
        self.core.add_message(1, 100, 9_000, self.now_ms)
        self.now_ms = 4_990
        self.core.want(4)
        self.answer_all(but=LoadSegments)
        self.check()

    def answer_all(self, but: type[Action] | None = None) -> None:
        self.pending += self.core.plan(now_ms=self.now_ms)
        while ready := [action for action in self.pending if but is None or not isinstance(action, but)]:
            self.pending.remove(ready[0])
            self.core.handle(self.runner.run(answer_to(self.work, ready[0])), now_ms=self.now_ms)
            self.pending += self.core.plan(now_ms=self.now_ms)

    def check(self) -> None:
        self.core.check(self.pending)

    def bucket(self, is_it: Callable[[Bucket], object]) -> Bucket:
        return next(bucket for bucket in self.state.buckets.values() if is_it(bucket))


@pytest.fixture
def world() -> Iterator[SpoiledCore]:
    with asyncio.Runner() as runner:
        yield SpoiledCore(runner)


def _loading(world: SpoiledCore) -> Bucket:
    return world.bucket(lambda bucket: bucket.load is not None)


def _with_other_rows(load: LoadSegments | None) -> LoadSegments:
    assert load is not None
    return dataclasses.replace(load, row_count=99)


def _cached(world: SpoiledCore) -> Bucket:
    return world.bucket(lambda bucket: bucket.is_cached)


def _let_a_load_fail(world: SpoiledCore) -> None:
    action = next(one for one in world.pending if isinstance(one, LoadSegments))
    world.pending.remove(action)
    world.core.handle(ActionFailed(action, False, "down"), now_ms=world.now_ms)


def _spoil_tries(world: SpoiledCore) -> None:
    _let_a_load_fail(world)
    world.state.loads.forget_waits()
    world.check()
    world.state.loads._tries = []  # noqa: SLF001, spoiled on purpose


SPOILS: dict[str, Callable[[SpoiledCore], object]] = {
    "no barrier": lambda world: setattr(world.state.barriers, "_holding_up", []),
    "a waived barrier": lambda world: setattr(world.state.barriers, "_waived", {1: None}),
    "overlaps": lambda world: setattr(world.state.positions.overlapping, "_ledgers", {}),
    "overlapping ranges": lambda world: setattr(world.state.positions.overlapping, "_ranges", LedgerRanges()),
    "a cached bucket": lambda world: setattr(_cached(world), "is_cached", False),
    "cached positions": lambda world: world.state.positions.cached.clear(),
    "mutable ledgers": lambda world: setattr(world.state.mutable, "last_ledger_id", 0),
    "tries": _spoil_tries,
    "rows to come": lambda world: setattr(world.state.loads, "row_count", world.state.loads.row_count + 1),
    "calls in flight": lambda world: world.state.calls.loads.started(),
    "reads in flight": lambda world: world.state.calls.reads.started(),
    "cached bytes": lambda world: setattr(_cached(world), "cached_bytes", 0),
    "rows of a load": lambda world: setattr(_loading(world), "load", _with_other_rows(_loading(world).load)),
    "unloaded": lambda world: setattr(world.state, "unloaded_count", world.state.unloaded_count + 1),
    "held rows": lambda world: setattr(world.state, "held_row_count", 5),
    "cached buckets": lambda world: world.state.cache.buckets.clear(),
    "keys": lambda world: world.state.keys.clear(),
    "earliest timer": lambda world: setattr(world.state.timers, "earliest_ms", NEVER),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_value_that_is_not_what_it_follows_from_is_noticed(world: SpoiledCore, name: str) -> None:
    SPOILS[name](world)

    with pytest.raises(AssertionError):
        world.check()


def _let_all_be_handed_out(world: SpoiledCore) -> None:
    world.answer_all()
    world.now_ms = 20_000
    while Why.EXHAUSTED not in _set(world):
        world.answer_all()
        assert len(world.core.pop_due(now_ms=world.now_ms, limit=100))


def _read_what_is_forgotten(world: SpoiledCore) -> None:
    evict_positions(world.core)
    for ledger_id in range(6):
        world.core.want(ledger_id)


WANTED: dict[Why, Callable[[SpoiledCore], object]] = {
    Why.CLEARED: lambda world: world.core.clear(),
    Why.OVERLAPS: lambda world: world.core.clear(),
    Why.EVICTION: lambda _: None,
    Why.LOADS: _let_a_load_fail,
    Why.CACHE: _read_what_is_forgotten,
    Why.ORDER_WAIT: lambda _: None,
    Why.CREATES: lambda world: world.core.seal(index_count_min=1),
    Why.DELETES: lambda world: world.core.trim(3),
    Why.EXHAUSTED: _let_all_be_handed_out,
}


def _set(world: SpoiledCore) -> set[Why]:
    return {why for why in Why if world.state.timers.when(why) < NEVER}


@pytest.mark.parametrize("why", WANTED)
def test_wanted_work_without_a_timer_is_noticed(world: SpoiledCore, why: Why) -> None:
    WANTED[why](world)
    world.check()
    assert why in _set(world)

    times = {one: world.state.timers.when(one) for one in Why if one is not why}
    world.state.timers.take_due(NEVER)
    for one, at_ms in times.items():
        world.state.timers.at(one, at_ms)

    with pytest.raises(AssertionError, match=f"no timer is set|{why.name}"):
        world.check()


def test_more_exhausted_buckets_than_a_turn_removes_are_looked_at_again() -> None:
    core = TrackerCore(CONFIG, acknowledged_in=FakeCursor().acknowledged_in, rng=Random(1))
    calls = core.plan(now_ms=0)
    for ledger_id in range(REMOVALS_MAX + 10):
        core.add_message(ledger_id, 0, 100, 0)
        core.seal(index_count_min=1)
    assert len(core.pop_due(now_ms=100, limit=1_000)) == REMOVALS_MAX + 10

    calls += core.plan(now_ms=100)

    core.check(calls)
    assert core.unsettled_count <= len(calls)


def test_a_load_that_is_answered_late_lets_another_begin() -> None:
    """The bucket of the first was removed, so that its answer changes nothing else."""
    config = dataclasses.replace(CONFIG, operations_in_flight_max=1, loaded_row_count_max=1_000, bucket_count_max=-1)
    with asyncio.Runner() as runner:
        core = SpoiledCore(runner, config, ledgers=BUCKETS_PER_CALL + 4)
        # More buckets are due than may be loaded at once.
        core.now_ms = 5_000 + 100 * (BUCKETS_PER_CALL + 4)
        core.answer_all(but=LoadSegments)
        core.check()
        core.core.trim(1)
        core.answer_all(but=LoadSegments)
        late = next(one for one in core.pending if isinstance(one, LoadSegments) and one.serial == 1)
        core.pending.remove(late)
        assert core.core.plan(now_ms=core.now_ms) == []
        core.core.handle(ActionFailed(late, False, "down"), now_ms=core.now_ms)
        core.check()
        (begun,) = core.core.plan(now_ms=core.now_ms)
        assert isinstance(begun, LoadSegments)
        assert begun.serial == BUCKETS_PER_CALL + 1
        core.core.check([*core.pending, begun])
