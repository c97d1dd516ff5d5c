"""Subscriptions on one shared index against a plain model, by Hypothesis.

Views, index, bucket tracker and snapshot storage are the real ones, in virtual time; each subscription's reader is
simple and in lock-step: it scans the log as a dispatcher does, polls, and reads again the rows that its view asks for.
The model is a dictionary per subscription: the rows that it took, and those it read over because they are tracked.

After each step: nothing is taken twice, early or out of order; due rows in memory are within their limit.
At the end every subscription has taken every message that it did not acknowledge unseen.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from managed_ledger.positions.position import Position
from postdate.testing import FakeCursor, VirtualTimeLoop, run_inline, virtual_now_ms
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.core_checks import positions_without_a_row
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shared.shared_cursor import SharedCursor
from tracker.shared.shared_index import SharedDelayedIndex, SharedIndexView

Key = tuple[int, int]

ENTRIES_PER_LEDGER: Final = 8
UPHEAVALS: Final = ("close", "crash", "join", "stop", "leave", "seek")
CONFIG = TrackerConfig(
    index_count_per_bucket_min=4,
    index_count_at_close_min=-1,
    segment_row_count_max=3,
    bucket_count_max=3,
    prefetch_ms=50,
    order_wait_ms_max=-1,
    is_deliver_at_time_strict=True,
)


@dataclass
class ViewModel:
    """A subscription: its cursor, its view while it has a reader, and the steps of that reader."""

    cursor: FakeCursor = field(default_factory=FakeCursor)
    view: SharedIndexView | None = None
    is_told: bool = False
    is_dry: bool = False
    """Whether a poll gave nothing since the view last told; the reader does not poll then."""
    scanned: int = 0
    """Entries of the log that the reader has come by."""
    taken: dict[Key, int] = field(default_factory=dict)
    """The rows that were handed to consumers, with their times."""
    acknowledged: set[Key] = field(default_factory=set)
    to_read: list[Key] = field(default_factory=list)
    """The rows that the view wants read again, and that the reader has not come to."""
    in_flight: list[int] | None = None
    """Entries of the log that a read under way will bring."""


class SharedIndexMachine(RuleBasedStateMachine):
    """The events of an index and its subscriptions, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.storage = MemoryBucketSnapshotStorage()
        self.own = FakeCursor()
        self.log: list[tuple[int, int, int]] = []
        """(time, ledger, entry) in order of the log."""
        self.subs: list[ViewModel] = []
        self.row_count_max = 1
        self._do(self.storage.start())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        async def do() -> None:
            await work
            # All work that needs no time is done.
            await asyncio.sleep(0.001)

        self.runner.run(do())

    # Life of the index.

    @precondition(lambda self: not self.subs)
    @rule(row_count_max=st.sampled_from([1, 2, 3, 6]))
    def begin(self, row_count_max: int) -> None:
        self.row_count_max = row_count_max
        self._do(self._open())
        self._join(0)
        self._join(0)

    async def _open(self) -> None:
        config = replace(CONFIG, loaded_row_count_max=self.row_count_max)
        factory = BucketDelayedDeliveryTrackerFactory(
            config, self.storage, now_ms=virtual_now_ms, run_blocking=run_inline, rng=Random(0)
        )
        cursor = SharedCursor(self.own, lambda: [sub.cursor for sub in self.subs])
        self.index = SharedDelayedIndex("t", "#index", cursor, factory)

    @precondition(lambda self: self.subs)
    @rule(what=st.sampled_from(UPHEAVALS), number=st.integers(0, 3), place=st.integers(0, 1_000))
    def upheave(self, what: str, number: int, place: int) -> None:
        """One of the rarer things: in a rule of their own, they would be most of what happens."""
        match what:
            case "close" | "crash":
                self._start_again(is_crash=what == "crash")
            case "join":
                if len(self.subs) < 4:
                    self._join(place % (len(self.log) + 1))
            case "stop":
                self._stop_reading(number)
            case "leave":
                self._leave(number)
            case "seek":
                self._seek_to(number, place)
            case _:
                raise AssertionError(what)

    def _start_again(self, *, is_crash: bool) -> None:
        async def restart() -> None:
            for sub in self.subs:
                if sub.view is not None:
                    await self._let_go(sub)
            # A crash takes what is in flight with it.
            if is_crash:
                self.index.tracker.abandon()
            await (self.index.tracker.close() if is_crash else self.index.close())
            await self._open()

        self._do(restart())

    # Subscriptions.

    def _join(self, scanned: int) -> None:
        sub = ViewModel()
        self._seek(sub, scanned)
        self.subs.append(sub)
        self._read_from_now_on(sub)

    def _read_from_now_on(self, sub: ViewModel) -> None:
        def tell() -> None:
            sub.is_told, sub.is_dry = True, False

        async def open_view() -> None:
            context = TrackerContext(topic_name="t", cursor_name="s", cursor=sub.cursor, on_available=tell)
            sub.view = self.index.new_view(context)

        # The log is read from the first entry that is not acknowledged; rows that consumers held come again.
        sub.scanned = next(
            (place for place, row in enumerate(self.log) if row[1:] not in sub.acknowledged), len(self.log)
        )
        sub.taken = {}
        self._do(open_view())

    async def _let_go(self, sub: ViewModel) -> None:
        assert sub.view is not None
        await sub.view.close()
        sub.view, sub.in_flight, sub.is_told, sub.is_dry, sub.to_read = None, None, False, False, []

    def _sub(self, number: int, *, has_reader: bool | None = None) -> ViewModel | None:
        subs = [sub for sub in self.subs if has_reader in (None, sub.view is not None)]
        return subs[number % len(subs)] if subs else None

    def _stop_reading(self, number: int) -> None:
        sub = self._sub(number, has_reader=True)
        if sub is not None:
            self._do(self._let_go(sub))

    @rule(number=st.integers(0, 3))
    def read_again(self, number: int) -> None:
        sub = self._sub(number, has_reader=False)
        if sub is not None:
            self._read_from_now_on(sub)

    def _leave(self, number: int) -> None:
        if len(self.subs) < 2:
            return
        sub = self.subs[number % len(self.subs)]
        if sub.view is not None:
            self._do(self._let_go(sub))
        self.subs.remove(sub)
        self._do(self._refresh())

    def _seek_to(self, number: int, place: int) -> None:
        sub = self._sub(number, has_reader=True)
        if sub is not None and self.log:
            assert sub.view is not None
            self._do(sub.view.clear())
            self._seek(sub, place % len(self.log))

    def _seek(self, sub: ViewModel, place: int) -> None:
        sub.taken, sub.in_flight, sub.scanned, sub.to_read = {}, None, place, []
        sub.acknowledged = {row[1:] for row in self.log[:place]}
        self._move(sub)

    # Time, messages, acknowledgements.

    @rule(wait_ms=st.sampled_from([1, 30, 300]))
    def wait(self, wait_ms: int) -> None:
        self._do(asyncio.sleep(wait_ms / 1_000))

    @precondition(lambda self: self.subs)
    @rule(delays_ms=st.lists(st.integers(-20, 400), min_size=1, max_size=12))
    def publish(self, delays_ms: list[int]) -> None:
        async def append() -> None:
            for delay_ms in delays_ms:
                number = len(self.log)
                position = (number // ENTRIES_PER_LEDGER + 1, number % ENTRIES_PER_LEDGER)
                self.log.append((virtual_now_ms() + delay_ms, *position))

        self._do(append())

    @rule(number=st.integers(0, 3), count=st.integers(1, 20))
    def acknowledge(self, number: int, count: int) -> None:
        sub = self._sub(number)
        if sub is not None:
            self._acknowledge(sub, [key for key in sub.taken if key not in sub.acknowledged][:count])

    @precondition(lambda self: self.log)
    @rule(number=st.integers(0, 3), places=st.lists(st.integers(0, 1_000), max_size=5))
    def acknowledge_unseen(self, number: int, places: list[int]) -> None:
        """As expiry does, or a consumer of before."""
        sub = self._sub(number)
        if sub is not None:
            self._acknowledge(sub, [self.log[place % len(self.log)][1:] for place in places])

    def _acknowledge(self, sub: ViewModel, keys: list[Key]) -> None:
        sub.acknowledged.update(keys)
        self._move(sub)
        self._do(self._refresh())

    def _move(self, sub: ViewModel) -> None:
        """Let the cursor say what is acknowledged."""
        first = next((row[1:] for row in self.log if row[1:] not in sub.acknowledged), None)
        last = self.log[-1][1:] if self.log else (1, -1)
        ledger_id, entry_id = first if first is not None else (last[0], last[1] + 1)
        sub.cursor.acknowledged = {}
        for acknowledged in sub.acknowledged:
            sub.cursor.acknowledge(*acknowledged)
        sub.cursor.mark_delete_position = Position(ledger_id, entry_id - 1)

    async def _refresh(self) -> None:
        self.index.refresh()

    # The calls of a reader.

    @rule(number=st.integers(0, 3), count=st.integers(1, 12), is_slow=st.booleans())
    def scan(self, number: int, count: int, is_slow: bool) -> None:
        """Read on; a slow read brings what it found at a later step."""
        sub = self._sub(number, has_reader=True)
        if sub is not None:
            self._do(self._scan(sub, count, is_slow=is_slow))

    async def _scan(self, sub: ViewModel, count: int, *, is_slow: bool) -> bool:
        assert sub.view is not None
        if sub.in_flight is not None:
            self._arrive(sub)
            return True
        end = min(len(self.log), sub.scanned + count)
        places = []
        for place in range(sub.scanned, end):
            _, ledger_id, entry_id = self.log[place]
            if sub.view.is_recovering(ledger_id):
                return False
            tracked = sub.view.tracked_in(ledger_id)
            key = (ledger_id, entry_id)
            if key not in sub.acknowledged and key not in sub.taken and not (tracked and entry_id in tracked):
                places.append(place)
        sub.in_flight = places
        # The places up to here are read once this has arrived.
        self._ends = {**getattr(self, "_ends", {}), id(sub): end}
        if not is_slow:
            self._arrive(sub)
        return end > sub.scanned or bool(places)

    def _arrive(self, sub: ViewModel) -> None:
        """Take what a read brought, if one is under way: a reader does one thing at a time."""
        assert sub.view is not None
        if sub.in_flight is None:
            return
        rows = [self.log[place] for place in sub.in_flight]
        sub.scanned, sub.in_flight = self._ends[id(sub)], None
        left = [row for row in rows if row[2] not in (sub.view.tracked_in(row[1]) or ())]
        # Due ones go to consumers at once, acknowledged meanwhile or not.
        now_ms = virtual_now_ms()
        for row in [row for row in left if row[0] <= now_ms]:
            self._take(sub, row)
        self._offer(sub, [row for row in left if row[0] > now_ms])

    def _offer(self, sub: ViewModel, rows: list[tuple[int, int, int]]) -> None:
        assert sub.view is not None
        columns = np.array(rows, np.int64).reshape(-1, 3)
        is_tracked = sub.view.add_messages(columns[:, 1], columns[:, 2], columns[:, 0])
        for row, is_kept in zip(rows, is_tracked.tolist(), strict=True):
            if not is_kept:
                self._take(sub, row)

    def _take(self, sub: ViewModel, row: tuple[int, int, int]) -> None:
        time_ms, *_ = row
        assert time_ms <= virtual_now_ms(), "early"
        assert row[1:] not in sub.taken, "twice"
        sub.taken[row[1:]] = time_ms

    @rule(number=st.integers(0, 3), polls=st.integers(0, 4), limit=st.integers(1, 9))
    def keep_up(self, number: int, polls: int, limit: int) -> None:
        """Do what a dispatcher does all the time."""
        sub = self._sub(number, has_reader=True)

        async def work(sub: ViewModel) -> None:
            await self._scan(sub, 30, is_slow=False)
            for _ in range(polls):
                await self._look_again(sub)
                await self._poll(sub, limit)

        if sub is not None:
            self._do(work(sub))

    @rule(number=st.integers(0, 3))
    def look_again(self, number: int) -> None:
        """Read again what the view asks for."""
        sub = self._sub(number, has_reader=True)
        if sub is not None:
            self._do(self._look_again(sub))

    async def _look_again(self, sub: ViewModel) -> bool:
        assert sub.view is not None
        self._arrive(sub)
        if sub.is_told:
            sub.is_told = False
            for ledger_id, entry_ids in sub.view.pop_to_read_again().items():
                sub.to_read += [(ledger_id, entry_id) for entry_id in entry_ids]
        if not sub.to_read:
            return False
        # A few at a time, so that polls come between.
        keys, sub.to_read = sub.to_read[:2], sub.to_read[2:]
        # As a dispatcher does: what was not scanned yet will be, and what was taken is with a consumer.
        by_key = {row[1:]: row for row in self.log[: sub.scanned] if row[1:] not in {*sub.acknowledged, *sub.taken}}
        self._offer(sub, [by_key[key] for key in keys if key in by_key])
        return True

    @rule(number=st.integers(0, 3), limit=st.integers(1, 30))
    def poll(self, number: int, limit: int) -> None:
        sub = self._sub(number, has_reader=True)
        if sub is not None:
            self._do(self._poll(sub, limit))

    async def _poll(self, sub: ViewModel, limit: int) -> bool:
        assert sub.view is not None
        self._arrive(sub)
        rows = sub.view.get_scheduled_messages(limit).to_rows()
        sub.is_dry = not rows
        assert len(rows) <= limit
        assert rows == sorted(rows)
        # Tracked rows of this subscription that come before these must have come before, but for those that did not fit
        # into memory: they are read again by position.
        passed = {*sub.taken, *sub.acknowledged, *sub.to_read, *positions_without_a_row(sub.view)}
        waiting = {row for row in self.log[: sub.scanned] if row[1:] not in passed and row not in rows}
        assert not rows or not waiting or rows[-1] < min(waiting), "out of order"
        for row in rows:
            # A dispatcher drops what was acknowledged since it became due.
            if row[1:] not in sub.acknowledged:
                self._take(sub, row)
        return bool(rows)

    # Invariants.

    def teardown(self) -> None:
        """Let all subscriptions read to the end."""
        try:
            if self.subs:
                for sub in self.subs:
                    if sub.view is None:
                        self._read_from_now_on(sub)
                self._do(self._finish())
        finally:
            self.runner.close()

    async def _work(self, sub: ViewModel) -> list[bool]:
        """Do what there is reason to do: a view that should have told and did not is found out."""
        assert sub.view is not None
        has_rows = not sub.is_dry and sub.view.has_message_available() and await self._poll(sub, 7)
        return [await self._look_again(sub), has_rows, await self._scan(sub, 9, is_slow=False)]

    async def _finish(self) -> None:
        await asyncio.sleep(1)
        idle = 0
        # A timer is set 5 s ahead at most.
        while idle < 60:
            works = [work for sub in self.subs for work in await self._work(sub)]
            await asyncio.sleep(0.1)
            idle = 0 if any(works) else idle + 1
        for sub in self.subs:
            assert sub.view is not None
            missing = {row[1:] for row in self.log} - sub.taken.keys() - sub.acknowledged
            assert not missing, f"lost: {sorted(missing)}"
            assert sub.view.number_of_delayed_messages() == 0
            await sub.view.close()
        await self.index.close()


TestSharedIndex = SharedIndexMachine.TestCase
