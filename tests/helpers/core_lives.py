"""Random lives of a tracker's core beside its dispatcher, on a storage that fails, loses snapshots and answers late.

The oracle is slow and obvious: the log is a dictionary from position to time, and a set says what was delivered. A life
is the same for the same seed. After each step nothing may be lost, and nothing unknown tracked.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import numpy as np
from pyroaring import BitMap

from tests.helpers.core_disk import Disk
from tracker.config import TrackerConfig
from tracker.core.actions import Call, CallFailed, CreateSnapshot, MergeSnapshots
from tracker.core.tracker_core import TrackerCore

Position = tuple[int, int]

CONFIG: Final = TrackerConfig(
    index_count_per_bucket_min=4,
    tick_time_ms=5,
    segment_step_ms_max=20,
    segment_row_count_max=2,
    prefetch_ms=15,
    retry_backoff_ms_min=5,
    retry_backoff_ms_max=40,
    operation_timeout_ms=500,
)


class RandomLife:
    """One random life of a core and of the dispatcher that uses it."""

    ORDER_WAITS_MS: tuple[int, ...] = (-1, -1, 0, 60)

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.config = replace(
            CONFIG,
            bucket_count_max=rng.choice([-1, 1, 2, 3]),
            loaded_row_count_max=rng.choice([1, 4, 1_000]),
            order_wait_ms_max=rng.choice(self.ORDER_WAITS_MS),
            operations_in_flight_max=rng.choice([1, 2, 16]),
            is_deliver_at_time_strict=rng.random() < 0.7,
            index_count_per_bucket_max=rng.choice([-1, -1, 5]),
        )
        self.failing = rng.choice([0, 0, 0.1, 0.5])
        self.is_lossy = rng.random() < 0.3
        self.now_ms = 10**9
        self.disk = Disk(self.config, span_rows=rng.choice([1, 1, 3]))
        self.log: dict[Position, int] = {}
        self.entry_counts: dict[int, int] = {}
        self.ledger_id = 0
        self.counts: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """Start a core; what it is to bring, and what is still to be read from the log."""
        self.core = TrackerCore(self.config, acknowledged_in=self.disk.acknowledged_in, rng=Random(1))
        self.pending: list[Call] = []
        self.tracked: dict[Position, int] = {}
        self.delivered: set[Position] = set()
        self.core.trim(self.disk.first_ledger_id)
        self.core.recover(dict(self.disk.properties), now_ms=self.now_ms)
        self.unread = {position for position in self.log if not self.disk.is_acknowledged(*position)}
        self.is_disturbed = False

    @property
    def lead_ms(self) -> int:
        return 0 if self.config.is_deliver_at_time_strict else self.config.tick_time_ms

    # The dispatcher.

    def read(self) -> None:
        for position in sorted(self.unread):
            if self.core.is_recovering(position[0]) or self.rng.random() < 0.3:
                continue
            if self.core.contains_message(*position):
                self.tracked[position] = self.log[position]
                self.unread.discard(position)
            else:
                self.offer(position)

    def offer(self, position: Position) -> None:
        ledger_id, entry_id = position
        if self.rng.random() < 0.5:
            is_tracked = self.core.add_message(ledger_id, entry_id, self.log[position], self.now_ms)
        else:
            columns = (np.array([number]) for number in (ledger_id, entry_id, self.log[position]))
            is_tracked = bool(self.core.add_messages(*columns, now_ms=self.now_ms)[0])
        assert is_tracked == (self.log[position] > self.now_ms + self.lead_ms)
        self.unread.discard(position)
        if is_tracked:
            self.tracked[position] = self.log[position]
        else:
            self.tracked.pop(position, None)
            self.deliver(position)

    def deliver(self, position: Position) -> None:
        assert position not in self.delivered, f"{position} is delivered twice"
        assert self.log[position] <= self.now_ms + self.lead_ms, f"{position} is early"
        self.delivered.add(position)
        self.counts["delivered"] += 1
        if self.rng.random() < 0.6:
            self.disk.acknowledge(*position)

    def write(self) -> None:
        if self.rng.random() < 0.3:
            self.ledger_id += 1
        first = max(0, self.disk.first_ledger_id)
        ledger_id = self.ledger_id if self.rng.random() < 0.85 else self.rng.randrange(first, self.ledger_id + 1)
        for _ in range(self.rng.randrange(1, 7)):
            entry_id = self.entry_counts.get(ledger_id, 0)
            self.entry_counts[ledger_id] = entry_id + 1
            delay_ms = self.rng.choice([0, 10, 20, 20, 40, 90, 300, 1_000, 20_000])
            self.log[ledger_id, entry_id] = self.now_ms + delay_ms
            self.unread.add((ledger_id, entry_id))
        if self.rng.random() < 0.8:
            self.read()

    def offer_again(self) -> None:
        if self.tracked:
            self.offer(self.rng.choice(sorted(self.tracked)))

    def poll(self) -> None:
        rows = self.core.pop_due(now_ms=self.now_ms, limit=self.rng.choice([1, 3, 100])).to_rows()
        assert rows == sorted(rows), f"{rows} are not in order"
        for time_ms, *position in rows:
            place = (position[0], position[1])
            if place in self.unread:
                # A snapshot has it, and the reader has not asked yet.
                self.unread.discard(place)
                self.tracked[place] = self.log[place]
            assert place in self.tracked, f"{place} is not tracked"
            assert time_ms == self.log[place]
        if rows and not self.is_disturbed and self.config.order_wait_ms_max == -1:
            overtaken = [(time_ms, *place) for place, time_ms in self.tracked.items()]
            overtaken = [row for row in overtaken if row <= rows[-1] and row not in rows]
            assert not overtaken, f"{overtaken} are overtaken by {rows}"
        for _, ledger_id, entry_id in rows:
            del self.tracked[ledger_id, entry_id]
            self.deliver((ledger_id, entry_id))

    def acknowledge(self) -> None:
        if self.tracked:
            ledger_id, entry_id = position = self.rng.choice(sorted(self.tracked))
            self.disk.acknowledge(ledger_id, entry_id)
            self.core.acknowledge(ledger_id, BitMap([entry_id]))
            del self.tracked[position]

    def trim(self) -> None:
        first = self.disk.first_ledger_id
        while first < self.ledger_id and len(self.disk.acknowledged_in(first)) == self.entry_counts.get(first, 0):
            first += 1
        if first > self.disk.first_ledger_id:
            self.disk.first_ledger_id = first
            self.core.trim(first)
            self.tracked = {place: time_ms for place, time_ms in self.tracked.items() if place[0] >= first}

    def pass_through(self) -> None:
        ledger_id = self.disk.first_ledger_id
        acknowledged = self.disk.acknowledged_in(ledger_id)
        last = next(entry_id for entry_id in range(len(acknowledged) + 1) if entry_id not in acknowledged) - 1
        if last >= 0:
            self.core.pass_through(ledger_id, last)

    def clear(self) -> None:
        if self.rng.random() < 0.04:
            self.core.clear()
            self.unread |= self.tracked.keys()
            self.tracked.clear()

    # The world outside.

    def crash(self) -> None:
        if self.rng.random() < 0.3:
            self.counts["crashes"] += 1
            self.begin()

    def lose(self) -> None:
        if self.is_lossy and self.disk.snapshots and self.rng.random() < 0.2:
            del self.disk.snapshots[self.rng.choice(sorted(self.disk.snapshots))]
            self.counts["lost"] += 1

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 5, 20, 20, 60, 200, 600, 1_100, 12_000])

    def put_clock_back(self) -> None:
        if self.rng.random() < 0.3:
            self.now_ms -= self.rng.choice([1, 50, 1_000])

    def seal(self) -> None:
        if self.rng.random() < 0.2:
            self.core.seal(index_count_min=1)

    def answer(self) -> None:
        if not self.pending:
            return
        call = self.pending.pop(self.rng.randrange(len(self.pending)))
        if self.rng.random() < self.failing:
            if self.rng.random() < 0.5:
                self.disk.answer(call)
            self.core.handle(call, CallFailed("down"), now_ms=self.now_ms)
        else:
            answer = self.disk.answer(call)
            self.counts["sealed"] += isinstance(call, CreateSnapshot)
            self.counts["merged"] += isinstance(call, MergeSnapshots)
            self.core.handle(call, answer, now_ms=self.now_ms)
        self.read_lost()

    def answer_all(self) -> None:
        for _ in range(len(self.pending)):
            self.answer()

    def read_lost(self) -> None:
        for ledger_id, entry_ids in self.core.pop_to_read_again().items():
            self.is_disturbed = True
            for entry_id in entry_ids:
                self.tracked.pop((ledger_id, entry_id), None)
                if (ledger_id, entry_id) not in self.delivered:
                    self.unread.add((ledger_id, entry_id))

    STEPS: tuple[Callable[["RandomLife"], None], ...] = (
        *(write,) * 4,
        *(answer,) * 6,
        *(answer_all,) * 3,
        *(pass_time,) * 3,
        *(poll,) * 4,
        *(read,) * 2,
        acknowledge,
        offer_again,
        trim,
        pass_through,
        crash,
        clear,
        lose,
        put_clock_back,
        seal,
    )

    def look(self) -> None:
        """Plan, and check that nothing is lost and nothing unknown tracked."""
        self.pending += self.core.plan(now_ms=self.now_ms)
        self.read_lost()
        state = self.core
        known = {(ledger, entry) for ledger, bitmap in state.tracked.bitmaps.items() for entry in bitmap}
        assert self.tracked.keys() <= known, f"{self.tracked.keys() - known} are lost"
        assert known <= self.tracked.keys() | self.unread, f"{known - self.tracked.keys() - self.unread} are unknown"
        assert self.core.tracked.count == len(known)
        assert sum(lane.in_flight for lane in state.lanes) == len(self.pending)

    def live(self, steps: int) -> None:
        """Do so many things, then let all come to rest."""
        for _ in range(steps):
            self.rng.choice(self.STEPS)(self)
            self.look()
        self.come_to_rest()

    def come_to_rest(self) -> None:
        """Let nothing fail any more; time goes on from timer to timer."""
        self.failing, self.is_lossy = 0, False
        for _ in range(600):
            self.read()
            self.answer_all()
            self.look()
            for _ in range(50):
                before = self.counts["delivered"]
                self.poll()
                self.look()
                if self.counts["delivered"] == before:
                    break
            if not self.pending:
                if not (self.tracked or self.unread or self.core.buckets):
                    break
                wakeup_ms = self.core.next_wakeup_ms(now_ms=self.now_ms)
                # The reader comes by, too.
                step_ms = 30_000 if wakeup_ms is None else max(0, wakeup_ms - self.now_ms)
                assert wakeup_ms is not None or self.unread, "nothing is planned"
                self.now_ms += min(step_ms, 30_000)
        assert not self.tracked, f"{self.tracked} are not delivered: {self.core.buckets}"
        assert not self.core.buckets
        assert not self.disk.properties
        left = [place for place in self.log if place not in self.delivered and not self.disk.is_acknowledged(*place)]
        assert not left, f"{left} are not delivered"


class HastyLife(RandomLife):
    """A life in which messages are in several snapshots, and none of these waits for another one after a crash."""

    ORDER_WAITS_MS = (0,)
    STEPS = (
        *RandomLife.STEPS,
        *(RandomLife.offer_again,) * 5,
        *(RandomLife.crash,) * 3,
        *(RandomLife.seal,) * 2,
    )
