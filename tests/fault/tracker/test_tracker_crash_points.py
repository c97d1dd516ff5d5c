"""A crash before and after every single step that changes something outside, enumerated, not sampled.

A script of adds, polls, acknowledgements, trims and a clear makes a core seal, register, merge, take over, load,
delete and unregister. It is run once for every step: there it ends, and a new core begins on what is left. After
that, every message that was not acknowledged is tracked, or comes out, or can be read from the log; none twice; and
at rest storage and properties name the same snapshots, once the owner of the storage has swept it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from managed_ledger.positions.position import Position
from postdate.testing import FakeCursor, run_inline
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.core_checks import check
from tests.helpers.ownerless import delete_unnamed
from tests.helpers.tracker_calls import answer_to
from tracker.config import TrackerConfig
from tracker.core.actions import Call
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.tracker_calls import InThreads, TrackerCalls

CONFIG = TrackerConfig(
    index_count_per_bucket_min=3,
    bucket_count_max=2,
    segment_step_ms_max=20,
    is_deliver_at_time_strict=True,
    prefetch_ms=10,
    order_wait_ms_max=-1,
)
FAULTS = (Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER, Fault.FLIPPED_BIT, Fault.LOST_DELETE)
FAULTY = [FaultPlan(seed=seed, rate=0.15, faults=FAULTS) for seed in (0, 2)]
LEDGERS = 16
FIRST_DUE_MS = 10_000


class CrashError(Exception):
    """The process ended."""


class CoreLife:
    """A core that answers its actions at once, in order, until the step at which it crashes."""

    def __init__(
        self,
        runner: asyncio.Runner,
        stored: MemoryBucketSnapshotStorage,
        cursor: FakeCursor,
        plan: FaultPlan = NO_FAULTS,
    ) -> None:
        self.runner = runner
        self.stored = stored
        self.cursor = cursor
        self.crash_at: int | None = None
        self.is_effect_kept = False
        self.steps = 0
        self.kinds: list[str] = []
        self.has_crashed = False
        self.now_ms = 0
        self.handed_out: list[tuple[int, int]] = []
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        storage = FaultInjectingBucketSnapshotStorage(stored, plan)
        self.work = TrackerCalls(CONFIG, context, storage, InThreads(run_inline))
        self.core = TrackerCore(CONFIG, acknowledged_in=cursor.acknowledged_in, rng=Random(1))

    def begin(self) -> None:
        self.core.trim(self.cursor.mark_delete_position.ledger_id)
        self.core.recover(self.cursor.properties, now_ms=self.now_ms)
        self.go_on()

    def go_on(self) -> None:
        pending: list[Call] = self.core.plan(now_ms=self.now_ms)
        while pending:
            self.step(pending.pop(0))
            pending += self.core.plan(now_ms=self.now_ms)
        check(self.core)

    @contextmanager
    def crash_point(self, kind: str) -> Iterator[None]:
        """Do one step, unless it is the one before or behind which the process ends."""
        is_crash = self.steps == self.crash_at
        self.steps += 1
        self.kinds.append(kind)
        if is_crash and not self.is_effect_kept:
            self.has_crashed = True
            raise CrashError
        yield
        if is_crash:
            self.has_crashed = True
            raise CrashError

    def step(self, action: Call) -> None:
        with self.crash_point(type(action).__name__):
            answer = self.runner.run(answer_to(self.work, action))
        self.core.handle(action, answer, now_ms=self.now_ms)

    def offer(self, ledger_id: int) -> None:
        if not self.core.add_message(ledger_id, 0, FIRST_DUE_MS + 7 * ledger_id, now_ms=self.now_ms):
            self.handed_out.append((ledger_id, 0))
        self.go_on()

    def poll(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.go_on()
        while len(rows := self.core.pop_due(now_ms=now_ms, limit=3)):
            self.handed_out += [(ledger_id, entry_id) for _, ledger_id, entry_id in rows]
            self.go_on()

    def script(self) -> None:
        """Take all steps that change snapshots and properties."""
        self.begin()
        for ledger_id in range(LEDGERS):
            self.offer(ledger_id)
        self.poll(FIRST_DUE_MS + 30)
        self.acknowledge_in_order(3)
        self.poll(FIRST_DUE_MS + 60)
        self.acknowledge_in_order(6)
        self.core.seal(index_count_min=1)
        self.go_on()
        self.core.clear()
        self.go_on()

    def acknowledge_in_order(self, count: int) -> None:
        """Acknowledge the first ledgers, and let the cursor pass them."""
        for ledger_id, entry_id in self.handed_out[:count]:
            self.cursor.acknowledge(ledger_id, entry_id)
        self.cursor.mark_delete_position = Position(count - 1, 0)
        self.core.trim(count - 1)
        self.go_on()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def new_life(runner: asyncio.Runner, plan: FaultPlan = NO_FAULTS) -> CoreLife:
    stored = MemoryBucketSnapshotStorage()
    runner.run(stored.start())
    return CoreLife(runner, stored, FakeCursor(), plan)


def check_after(crashed: CoreLife, *, ends_with_clear: bool) -> None:
    """Begin again on what a crash left, and see that nothing is lost, doubled or leaked."""
    published = [(ledger_id, 0) for ledger_id in range(LEDGERS)]
    wanted = [p for p in published if p[1] not in crashed.cursor.acknowledged_in(p[0])]
    life = CoreLife(crashed.runner, crashed.stored, crashed.cursor)
    life.now_ms = crashed.now_ms
    life.begin()
    crashed.runner.run(delete_unnamed(crashed.stored, crashed.cursor.properties))
    if ends_with_clear:
        life.core.clear()
        life.go_on()
        wanted = []
    for position in wanted:
        if not life.core.contains_message(*position):
            life.offer(position[0])
    tracked = sum(len(life.core.tracked_in(ledger_id) or ()) for ledger_id in range(LEDGERS))
    assert tracked + len(life.handed_out) == len(wanted)
    assert life.core.tracked.count == tracked

    life.poll(FIRST_DUE_MS * 2)
    life.go_on()

    assert sorted(life.handed_out) == wanted
    assert crashed.cursor.properties == {}
    assert crashed.runner.run(crashed.stored.list_bucket_snapshots()) == []


def test_the_script_does_everything(runner: asyncio.Runner) -> None:
    """Otherwise the other tests would prove nothing."""
    life = new_life(runner)

    life.script()

    storage_calls = {"ReadHead", "CreateSnapshot", "MergeSnapshots", "LoadSegments", "DeleteSnapshot"}
    assert set(life.kinds) == storage_calls - {"ReadHead"} | {"PutName", "RemoveName"}


@pytest.mark.parametrize(
    ("is_effect_kept", "ends_with_clear", "plan"),
    [
        *(
            (is_effect_kept, ends_with_clear, NO_FAULTS)
            for is_effect_kept in (False, True)
            for ends_with_clear in (False, True)
        ),
        (True, False, FAULTY[0]),
        (False, True, FAULTY[1]),
    ],
    ids=lambda value: f"seed-{value.seed}-rate-{value.rate}" if isinstance(value, FaultPlan) else None,
)
def test_a_crash_at_any_step_loses_and_leaks_nothing(
    runner: asyncio.Runner, is_effect_kept: bool, ends_with_clear: bool, plan: FaultPlan
) -> None:
    """Before the step takes effect, and after it did but before its answer came; also with calls that had failed."""
    whole = new_life(runner, plan)
    whole.script()
    assert whole.steps > 30

    for crash_at in range(whole.steps):
        life = new_life(runner, plan)
        life.crash_at = crash_at
        life.is_effect_kept = is_effect_kept
        with pytest.raises(CrashError):
            life.script()
        check_after(life, ends_with_clear=ends_with_clear)


def test_a_second_crash_during_recovery_changes_nothing(runner: asyncio.Runner) -> None:
    """Every step of the second life is a crash point, too."""
    whole = new_life(runner)
    whole.script()
    steps = 0
    for first in range(0, whole.steps, 7):
        for second in range(30):
            life = new_life(runner)
            life.crash_at = first
            life.is_effect_kept = True
            with pytest.raises(CrashError):
                life.script()
            again = CoreLife(runner, life.stored, life.cursor)
            again.now_ms = life.now_ms
            again.crash_at = second
            again.is_effect_kept = bool(second % 2)
            try:
                again.begin()
                again.poll(life.now_ms)
            except CrashError:
                steps += 1
            check_after(again, ends_with_clear=False)
            if not again.has_crashed:
                # The second life has no more steps; later ones would be this one again.
                break
    assert steps > 20
