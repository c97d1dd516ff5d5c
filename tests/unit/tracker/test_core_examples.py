"""The core by example: buckets are sealed, messages are handed out in time, and failures leave a known state."""

import asyncio
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from pyroaring import BitMap

from managed_ledger.position import Position
from postdate.testing import FakeCursor, run_inline
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX, LedgerRange
from snapshot_storage.encoding.codec import encode_metadata, segment_metadata
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import encode_rows
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.core_state import cached_bucket_count, evict_positions
from tests.helpers.lines import lines_run
from tests.helpers.snapshot_work import answer_to
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    ActionFailed,
    ListSnapshots,
    LoadSegments,
    MergeBuckets,
    PersistBucket,
    PutProperty,
    ReadMetadata,
    ReadPositions,
)
from tracker.core.position_cache import CACHED_BYTES_MAX, CACHED_FOR_MS, READS_IN_FLIGHT_MAX
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_work import BITMAPS_AT_ONCE_MAX, SnapshotWork, StorageWork
from tracker.shell.storage_worker import is_lost, lost_bucket_id

NOW_MS = 1_000


class Driver:
    """A core with a storage in memory, and its actions held until they are asked for."""

    def __init__(
        self,
        runner: asyncio.Runner,
        *,
        cached_bytes_max: int = CACHED_BYTES_MAX,
        bitmaps_at_once_max: int = 0,
        **settings: int | bool,
    ) -> None:
        # Recovery reads no bitmaps, as where buckets have many.
        values: dict[str, int | bool] = {"index_count_per_bucket_min": 5, "is_deliver_at_time_strict": True}
        self.config = TrackerConfig(**(values | settings))  # type: ignore[arg-type]  # Names are checked there.
        self.runner = runner
        self.storage = MemoryBucketSnapshotStorage()
        self.cursor = FakeCursor()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=lambda: None)
        self.work = SnapshotWork(
            self.config, context, StorageWork(self.storage, run_inline, bitmaps_at_once_max=bitmaps_at_once_max)
        )
        runner.run(self.storage.start())
        self.now_ms = NOW_MS
        self.keeps_positions = False
        self.cached_bytes_max = cached_bytes_max
        self.recover()

    def recover(self) -> None:
        self.core = TrackerCore(
            self.config,
            acknowledged_in=self.cursor.acknowledged_in,
            rng=Random(1),
            keeps_positions=self.keeps_positions,
            cached_bytes_max=self.cached_bytes_max,
        )
        self.pending: list[Action] = []
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

    def answer(self, action: Action) -> None:
        """Run an action and give its answer."""
        self.pending.remove(action)
        try:
            self.core.handle(self.runner.run(answer_to(self.work, action)), now_ms=self.now_ms)
        except LookupError as error:
            self.core.handle(
                ActionFailed(action, is_lost(error), str(error), lost_bucket_id(error)), now_ms=self.now_ms
            )
        self.plan()

    def fail(self, action: Action) -> None:
        self.pending.remove(action)
        self.core.handle(ActionFailed(action, False, "down"), now_ms=self.now_ms)
        self.plan()

    def answer_all(self) -> None:
        while self.pending:
            self.answer(self.pending[0])
        self.core.check()

    def is_tracked(self, ledger_id: int, entry_id: int) -> bool:
        """Ask as a reader of the log does: first whether it is known, and wait until it is."""
        if self.is_recovering(ledger_id):
            self.plan()
            self.answer_all()
        assert not self.is_recovering(ledger_id)
        return self.contains(ledger_id, entry_id)

    def is_recovering(self, ledger_id: int) -> bool:
        """Whether the tracked positions of a ledger are not known yet; the question starts their read."""
        self.core.want(ledger_id)
        return self.core.is_recovering(ledger_id)

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        self.core.want(ledger_id)
        return self.core.contains_message(ledger_id, entry_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        self.core.want(ledger_id)
        return self.core.tracked_in(ledger_id)

    def waiting(self, kind: type[Action]) -> list[Action]:  # type: ignore[valid-type]  # A union's members.
        return [action for action in self.pending if isinstance(action, kind)]

    @property
    def bucket_names(self) -> list[str]:
        return sorted(key.removeprefix(BUCKET_KEY_PREFIX + "_") for key in self.cursor.properties)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def driver(runner: asyncio.Runner) -> Driver:
    return Driver(runner)


# Adding.


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
    assert driver.contains(1, 1) == is_tracked


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

    assert driver.core.message_count == 0


def test_the_largest_ids_are_tracked(driver: Driver) -> None:
    """Up to 2**32 - 1 and 2**63 - 1."""
    driver.add((2_000, 2**63 - 1, 2**32 - 1))
    driver.now_ms = 2_000

    assert driver.pop() == [(2_000, 2**63 - 1, 2**32 - 1)]


def test_columns_of_different_lengths_are_refused(driver: Driver) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="do not belong together"):
        driver.core.add_messages([1], [1, 2], [2_000], now_ms=NOW_MS)


def test_a_position_added_twice_is_handed_out_once_at_the_earlier_time(driver: Driver) -> None:
    """Whichever time was given first."""
    driver.add((3_000, 1, 1), (2_000, 1, 1), (2_500, 1, 2), (2_600, 1, 2))
    assert driver.core.message_count == 2
    driver.now_ms = 5_000

    assert driver.pop() == [(2_000, 1, 1), (2_500, 1, 2)]
    assert driver.pop() == []


def test_a_message_that_is_offered_when_due_is_forgotten(driver: Driver) -> None:
    """The dispatcher that offers it delivers it now, so it must not be handed out too."""
    driver.add((2_000, 1, 1))
    driver.now_ms = 2_000

    assert driver.add((2_000, 1, 1)) == [False]
    assert driver.pop() == []


def test_a_message_that_was_forgotten_and_is_added_again_keeps_its_new_time(driver: Driver) -> None:
    """Whether its first row is still in the mutable bucket, in one that is being sealed, or was loaded."""
    driver.add((3_000, 1, 0), (NOW_MS, 1, 0), (9_000, 1, 0))
    driver.add(*((4_000, 2, entry) for entry in range(5)), (3_000, 3, 0))
    assert driver.waiting(PersistBucket)
    driver.add((NOW_MS, 2, 4), (9_000, 2, 4))
    driver.core.check()

    driver.now_ms = 8_999
    assert driver.pop() == [(3_000, 3, 0), *((4_000, 2, entry) for entry in range(4))]
    driver.answer_all()
    driver.now_ms = 9_000
    assert driver.pop() == [(9_000, 1, 0), (9_000, 2, 4)]
    assert driver.core.message_count == 0


def test_a_row_that_is_loaded_after_its_message_was_forgotten_does_not_bring_the_new_one_forward(
    driver: Driver,
) -> None:
    """No bitmap had a bit of it to clear."""
    driver.add(*((50_000, 1, entry) for entry in range(5)), (60_000, 2, 0))
    driver.answer_all()
    driver.add((NOW_MS, 1, 3), (90_000, 1, 3))

    driver.now_ms = 60_000
    driver.plan()
    driver.answer_all()
    assert driver.pop() == [*((50_000, 1, entry) for entry in (0, 1, 2, 4)), (60_000, 2, 0)]
    driver.now_ms = 90_000
    assert driver.pop() == [(90_000, 1, 3)]


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

    assert 10 < calls_for(20, 1_000) <= few
    driver.core.check()
    driver.now_ms = 50_000
    driver.plan()
    driver.answer_all()
    assert {ledger_id for _, ledger_id, _ in driver.pop(1_000)} == set(range(1, 21))


def test_the_callers_arrays_may_be_reused(driver: Driver) -> None:
    """Messages that were added do not change with them."""
    times = np.array([2_000, 2_001])
    driver.core.add_messages([1, 1], [0, 1], times, now_ms=NOW_MS)
    times[:] = 9_000
    driver.now_ms = 2_001

    assert driver.pop() == [(2_000, 1, 0), (2_001, 1, 1)]


# Sealing.


def test_the_documented_example_of_sealing(driver: Driver) -> None:
    """min=5, ledgers and entries 1 to 6: the sixth seals [1..5]."""
    driver.add(*((2_000 + n, n, n) for n in range(1, 6)))
    assert driver.core.bucket_total == 1

    driver.add((2_006, 6, 6))
    driver.answer_all()

    assert driver.bucket_names == ["1_5"]
    assert driver.core.bucket_total == 2


def test_a_position_that_is_offered_again_counts_once_toward_a_seal(driver: Driver) -> None:
    """As in Pulsar: four positions are four, however often each is offered, singly or in columns."""
    driver.add(*((2_000 + n, n, n) for n in range(1, 5)), *((2_100 + n, 4, 4) for n in range(5)))
    driver.core.add_messages([4] * 9, [4] * 9, range(2_200, 2_209), now_ms=NOW_MS)

    driver.add((2_006, 6, 6))
    driver.answer_all()
    assert driver.bucket_names == []
    driver.add((2_007, 7, 7))
    driver.answer_all()

    assert driver.bucket_names == ["1_6"]


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

    assert driver.core.message_count == 15


def test_what_came_due_does_not_count_for_sealing(driver: Driver) -> None:
    """Only indexes that a snapshot would hold do."""
    driver.add(*((NOW_MS + 10, 1, n) for n in range(5)))
    driver.now_ms += 10
    assert len(driver.pop()) == 5

    driver.add((5_000, 2, 0))

    assert driver.core.bucket_total == 1


def test_a_late_message_within_a_sealed_range_gets_into_the_next_snapshot(driver: Driver) -> None:
    """Every row does in the end; its bucket's range encloses the other one then."""
    driver.add(*((90_000, n, n) for n in range(1, 7)))
    driver.add((90_000, 3, 99))
    driver.add(*((90_000, n, n) for n in range(7, 12)))
    driver.answer_all()
    assert driver.contains(3, 99)
    assert driver.bucket_names == ["1_5", "3_9"]

    driver.recover()
    driver.answer_all()

    assert driver.is_tracked(3, 99)
    assert driver.is_tracked(3, 3)


def test_many_messages_of_old_ledgers_are_sealed_without_waiting_for_a_new_one(driver: Driver) -> None:
    """A lost bucket's messages are read again that way; they must not pile up in memory."""
    driver.add((90_000, 50, 0))
    driver.add(*((90_000, ledger, 0) for ledger in range(40)))
    driver.answer_all()

    assert driver.core.loaded_row_count <= 5
    assert len(driver.bucket_names) == 8


def test_a_message_of_an_old_ledger_after_a_capped_one_is_no_special_case(runner: asyncio.Runner) -> None:
    """The wider keys of a ledger in pieces say nothing of where rows are; memory stays bounded."""
    driver = Driver(runner, index_count_per_bucket_max=5)
    for entry_id in range(200):
        driver.add((90_000, 2, entry_id))
        driver.answer_all()
        assert driver.core.loaded_row_count <= 5
    assert len(driver.bucket_names) == 39

    driver.cursor.mark_delete_position = Position(3, -1)
    driver.core.trim(3)
    driver.plan()
    driver.answer_all()

    assert driver.bucket_names == []


def test_recovery_learns_from_the_metadata_where_rows_are(runner: asyncio.Runner) -> None:
    """A key that had to be wider holds neither reading nor trimming up."""
    driver = Driver(runner, index_count_per_bucket_max=5)
    driver.core.add_messages([0] * 17, range(17), range(90_000, 90_017), now_ms=NOW_MS)
    driver.plan()
    driver.answer_all()
    assert driver.bucket_names == ["0_0", "0_1", "0_2"]

    driver.cursor.mark_delete_position = Position(1, -1)
    driver.recover()
    assert driver.is_recovering(2)
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


def test_a_late_ledger_that_no_bucket_has_gets_into_the_next_snapshot(driver: Driver) -> None:
    """Its range may overlap others; nothing is lost."""
    driver.add(*((90_000, n, n) for n in range(10, 16)))
    driver.add(*((90_000, 2, n) for n in range(5)), (90_000, 20, 0))
    driver.answer_all()
    assert driver.bucket_names == ["10_14", "2_15"]

    driver.recover()
    driver.answer_all()

    assert driver.core.message_count == 11


def test_rows_that_were_acknowledged_before_they_were_loaded_keep_none_behind_them(runner: asyncio.Runner) -> None:
    """They fill the row budget, and as none of them is tracked, no poll takes them away."""
    driver = Driver(runner, index_count_per_bucket_min=2, segment_row_count_max=1, loaded_row_count_max=1)
    driver.add((2_000, 1, 0), (2_001, 1, 1), (9_000_000, 2, 0))
    driver.answer_all()
    driver.cursor.acknowledge(1, 0)
    driver.recover()
    driver.now_ms = 3_000
    driver.plan()
    driver.answer_all()

    assert driver.pop() == [(2_001, 1, 1)]


def test_rows_are_served_from_memory_until_the_property_is_durable(driver: Driver) -> None:
    """A snapshot that is slow or fails holds nothing up."""
    driver.add(*((2_000 + n, n, n) for n in range(1, 7)))
    driver.answer(driver.pending[0])  # The sweep for orphans that begins every life.
    driver.fail(driver.waiting(PersistBucket)[0])
    driver.now_ms = 2_003

    assert driver.pop() == [(2_001, 1, 1), (2_002, 2, 2), (2_003, 3, 3)]


def test_far_rows_leave_memory_once_they_are_durable(driver: Driver) -> None:
    """Those within the horizon stay."""
    driver.add(*((NOW_MS + 10 * n, n, n) for n in range(1, 6)), (900_000, 6, 6), (900_001, 6, 7), (900_002, 7, 0))
    assert driver.core.loaded_row_count == 8

    driver.core.seal(index_count_min=1)
    driver.plan()
    driver.answer_all()

    assert driver.core.message_count == 8
    assert driver.core.loaded_row_count == 5


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


def test_what_is_due_and_taken_by_nobody_leaves_memory_with_its_snapshot(runner: asyncio.Runner) -> None:
    """Buckets are sealed while consumers have no permits; rows that are due soon stay, but as many as may be loaded."""
    driver = Driver(runner, segment_row_count_max=2, loaded_row_count_max=12)
    rows = [(NOW_MS + 1 + ledger_id * 10 + n, ledger_id, n) for ledger_id in range(1, 41) for n in range(6)]
    for ledger_id in range(1, 41):
        driver.add(*(row for row in rows if row[1] == ledger_id))
        driver.answer_all()
        driver.now_ms += 10
    driver.add((9_000_000, 41, 0))
    driver.answer_all()

    # The last ledgers' rows are not sealed.
    assert driver.core.loaded_row_count <= 12 + 2 + 2 * 6
    driver.now_ms = 100_000
    taken: list[tuple[int, int, int]] = []
    while rows_now := driver.pop(limit=5):
        taken += rows_now
        driver.answer_all()
    assert taken == rows


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
    assert driver.is_recovering(3)
    assert not driver.is_recovering(6)
    assert driver.pop() == []
    driver.answer_all()

    assert not driver.is_recovering(3)
    assert driver.pop() == [(2_000 + n, n, n) for n in range(2, 6)]
    driver.answer_all()
    assert driver.cursor.properties == {}
    assert driver.runner.run(driver.storage.list_bucket_snapshots()) == []


def test_the_first_messages_do_not_wait_for_bitmaps(driver: Driver) -> None:
    """A segment that is loaded says itself what it tracks; and nothing comes twice when the bitmaps arrive."""
    driver.add(*((60_000 + n, n, n) for n in range(1, 5)), (900_000, 5, 5), (60_006, 6, 6))
    driver.answer_all()
    driver.now_ms = 90_000
    driver.recover()
    assert driver.is_recovering(3)
    driver.answer(driver.waiting(ReadMetadata)[0])
    assert driver.is_recovering(3)
    [read] = driver.waiting(ReadPositions)
    driver.answer(driver.waiting(LoadSegments)[0])

    assert len(driver.pop()) == 4
    assert driver.is_recovering(3)
    driver.answer(read)
    assert not driver.is_recovering(3)
    assert driver.core.message_count == 1
    assert not driver.contains(3, 3)
    assert driver.contains(5, 5)


# Cached positions, and others.


def test_a_bucket_of_few_bitmaps_is_known_after_recovery(runner: asyncio.Runner) -> None:
    """One read is enough to know it; without what was acknowledged."""
    driver = Driver(runner, bitmaps_at_once_max=5)
    driver.add(*((60_000 + n, n, n) for n in range(1, 7)))
    driver.answer_all()
    driver.cursor.acknowledge(4, 4)
    driver.recover()
    driver.answer(driver.waiting(ReadMetadata)[0])

    assert not driver.is_recovering(3)
    assert [n for n in range(1, 6) if driver.contains(n, n)] == [1, 2, 3, 5]
    assert driver.core.message_count == 4


def driver_without_cache(runner: asyncio.Runner, **settings: int) -> Driver:
    """Return a driver with the ledgers 1 to 5 in a bucket whose positions are not cached."""
    driver = Driver(runner, **settings)
    driver.add(*((60_000 + n, n, n) for n in range(1, 7)))
    driver.answer_all()
    driver.recover()
    driver.answer_all()
    return driver


def test_positions_are_cached_after_the_seal_and_evicted_when_no_reader_comes(driver: Driver) -> None:
    """Then it is not known what its ledgers hold, until a read for a reader that comes makes it known again."""
    driver.add(*((600_000 + n, n, n) for n in range(1, 7)))
    driver.answer_all()
    for _ in range(30):
        driver.now_ms += 1_000
        driver.plan()
        assert driver.is_tracked(3, 3)
        assert not driver.waiting(ReadPositions)

    driver.now_ms += CACHED_FOR_MS + 1_000
    driver.plan()
    driver.now_ms += CACHED_FOR_MS + 1_000
    driver.plan()

    assert not cached_bucket_count(driver.core)
    assert driver.is_recovering(3)
    assert not driver.contains(3, 3)
    driver.plan()
    assert len(driver.waiting(ReadPositions)) == 1
    assert driver.is_tracked(3, 3)
    assert driver.core.message_count == 6


def test_nothing_of_a_cold_bucket_is_in_memory_but_its_table(runner: asyncio.Runner) -> None:
    """Neither rows nor positions; they are counted all the same."""
    driver = driver_without_cache(runner)

    assert driver.core.tracked_ledger_ids() == []
    assert driver.core.loaded_row_count == 0
    assert driver.core.message_count == 5


@pytest.mark.parametrize(
    ("deliver_at_ms", "expected"), [(59_000, (59_000, 3, 3)), (70_000, (60_003, 3, 3)), (60_003, (60_003, 3, 3))]
)
def test_a_position_of_a_cold_bucket_that_is_added_again_comes_once_at_the_earlier_time(
    runner: asyncio.Runner, deliver_at_ms: int, expected: tuple[int, int, int]
) -> None:
    """Also when both rows are in snapshots in the end."""
    driver = driver_without_cache(runner)
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


def test_a_position_of_a_cold_bucket_that_is_refused_does_not_come(runner: asyncio.Runner) -> None:
    """The dispatcher that offered it has it; the position does not count as tracked, before and after."""
    driver = driver_without_cache(runner)
    assert driver.add((NOW_MS, 3, 3)) == [False]
    assert not driver.is_tracked(3, 3)
    assert driver.is_tracked(4, 4)
    driver.now_ms = 70_000
    driver.plan()
    driver.answer_all()

    assert [row[1] for row in driver.pop()] == [1, 2, 4, 5]


def test_what_is_loaded_while_a_question_is_answered_is_not_known_as_unread(runner: asyncio.Runner) -> None:
    """Or it would be tracked for ever."""
    driver = driver_without_cache(runner, segment_row_count_max=2, loaded_row_count_max=2)
    assert driver.is_recovering(5)
    driver.plan()
    [read] = driver.waiting(ReadPositions)
    driver.now_ms = 60_002
    driver.plan()
    driver.answer(driver.waiting(LoadSegments)[0])
    assert len(driver.pop()) == 2
    driver.answer(read)

    assert [ledger for ledger in range(1, 6) if driver.contains(ledger, ledger)] == [3, 4, 5]
    assert driver.core.message_count == 3


def test_the_positions_of_only_so_many_buckets_are_read_and_cached_at_once(runner: asyncio.Runner) -> None:
    """Memory stays bounded when the whole log is asked about; each gets its turn."""
    driver = Driver(runner, cached_bytes_max=2_000)
    driver.add(*((900_000, n, n) for n in range(1, 42)))
    driver.answer_all()
    driver.recover()
    driver.answer_all()
    ledgers = set(range(1, 41))
    while ledgers:
        ledgers = {ledger for ledger in ledgers if driver.is_recovering(ledger)}
        driver.plan()
        assert len(driver.waiting(ReadPositions)) <= READS_IN_FLIGHT_MAX
        driver.answer_all()
        assert cached_bucket_count(driver.core) <= READS_IN_FLIGHT_MAX + 2
        driver.now_ms += 500
        driver.plan()
    assert driver.core.message_count == 40


def test_all_buckets_that_have_a_ledger_become_known_together(runner: asyncio.Runner) -> None:
    """Bitmaps of any size: if one bucket cooled before the next is read, the ledger would never become known."""
    driver = Driver(runner, cached_bytes_max=1, index_count_per_bucket_min=3, index_count_per_bucket_max=3)
    driver.add(*((900_000, ledger, entry) for entry, ledger in enumerate([1, 1, 2, 2, 2, 2, 2, 3, 3])))
    driver.core.seal(index_count_min=1)
    driver.plan()
    driver.answer_all()
    assert driver.bucket_names == ["1_2", "2_2", "2_3"]
    driver.recover()
    driver.answer_all()
    assert driver.is_tracked(1, 0)

    # The reader asks when it is told that something was read.
    for _ in range(3):
        is_known = not driver.is_recovering(2)
        if is_known:
            break
        driver.plan()
        while not driver.pending:
            driver.now_ms += 500
            driver.plan()
        driver.answer_all()

    assert is_known
    assert driver.tracked_in(2) == BitMap(range(2, 7))


def test_a_ledger_that_a_reader_asks_about_all_the_time_does_not_keep_another_one_waiting(
    runner: asyncio.Runner,
) -> None:
    """Its positions are never evicted, and take all the memory that there is."""
    driver = Driver(runner, cached_bytes_max=1)
    driver.add(*((900_000, n, n) for n in range(1, 12)))
    driver.answer_all()
    driver.recover()
    driver.answer_all()
    assert driver.is_tracked(1, 1)
    is_recovering = driver.is_recovering(6)
    for _ in range(20):
        driver.now_ms += 500
        assert driver.contains(1, 1)
        driver.plan()
        driver.answer_all()
        is_recovering = is_recovering and driver.is_recovering(6)

    assert not is_recovering


def test_a_question_that_fails_is_asked_again(runner: asyncio.Runner) -> None:
    """After a while, and again and again."""
    driver = driver_without_cache(runner)
    for _ in range(3):
        assert driver.is_recovering(3)
        driver.plan()
        driver.fail(driver.waiting(ReadPositions)[0])
        wakeup_ms = driver.core.next_wakeup_ms(now_ms=driver.now_ms)
        assert wakeup_ms is not None
        assert wakeup_ms > driver.now_ms
        driver.now_ms = wakeup_ms
        driver.plan()

    assert driver.is_tracked(3, 3)


def test_a_reader_in_a_bucket_that_is_merged_is_answered_by_the_target(runner: asyncio.Runner) -> None:
    """The read does not go with the source."""
    driver = Driver(runner)
    driver.add(*((60_000 + n, n, n) for n in range(1, 12)))
    driver.answer_all()
    driver.config = dataclasses.replace(driver.config, bucket_count_max=1)
    driver.recover()
    while not (merges := driver.waiting(MergeBuckets)):
        driver.answer(driver.pending[0])
    assert driver.is_recovering(3)
    driver.plan()
    [read] = driver.waiting(ReadPositions)
    driver.answer(merges[0])
    driver.answer(driver.waiting(PutProperty)[0])
    driver.answer(read)
    driver.answer_all()

    assert driver.bucket_names == ["1_10"]
    assert not driver.is_recovering(3)


def test_a_refused_message_is_counted_no_more_where_its_segment_is_not_loaded(runner: asyncio.Runner) -> None:
    """It is due, and delivered; its row comes with its segment, and is dropped then."""
    driver = Driver(runner, index_count_per_bucket_min=4)
    driver.add(*((NOW_MS + 60_000, 1, entry_id) for entry_id in range(4)), (NOW_MS + 90_000, 2, 0))
    driver.answer_all()
    assert driver.core.message_count == driver.core.future_count(now_ms=NOW_MS) == 5

    assert driver.add((NOW_MS, 1, 0)) == [False]

    assert not driver.core.contains_message(1, 0)
    assert driver.core.message_count == driver.core.future_count(now_ms=NOW_MS) == 4
    driver.now_ms += 60_000
    driver.plan()
    driver.answer_all()
    assert [row[1:] for row in driver.pop()] == [(1, 1), (1, 2), (1, 3)]
    driver.core.check()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_refused_message_is_not_counted_again_when_its_positions_are_read_again(
    runner: asyncio.Runner, is_known: bool
) -> None:
    """The snapshot still has it, and the cursor need not have its acknowledgement yet."""
    driver = Driver(runner, index_count_per_bucket_min=4)
    driver.add(*((NOW_MS + 900_000, 1, entry_id) for entry_id in range(4)), (NOW_MS + 900_000, 2, 0))
    driver.answer_all()
    if is_known:
        assert driver.add((NOW_MS, 1, 0)) == [False]
        assert driver.core.message_count == 4
    for _ in range(2):
        driver.now_ms += CACHED_FOR_MS + 1_000
        driver.plan()
    assert not cached_bucket_count(driver.core)
    if not is_known:
        assert driver.add((NOW_MS, 1, 0)) == [False]

    assert driver.is_tracked(1, 1)

    assert not driver.core.contains_message(1, 0)
    assert driver.core.message_count == driver.core.future_count(now_ms=driver.now_ms) == 4
    driver.now_ms = NOW_MS + 900_000
    driver.plan()
    driver.answer_all()
    assert [row[1:] for row in driver.pop()] == [(1, 1), (1, 2), (1, 3), (2, 0)]
    driver.core.check()


def test_a_bucket_whose_last_row_is_dropped_as_its_message_is_added_again_goes(runner: asyncio.Runner) -> None:
    """The row was refused before; nothing of the bucket is left to be handed out, though nothing was handed out now."""
    driver = Driver(runner, index_count_per_bucket_min=2)
    driver.add((NOW_MS + 1_000, 1, 1), (NOW_MS + 2_000, 1, 3), (NOW_MS + 60_000, 1, 2))
    driver.add((NOW_MS, 1, 2))
    driver.add((NOW_MS + 90_000, 2, 0))
    driver.now_ms += 2_000
    assert len(driver.pop()) == 2
    assert len(driver.core.buckets()) == 1

    driver.add((NOW_MS + 70_000, 1, 2))

    driver.core.check()
    assert driver.core.buckets() == []


def sealed_ledger(runner: asyncio.Runner, *, bitmaps_at_once_max: int = 0) -> Driver:
    """Return a driver of which ledger 1 is sealed: entry 0 is due first, entries 1 to 3 an hour later."""
    driver = Driver(
        runner,
        bitmaps_at_once_max=bitmaps_at_once_max,
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
    driver.core.note_acknowledged(1, BitMap(entry_ids))
    driver.plan()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_bucket_of_which_every_message_was_cancelled_is_deleted_at_once(
    runner: asyncio.Runner, is_known: bool
) -> None:
    """Not an hour later, after loads of segments of which no row is wanted."""
    driver = sealed_ledger(runner)
    if not is_known:
        evict_positions(driver.core)
    assert cached_bucket_count(driver.core) == is_known

    cancel(driver, 0, 1, 2)
    driver.answer_all()
    assert driver.bucket_names == ["1_1"]
    cancel(driver, 3)
    driver.answer_all()

    assert (driver.bucket_names, driver.core.message_count) == ([], 1)
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
    driver.answer_all()
    assert driver.bucket_names == []


def test_a_bucket_with_a_row_to_hand_out_is_merged_when_all_others_are_cancelled(runner: asyncio.Runner) -> None:
    """Its snapshot still has all rows that entry 0 names, and is no damaged one."""
    driver = Driver(runner, index_count_per_bucket_min=3, segment_row_count_max=1, prefetch_ms=0, bucket_count_max=1)
    driver.add((NOW_MS + 1_000, 1, 0), *((NOW_MS + 3_600_000, 1, entry_id) for entry_id in (1, 2, 3)))
    driver.add(*((NOW_MS + 7_200_000, 2, entry_id) for entry_id in range(3)))
    driver.answer_all()
    driver.now_ms += 1_000
    driver.plan()
    driver.answer_all()
    cancel(driver, 1, 2, 3)

    driver.add((NOW_MS + 7_200_000, 3, 0))
    driver.answer_all()

    assert (driver.bucket_names, driver.core.take_losses()) == (["1_2"], [])
    assert driver.pop() == [(NOW_MS + 1_000, 1, 0)]


def test_segments_that_come_when_all_their_messages_are_cancelled_are_ignored(runner: asyncio.Runner) -> None:
    driver = sealed_ledger(runner)
    driver.now_ms += 1_000
    driver.plan()
    (load,) = driver.waiting(LoadSegments)

    cancel(driver, 0, 1, 2, 3)
    driver.answer(load)
    driver.answer_all()

    assert (driver.bucket_names, driver.core.loaded_row_count) == ([], 1)


@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("bitmaps_at_once_max", [0, BITMAPS_AT_ONCE_MAX])
def test_a_bucket_that_is_recovered_with_nothing_left_is_deleted(
    runner: asyncio.Runner, bitmaps_at_once_max: int, is_due: bool
) -> None:
    """Also where segments that are due come with its metadata."""
    driver = sealed_ledger(runner, bitmaps_at_once_max=bitmaps_at_once_max)
    for entry_id in range(4):
        driver.cursor.acknowledge(1, entry_id)
    if is_due:
        driver.now_ms += 1_000

    driver.recover()
    driver.answer_all()

    assert (driver.bucket_names, driver.core.message_count) == ([], 0)


def test_what_is_added_below_the_mark_delete_position_gets_into_no_snapshot(driver: Driver) -> None:
    """It is acknowledged; when its segment is loaded, nothing of it would be taken."""
    driver.core.trim(3)
    driver.add((50_000, 1, 7), *((50_000, 5, entry) for entry in range(5)), (60_000, 6, 0))
    driver.answer_all()
    assert driver.core.message_count == 6
    driver.now_ms = 60_000
    driver.plan()
    driver.answer_all()
    assert [row[1] for row in driver.pop()] == [5] * 5 + [6]
    assert driver.core.message_count == 0


def test_the_messages_of_a_ledger_that_the_cursor_passes_count_no_more_in_a_cold_bucket(
    runner: asyncio.Runner,
) -> None:
    """To pass a part of a bucket is to ask how much of it is left."""
    driver = driver_without_cache(runner, index_count_per_bucket_min=150)
    driver.add(*((50_000, ledger, entry) for ledger in range(1, 6) for entry in range(30)), (50_000, 9, 0))
    driver.answer_all()
    driver.recover()
    driver.answer_all()
    assert driver.core.message_count == 150

    driver.core.trim(3)
    driver.plan()
    driver.answer_all()

    assert driver.core.message_count == 90


@pytest.mark.slow
def test_passing_a_ledger_costs_the_same_however_many_buckets_there_are(runner: asyncio.Runner) -> None:
    """Counted in lines that are run: only the buckets that are passed, or begin before, are looked at."""

    def lines_of_a_step(bucket_count: int) -> int:
        driver = Driver(runner, index_count_per_bucket_min=2)
        for ledger_id in range(1, bucket_count + 1):
            driver.add((50_000_000, ledger_id, 0), (50_000_001, ledger_id, 1))
        driver.answer_all()
        assert driver.core.bucket_total == bucket_count
        driver.core.trim(3)
        driver.answer_all()
        return lines_run(lambda: driver.core.trim(4))

    few, many = lines_of_a_step(20), lines_of_a_step(400)

    # Bisections take a line more each time that there are twice as many.
    assert many <= few + 20


def test_rows_that_have_no_bit_are_stale(runner: asyncio.Runner) -> None:
    """Pulsar's merges leave some: they are dropped, which takes the bitmaps."""
    driver = driver_without_cache(runner)
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


@pytest.mark.parametrize("rows", [[1, 2, 9], [1, 2, 2]])
@pytest.mark.parametrize("when_loaded", ["cached", "evicted", "never cached", "evicted and read again"])
def test_positions_that_have_no_row_are_read_again_where_a_reader_may_have_passed_over_them(
    runner: asyncio.Runner, rows: list[int], when_loaded: str
) -> None:
    """Although there are as many rows as entry 0 names positions: 1 to 3, of two segments in one ledger, and 5."""
    driver = Driver(runner, segment_row_count_max=3, index_count_per_bucket_min=1)
    named = [DelayedIndexes.of([60_001] * 3, [1] * 3, [1, 2, 3]), DelayedIndexes.of([90_000], [1], [5])]
    stored = [DelayedIndexes.of([60_001] * 3, [1] * 3, rows), named[1]]
    key = f"{BUCKET_KEY_PREFIX}_1_1"
    metadata = encode_metadata([segment_metadata(segment) for segment in named])
    segments = [encode_rows(segment).data for segment in stored]
    bucket_id = runner.run(
        driver.storage.create_bucket_snapshot(metadata, segments, bucket_key=key, topic_name="t", cursor_name="c")
    )
    driver.cursor.properties[key] = str(bucket_id)
    driver.recover()
    driver.answer_all()
    if when_loaded != "never cached":
        assert driver.is_tracked(1, 3)
    for now_ms in (54_000, 60_001, 84_000, 90_000):
        if when_loaded.startswith("evicted"):
            driver.now_ms = now_ms - 2_000
            evict_positions(driver.core)
            assert not cached_bucket_count(driver.core)
        if when_loaded == "cached":
            assert driver.is_tracked(1, 5)
        driver.now_ms = now_ms
        driver.plan()
        driver.answer_all()
        driver.pop()
        if when_loaded == "evicted and read again" and now_ms == 60_001:
            assert driver.is_tracked(1, 5)

    untracked = driver.core.take_untracked()
    ranges = driver.core.take_untracked_ranges()
    losses = [key for key, _ in driver.core.take_losses()]
    if when_loaded == "never cached":
        assert (untracked, ranges, losses) == ({}, [], [])
    elif when_loaded == "cached":
        assert (untracked, ranges, losses) == ({1: BitMap([3])}, [], [key])
    else:
        assert (untracked, ranges, losses) == ({}, [LedgerRange(1, 1)], [key])


def test_a_bucket_that_is_recovered_late_does_not_bring_back_what_was_delivered(runner: asyncio.Runner) -> None:
    """Two snapshots hold the same rows, as a crash in a merge leaves them."""
    driver = Driver(runner, order_wait_ms_max=0)
    driver.add(*((60_000 + n, n, n) for n in range(1, 7)))
    driver.answer_all()
    [first_id] = driver.cursor.properties.values()
    metadata = runner.run(driver.storage.get_bucket_snapshot_metadata(int(first_id)))
    segments = runner.run(driver.storage.get_bucket_snapshot_segment(int(first_id), 1, 1))
    second_id = runner.run(
        driver.storage.create_bucket_snapshot(metadata, segments, bucket_key="other", topic_name="t", cursor_name="c")
    )
    driver.cursor.properties[f"{BUCKET_KEY_PREFIX}_0_9"] = str(second_id)
    driver.now_ms = 90_000
    driver.recover()
    first, second = (action for action in driver.waiting(ReadMetadata))
    driver.answer(first)
    driver.answer(driver.waiting(LoadSegments)[0])
    assert len(driver.pop()) == 5

    driver.answer(second)
    driver.answer_all()

    assert driver.core.message_count == 0
    assert driver.pop() == []
    driver.answer_all()
    assert driver.cursor.properties == {}


def test_what_was_refused_while_its_bucket_was_recovered_is_not_handed_out(driver: Driver) -> None:
    """The dispatcher that offered it has delivered it."""
    driver.add(*((60_000 + n, n, n) for n in range(1, 7)))
    driver.answer_all()
    driver.now_ms = 90_000
    driver.recover()
    assert driver.add((60_003, 3, 3)) == [False]

    driver.answer_all()

    assert [row[1] for row in driver.pop()] == [1, 2, 4, 5]


def test_a_snapshot_whose_creation_is_not_answered_yet_is_no_orphan(driver: Driver) -> None:
    """A listing that sees it is not trusted, and is made again."""
    listing = driver.waiting(ListSnapshots)[0]
    driver.add(*((60_000 + n, n, n) for n in range(1, 7)))
    persist = driver.waiting(PersistBucket)[0]
    created = driver.runner.run(answer_to(driver.work, persist))
    driver.answer(listing)

    driver.pending.remove(persist)
    driver.core.handle(created, now_ms=driver.now_ms)
    driver.plan()
    driver.now_ms += 1_000
    driver.plan()
    driver.answer_all()

    assert len(driver.runner.run(driver.storage.list_bucket_snapshots())) == 1


def test_malformed_properties_are_skipped_and_reported(driver: Driver) -> None:
    """They cost only themselves, and the snapshot that one of them seems to name is left alone."""
    driver.add(*((60_000, n, n) for n in range(1, 7)))
    driver.answer_all()
    good = dict(driver.cursor.properties)
    orphan = runner_create(driver)
    driver.cursor.properties |= {f"{BUCKET_KEY_PREFIX}_1_2_3": str(orphan), f"{BUCKET_KEY_PREFIX}_4_4": "x"}
    driver.cursor.properties |= {f"{BUCKET_KEY_PREFIX}_5_5": "9" * 5_000, f"{BUCKET_KEY_PREFIX}_6_{2**63}": "7"}

    driver.recover()
    driver.answer_all()

    names = ("1_2_3", "4_4", "5_5", f"6_{2**63}")
    assert set(driver.named.malformed) == {f"{BUCKET_KEY_PREFIX}_{name}" for name in names}
    assert driver.named.malformed.items() <= driver.cursor.properties.items()
    assert driver.core.message_count == 5
    assert good.items() <= driver.cursor.properties.items()
    assert len(driver.runner.run(driver.storage.list_bucket_snapshots())) == 2


def runner_create(driver: Driver) -> int:
    return driver.runner.run(
        driver.storage.create_bucket_snapshot(b"", [], bucket_key="k", topic_name="t", cursor_name="c")
    )


def test_a_snapshot_without_a_property_is_deleted(driver: Driver) -> None:
    """A crash between the two leaves one."""
    runner_create(driver)

    driver.recover()
    driver.answer_all()

    assert driver.runner.run(driver.storage.list_bucket_snapshots()) == []


def test_a_missing_snapshot_costs_only_itself(driver: Driver) -> None:
    """Its range can be read again, its property goes, others are there."""
    driver.add(*((60_000, n, n) for n in range(1, 12)))
    driver.answer_all()
    missing = int(driver.cursor.properties[f"{BUCKET_KEY_PREFIX}_1_5"])
    driver.runner.run(driver.storage.delete_bucket_snapshot(missing))

    driver.recover()
    driver.answer_all()

    assert not driver.is_recovering(3)
    assert not driver.contains(3, 3)
    assert driver.is_tracked(6, 6)
    assert driver.bucket_names == ["6_10"]
    assert [key for key, _ in driver.core.take_losses()] == [f"{BUCKET_KEY_PREFIX}_1_5"]


def test_a_snapshot_that_is_lost_later_is_reported_for_reading_again(driver: Driver) -> None:
    """Its positions are not tracked any more, and the caller is told."""
    driver.add(*((60_000, n, n) for n in range(1, 7)))
    driver.answer_all()
    [bucket_id] = map(int, driver.cursor.properties.values())
    driver.runner.run(driver.storage.delete_bucket_snapshot(bucket_id))
    driver.now_ms = 58_000
    assert driver.contains(3, 3)
    driver.plan()
    driver.answer_all()

    untracked = driver.core.take_untracked()

    assert untracked == {n: BitMap([n]) for n in range(1, 6)}
    assert driver.core.take_untracked() == {}
    assert driver.core.take_untracked_ranges() == []
    assert driver.core.message_count == 1
    assert driver.cursor.properties == {}


def test_what_a_snapshot_lost_and_is_seen_again_is_not_reported(runner: asyncio.Runner) -> None:
    """Offered when it is due, or tracked again, or acknowledged, or passed: it would be delivered twice."""
    driver = Driver(runner)
    driver.add(*((60_000, 1, n) for n in range(10)), (60_000, 2, 0), (60_000, 3, 0), (60_000, 3, 1))
    driver.answer_all()
    [bucket_id] = map(int, driver.cursor.properties.values())
    driver.runner.run(driver.storage.delete_bucket_snapshot(bucket_id))
    driver.now_ms = 58_000
    assert driver.contains(1, 0)
    driver.plan()
    driver.answer_all()

    assert driver.add((1, 1, 3)) == [False]
    assert driver.add((58_001, 1, 4), (70_000, 1, 5)) == [True, True]
    assert driver.core.add_message(1, 6, 70_000, driver.now_ms)
    driver.core.note_acknowledged(1, BitMap([7]))
    driver.core.pass_through(1, 1)
    driver.now_ms = 58_001
    assert driver.pop() == [(58_001, 1, 4)]

    assert driver.core.take_untracked() == {1: BitMap([2, 8, 9])}


def test_a_snapshot_that_is_lost_before_anyone_knew_it_need_not_be_read_again(runner: asyncio.Runner) -> None:
    """No reader passed over its messages in the log."""
    driver = driver_without_cache(runner)
    [bucket_id] = map(int, driver.cursor.properties.values())
    driver.runner.run(driver.storage.delete_bucket_snapshot(bucket_id))
    assert driver.is_recovering(3)
    driver.plan()
    driver.answer_all()

    assert not driver.is_recovering(3)
    assert driver.core.take_untracked() == {}
    assert driver.core.take_untracked_ranges() == []
    assert len(driver.core.take_losses()) == 1


def test_a_snapshot_that_is_lost_when_it_is_cold_again_is_reported_as_a_range(driver: Driver) -> None:
    """A reader may have passed over its messages, and no bitmap says any more which ones they are."""
    driver.add(*((60_000, n, n) for n in range(1, 7)))
    driver.answer_all()
    for _ in range(2):
        driver.now_ms += CACHED_FOR_MS + 1_000
        driver.plan()
    [bucket_id] = map(int, driver.cursor.properties.values())
    driver.runner.run(driver.storage.delete_bucket_snapshot(bucket_id))
    driver.now_ms = 58_000
    driver.plan()
    driver.answer_all()

    assert driver.core.take_untracked() == {}
    assert driver.core.take_untracked_ranges() == [LedgerRange(1, 5)]
    assert driver.core.take_untracked_ranges() == []


def test_positions_that_are_all_kept_are_not_forgotten_by_a_merge_with_a_bucket_that_is_still_read(
    runner: asyncio.Runner,
) -> None:
    """That one waits: when all is lost, each position is known that a reader may have passed over."""
    driver = Driver(runner, segment_row_count_max=1, bucket_count_max=1)
    driver.add(*((60_000, 1, n) for n in range(BITMAPS_AT_ONCE_MAX + 1)), (60_000, 2, 0))
    driver.answer_all()
    driver.keeps_positions = True
    driver.recover()
    while others := [action for action in driver.pending if not isinstance(action, ReadPositions)]:
        driver.answer(others[0])
    driver.add(*((60_000, ledger, n) for ledger in (10, 11) for n in range(5)), (60_000, 12, 0))
    while others := [action for action in driver.pending if not isinstance(action, ReadPositions)]:
        driver.answer(others[0])
    assert driver.waiting(ReadPositions)
    for bucket_id in map(int, driver.cursor.properties.values()):
        driver.runner.run(driver.storage.delete_bucket_snapshot(bucket_id))
    driver.now_ms = 58_000
    driver.plan()
    driver.answer_all()

    # No reader has passed over a message of ledger 1.
    assert driver.core.take_untracked() == {10: BitMap(range(5)), 11: BitMap(range(5))}
    assert driver.core.take_untracked_ranges() == []


def test_a_bucket_below_the_mark_delete_position_is_deleted_unread(driver: Driver) -> None:
    """Nothing of it is of interest."""
    driver.add(*((60_000, n, n) for n in range(1, 12)))
    driver.answer_all()
    driver.cursor.mark_delete_position = Position(6, 0)

    driver.recover()
    assert not driver.is_recovering(3)
    driver.answer_all()

    assert driver.bucket_names == ["6_10"]
    assert driver.core.message_count == 5


# Trimming, clearing, merging.


def test_trimmed_ledgers_are_dropped_also_from_segments_that_are_not_loaded(driver: Driver) -> None:
    """They hold nothing up, and their rows do not come."""
    driver.add(*((60_000, n, n) for n in range(1, 7)))
    driver.answer_all()

    driver.core.trim(4)
    driver.plan()
    driver.answer_all()
    assert driver.core.message_count == 3
    driver.now_ms = 60_000
    driver.plan()
    driver.answer_all()

    assert driver.pop() == [(60_000, n, n) for n in range(4, 7)]


def test_clearing_deletes_everything_and_keeps_what_is_added_meanwhile(driver: Driver) -> None:
    """Snapshots in flight included, and the same ledgers may be sealed again at once."""
    driver.add(*((60_000, n, n) for n in range(1, 12)))
    persist = driver.waiting(PersistBucket)[0]
    driver.answer(persist)

    driver.core.clear()
    assert driver.core.message_count == 0
    driver.add(*((70_000, n, n) for n in range(1, 7)))
    driver.answer_all()

    assert driver.core.message_count == 6
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
        merges = [action for action in driver.pending if type(action).__name__ == "MergeBuckets"]
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
    while not (merges := driver.waiting(MergeBuckets)):
        driver.answer(driver.pending[0])
    [merge] = merges
    assert isinstance(merge, MergeBuckets)
    lost_id = merge.sources[0].bucket_id
    [lost_key] = [key for key, value in driver.cursor.properties.items() if int(value) == lost_id]
    driver.runner.run(driver.storage.delete_bucket_snapshot(lost_id))
    driver.answer_all()
    assert [key for key, _ in driver.core.take_losses()] == [lost_key]
    [first, last] = map(int, lost_key.removeprefix(BUCKET_KEY_PREFIX + "_").split("_"))
    assert driver.core.take_untracked() == {n: BitMap([n]) for n in range(first, last + 1)}

    wakeup_ms = driver.core.next_wakeup_ms(now_ms=driver.now_ms)
    assert wakeup_ms is not None
    driver.now_ms = wakeup_ms
    driver.plan()
    driver.answer_all()

    assert len(driver.bucket_names) == 1
    assert driver.core.message_count == 11


def test_too_much_in_memory_pauses_reading_unless_something_is_due(runner: asyncio.Runner) -> None:
    """The storage takes nothing: reading on would only fill the memory."""
    driver = Driver(runner, unsealed_row_count_max=5)
    driver.add(*((60_000 + n, n, n) for n in range(1, 6)))
    assert not driver.core.should_pause(now_ms=driver.now_ms)

    driver.add((60_006, 6, 6))

    assert driver.core.should_pause(now_ms=driver.now_ms)
    assert not driver.core.should_pause(now_ms=60_001)
    driver.answer_all()
    assert not driver.core.should_pause(now_ms=driver.now_ms)


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
    """It is in a segment that is due later now, and the tracked positions of that segment are not known."""
    driver = Driver(runner, cached_bytes_max=0, prefetch_ms=0, segment_step_ms_max=1)
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
    (persist,) = driver.waiting(PersistBucket)
    driver.fail(persist)
    assert driver.waiting(PersistBucket) == []

    driver.now_ms = NOW_MS
    driver.plan()

    assert len(driver.waiting(PersistBucket)) == 1


def test_the_latest_time_there_is_is_a_time(driver: Driver) -> None:
    """It is tracked, sealed and counted like any other."""
    driver.add(*[(2**63 - 1, ledger, 0) for ledger in range(1, 7)])
    driver.answer_all()

    assert driver.core.message_count == 6
    assert driver.bucket_names == ["1_5"]
