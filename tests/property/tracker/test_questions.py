"""A question changes nothing: one that is asked everything at every step does what one does that is never asked.

Both the core and the whole tracker, as its dispatcher sees it.
"""

import asyncio
from random import Random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap

from managed_ledger.position import Position
from postdate.testing import FakeCursor, run_inline, run_virtually, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotHead
from tests.helpers.core_state import state_of
from tests.helpers.snapshot_work import answer_to
from tracker.bucket_tracker import BucketDelayedDeliveryTracker, BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.core.actions import Action, ActionFailed
from tracker.core.tracker_core import TrackerCore
from tracker.core.transitions.adding import take_singles
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_work import SnapshotWork, StorageWork
from tracker.shell.storage_worker import is_lost

LEDGERS = range(6)
CONFIG = TrackerConfig(
    index_count_per_bucket_min=3,
    bucket_count_max=2,
    segment_step_ms_max=10,
    segment_row_count_max=2,
    prefetch_ms=20,
    loaded_row_count_max=6,
)
DELAYS_MS = st.one_of(st.integers(0, 100), st.integers(50_000, 50_100))
"""Some are due long after the cache has forgotten their positions."""
STEPS_OF_BOTH = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), DELAYS_MS),
    st.tuples(st.just("add many"), st.integers(0, 5), DELAYS_MS),
    st.tuples(st.just("pass time"), st.integers(1, 40) | st.just(15_000), st.just(0)),
    st.tuples(st.just("poll"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("acknowledge"), st.integers(0, 5), st.integers(0, 30)),
    st.tuples(st.just("trim"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("read"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("answer"), st.just(0), st.just(0)),
    st.tuples(st.just("answer"), st.just(0), st.just(0)),
    st.tuples(st.just("fail"), st.just(0), st.just(0)),
)
STEPS = st.lists(STEPS_OF_BOTH, max_size=60)
CORE_STEPS = st.lists(
    st.one_of(
        STEPS_OF_BOTH,
        st.tuples(st.just("add again"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("acknowledge"), st.integers(0, 1), st.integers(0, 3)),
    ),
    max_size=60,
)
"""Some have one position again and again: rows become stale, and their positions are added again."""


class AskedCore:
    """A core with a storage in memory, whose actions wait until they are answered."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.now_ms = 1_000
        self.entries = 0
        self.pending: list[Action] = []
        cursor = FakeCursor()
        storage = MemoryBucketSnapshotStorage()
        runner.run(storage.start())
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        self.cursor = cursor
        self.work = SnapshotWork(CONFIG, context, StorageWork(storage, run_inline))
        self.core = TrackerCore(CONFIG, acknowledged_in=cursor.acknowledged_in, rng=Random(1))
        self.core.recover({}, now_ms=self.now_ms)

    def ask_everything(self, *, ahead_ms: int = 0) -> list[object]:
        """Ask all questions at a time that no plan has seen; return the answers that tell no single add from a row."""
        core, now_ms = self.core, self.now_ms + ahead_ms
        before = self._moved_by_single_adds()
        answers: list[object] = []
        for ledger_id in LEDGERS:
            answers += [core.tracked_in(ledger_id), core.is_recovering(ledger_id), core.contains_message(ledger_id, 1)]
        answers += [sorted(core.tracked_ledger_ids()), sorted(zip(*core.due_positions(now_ms=now_ms), strict=True))]
        answers += [core.future_count(now_ms=now_ms), core.first_deliver_at_ms(now_ms=now_ms)]
        answers += [core.first_withheld_ms(now_ms=now_ms), core.should_pause(now_ms=now_ms), core.buckets()]
        answers += [core.message_count, core.bucket_total, core.snapshot_size_bytes, core.unsettled_count]
        # Stale rows, which an add of their position drops later, have their part in these.
        core.next_deliver_at_ms()
        core.next_wakeup_ms(now_ms=now_ms)
        assert core.loaded_row_count >= 0
        assert self._moved_by_single_adds() == before
        return answers

    def _moved_by_single_adds(self) -> list[object]:
        """Return how much there is of all that taking them over changes, and themselves."""
        state = state_of(self.core)
        counts = [state.rows.row_count, state.positions.count, state.positions.mutable_count]
        return [state.mutable.singles.room, [*state.mutable.singles.entry_ids], counts]

    def do(self, what: str, number: int, more: int) -> Any:
        """Take a step; return what can be seen of it."""
        core, seen = self.core, None
        match what:
            case "add":
                # No plan yet: the next questions meet single adds that are not taken over.
                self.entries += 1
                return core.add_message(number, self.entries, self.now_ms + more, self.now_ms)
            case "add again":
                return core.add_message(number, more, self.now_ms + 1 + self.now_ms * 7 % 50, self.now_ms)
            case "add many":
                rows = range(self.entries + 1, self.entries + 4)
                self.entries += 3
                seen = core.add_messages(
                    [number] * 3, rows, [self.now_ms + more + k for k in range(3)], now_ms=self.now_ms
                ).tolist()
            case "pass time":
                self.now_ms += number
            case "poll":
                seen = core.pop_due(now_ms=self.now_ms, limit=number).to_rows()
            case "acknowledge":
                core.note_acknowledged(number, BitMap([more]))
            case "trim":
                self.cursor.mark_delete_position = Position(number, -1)
                core.trim(number)
            case "read":
                core.want(number)
            case "answer":
                # All that comes of it, too.
                while self.pending:
                    self._answer(self.pending[0])
                    self.pending += core.plan(now_ms=self.now_ms)
            case "fail":
                if self.pending:
                    core.handle(ActionFailed(self.pending.pop(0), False, "down"), now_ms=self.now_ms)
        started = core.plan(now_ms=self.now_ms)
        self.pending += started
        return seen, [(type(action).__name__, action.serial) for action in started]

    def _answer(self, action: Action) -> None:
        self.pending.remove(action)
        try:
            event = self.runner.run(answer_to(self.work, action))
        except LookupError as error:
            event = ActionFailed(action, is_lost(error), str(error))
        self.core.handle(event, now_ms=self.now_ms)


_IDLE = ("pass time", 15_000, 0)
_LATER = ("pass time", 1, 0)


# A bucket whose positions are forgotten: to ask whether they are known must not have them read.
@example(steps=[("add many", 1, 50_000), ("add many", 2, 50_000), ("answer", 0, 0), _IDLE, _IDLE], asked_from=5)
@given(steps=CORE_STEPS, asked_from=st.integers(0, 60))
def test_a_core_that_is_asked_everything_does_what_one_does_that_is_not(
    steps: list[tuple[str, int, int]], asked_from: int
) -> None:
    with asyncio.Runner() as runner:
        asked, left_alone = AskedCore(runner), AskedCore(runner)
        for number, step in enumerate(
            [*steps, ("pass time", 60_000, 0), ("poll", 5, 0), ("answer", 0, 0), ("poll", 100, 0)]
        ):
            if number >= asked_from:
                asked.ask_everything()
            assert asked.do(*step) == left_alone.do(*step)


# Its first row is stale: the position is acknowledged, and added again with another time.
@example(steps=[_LATER, ("add again", 1, 3), ("acknowledge", 1, 3), _LATER, ("add again", 1, 3)])
@given(steps=CORE_STEPS)
def test_a_question_has_the_answer_that_it_has_when_single_adds_are_among_the_rows(
    steps: list[tuple[str, int, int]],
) -> None:
    with asyncio.Runner() as runner:
        core, taking_over = AskedCore(runner), AskedCore(runner)
        for step in steps:
            assert core.do(*step) == taking_over.do(*step)
            take_singles(state_of(taking_over.core))
            for ahead_ms in (0, 30):
                assert core.ask_everything(ahead_ms=ahead_ms) == taking_over.ask_everything(ahead_ms=ahead_ms)


class RecordingStorage(MemoryBucketSnapshotStorage):
    """Writes down which calls a tracker makes, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, ...]] = []
        self.first_id = 0
        """Ids begin at another number in each storage."""

    def _note(self, bucket_id: int, *segments: int) -> None:
        self.first_id = self.first_id or bucket_id
        self.calls.append((virtual_now_ms(), bucket_id - self.first_id, *segments))

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        self._note(bucket_id)
        return await super().get_bucket_snapshot_head(bucket_id)

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        self._note(bucket_id)
        return await super().get_bucket_snapshot_metadata(bucket_id)

    async def get_bucket_snapshot_segment(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> list[bytes]:
        self._note(bucket_id, first_segment_entry_id, last_segment_entry_id)
        return await super().get_bucket_snapshot_segment(bucket_id, first_segment_entry_id, last_segment_entry_id)


def _ask_tracker_everything(tracker: BucketDelayedDeliveryTracker) -> None:
    for ledger_id in LEDGERS:
        tracker.contains_message(ledger_id, 1)
        tracker.tracked_in(ledger_id)
        tracker.is_recovering(ledger_id)
    tracker.tracked_ledger_ids()
    tracker.has_message_available()
    tracker.next_delivery_time()
    tracker.first_withheld_time()
    tracker.number_of_delayed_messages()
    tracker.number_of_future_messages()
    tracker.due_positions()
    tracker.should_pause_all_deliveries()
    tracker.stats()
    tracker.buckets()


async def _what_is_seen(steps: list[tuple[str, int, int]], asked_from: int, *, is_announced: bool) -> list[object]:
    """Take the steps with a tracker that is asked everything from a step on; return all that it does."""
    seen: list[object] = []
    cursor, entries = FakeCursor(), 0
    storage = RecordingStorage()
    await storage.start()
    factory = BucketDelayedDeliveryTrackerFactory(
        CONFIG, storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(1)
    )
    context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
    tracker = factory.new_tracker(context)
    for number, (what, ledger_id, more) in enumerate(steps):
        if number >= asked_from:
            _ask_tracker_everything(tracker)
        match what:
            case "add" | "add many":
                entries += 1
                seen.append(tracker.add_message(ledger_id, entries, virtual_now_ms() + more))
                if what == "add many":
                    rows = range(entries + 1, entries + 4)
                    entries += 3
                    times = [virtual_now_ms() + more + k for k in range(3)]
                    seen.append(tracker.add_messages([ledger_id] * 3, rows, times).tolist())
            case "pass time":
                await asyncio.sleep(ledger_id / 1_000)
            case "poll":
                seen.append(tracker.get_scheduled_messages(ledger_id).to_rows())
            case "acknowledge":
                tracker.note_acknowledged(ledger_id, BitMap([more]))
            case "trim":
                cursor.mark_delete_position = Position(ledger_id, -1)
            case "read" if is_announced:
                tracker.will_read(ledger_id)
            case _:
                await asyncio.sleep(0.05)
    await asyncio.sleep(60)
    seen += tracker.get_scheduled_messages(1_000).to_rows()
    await tracker.close()
    return [*seen, storage.calls, sorted(cursor.properties), len(storage.snapshots)]


# Buckets whose positions are forgotten: to ask about them must not have them read.
@example(
    steps=[("add many", 1, 50_000), ("add many", 2, 50_000), ("read", 2, 0), _IDLE, _IDLE, _IDLE],
    asked_from=5,
    is_announced=True,
)
@given(steps=STEPS, asked_from=st.integers(0, 60), is_announced=st.booleans())
def test_a_tracker_that_is_asked_everything_does_what_one_does_that_is_not(
    steps: list[tuple[str, int, int]], asked_from: int, is_announced: bool
) -> None:
    """It makes the same calls at the same times, and hands out the same.

    Left out: the calls of `on_available`, which say that an answer given before is no longer true.
    """
    asked, left_alone = (
        run_virtually(_what_is_seen(steps, start, is_announced=is_announced)) for start in (asked_from, len(steps))
    )
    assert asked == left_alone
