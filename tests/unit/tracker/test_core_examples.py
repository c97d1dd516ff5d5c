"""The core by example: buckets are sealed, messages are handed out in time, and failures leave a known state."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from postdate.testing import FakeCursor, run_inline
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX
from snapshot_storage.encoding.codec import encode_metadata, segment_metadata
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import encode_rows
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.core_checks import check
from tests.helpers.ownerless import delete_unnamed
from tests.helpers.tracker_calls import answer_to
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Call,
    CallFailed,
    CreateSnapshot,
    LoadSegments,
    MergeSnapshots,
)
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.tracker_calls import InThreads, TrackerCalls

NOW_MS = 1_000


class Driver:
    """A core with a storage in memory, and its calls held until they are asked for."""

    def __init__(self, runner: asyncio.Runner, **settings: int | bool) -> None:
        values: dict[str, int | bool] = {"index_count_per_bucket_min": 5, "is_deliver_at_time_strict": True}
        self.config = TrackerConfig(**(values | settings))  # type: ignore[arg-type]  # Names are checked there.
        self.runner = runner
        self.storage = MemoryBucketSnapshotStorage()
        self.cursor = FakeCursor()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=lambda: None)
        self.calls = TrackerCalls(self.config, context, self.storage, InThreads(run_inline))
        runner.run(self.storage.start())
        self.now_ms = NOW_MS
        self.recover()

    def recover(self) -> None:
        self.core = TrackerCore(self.config, acknowledged_in=self.cursor.acknowledged_in, rng=Random(1))
        self.pending: list[Call] = []
        self.core.trim(self.cursor.mark_delete_position.ledger_id)
        self.named = self.core.recover(self.cursor.properties, now_ms=self.now_ms)
        self.plan()

    def plan(self) -> None:
        self.pending += self.core.plan(now_ms=self.now_ms)

    def add(self, *rows: tuple[int, int, int]) -> list[bool]:
        """Add (deliver at, ledger, entry) rows."""
        added = [self.core.add_message(ledger, entry, time, now_ms=self.now_ms) for time, ledger, entry in rows]
        self.plan()
        return added

    def pop(self, limit: int = 100) -> list[tuple[int, int, int]]:
        rows = self.core.pop_due(now_ms=self.now_ms, limit=limit).to_rows()
        self.plan()
        return rows

    def answer(self, call: Call) -> None:
        """Make a call and give its answer."""
        self.pending.remove(call)
        self.core.handle(call, self.runner.run(answer_to(self.calls, call)), now_ms=self.now_ms)
        self.plan()

    def fail(self, call: Call) -> None:
        self.pending.remove(call)
        self.core.handle(call, CallFailed("down"), now_ms=self.now_ms)
        self.plan()

    def should_pause(self, now_ms: int) -> bool:
        """Whether the shell pauses the dispatcher."""
        return self.core.is_full and not self.core.has_due(now_ms=now_ms)

    def answer_all(self) -> None:
        while self.pending:
            self.answer(self.pending[0])
        check(self.core, self.pending)

    def waiting(self, kind: type[Call]) -> list[Call]:  # type: ignore[valid-type]  # A union's members.
        return [call for call in self.pending if isinstance(call, kind)]

    @property
    def bucket_names(self) -> list[str]:
        return sorted(key.removeprefix(BUCKET_KEY_PREFIX + "_") for key in self.cursor.properties)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def few_rows_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bucket have no rows of its own beyond `loaded_row_count_max`, so that a few fill the room."""
    monkeypatch.setattr("tracker.core.loading.ROWS_OF_A_BUCKET_MIN", 1)


@pytest.fixture
def driver(runner: asyncio.Runner) -> Driver:
    return Driver(runner)


# Adding.


def test_a_message_that_was_refused_and_is_added_again_counts_at_the_earlier_of_its_times(driver: Driver) -> None:
    """Its first row is still there; no dispatcher offers a message again with another time."""
    driver.add((3_000, 1, 0), (NOW_MS, 1, 0), (9_000, 1, 0))
    driver.now_ms = 3_000
    assert driver.pop() == [(3_000, 1, 0)]
    driver.now_ms = 9_000
    assert driver.pop() == []


@pytest.mark.parametrize(
    ("is_strict", "deliver_at_ms", "is_tracked"),
    [
        (True, NOW_MS, False),
        (True, NOW_MS + 1, True),
        (True, -1, False),
        (False, NOW_MS + 1_000, False),
        (False, NOW_MS + 1_001, True),
        (False, -1, False),
    ],
)
def test_only_what_is_due_after_the_cutoff_is_tracked(
    runner: asyncio.Runner, is_strict: bool, deliver_at_ms: int, is_tracked: bool
) -> None:
    """The cutoff is now when strict, else a tick later; equality is due."""
    driver = Driver(runner, is_deliver_at_time_strict=is_strict)

    assert driver.add((deliver_at_ms, 1, 1)) == [is_tracked]
    assert driver.core.add_messages([1], [2], [deliver_at_ms], now_ms=NOW_MS).tolist() == [is_tracked]
    assert driver.core.contains_message(1, 1) == is_tracked


@pytest.mark.parametrize("position", [(1, -1), (1, 2**32), (-1, 1), (2**63, 1)])
def test_positions_that_no_bitmap_holds_are_refused_before_anything_changes(
    driver: Driver, position: tuple[int, int]
) -> None:
    """Also when they are one of many."""
    with pytest.raises(ValueError, match="ledger ids are 0 to"):
        driver.core.add_message(*position, NOW_MS + 10, now_ms=NOW_MS)
    if position[0] < 2**63:
        with pytest.raises(ValueError, match=f"{position[0]}:{position[1]}"):
            driver.core.add_messages([1, position[0]], [0, position[1]], [2_000, 2_000], now_ms=NOW_MS)

    assert driver.core.tracked.count == 0


def test_the_largest_ids_are_tracked(driver: Driver) -> None:
    """Up to 2**32 - 1 and 2**63 - 1."""
    driver.add((2_000, 2**63 - 1, 2**32 - 1))
    driver.now_ms = 2_000

    assert driver.pop() == [(2_000, 2**63 - 1, 2**32 - 1)]


def test_a_position_added_twice_is_handed_out_once_at_the_earlier_time(driver: Driver) -> None:
    """Whichever time was given first."""
    driver.add((3_000, 1, 1), (2_000, 1, 1), (2_500, 1, 2), (2_600, 1, 2))
    assert driver.core.tracked.count == 2
    driver.now_ms = 5_000

    assert driver.pop() == [(2_000, 1, 1), (2_500, 1, 2)]
    assert driver.pop() == []


def test_a_message_that_is_offered_when_due_is_forgotten(driver: Driver) -> None:
    """The dispatcher that offers it delivers it now, so it must not be handed out too."""
    driver.add((2_000, 1, 1))
    driver.now_ms = 2_000

    assert driver.add((2_000, 1, 1)) == [False]
    assert driver.pop() == []


def test_many_messages_that_are_due_cost_no_more_calls_than_few(driver: Driver) -> None:
    """One call forgets what it says at a cost for each bucket of the ledger, not for each row and bucket."""
    for number in range(20):
        # A late message of ledger 0 widens every range.
        driver.add((50_000, 0, number), *((50_000, number + 1, entry) for entry in range(5)))
    driver.answer_all()

    def calls_for(first_entry: int, row_count: int) -> int:
        calls = Counter[str]()
        rows = (
            np.zeros(row_count, np.int64),
            np.arange(first_entry, first_entry + row_count),
            np.full(row_count, NOW_MS),
        )
        sys.setprofile(lambda _frame, event, _arg: calls.update([event]))
        try:
            driver.core.add_messages(*rows, now_ms=driver.now_ms)
        finally:
            sys.setprofile(None)
        return calls["call"] + calls["c_call"]

    few = calls_for(0, 20)

    assert 10 < calls_for(20, 1_000) <= few + 5
    check(driver.core)
    driver.now_ms = 50_000
    driver.plan()
    driver.answer_all()
    assert {ledger_id for _, ledger_id, _ in driver.pop(1_000)} == set(range(1, 21))


# Sealing.


def test_the_documented_example_of_sealing(driver: Driver) -> None:
    """min=5, ledgers and entries 1 to 6: the sixth seals [1..5]."""
    driver.add(*((2_000 + n, n, n) for n in range(1, 6)))
    assert driver.core.bucket_total == 1

    driver.add((2_006, 6, 6))
    driver.answer_all()

    assert driver.bucket_names == ["1_5"]
    assert driver.core.bucket_total == 2


def test_a_ledger_is_never_split(driver: Driver) -> None:
    """Any number of one ledger's messages stays in one bucket, single or batched."""
    driver.core.add_messages([1] * 20 + [2], range(21), [2_000] * 21, now_ms=NOW_MS)
    driver.plan()
    driver.answer_all()

    assert driver.bucket_names == ["1_1"]


def test_a_cap_seals_a_ledger_that_never_ends(runner: asyncio.Runner) -> None:
    """Each piece has a property of its own, and all of them come back."""
    driver = Driver(runner, index_count_per_bucket_max=5)
    driver.core.add_messages([7] * 17, range(17), range(90_000, 90_017), now_ms=NOW_MS)
    driver.plan()
    driver.answer_all()
    assert driver.bucket_names == ["5_7", "6_7", "7_7"]

    driver.recover()
    driver.answer_all()

    assert driver.core.tracked.count == 15


def test_a_late_message_within_a_sealed_range_gets_into_the_next_snapshot(driver: Driver) -> None:
    """Every row does in the end; its bucket's range encloses the other one then."""
    driver.add(*((90_000, n, n) for n in range(1, 7)))
    driver.add((90_000, 3, 99))
    driver.add(*((90_000, n, n) for n in range(7, 12)))
    driver.answer_all()
    assert driver.core.contains_message(3, 99)
    assert driver.bucket_names == ["1_5", "3_9"]

    driver.recover()
    driver.answer_all()

    assert driver.core.contains_message(3, 99)
    assert driver.core.contains_message(3, 3)


def test_many_messages_of_old_ledgers_are_sealed_without_waiting_for_a_new_one(driver: Driver) -> None:
    """A lost bucket's messages are read again that way; they must not pile up in memory."""
    driver.add((90_000, 50, 0))
    driver.add(*((90_000, ledger, 0) for ledger in range(40)))
    driver.answer_all()

    assert driver.core.loaded_row_count <= 5
    assert len(driver.bucket_names) == 8


def test_recovery_learns_from_the_metadata_where_rows_are(runner: asyncio.Runner) -> None:
    """A key that had to be wider holds neither reading nor trimming up."""
    driver = Driver(runner, index_count_per_bucket_max=5)
    driver.core.add_messages([0] * 17, range(17), range(90_000, 90_017), now_ms=NOW_MS)
    driver.plan()
    driver.answer_all()
    assert driver.bucket_names == ["0_0", "0_1", "0_2"]

    driver.cursor.mark_delete_position = Position(1, -1)
    driver.recover()
    assert driver.core.is_recovering(2)
    driver.answer_all()

    assert driver.bucket_names == []


def test_without_a_cap_the_memory_for_unsealed_rows_is_one(runner: asyncio.Runner) -> None:
    """A ledger that never ends does not fill the memory."""
    driver = Driver(runner, unsealed_row_count_max=10)
    driver.core.add_messages([3] * 35, range(35), [90_000] * 35, now_ms=NOW_MS)
    driver.plan()
    driver.answer_all()

    assert len(driver.bucket_names) == 3
    assert driver.core.loaded_row_count == 5


def test_rows_are_served_from_memory_until_the_property_is_durable(driver: Driver) -> None:
    """A snapshot that is slow or fails holds nothing up."""
    driver.add(*((2_000 + n, n, n) for n in range(1, 7)))
    driver.fail(driver.waiting(CreateSnapshot)[0])
    driver.now_ms = 2_003

    assert driver.pop() == [(2_001, 1, 1), (2_002, 2, 2), (2_003, 3, 3)]


def test_far_rows_leave_memory_once_they_are_durable(driver: Driver) -> None:
    """Those within the horizon stay."""
    driver.add(*((NOW_MS + 10 * n, n, n) for n in range(1, 6)), (900_000, 6, 6), (900_001, 6, 7), (900_002, 7, 0))
    assert driver.core.loaded_row_count == 8

    driver.core.seal(index_count_min=1)
    driver.plan()
    driver.answer_all()

    assert driver.core.tracked.count == 8
    assert driver.core.loaded_row_count == 5


@pytest.mark.usefixtures("few_rows_a_bucket")
def test_a_bucket_of_which_some_was_handed_out_leaves_memory_where_each_time_is_in_two_segments(
    runner: asyncio.Runner,
) -> None:
    """As where all times are whole seconds, and more messages are due in one than a segment has."""
    driver = Driver(runner, index_count_per_bucket_min=60, segment_row_count_max=4, loaded_row_count_max=4)
    rows = [(2_000 + 1_000 * (n // 6), 1, n) for n in range(60)]
    driver.add(*rows)
    driver.now_ms = 2_000
    driver.add((900_000, 2, 0))
    taken = driver.pop(limit=3)
    driver.answer_all()

    # The segments that had begun when some was taken, and the new ledger's message.
    assert driver.core.loaded_row_count == 8 - 3 + 1
    while rows_now := driver.pop(limit=2):
        taken += rows_now
        driver.now_ms += 500
        driver.answer_all()
    assert taken == rows


# Order.


def test_nothing_is_handed_out_past_a_segment_that_is_not_loaded(driver: Driver) -> None:
    """A message in memory waits for an earlier one that is still to be loaded."""
    driver.add(*((60_000, n, n) for n in range(1, 7)))
    driver.answer_all()
    driver.now_ms = 55_001
    driver.add((60_000, 9, 9), (59_000, 9, 8))
    load = driver.waiting(LoadSegments)[0]
    driver.now_ms = 60_000

    assert driver.pop() == [(59_000, 9, 8)]
    assert not driver.core.has_due(now_ms=driver.now_ms)
    driver.answer(load)
    assert driver.pop() == [(60_000, n, n) for n in [1, 2, 3, 4, 5, 6, 9]]


@pytest.mark.usefixtures("few_rows_a_bucket")
def test_order_holds_within_one_instant_over_many_segments(runner: asyncio.Runner) -> None:
    """Where one time is in several segments, hand-out stops at the last row that is loaded."""
    driver = Driver(runner, segment_row_count_max=2, loaded_row_count_max=2)
    driver.add(*((60_000, n, 0) for n in range(1, 7)))
    driver.answer_all()
    driver.now_ms = 60_000 - driver.config.prefetch_ms
    driver.add((60_000, 3, 1), (60_000, 0, 7))
    driver.now_ms = 60_000
    driver.answer(driver.waiting(LoadSegments)[0])

    assert driver.pop() == [(60_000, 0, 7), (60_000, 1, 0), (60_000, 2, 0)]
    assert not driver.core.has_due(now_ms=driver.now_ms)
    driver.answer_all()
    assert driver.pop()[:2] == [(60_000, 3, 0), (60_000, 3, 1)]


@pytest.mark.usefixtures("few_rows_a_bucket")
def test_what_is_due_and_taken_by_nobody_leaves_memory_with_its_snapshot(runner: asyncio.Runner) -> None:
    """Buckets are sealed while consumers have no permits; rows that are due soon stay, as many as may be loaded."""
    driver = Driver(runner, segment_row_count_max=2, loaded_row_count_max=12)
    rows = [(NOW_MS + 1 + ledger_id * 10 + n, ledger_id, n) for ledger_id in range(1, 41) for n in range(6)]
    for ledger_id in range(1, 41):
        driver.add(*(row for row in rows if row[1] == ledger_id))
        driver.answer_all()
        driver.now_ms += 10
    driver.add((9_000_000, 41, 0))
    driver.answer_all()

    # The last ledgers' rows are not sealed.
    assert driver.core.loaded_row_count <= 40 + 2 + 2 * 6
    driver.now_ms = 100_000
    taken: list[tuple[int, int, int]] = []
    while rows_now := driver.pop(limit=5):
        taken += rows_now
        driver.answer_all()
    assert taken == rows


@pytest.mark.usefixtures("few_rows_a_bucket")
def test_buckets_that_are_overdue_are_loaded_side_by_side_within_the_room_that_there_is(
    runner: asyncio.Runner,
) -> None:
    """None of them keeps the others waiting; and what is handed out makes room for the next loads."""
    driver = Driver(runner, segment_row_count_max=1, loaded_row_count_max=12)
    rows = [(60_000 + ledger_id + 10 * n, ledger_id, n) for ledger_id in (1, 2, 3) for n in range(12)]
    driver.add(*rows, (9_000_000, 4, 0))
    driver.answer_all()
    driver.now_ms = 61_000
    driver.plan()

    loads = [action for action in driver.pending if isinstance(action, LoadSegments)]
    assert sorted((load.serial, load.first_segment, load.last_segment) for load in loads) == [
        (1, 1, 4),
        (2, 1, 4),
        (3, 1, 4),
    ]
    driver.answer_all()
    assert driver.core.loaded_row_count == 12 + 1

    popped = []
    while some := driver.pop(5):
        popped += some
        driver.answer_all()
        assert driver.core.loaded_row_count <= 12 + 4 + 1
    assert popped == sorted(rows)


def test_a_segment_that_cannot_be_loaded_holds_others_up_only_so_long(runner: asyncio.Runner) -> None:
    """Beyond the limit, being on time comes first; late messages still come."""
    driver = Driver(runner, order_wait_ms_max=500)
    driver.add(*((60_000, n, n) for n in range(1, 6)), (70_000, 6, 6))
    driver.answer_all()
    driver.now_ms = 59_000
    driver.add((60_001, 9, 9))
    driver.now_ms = 60_001
    driver.fail(driver.waiting(LoadSegments)[0])
    assert driver.pop() == []
    wakeup_ms = driver.core.next_wakeup_ms(now_ms=driver.now_ms)
    assert wakeup_ms is not None
    assert driver.now_ms < wakeup_ms <= 60_500

    driver.now_ms = 60_500
    driver.plan()
    assert driver.pop() == [(60_001, 9, 9)]
    driver.now_ms = 61_000
    driver.plan()
    driver.answer_all()
    assert len(driver.pop()) == 5


# Recovery.


def test_segments_that_are_due_are_loaded_at_recovery_in_order(driver: Driver) -> None:
    """Without what was acknowledged, and with what was handed out but not acknowledged."""
    driver.add(*((2_000 + n, n, n) for n in range(1, 7)))
    driver.answer_all()
    driver.now_ms = 2_002
    assert len(driver.pop()) == 2
    driver.cursor.acknowledge(1, 1)

    driver.now_ms = 9_000
    driver.recover()
    assert driver.core.is_recovering(3)
    assert not driver.core.is_recovering(6)
    assert driver.pop() == []
    driver.answer_all()

    assert not driver.core.is_recovering(3)
    assert driver.pop() == [(2_000 + n, n, n) for n in range(2, 6)]
    driver.answer_all()
    assert driver.cursor.properties == {}
    assert driver.runner.run(driver.storage.list_bucket_snapshots()) == []


# Positions that are sealed.


def recovered_driver(runner: asyncio.Runner, **settings: int) -> Driver:
    """Return a driver with the ledgers 1 to 5 in a bucket that was recovered."""
    driver = Driver(runner, **settings)
    driver.add(*((60_000 + n, n, n) for n in range(1, 7)))
    driver.answer_all()
    driver.recover()
    driver.answer_all()
    return driver


@pytest.mark.parametrize(
    ("deliver_at_ms", "expected"), [(59_000, (59_000, 3, 3)), (70_000, (60_003, 3, 3)), (60_003, (60_003, 3, 3))]
)
def test_a_position_of_a_segment_that_is_not_loaded_that_is_added_again_comes_once_at_the_earlier_time(
    runner: asyncio.Runner, deliver_at_ms: int, expected: tuple[int, int, int]
) -> None:
    """Also when both rows are in snapshots in the end."""
    driver = recovered_driver(runner)
    driver.add((deliver_at_ms, 3, 3))
    driver.core.seal(index_count_min=1)
    driver.plan()
    driver.answer_all()
    for now_ms in (59_000, 60_003, 70_000):
        driver.now_ms = now_ms
        driver.plan()
        driver.answer_all()
        rows = [row for row in driver.pop() if row[1] == 3]
        assert rows == ([expected] if expected[0] == now_ms else [])


def sealed_ledger(runner: asyncio.Runner) -> Driver:
    """Return a driver of which ledger 1 is sealed: entry 0 is due first, entries 1 to 3 an hour later."""
    driver = Driver(
        runner,
        index_count_per_bucket_min=4,
        segment_row_count_max=1,
        prefetch_ms=0,
    )
    driver.add((NOW_MS + 1_000, 1, 0), *((NOW_MS + 3_600_000, 1, entry_id) for entry_id in (1, 2, 3)))
    driver.add((NOW_MS + 7_200_000, 2, 0))
    driver.answer_all()
    assert driver.bucket_names == ["1_1"]
    return driver


def cancel(driver: Driver, *entry_ids: int) -> None:
    """Acknowledge messages of ledger 1 that were not handed out."""
    for entry_id in entry_ids:
        driver.cursor.acknowledge(1, entry_id)
    driver.core.acknowledge(1, BitMap(entry_ids))
    driver.plan()


def test_a_bucket_of_which_every_message_was_cancelled_is_deleted_at_once(
    runner: asyncio.Runner,
) -> None:
    """Not an hour later, after loads of segments of which no row is wanted."""
    driver = sealed_ledger(runner)
    cancel(driver, 0, 1, 2)
    driver.answer_all()
    assert driver.bucket_names == ["1_1"]
    cancel(driver, 3)
    driver.answer_all()

    assert (driver.bucket_names, driver.core.tracked.count) == ([], 1)
    assert driver.runner.run(driver.storage.list_bucket_snapshots()) == []


def test_a_bucket_with_a_row_to_hand_out_stays_when_all_others_are_cancelled(runner: asyncio.Runner) -> None:
    driver = sealed_ledger(runner)
    driver.now_ms += 1_000
    driver.plan()
    driver.answer_all()

    cancel(driver, 1, 2, 3)
    driver.answer_all()

    assert driver.bucket_names == ["1_1"]
    assert driver.pop() == [(NOW_MS + 1_000, 1, 0)]
    driver.now_ms += 3_600_000
    driver.plan()
    driver.answer_all()
    assert driver.bucket_names == []


@pytest.mark.parametrize("is_due", [False, True])
def test_a_bucket_that_is_recovered_with_nothing_left_is_deleted(runner: asyncio.Runner, is_due: bool) -> None:
    driver = sealed_ledger(runner)
    for entry_id in range(4):
        driver.cursor.acknowledge(1, entry_id)
    if is_due:
        driver.now_ms += 1_000

    driver.recover()
    driver.answer_all()

    assert (driver.bucket_names, driver.core.tracked.count) == ([], 0)


def test_the_messages_of_a_ledger_that_the_cursor_passes_count_no_more(
    runner: asyncio.Runner,
) -> None:
    driver = recovered_driver(runner, index_count_per_bucket_min=150)
    driver.add(*((50_000, ledger, entry) for ledger in range(1, 6) for entry in range(30)), (50_000, 9, 0))
    driver.answer_all()
    driver.recover()
    driver.answer_all()
    assert driver.core.tracked.count == 150

    driver.core.trim(3)
    driver.plan()
    driver.answer_all()

    assert driver.core.tracked.count == 90


def test_rows_that_have_no_bit_are_stale(runner: asyncio.Runner) -> None:
    """Pulsar's merges leave some: they are not kept."""
    driver = recovered_driver(runner)
    [(key, bucket_id)] = driver.cursor.properties.items()
    rows = DelayedIndexes.of([60_001, 60_002], [1, 2], [1, 2])
    metadata = encode_metadata([segment_metadata(rows)])
    stale = DelayedIndexes.of([60_001, 60_001, 60_002], [1, 1, 2], [1, 7, 2])
    driver.storage.snapshots.pop(int(bucket_id))
    driver.cursor.properties[key] = str(
        runner.run(
            driver.storage.create_bucket_snapshot(
                metadata, [encode_rows(stale).data], bucket_key=key, topic_name="t", cursor_name="c"
            )
        )
    )
    driver.now_ms = 70_000
    driver.recover()
    driver.answer_all()

    assert driver.pop() == rows.to_rows()


@pytest.mark.parametrize("has_other_rows", [False, True])
def test_positions_that_entry_0_names_and_no_row_has_are_read_again(
    runner: asyncio.Runner, has_other_rows: bool
) -> None:
    """Readers have passed over them, as they were tracked."""
    driver = recovered_driver(runner)
    [(key, bucket_id)] = driver.cursor.properties.items()
    named = DelayedIndexes.of([60_001, 60_002], [1, 2], [1, 2])
    rows = DelayedIndexes.of([60_001, 60_002], [1, 2], [1, 7])
    driver.storage.snapshots.pop(int(bucket_id))
    driver.cursor.properties[key] = str(
        runner.run(
            driver.storage.create_bucket_snapshot(
                encode_metadata([segment_metadata(named)]),
                [encode_rows(rows).data],
                bucket_key=key,
                topic_name="t",
                cursor_name="c",
            )
        )
    )
    driver.now_ms = 70_000
    driver.recover()
    driver.answer_all()
    if has_other_rows:
        driver.add((90_000, 9, 9))

    assert driver.pop() == [(60_001, 1, 1)]
    driver.answer_all()

    assert driver.core.pop_to_read_again() == {2: BitMap([2])}
    assert driver.core.tracked.count == int(has_other_rows)
    assert driver.cursor.properties == {}


def test_malformed_properties_are_skipped_and_reported(driver: Driver) -> None:
    """They cost only themselves, and the snapshot that one of them seems to name is left alone, also by a sweep."""
    driver.add(*((60_000, n, n) for n in range(1, 7)))
    driver.answer_all()
    good = dict(driver.cursor.properties)
    seemingly_named, _unnamed = runner_create(driver), runner_create(driver)
    driver.cursor.properties |= {f"{BUCKET_KEY_PREFIX}_1_2_3": str(seemingly_named), f"{BUCKET_KEY_PREFIX}_4_4": "x"}
    driver.cursor.properties |= {f"{BUCKET_KEY_PREFIX}_5_5": "9" * 5_000, f"{BUCKET_KEY_PREFIX}_6_{2**63}": "7"}

    driver.recover()
    driver.answer_all()

    names = ("1_2_3", "4_4", "5_5", f"6_{2**63}")
    assert set(driver.named.malformed) == {f"{BUCKET_KEY_PREFIX}_{name}" for name in names}
    assert driver.named.malformed.items() <= driver.cursor.properties.items()
    assert driver.core.tracked.count == 5
    assert good.items() <= driver.cursor.properties.items()
    driver.runner.run(delete_unnamed(driver.storage, driver.cursor.properties))
    assert len(driver.runner.run(driver.storage.list_bucket_snapshots())) == 2


def runner_create(driver: Driver) -> int:
    return driver.runner.run(
        driver.storage.create_bucket_snapshot(b"", [], bucket_key="k", topic_name="t", cursor_name="c")
    )


def test_what_a_snapshot_lost_and_is_seen_again_is_not_reported(runner: asyncio.Runner) -> None:
    """Offered when it is due, or tracked again, or acknowledged, or passed: it would be delivered twice."""
    driver = Driver(runner)
    driver.add(*((60_000, 1, n) for n in range(10)), (60_000, 2, 0), (60_000, 3, 0), (60_000, 3, 1))
    driver.answer_all()
    [bucket_id] = map(int, driver.cursor.properties.values())
    driver.runner.run(driver.storage.delete_bucket_snapshot(bucket_id))
    driver.now_ms = 58_000
    assert driver.core.contains_message(1, 0)
    driver.plan()
    driver.answer_all()

    assert driver.add((1, 1, 3)) == [False]
    assert driver.add((58_001, 1, 4), (70_000, 1, 5)) == [True, True]
    assert driver.core.add_message(1, 6, 70_000, driver.now_ms)
    driver.core.acknowledge(1, BitMap([7]))
    driver.core.pass_through(1, 1)
    driver.now_ms = 58_001
    assert driver.pop() == [(58_001, 1, 4)]

    assert driver.core.pop_to_read_again() == {1: BitMap([2, 8, 9])}


# Trimming, clearing, merging.


def test_trimmed_ledgers_are_dropped_also_from_segments_that_are_not_loaded(driver: Driver) -> None:
    """They hold nothing up, and their rows do not come."""
    driver.add(*((60_000, n, n) for n in range(1, 7)))
    driver.answer_all()

    driver.core.trim(4)
    driver.plan()
    driver.answer_all()
    assert driver.core.tracked.count == 3
    driver.now_ms = 60_000
    driver.plan()
    driver.answer_all()

    assert driver.pop() == [(60_000, n, n) for n in range(4, 7)]


def test_clearing_deletes_everything_and_keeps_what_is_added_meanwhile(driver: Driver) -> None:
    """Snapshots in flight included, and the same ledgers may be sealed again at once."""
    driver.add(*((60_000, n, n) for n in range(1, 12)))
    persist = driver.waiting(CreateSnapshot)[0]
    driver.answer(persist)

    driver.core.clear()
    assert driver.core.tracked.count == 0
    driver.add(*((70_000, n, n) for n in range(1, 7)))
    driver.answer_all()

    assert driver.core.tracked.count == 6
    assert len(driver.cursor.properties) == len(driver.runner.run(driver.storage.list_bucket_snapshots())) == 1


@pytest.mark.parametrize("bucket_count_max", [1, 2, 3])
def test_buckets_are_merged_down_to_the_limit(runner: asyncio.Runner, bucket_count_max: int) -> None:
    """For every limit including 1, and nothing is lost or handed out twice."""
    driver = Driver(runner, bucket_count_max=bucket_count_max)
    rows = [(60_000 + 7 * n % 50, n, n) for n in range(1, 42)]
    driver.add(*rows)
    driver.answer_all()
    assert len(driver.cursor.properties) == bucket_count_max

    driver.now_ms = 60_050
    driver.plan()
    driver.answer_all()

    assert driver.pop() == sorted(rows)
    driver.answer_all()
    assert driver.cursor.properties == {}


def test_a_failed_merge_leaves_the_sources(runner: asyncio.Runner) -> None:
    """They are served on, and merged later."""
    driver = Driver(runner, bucket_count_max=1)
    driver.add(*((60_000 + n, n, n) for n in range(1, 12)))
    while True:
        merges = [action for action in driver.pending if type(action).__name__ == "MergeSnapshots"]
        if merges:
            break
        driver.answer(driver.pending[0])
    driver.fail(merges[0])
    driver.answer_all()
    assert driver.bucket_names == ["1_5", "6_10"]

    wakeup_ms = driver.core.next_wakeup_ms(now_ms=driver.now_ms)
    assert wakeup_ms is not None
    driver.now_ms = wakeup_ms
    driver.plan()
    driver.answer_all()

    assert driver.bucket_names == ["1_10"]


def test_a_merge_that_meets_a_lost_source_gives_up_that_one_and_no_other(runner: asyncio.Runner) -> None:
    """Its messages are read again at once, and the others are merged."""
    driver = Driver(runner, bucket_count_max=1)
    driver.add(*((60_000 + n, n, n) for n in range(1, 17)))
    while not (merges := driver.waiting(MergeSnapshots)):
        driver.answer(driver.pending[0])
    [merge] = merges
    assert isinstance(merge, MergeSnapshots)
    lost_id = merge.sources[0].bucket_id
    [lost_key] = [key for key, value in driver.cursor.properties.items() if int(value) == lost_id]
    driver.runner.run(driver.storage.delete_bucket_snapshot(lost_id))
    driver.answer_all()
    assert [key for key, _ in driver.core.pop_losses()] == [lost_key]
    [first, last] = map(int, lost_key.removeprefix(BUCKET_KEY_PREFIX + "_").split("_"))
    assert driver.core.pop_to_read_again() == {n: BitMap([n]) for n in range(first, last + 1)}

    wakeup_ms = driver.core.next_wakeup_ms(now_ms=driver.now_ms)
    assert wakeup_ms is not None
    driver.now_ms = wakeup_ms
    driver.plan()
    driver.answer_all()

    assert len(driver.bucket_names) == 1
    assert driver.core.tracked.count == 11


def test_too_much_in_memory_pauses_reading_unless_something_is_due(runner: asyncio.Runner) -> None:
    """The storage takes nothing: reading on would only fill the memory."""
    driver = Driver(runner, unsealed_row_count_max=5)
    driver.add(*((60_000 + n, n, n) for n in range(1, 6)))
    assert not driver.should_pause(driver.now_ms)

    driver.add((60_006, 6, 6))

    assert driver.should_pause(driver.now_ms)
    assert not driver.should_pause(60_001)
    driver.answer_all()
    assert not driver.should_pause(driver.now_ms)


def test_a_clock_that_steps_back_delays_and_does_not_repeat(driver: Driver) -> None:
    """Messages that were handed out stay so; the others wait for their time again."""
    driver.add((2_000, 1, 1), (2_100, 1, 2))
    driver.now_ms = 2_050
    assert driver.pop() == [(2_000, 1, 1)]

    driver.now_ms = 1_500
    assert driver.pop() == []
    driver.now_ms = 2_100
    assert driver.pop() == [(2_100, 1, 2)]


def test_what_was_handed_out_before_a_clock_stepped_back_does_not_come_from_the_snapshot(
    runner: asyncio.Runner,
) -> None:
    """It is in a segment that is due later now."""
    driver = Driver(runner, prefetch_ms=0, segment_step_ms_max=1)
    driver.add(*((2_000 + n, n, n) for n in range(1, 7)))
    driver.now_ms = 2_003
    assert len(driver.pop()) == 3
    driver.now_ms = NOW_MS
    driver.plan()
    driver.answer_all()
    assert driver.bucket_names == ["1_5"]

    driver.now_ms = 2_010
    driver.plan()
    driver.answer_all()

    assert [row[1] for row in driver.pop()] == [4, 5, 6]


def test_a_clock_that_steps_back_does_not_hold_up_a_retry(driver: Driver) -> None:
    """A wait for another try ends when the clock leaves it, or an hour's step would cost an hour."""
    driver.now_ms = 3_600_000
    driver.add(*[(7_200_000, ledger, 0) for ledger in range(1, 7)])
    (persist,) = driver.waiting(CreateSnapshot)
    driver.fail(persist)
    assert driver.waiting(CreateSnapshot) == []

    driver.now_ms = NOW_MS
    driver.plan()

    assert len(driver.waiting(CreateSnapshot)) == 1
