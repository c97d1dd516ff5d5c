"""Situations of a core's life in which a timer matters that random lives seldom meet.

Each is played step by step, and checked as a life is.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from pyroaring import BitMap

from snapshot_storage.bucket_key import bucket_key
from tests.helpers.core_lives import CONFIG, RandomLife
from tracker.core.actions import (
    Action,
    ActionFailed,
    LoadSegments,
    MergeBuckets,
    ReadMetadata,
    ReadPositions,
)
from tracker.core.circuit_breakers import BUCKETS_PER_CALL
from tracker.core.tracker_core import TrackerCore
from tracker.core.transitions.deleting import REMOVALS_MAX
from tracker.core.transitions.recovering import OPENED_AT_ONCE_MAX


def live_in_a_crowd(runner: asyncio.Runner) -> None:
    """Have more buckets opened, emptied, and cleared than one turn takes."""
    life = RandomLife(runner, 0)
    life.config, life.failing = replace(CONFIG, loaded_row_count_max=1_000, operations_in_flight_max=99), {}
    life.begin()
    for ledger_id in range(REMOVALS_MAX + 10):
        life.core.add_message(ledger_id, 0, life.now_ms + 10, life.now_ms)
        life.core.seal(index_count_min=1)
    life.now_ms += 10
    while len(life.core.pop_due(now_ms=life.now_ms, limit=100)):
        pass
    life.pending = life.core.plan(now_ms=life.now_ms)
    life.core.check(life.pending)

    life.begin()
    for ledger_id in range(REMOVALS_MAX + 10):
        life.core.add_message(ledger_id, 0, life.now_ms + 10_000, life.now_ms)
        life.core.seal(index_count_min=1)
        life.pending += life.core.plan(now_ms=life.now_ms)
        life.answer_all()
    for _ in range(4):
        life.pending += life.core.plan(now_ms=life.now_ms)
        life.answer_all()
    life.core.clear()
    life.pending += life.core.plan(now_ms=life.now_ms)
    life.core.check(life.pending)

    names = (bucket_key(number, number) for number in range(2 * OPENED_AT_ONCE_MAX))
    core = TrackerCore(life.config, acknowledged_in=life.cursor.acknowledged_in, rng=Random(1))
    core.recover({key: str(number) for number, key in enumerate(names)}, now_ms=life.now_ms)
    core.check([])


def live_behind_full_breakers(runner: asyncio.Runner) -> None:
    """Have more metadata to read, segments to load, and snapshots to delete than calls may be in flight."""
    life = RandomLife(runner, 0)
    life.config, life.failing = replace(CONFIG, loaded_row_count_max=1_000, operations_in_flight_max=1), {}
    life.begin()
    for ledger_id in range(BUCKETS_PER_CALL + 4):
        for entry_id in range(8):
            life.core.add_message(ledger_id, entry_id, life.now_ms + 10_000 + entry_id, life.now_ms)
        life.core.seal(index_count_min=1)
        for _ in range(3):
            life.pending += life.core.plan(now_ms=life.now_ms)
            life.answer_all()
    life.begin()
    life.look()
    # Each of these buckets is wanted, is loaded, and is removed while its load is in flight.
    while life.pending:
        life.answer()
        life.look()
    life.now_ms += 10_000
    life.look()
    late = next(one for one in life.pending if isinstance(one, LoadSegments))
    life.core.trim(1)
    life.look()
    life.pending.remove(late)
    life.core.handle(ActionFailed(late, False, "down"), now_ms=life.now_ms)
    life.look()
    life.core.trim(BUCKETS_PER_CALL + 9)
    life.look()
    while life.pending:
        life.answer()
        life.look()


def live_behind_others(runner: asyncio.Runner) -> None:
    """Have a bucket wait for a shorter time than the one before it, which is lost."""
    life = RandomLife(runner, 0)
    life.config, life.failing = (
        replace(CONFIG, loaded_row_count_max=1_000, order_wait_ms_max=60, segment_step_ms_max=1),
        {},
    )
    life.begin()
    start_ms = life.now_ms
    for ledger_id, times in ((0, [1_000, 1_000, 1_004, 1_004]), (1, [1_006, 1_006])):
        for entry_id, after_ms in enumerate(times):
            life.core.add_message(ledger_id, entry_id, start_ms + after_ms, life.now_ms)
        life.core.seal(index_count_min=1)
    for _ in range(3):
        life.pending += life.core.plan(now_ms=life.now_ms)
        life.answer_all()
    for after_ms in (985, 991, 1_050):
        life.now_ms = start_ms + after_ms
        life.look()
    first, _ = life.pending
    life.pending.remove(first)
    life.core.handle(life.run(first), now_ms=life.now_ms)
    life.look()
    life.core.trim(1)
    life.look()


def live_through_a_failed_merge(runner: asyncio.Runner) -> None:
    """Have the last rows of buckets handed out while these are merged, and the merge fail."""
    life = RandomLife(runner, 0)
    life.config = replace(CONFIG, loaded_row_count_max=1_000, bucket_count_max=1, is_deliver_at_time_strict=True)
    life.failing = {}
    life.begin()
    for ledger_id in range(3):
        for entry_id in range(4):
            life.core.add_message(ledger_id, entry_id, life.now_ms + 10 + entry_id, life.now_ms)
        life.core.seal(index_count_min=1)
    while not any(isinstance(one, MergeBuckets) for one in life.pending):
        life.look()
        for action in [one for one in life.pending if not isinstance(one, MergeBuckets)]:
            life.pending.remove(action)
            life.core.handle(life.run(action), now_ms=life.now_ms)
        life.look()
    life.now_ms += 20
    while len(life.core.pop_due(now_ms=life.now_ms, limit=100)):
        life.look()
    life.look()
    merge = next(one for one in life.pending if isinstance(one, MergeBuckets))
    life.pending.remove(merge)
    life.core.handle(ActionFailed(merge, False, "down"), now_ms=life.now_ms)
    life.look()


def restarted(runner: asyncio.Runner, times: Sequence[Sequence[int]], **settings: Any) -> RandomLife:
    """Return a life that begins with one bucket for each list of times from now, of which the metadata is known."""
    life = RandomLife(runner, 0)
    life.config, life.failing = replace(CONFIG, order_wait_ms_max=-1, segment_step_ms_max=1, **settings), {}
    life.keeps_positions = life.reads_ahead = False
    # Positions that come with the metadata are not kept, so they are read when a reader wants them.
    life.cached_bytes_max = 1
    life.begin()
    for ledger_id, after_ms in enumerate(times):
        for entry_id, one in enumerate(after_ms):
            life.core.add_message(ledger_id, entry_id, life.now_ms + one, life.now_ms)
        life.core.seal(index_count_min=1)
        for _ in range(3):
            life.pending += life.core.plan(now_ms=life.now_ms)
            life.answer_all()
    life.begin()
    return life


def answer_one(life: RandomLife, kind: type[Action], fails: bool = False, is_lost: bool = False) -> None:
    """Let the first action of a kind succeed or fail."""
    action = next(one for one in life.pending if isinstance(one, kind))
    life.pending.remove(action)
    answer = ActionFailed(action, is_lost, "down") if fails or is_lost else life.run(action)
    life.core.handle(answer, now_ms=life.now_ms)
    life.look()


def live_with_a_loss(runner: asyncio.Runner) -> None:
    """Have a bucket lost whose read and load are in flight, while others wait for their places."""
    life = restarted(runner, [[1_000, 1_000], [1_000, 1_000]], loaded_row_count_max=2)
    life.look()
    for _ in range(2):
        answer_one(life, ReadMetadata)
    life.core.want(0)
    life.look()
    answer_one(life, ReadPositions, fails=True)
    life.now_ms += 1_000
    life.look()
    answer_one(life, ReadPositions, is_lost=True)

    life = restarted(runner, [[5_000]] * 6, loaded_row_count_max=1_000)
    life.look()
    for ledger_id in range(6):
        answer_one(life, ReadMetadata)
        life.core.want(ledger_id)
    life.look()
    life.core.trim(1)
    life.look()


def live_without_room(runner: asyncio.Runner) -> None:
    """Have a load wait for rows that are acknowledged, and for a time that the clock has left."""
    for step in ("acknowledge", "put the clock back"):
        life = restarted(runner, [[1_000, 1_000], [1_003, 1_003]], loaded_row_count_max=1)
        life.look()
        for _ in range(2):
            answer_one(life, ReadMetadata)
        life.now_ms += 990
        life.look()
        answer_one(life, LoadSegments)
        assert not any(isinstance(one, LoadSegments) for one in life.pending)
        if step == "acknowledge":
            life.core.note_acknowledged(0, BitMap([0, 1]))
        else:
            life.now_ms -= 500
        life.look()


def live_with_a_clock_put_back(runner: asyncio.Runner) -> None:
    """Have a read, a load, and a merge fail, and the time of the next try move away."""
    life = restarted(runner, [[1_000, 1_000]] * 2, loaded_row_count_max=1_000, bucket_count_max=1)
    life.reads_apart = True
    life.look()
    for _ in range(2):
        answer_one(life, ReadMetadata)
    life.core.want(0)
    life.now_ms += 1_000
    life.look()
    for kind in (ReadPositions, LoadSegments, MergeBuckets):
        answer_one(life, kind, fails=True)
        life.now_ms -= 1
        life.look()


def live_with_another_tick_time(runner: asyncio.Runner) -> None:
    """Have messages be due earlier than they were."""
    life = restarted(runner, [[1_000, 1_000]], is_deliver_at_time_strict=False)
    life.look()
    answer_one(life, ReadMetadata)
    life.now_ms += 900
    life.look()
    life.core.set_tick_time(100)
    life.look()
    assert any(isinstance(one, LoadSegments) for one in life.pending)


def live_with_too_many_buckets(runner: asyncio.Runner) -> None:
    """Have a bucket that cannot be read, and then only unknown ones, when too many are recovered."""
    life = restarted(runner, [[5_000]] * 3, bucket_count_max=2)
    life.look()
    for _ in range(2):
        answer_one(life, ReadMetadata)
    answer_one(life, ReadMetadata, fails=True)

    life = restarted(runner, [[5_000]] * 3)
    life.config = replace(life.config, bucket_count_max=2)
    life.keeps_positions = life.reads_apart = True
    life.begin()
    life.look()
    for _ in range(3):
        answer_one(life, ReadMetadata)
    while any(isinstance(one, ReadPositions) for one in life.pending):
        answer_one(life, ReadPositions)


SCENES: Final = (
    live_in_a_crowd,
    live_behind_full_breakers,
    live_behind_others,
    live_through_a_failed_merge,
    live_with_a_loss,
    live_without_room,
    live_with_a_clock_put_back,
    live_with_another_tick_time,
    live_with_too_many_buckets,
)
