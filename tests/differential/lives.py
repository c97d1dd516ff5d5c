"""The same random program on the old core and on the new one: `python -m tests.differential.lives FIRST COUNT STEPS`.

Calm lives have no outage, no lost snapshot and no repeated offer: all calls are answered before the next step, and the
same rows must come at the same times. In the others each core is held to the oracle by itself: each message once, never
early, and in order as long as no order wait is configured. At rest all that is tracked is under properties, in both.
"""

import asyncio
import sys
import time
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
from pyroaring import BitMap

from managed_ledger.position import Position as LogPosition
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.core_disk import Disk
from tests.helpers.snapshot_work import answer_to
from tracker.config import TrackerConfig
from tracker.core import actions as old_actions
from tracker.core.tracker_core import TrackerCore as OldCore
from tracker.core2.actions import CallFailed
from tracker.core2.tracker_core import TrackerCore as NewCore
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.snapshot_work import SnapshotWork, StorageWork
from tracker.shell.storage_worker import is_lost, lost_bucket_id
from tracker.testing import FakeCursor, run_inline

Position = tuple[int, int]

CONFIG = TrackerConfig(
    index_count_per_bucket_min=4,
    tick_time_ms=5,
    segment_step_ms_max=20,
    segment_row_count_max=2,
    prefetch_ms=15,
    retry_backoff_ms_min=5,
    retry_backoff_ms_max=40,
    operation_timeout_ms=500,
)


class NewWorld:
    """The new core, on dictionaries."""

    name = "new"

    def __init__(self, config: TrackerConfig, loop) -> None:
        self.config = config
        self.disk = Disk(config)

    def begin(self, now_ms: int) -> None:
        self.core = NewCore(self.config, acknowledged_in=self.disk.acknowledged_in, rng=Random(1))
        self.core.trim(self.disk.first_ledger_id)
        self.core.recover(dict(self.disk.properties), now_ms=now_ms)

    def want(self, ledger_id: int) -> None:
        pass

    def note_acknowledged(self, ledger_id, bits) -> None:
        self.core.acknowledge(ledger_id, bits)

    def run(self, call):
        return self.disk.answer(call)

    def handle(self, call, answer, now_ms) -> None:
        self.core.handle(call, answer, now_ms=now_ms)

    def fail(self, call, now_ms) -> None:
        self.core.handle(call, CallFailed("down"), now_ms=now_ms)

    def lost(self, log):
        found = self.core.to_read_again()
        return [(ledger, entry) for ledger, bits in found.items() for entry in bits]

    def has_work(self, now_ms) -> bool:
        wakeup_ms = self.core.next_wakeup_ms(now_ms=now_ms)
        return wakeup_ms is not None and wakeup_ms <= now_ms

    def lose(self, rng) -> None:
        if self.disk.snapshots:
            del self.disk.snapshots[rng.choice(sorted(self.disk.snapshots))]

    def named_positions(self):
        return self.disk.named_positions()

    @property
    def properties(self):
        return self.disk.properties

    def acknowledge(self, ledger, entry) -> None:
        self.disk.acknowledge(ledger, entry)

    def is_acknowledged(self, ledger, entry) -> bool:
        return self.disk.is_acknowledged(ledger, entry)

    def set_first(self, ledger) -> None:
        self.disk.first_ledger_id = ledger

    @property
    def first(self) -> int:
        return self.disk.first_ledger_id

    def bucket_count(self) -> int:
        return len(self.core._state.buckets)


class OldWorld:
    """The old core, on its own shell's storage side."""

    name = "old"

    def __init__(self, config: TrackerConfig, loop) -> None:
        self.config, self.loop = config, loop
        self.storage = MemoryBucketSnapshotStorage()
        loop.run_until_complete(self.storage.start())
        self.cursor = FakeCursor()
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=self.cursor, on_available=lambda: None)
        self.work = SnapshotWork(config, context, StorageWork(self.storage, run_inline))
        self.first_ledger = 0

    def begin(self, now_ms: int) -> None:
        self.core = OldCore(self.config, acknowledged_in=self.cursor.acknowledged_in, rng=Random(1))
        self.core.trim(self.first_ledger)
        self.core.recover(dict(self.cursor.properties), now_ms=now_ms)

    def want(self, ledger_id: int) -> None:
        self.core.want(ledger_id)

    def note_acknowledged(self, ledger_id, bits) -> None:
        self.core.note_acknowledged(ledger_id, bits)

    def run(self, call):
        try:
            return self.loop.run_until_complete(answer_to(self.work, call))
        except Exception as error:
            return old_actions.ActionFailed(call, is_lost(error), str(error), lost_bucket_id(error))

    def handle(self, call, answer, now_ms) -> None:
        self.core.handle(answer, now_ms=now_ms)

    def fail(self, call, now_ms) -> None:
        self.core.handle(old_actions.ActionFailed(call, False, "down"), now_ms=now_ms)

    def lost(self, log):
        found = self.core.take_untracked()
        places = [(ledger, entry) for ledger, bits in found.items() for entry in bits]
        for first, last in self.core.take_untracked_ranges():
            places += [p for p in log if first <= p[0] <= last and not self.core.contains_message(*p)]
        return places

    def has_work(self, now_ms) -> bool:
        return self.core.has_work

    def lose(self, rng) -> None:
        ids = sorted(self.storage.snapshots)
        if ids:
            del self.storage.snapshots[rng.choice(ids)]

    def named_positions(self):
        places = set()
        for value in self.cursor.properties.values():
            try:
                count = self.loop.run_until_complete(self.storage.get_bucket_snapshot_metadata(int(value)))
                del count
                infos = self.loop.run_until_complete(self.storage.list_bucket_snapshots("t"))
                info = next(one for one in infos if one.bucket_id == int(value))
                if info.segment_count:
                    data = self.loop.run_until_complete(
                        self.storage.get_bucket_snapshot_segment(int(value), 1, info.segment_count)
                    )
                    places |= {(ledger, entry) for _, ledger, entry in decode_segments(data).to_rows()}
            except Exception:  # noqa: BLE001
                continue
        return places

    @property
    def properties(self):
        return self.cursor.properties

    def acknowledge(self, ledger, entry) -> None:
        self.cursor.acknowledge(ledger, entry)

    def is_acknowledged(self, ledger, entry) -> bool:
        return ledger < self.first_ledger or entry in self.cursor.acknowledged_in(ledger)

    def set_first(self, ledger) -> None:
        self.first_ledger = ledger

    @property
    def first(self) -> int:
        return self.first_ledger

    def bucket_count(self) -> int:
        return len(self.core._state.buckets)


class Side:
    """A core and its dispatcher."""

    def __init__(self, world, life, seed: int) -> None:
        self.world, self.life, self.rng = world, life, Random(seed)
        self.delivered_ever = set()
        self.begin()

    def begin(self) -> None:
        self.world.begin(self.life.now_ms)
        self.pending = []
        self.tracked = {}
        self.delivered = set()
        self.unread = {p for p in self.life.log if not self.world.is_acknowledged(*p)}
        self.is_disturbed = False

    # Calls.

    def plan(self) -> None:
        self.pending += self.world.core.plan(now_ms=self.life.now_ms)
        self.read_lost()

    def read_lost(self) -> None:
        for place in self.world.lost(self.life.log):
            self.is_disturbed = True
            self.tracked.pop(place, None)
            if place not in self.delivered and place in self.life.log and not self.world.is_acknowledged(*place):
                self.unread.add(place)

    def answer(self, failing: float) -> None:
        if not self.pending:
            return
        call = self.pending.pop(self.rng.randrange(len(self.pending)))
        if self.rng.random() < failing:
            if self.rng.random() < 0.5:
                self.world.run(call)
            self.world.fail(call, self.life.now_ms)
        else:
            self.world.handle(call, self.world.run(call), self.life.now_ms)
        self.read_lost()

    def settle(self) -> None:
        """Answer all calls, until there is nothing to do now."""
        for _ in range(500):
            self.plan()
            if not self.pending and not self.world.has_work(self.life.now_ms):
                return
            while self.pending:
                self.answer(0)
        raise AssertionError(f"{self.world.name} does not settle")

    # The dispatcher.

    def read(self, skipped) -> None:
        for place in sorted(self.unread):
            if skipped(place):
                continue
            self.world.want(place[0])
            if self.life.is_calm:
                self.settle()
            if self.world.core.is_recovering(place[0]):
                assert not self.life.is_calm
                continue
            if self.world.core.contains_message(*place):
                self.tracked[place] = self.life.log[place]
                self.unread.discard(place)
            else:
                self.offer(place)

    def offer(self, place: Position) -> None:
        time_ms = self.life.log[place]
        is_tracked = self.world.core.add_message(*place, time_ms, self.life.now_ms)
        assert is_tracked == (time_ms > self.life.now_ms + self.life.lead_ms)
        self.unread.discard(place)
        if is_tracked:
            self.tracked[place] = time_ms
        else:
            self.tracked.pop(place, None)
            self.deliver(place)

    def deliver(self, place: Position) -> None:
        assert place not in self.delivered, f"{self.world.name}: {place} twice"
        assert self.life.log[place] <= self.life.now_ms + self.life.lead_ms, f"{self.world.name}: {place} early"
        self.delivered.add(place)
        self.delivered_ever.add(place)
        self.life.counts["delivered"] += 1
        if (place[0] * 31 + place[1] * 17) % 10 < 6:
            self.world.acknowledge(*place)

    def poll(self, limit: int):
        rows = self.world.core.pop_due(now_ms=self.life.now_ms, limit=limit).to_rows()
        assert rows == sorted(rows)
        for time_ms, ledger, entry in rows:
            place = (ledger, entry)
            if place in self.unread:
                self.unread.discard(place)
                self.tracked[place] = self.life.log[place]
            assert place in self.tracked, f"{self.world.name}: {place} is not tracked"
            assert time_ms == self.life.log[place]
        if rows and not self.is_disturbed and self.life.config.order_wait_ms_max == -1:
            missed = [(t, *p) for p, t in self.tracked.items() if (t, *p) <= rows[-1] and (t, *p) not in rows]
            assert not missed, f"{self.world.name}: {missed} overtaken by {rows}"
        for _, ledger, entry in rows:
            del self.tracked[ledger, entry]
            self.deliver((ledger, entry))
        return rows

    def poll_calmly(self, limit: int):
        got = []
        while len(got) < limit:
            rows = self.poll(limit - len(got))
            self.settle()
            if not rows:
                return got
            got += rows
        return got

    def trim(self) -> None:
        first = self.world.first
        count = self.life.entry_counts
        while first < self.life.ledger_id and all(
            self.world.is_acknowledged(first, e) for e in range(count.get(first, 0))
        ):
            first += 1
        if first > self.world.first:
            self.world.set_first(first)
            self.world.core.trim(first)
            self.tracked = {p: t for p, t in self.tracked.items() if p[0] >= first}
            self.unread = {p for p in self.unread if p[0] >= first}

    def cancel(self, place: Position) -> None:
        if place in self.tracked:
            self.world.acknowledge(*place)
            self.world.note_acknowledged(place[0], BitMap([place[1]]))
            del self.tracked[place]

    def check(self) -> None:
        for place in self.tracked:
            assert (
                self.world.core.contains_message(*place) or self.world.name == "old"
            ), f"{self.world.name}: {place} is lost"


class Life:
    def __init__(self, loop, seed: int, counts: Counter) -> None:
        self.rng = rng = Random(seed)
        self.counts = counts
        self.is_calm = seed % 2 == 0
        self.config = replace(
            CONFIG,
            bucket_count_max=rng.choice([-1, 1, 2, 3]),
            loaded_row_count_max=rng.choice([1, 4, 1_000]),
            order_wait_ms_max=rng.choice([-1, -1, 0, 60]),
            operations_in_flight_max=rng.choice([1, 2, 16]),
            is_deliver_at_time_strict=rng.random() < 0.7,
        )
        self.lead_ms = 0 if self.config.is_deliver_at_time_strict else self.config.tick_time_ms
        self.failing = 0 if self.is_calm else rng.choice([0, 0.1, 0.5])
        self.is_lossy = not self.is_calm and rng.random() < 0.3
        self.now_ms = 10**9
        self.counts_lost = 0
        self.log, self.entry_counts, self.ledger_id = {}, {}, 0
        self.sides = [Side(NewWorld(self.config, loop), self, seed), Side(OldWorld(self.config, loop), self, seed)]

    def each(self, name: str, *arguments) -> None:
        for side in self.sides:
            getattr(side, name)(*arguments)

    def write(self) -> None:
        if self.rng.random() < 0.3:
            self.ledger_id += 1
        first = max(side.world.first for side in self.sides)
        ledger = self.ledger_id if self.rng.random() < 0.85 else self.rng.randrange(first, self.ledger_id + 1)
        for _ in range(self.rng.randrange(1, 7)):
            entry = self.entry_counts.get(ledger, 0)
            self.entry_counts[ledger] = entry + 1
            self.log[ledger, entry] = self.now_ms + self.rng.choice([0, 10, 20, 20, 40, 90, 300, 1_000, 20_000])
            for side in self.sides:
                side.unread.add((ledger, entry))
        if self.rng.random() < 0.8:
            self.read()

    def read(self) -> None:
        if self.is_calm:
            news, olds = self.sides[0].unread, self.sides[1].unread
            assert news == olds, f"unread: {news ^ olds}"
        skip = {place for place in sorted(self.log) if self.rng.random() < 0.3}
        self.each("read", skip.__contains__)

    def poll(self) -> None:
        limit = self.rng.choice([1, 3, 100])
        if self.is_calm:
            rows = [side.poll_calmly(limit) for side in self.sides]
            assert rows[0] == rows[1], f"new {rows[0]}, old {rows[1]}"
            self.counts["rows compared"] += len(rows[0])
        else:
            self.each("poll", limit)

    def cancel(self) -> None:
        if self.log:
            self.each("cancel", self.rng.choice(sorted(self.log)))

    def trim(self) -> None:
        self.each("trim")

    def crash(self) -> None:
        if self.rng.random() < 0.3:
            self.counts["crashes"] += 1
            self.each("begin")

    def clear(self) -> None:
        if self.rng.random() < 0.04:
            for side in self.sides:
                side.world.core.clear()
                side.unread |= side.tracked.keys()
                side.tracked.clear()

    def lose(self) -> None:
        if self.is_lossy and self.rng.random() < 0.2:
            self.counts["lost"] += 1
            self.counts_lost += 1
            for side in self.sides:
                side.world.lose(side.rng)

    def offer_again(self) -> None:
        if not self.is_calm:
            for side in self.sides:
                if side.tracked:
                    place = side.rng.choice(sorted(side.tracked))
                    # The old core knows only what was asked for.
                    side.offer(place)

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 5, 20, 20, 60, 200, 600, 1_100, 12_000])

    def put_clock_back(self) -> None:
        if self.rng.random() < 0.3:
            self.now_ms -= self.rng.choice([1, 50, 1_000])

    def seal(self) -> None:
        if self.rng.random() < 0.2:
            for side in self.sides:
                side.world.core.seal(index_count_min=1)

    def answer(self) -> None:
        self.each("answer", self.failing)

    def answer_all(self) -> None:
        for side in self.sides:
            for _ in range(len(side.pending)):
                side.answer(self.failing)

    STEPS = [write] * 4 + [answer] * 6 + [answer_all] * 3 + [pass_time] * 3 + [poll] * 4 + [read] * 2
    STEPS += [cancel, offer_again, trim, crash, clear, lose, put_clock_back, seal]

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice(self.STEPS)(self)
            if self.is_calm:
                self.each("settle")
            else:
                self.each("plan")
            self.each("check")
        self.come_to_rest()

    def come_to_rest(self) -> None:
        self.failing, self.is_lossy = 0, False
        self.now_ms += 100
        for _ in range(6):
            for side in self.sides:
                side.settle()
                side.read(lambda place: False)
                side.settle()
                while side.poll(100):
                    side.settle()
            self.now_ms += 100
        for side in self.sides:
            side.settle()
            while side.poll(100):
                side.settle()
            side.world.core.seal(index_count_min=1)
            side.settle()
        left = []
        for side in self.sides:
            missing = side.tracked.keys() - side.world.named_positions()
            assert not missing or side.is_disturbed or self.counts_lost, f"{side.world.name}: {missing} are under no property"
            left.append(side.world.named_positions() & side.tracked.keys())
        both = self.sides[0].tracked.keys() & self.sides[1].tracked.keys()
        assert self.counts_lost or left[0] & both == left[1] & both, "the positions under properties differ"
        if self.is_calm:
            assert left[0] == left[1], f"new {left[0]-left[1]}, old {left[1]-left[0]}; tracked {self.sides[0].tracked.keys() ^ self.sides[1].tracked.keys()} {self.now_ms}"
        self.counts["positions at rest"] += len(left[0])
        for side in self.sides:
            self.drain(side)
        for place in self.log:
            for side in self.sides:
                assert place in side.delivered_ever or side.world.is_acknowledged(*place), f"{place} never came"

    def drain(self, side) -> None:
        now_ms = self.now_ms
        for _ in range(300):
            side.settle()
            side.read(lambda place: False)
            side.settle()
            while side.poll(100):
                side.settle()
            side.settle()
            if not (side.tracked or side.unread or side.world.bucket_count()):
                break
            wakeup_ms = side.world.core.next_wakeup_ms(now_ms=self.now_ms)
            step_ms = 30_000 if wakeup_ms is None else max(1, wakeup_ms - self.now_ms)
            self.now_ms += min(step_ms, 30_000)
        assert not side.tracked, f"{side.world.name}: {side.tracked} left"
        assert not side.unread
        assert not side.world.properties, side.world.properties
        self.now_ms = now_ms


def main() -> None:
    first, count, steps = map(int, sys.argv[1:4])
    loop = asyncio.new_event_loop()
    counts: Counter = Counter()
    began = time.time()
    failed = 0
    for seed in range(first, first + count):
        try:
            Life(loop, seed, counts).live(steps)
        except Exception as error:  # noqa: BLE001
            failed += 1
            print("seed", seed, "calm" if seed % 2 == 0 else "stormy", type(error).__name__, str(error)[:400], flush=True)
            if failed > 5:
                raise
        if (seed - first) % 200 == 199:
            print(seed - first + 1, "lives", dict(counts), f"{time.time() - began:.0f} s", flush=True)
    print(count, "lives", dict(counts), "failed", failed, f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
