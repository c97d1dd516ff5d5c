"""The tracker's core against a dictionary: any order of adds, polls, answers, failures, crashes and recoveries.

The model is slow and obvious: a dictionary from position to time. The core must hand out the model's first due
messages, in order, each once per life. Actions are answered in any order, and may fail with or without effect. A crash
keeps only the storage, the cursor's properties and the acknowledged positions.
"""

import asyncio
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from managed_ledger.positions.position import Position
from postdate.testing import FakeCursor, run_inline
from snapshot_storage.bucket_key import LedgerRange, parse_bucket_key
from snapshot_storage.encoding.codec import decode_metadata, decode_segment
from snapshot_storage.errors import BucketNotFoundError, SnapshotStorageError
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.core_checks import check
from tests.helpers.tracker_calls import answer_to
from tracker.config import TrackerConfig
from tracker.core.actions import Answer, Call, CallFailed
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.tracker_calls import InThreads, TrackerCalls

LEDGERS = st.integers(0, 7)
DELAYS = st.sampled_from([-5, 0, 1, 10, 20, 21, 40, 40, 90, 90, 91, 300, 300, 1_000])

IS_AGAIN = st.sampled_from([False] * 7 + [True])
"""Seldom: after it, nothing is damaged any more."""


class CoreMachine(RuleBasedStateMachine):
    """One cursor's tracker over several lives."""

    @initialize(
        count_min=st.sampled_from([3, 3, 600]),
        bucket_count_max=st.sampled_from([-1, 1, 2, 3]),
        cap=st.sampled_from([-1, 4]),
        is_strict=st.booleans(),
        step_ms=st.sampled_from([0, 1, 20, 1_000]),
        rows_max=st.sampled_from([-1, 1, 2]),
        loaded_max=st.sampled_from([1, 4, 1_000]),
        order_wait_ms=st.sampled_from([-1, -1, 0]),
        are_reads_checked=st.booleans(),
        plan=st.builds(
            FaultPlan,
            seed=st.integers(0, 2**16),
            rate=st.sampled_from([0, 0, 0.1, 0.4]),
            faults=st.just((Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER)),
        ),
    )
    def start(
        self,
        count_min: int,
        bucket_count_max: int,
        cap: int,
        is_strict: bool,
        step_ms: int,
        rows_max: int,
        loaded_max: int,
        order_wait_ms: int,
        are_reads_checked: bool,
        plan: FaultPlan,
    ) -> None:
        self.config = TrackerConfig(
            # With 600, only `seal` seals, and a span has three rows.
            index_count_per_bucket_min=count_min,
            index_count_per_bucket_max=cap if count_min == 3 else -1,
            segment_step_ms_max=step_ms,
            segment_row_count_max=rows_max,
            bucket_count_max=bucket_count_max,
            is_deliver_at_time_strict=is_strict,
            tick_time_ms=5,
            prefetch_ms=15,
            loaded_row_count_max=loaded_max,
            order_wait_ms_max=order_wait_ms,
            retry_backoff_ms_min=2,
            retry_backoff_ms_max=8,
        )
        self.lead_ms = 0 if is_strict else 5
        self.now_ms = 1_000
        self.loop = asyncio.new_event_loop()
        self.are_reads_checked = are_reads_checked
        self.stored = MemoryBucketSnapshotStorage()
        self.storage = FaultInjectingBucketSnapshotStorage(self.stored, plan, are_reads_checked=are_reads_checked)
        self.cursor = FakeCursor()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=lambda: None)
        self.work = TrackerCalls(self.config, context, self.storage, InThreads(run_inline))
        self.loop.run_until_complete(self.storage.start())
        self.next_entry: dict[int, int] = {}
        self.log: dict[tuple[int, int], int] = {}
        self.damaged: list[LedgerRange] = []
        self.has_second_times = False
        self.promised: dict[int, list[tuple[int, int, int]]] = {}
        self.begin_life()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            try:
                self.settle()
            finally:
                self.loop.close()

    def begin_life(self) -> None:
        self.core = TrackerCore(self.config, acknowledged_in=self.cursor.acknowledged_in, rng=Random(7))
        self.pending: list[Call] = []
        self.held: list[tuple[Call, Answer]] = []
        self.handed_out: set[tuple[int, int]] = set()
        self.tracked: dict[tuple[int, int], int] = {}
        self.core.trim(self.cursor.mark_delete_position.ledger_id)
        for key, value in self.cursor.properties.items():
            for time_ms, ledger_id, entry_id in self.stored_rows(int(value)):
                ledgers = parse_bucket_key(key)
                assert ledgers is not None
                if self.is_wanted((ledger_id, entry_id)):
                    known = self.tracked.get((ledger_id, entry_id), time_ms)
                    self.tracked[(ledger_id, entry_id)] = min(known, time_ms)
        self.core.recover(self.cursor.properties, now_ms=self.now_ms)
        self.plan()

    def stored_rows(self, bucket_id: int) -> list[tuple[int, int, int]]:
        """Return the rows that the metadata of a snapshot promise, read without the tracker; none if it is damaged."""
        if bucket_id in self.promised:
            return self.promised[bucket_id]
        read = self.loop.run_until_complete
        try:
            segments = decode_metadata(read(self.stored.get_bucket_snapshot_metadata(bucket_id)))
            if not segments:
                return []
            data = read(self.stored.get_bucket_snapshot_segment(bucket_id, 1, len(segments)))
            return [row for segment in data for row in decode_segment(segment)]
        except SnapshotStorageError:
            return []

    def is_wanted(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = position
        if ledger_id < self.cursor.mark_delete_position.ledger_id:
            return False
        return entry_id not in self.cursor.acknowledged_in(ledger_id)

    def plan(self) -> None:
        self.pending += self.core.plan(now_ms=self.now_ms)

    # Adding.

    def offer(self, position: tuple[int, int], time_ms: int) -> None:
        is_late = time_ms > self.now_ms + self.lead_ms
        assert self.core.add_message(*position, time_ms, now_ms=self.now_ms) == is_late
        self.note_offer(position, time_ms, is_late)

    def note_offer(self, position: tuple[int, int], time_ms: int, is_late: bool) -> None:
        if is_late:
            self.tracked[position] = min(time_ms, self.tracked.get(position, time_ms))
        else:
            self.tracked.pop(position, None)
            self.handed_out.add(position)

    def publish(self, ledger_id: int, delay_ms: int) -> tuple[tuple[int, int], int]:
        ledger_id = max(ledger_id, self.cursor.mark_delete_position.ledger_id)
        entry_id = self.next_entry.get(ledger_id, 0)
        self.next_entry[ledger_id] = entry_id + 1
        self.log[(ledger_id, entry_id)] = self.now_ms + delay_ms
        return (ledger_id, entry_id), self.now_ms + delay_ms

    @rule(ledger_id=LEDGERS, delay_ms=DELAYS)
    def add(self, ledger_id: int, delay_ms: int) -> None:
        self.offer(*self.publish(ledger_id, delay_ms))
        self.plan()

    @rule(ledger_id=LEDGERS, rows=st.lists(st.tuples(DELAYS, IS_AGAIN), min_size=2, max_size=12))
    def add_in_a_row(self, ledger_id: int, rows: list[tuple[int, bool]]) -> None:
        """Add one by one, with no poll in between; some again at once, with another time."""
        for delay_ms, is_again in rows:
            position, time_ms = self.publish(ledger_id, delay_ms)
            self.offer(position, time_ms)
            if is_again and position in self.tracked and not self.damaged:
                self.has_second_times = True
                self.offer(position, time_ms + rows[0][0])
        self.plan()

    @rule(rows=st.lists(st.tuples(LEDGERS, DELAYS), min_size=4, max_size=16))
    def add_many(self, rows: list[tuple[int, int]]) -> None:
        offered = [self.publish(ledger_id, delay_ms) for ledger_id, delay_ms in rows]
        ledgers = [position[0] for position, _ in offered]
        entries = [position[1] for position, _ in offered]
        times = [time_ms for _, time_ms in offered]
        is_late = self.core.add_messages(ledgers, entries, times, now_ms=self.now_ms)
        for (position, time_ms), late in zip(offered, is_late.tolist(), strict=True):
            assert late == (time_ms > self.now_ms + self.lead_ms)
            self.note_offer(position, time_ms, late)
        self.plan()

    # After damage, which of two times is still known would depend on which row was lost.
    @precondition(lambda self: self.tracked and not self.damaged)
    @rule(choice=st.randoms(use_true_random=False), delay_ms=DELAYS)
    def add_again(self, choice: Random, delay_ms: int) -> None:
        self.has_second_times = True
        self.offer(choice.choice(sorted(self.tracked)), self.now_ms + delay_ms)
        self.plan()

    @rule()
    def read_again(self) -> None:
        """Offer what the tracker does not know, as a dispatcher does that reads the log."""
        self.forget_damaged()
        for position, time_ms in sorted(self.log.items()):
            is_known = self.core.contains_message(*position) or self.is_recovering(position[0])
            if self.is_wanted(position) and position not in self.handed_out and not is_known:
                self.offer(position, time_ms)
        self.plan()

    # Asking.

    @rule(ledger_id=LEDGERS)
    def ask(self, ledger_id: int) -> None:
        """The known positions of a ledger are all that are tracked of it, and no others."""
        self.forget_damaged()
        tracked = {entry_id for ledger, entry_id in self.tracked if ledger == ledger_id}
        known = set(self.core.tracked_in(ledger_id) or ())
        if not self.is_recovering(ledger_id):
            assert known == tracked
        else:
            assert known <= tracked
        for entry_id in range(self.next_entry.get(ledger_id, 0)):
            assert self.core.contains_message(ledger_id, entry_id) == (entry_id in known)
        self.plan()

    def is_recovering(self, ledger_id: int) -> bool:
        """Return whether a ledger is being recovered."""
        return self.core.is_recovering(ledger_id)

    # Time and hand-out.

    @rule(step_ms=st.sampled_from([1, 5, 20, 20, 100]))
    def wait(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.plan()

    @rule(limit=st.integers(1, 8))
    def poll(self, limit: int) -> None:
        self.pop(limit)

    def pop(self, limit: int) -> list[tuple[int, int, int]]:
        self.forget_damaged()
        due = sorted(
            (time_ms, *position) for position, time_ms in self.tracked.items() if time_ms <= self.now_ms + self.lead_ms
        )
        rows = self.core.pop_due(now_ms=self.now_ms, limit=limit).to_rows()
        assert len(rows) <= limit
        if self.config.order_wait_ms_max and not self.damaged:
            assert rows == due[: len(rows)], (rows, due)
        else:
            # No row waits for a bucket that is not read, or may be lost. Rows handed out together are in order.
            # A message added twice may come at the later of its times while the bucket with the earlier is not read.
            assert rows == sorted(set(rows))
            times = {row[1:]: row[0] for row in due}
            assert all(times[row[1:]] <= row[0] <= self.now_ms + self.lead_ms for row in rows)
            assert self.has_second_times or set(rows) <= set(due)
        if rows:
            assert not any(row[1:] in self.handed_out for row in rows)
        for _, ledger_id, entry_id in rows:
            self.handed_out.add((ledger_id, entry_id))
            del self.tracked[(ledger_id, entry_id)]
        self.plan()
        return rows

    def forget_damaged(self) -> None:
        """Drop from the model what a damaged snapshot held and the tracker gave up."""
        for ledger_id, entry_ids in self.core.pop_to_read_again().items():
            assert {(ledger_id, entry_id) for entry_id in entry_ids} <= self.tracked.keys()
            self.tracked = {
                place: time_ms
                for place, time_ms in self.tracked.items()
                if place[0] != ledger_id or place[1] not in entry_ids
            }
            assert any(first <= ledger_id <= last for first, last in self.damaged)
        for position in list(self.tracked):
            is_known = self.core.contains_message(*position) or self.is_recovering(position[0])
            if not is_known and any(first <= position[0] <= last for first, last in self.damaged):
                del self.tracked[position]

    # The world outside.

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "ok", "ok", "failed", "failed after effect"]))
    def answer(self, data: st.DataObject, outcome: str) -> None:
        action = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.run(action, outcome)
        self.plan()

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def take_effect(self, data: st.DataObject) -> None:
        """Run an action whose answer comes later."""
        action = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.held.append((action, self.answer_of(action)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.core.handle(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))), now_ms=self.now_ms)
        self.plan()

    def answer_of(self, call: Call) -> Answer:
        return self.loop.run_until_complete(answer_to(self.work, call))

    def run(self, action: Call, outcome: str = "ok") -> None:
        if outcome == "failed":
            self.core.handle(action, CallFailed("injected"), now_ms=self.now_ms)
            return
        answer = self.answer_of(action)
        if outcome == "failed after effect":
            answer = CallFailed("injected")
        self.core.handle(action, answer, now_ms=self.now_ms)

    @rule(count=st.integers(1, 20))
    def answer_many(self, count: int) -> None:
        """Let things go on without trouble for a while."""
        for _ in range(count):
            if self.pending:
                self.run(self.pending.pop(0))
                self.plan()

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        candidates = sorted(position for position in self.handed_out if self.is_wanted(position))
        if candidates:
            for position in data.draw(st.lists(st.sampled_from(candidates), max_size=5)):
                self.cursor.acknowledge(*position)

    @rule()
    def move_mark_delete(self) -> None:
        """The cursor passes every ledger of which all is acknowledged."""
        ledger_id = self.cursor.mark_delete_position.ledger_id
        last = max((position[0] for position in self.log), default=0)
        while ledger_id < last and not any(p[0] == ledger_id and self.is_wanted(p) for p in self.log):
            ledger_id += 1
        if ledger_id > self.cursor.mark_delete_position.ledger_id:
            self.cursor.mark_delete_position = Position(ledger_id, -1)
            self.core.trim(ledger_id)
        self.plan()

    @rule(data=st.data())
    def pass_through(self, data: st.DataObject) -> None:
        """The cursor passes messages that no consumer has received, as when they expire."""
        candidates = sorted(position for position in self.log if self.is_wanted(position))
        if candidates:
            through = data.draw(st.sampled_from(candidates[: 1 + len(candidates) // 2]))
            self.cursor.mark_delete_position = Position(*through)
            self.tracked = {position: time_ms for position, time_ms in self.tracked.items() if position > through}
            self.core.pass_through(*through)
        self.plan()

    @precondition(lambda self: self.cursor.properties and not self.has_second_times)
    @rule(data=st.data(), how=st.sampled_from(["gone", "torn", "no metadata"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.cursor.properties)))
        ledgers = parse_bucket_key(key)
        assert ledgers is not None
        # Without a checksum, metadata that ends between two segments is a shorter snapshot.
        how = "gone" if how == "no metadata" and not self.are_reads_checked else how
        self.damaged.append(ledgers)
        bucket_id = int(self.cursor.properties[key])
        # Torn segments are found out when they are loaded; until then their positions are tracked.
        self.promised[bucket_id] = self.stored_rows(bucket_id) if how == "torn" else []
        self.storage_damage(bucket_id, how)

    def storage_damage(self, bucket_id: int, how: str) -> None:
        run = self.loop.run_until_complete
        try:
            entry_count = 1 + len(run(self.stored.get_bucket_snapshot_segment(bucket_id, 1, 2**31)))
        except BucketNotFoundError:
            return
        if how == "gone":
            run(self.stored.delete_bucket_snapshot(bucket_id))
        elif how == "no metadata":
            self.storage.damage(bucket_id, 0, Fault.TORN_READ)
        else:
            for entry in range(1, entry_count):
                self.storage.damage(bucket_id, entry, Fault.TORN_READ)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        for action in data.draw(st.lists(st.sampled_from(self.pending), unique_by=id)) if self.pending else []:
            self.run(action)
        self.begin_life()

    @rule()
    def restart(self) -> None:
        """Stop in good order and start again."""
        self.core.seal(index_count_min=1)
        self.plan()
        while self.pending:
            self.run(self.pending.pop(0))
            self.plan()
        self.begin_life()

    @precondition(lambda self: len(self.log) % 5 == 0)
    @rule()
    def clear(self) -> None:
        self.core.clear()
        self.tracked.clear()
        self.plan()

    @rule()
    def seal(self) -> None:
        self.core.seal(index_count_min=1)
        self.plan()

    @rule()
    def settle(self) -> None:
        """With all calls working again, all due messages come out, and storage and properties agree."""
        plan, self.storage.plan = self.storage.plan, NO_FAULTS
        for call, answer in self.held:
            self.core.handle(call, answer, now_ms=self.now_ms)
        self.held.clear()
        self.rest()
        for ledger_id in range(8):
            self.is_recovering(ledger_id)
        self.rest()
        self.forget_damaged()
        self.read_again()
        self.rest()
        due = [p for p, time_ms in self.tracked.items() if time_ms <= self.now_ms + self.lead_ms]
        assert not due, "something is due and does not come"
        if self.core.next_wakeup_ms(now_ms=self.now_ms) is None:
            assert not self.tracked
        ids = {info.bucket_id for info in self.loop.run_until_complete(self.storage.list_bucket_snapshots())}
        named = {int(value) for value in self.cursor.properties.values()}
        if not self.damaged:
            assert named <= ids, "a property names no snapshot"
        # A create that took effect and failed leaves a snapshot that the sweep of the storage's owner finds.
        assert plan is not NO_FAULTS or ids <= named, "a snapshot has no owner"
        assert self.core.tracked.count == len(self.tracked)
        self.storage.plan = plan

    def rest(self) -> None:
        """Let all work go on that can, and take the due messages, until no work is left."""
        rest_by_ms = self.now_ms + 4 * self.config.retry_backoff_ms_max
        for _ in range(2_000):
            self.plan()
            if self.pending:
                self.run(self.pending.pop(0))
                continue
            # A poll that drops unwanted rows makes room for a load, and gives nothing.
            if self.pop(1_000) or self.pending:
                continue
            wakeup_ms = self.core.next_wakeup_ms(now_ms=self.now_ms)
            # Every retry comes within the longest back-off; later alarms are of a message or a load.
            if wakeup_ms is None or wakeup_ms > rest_by_ms:
                return
            assert wakeup_ms > self.now_ms, "a wake-up in the past would be a busy loop"
            self.now_ms = wakeup_ms
        raise AssertionError("never at rest")

    @invariant()
    def core_is_sound(self) -> None:
        if hasattr(self, "core"):
            check(self.core, [*self.pending, *(call for call, _ in self.held)])


TestCore = CoreMachine.TestCase
