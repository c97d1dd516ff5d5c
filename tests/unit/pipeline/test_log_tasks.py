"""The rebuild of a log in one process, without Spark: the live tracker is the judge of its bytes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.positions.position import Position
from postdate.index.acknowledged import Acknowledged, acknowledged_by_all
from postdate.index.ledger_ranges import MISSING, LedgerExtent
from postdate.pipeline.planning.log_plan import READ_ENTRIES_MAX, RangeCount, plan_counts, plan_tasks
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.staging import StagingWriter
from postdate.pipeline.tasks.log_tasks import LogChangedError, build_task, count_rows
from postdate.pipeline.tasks.row_checks import REASONS, BadRow, split_rows
from snapshot_storage.encoding.columns import DelayedIndexes
from tests.helpers.live_index import NOW_MS, live_index
from tests.helpers.process_rebuild import CURSOR, TimesLog, rebuilt

# Ledgers as a log has them: ids that grow, entries from 0; some not delayed, some due, some at one time.
_DELIVER_AT = st.sampled_from([-1, 0, NOW_MS, NOW_MS + 1, 2**63 - 1]) | st.integers(NOW_MS + 1, NOW_MS + 3_000)
_LEDGERS = st.lists(st.tuples(st.integers(1, 3), st.lists(_DELIVER_AT, max_size=12)), max_size=8)


@given(
    _LEDGERS,
    st.sets(st.tuples(st.integers(0, 24), st.integers(0, 11))),
    st.tuples(st.integers(-1, 9), st.integers(-1, 11)),
    st.builds(
        lambda step, rows, least, more, last: RebuildRules(
            now_ms=NOW_MS,
            step_ms=step,
            rows_max=rows,
            rows_per_bucket_min=least,
            rows_per_bucket_max=least + more,
            last_bucket_rows_min=min(last, least),
        ),
        st.integers(0, 400),
        st.just(-1) | st.integers(1, 5),
        st.integers(1, 15),
        st.integers(0, 12),
        st.integers(1, 4),
    ),
)
def test_a_rebuild_equals_the_live_index_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory,
    ledgers: list[tuple[int, list[int]]],
    gone: set[tuple[int, int]],
    mark_delete: tuple[int, int],
    rules: RebuildRules,
) -> None:
    """Acknowledged positions left out, buckets that end within a ledger included."""
    log = TimesLog(
        dict(zip(np.cumsum([gap for gap, _ in ledgers]).tolist(), [times for _, times in ledgers], strict=True))
    )
    bitmaps = {
        ledger_id: BitMap(entry for ledger, entry in gone if ledger == ledger_id).serialize()
        for ledger_id in {ledger for ledger, _ in gone}
    }
    left: Sequence[tuple[int, int, int]] = [
        (ledger_id, entry_id, time)
        for ledger_id, times in log.times.items()
        for entry_id, time in enumerate(times)
        if (ledger_id, entry_id) > mark_delete and (ledger_id, entry_id) not in gone
    ]

    found = rebuilt(log, Acknowledged(Position(*mark_delete), bitmaps), rules, tmp_path_factory.mktemp("s") / "x")

    assert found == live_index(
        left,
        step_ms=rules.step_ms,
        rows_max=rules.rows_max,
        rows_per_bucket_min=rules.rows_per_bucket_min,
        rows_per_bucket_max=rules.rows_per_bucket_max,
        last_bucket_rows_min=rules.last_bucket_rows_min,
    )


@pytest.mark.slow
def test_a_rebuild_of_many_buckets_has_the_segments_of_the_live_index(tmp_path: Path) -> None:
    """With so many buckets, segments have fewer rows than are configured, the later ones the fewest."""
    bucket_rows = 4_400
    log = TimesLog({ledger_id: [NOW_MS + 5] * bucket_rows for ledger_id in range(1, 64)})
    rules = RebuildRules(now_ms=NOW_MS, rows_per_bucket_min=bucket_rows)

    found = rebuilt(log, Acknowledged(), rules, tmp_path / "x")

    assert sorted({len(bucket.segments) for bucket in found}) == [1, 2]
    assert found == live_index(
        [(ledger_id, entry_id, times[entry_id]) for ledger_id, times in log.times.items() for entry_id in range(4_400)],
        step_ms=rules.step_ms,
        rows_max=rules.rows_max,
        rows_per_bucket_min=bucket_rows,
        last_bucket_rows_min=1,
    )


def test_a_large_ledger_is_counted_and_built_by_many_tasks() -> None:
    """One ledger with nearly all messages and one topic with all ledgers are cut like any others."""
    rules = RebuildRules(now_ms=NOW_MS, rows_per_bucket_min=100, rows_per_bucket_max=1_000)
    log = TimesLog({1: [NOW_MS + 5] * 50, 2: [NOW_MS + 7] * 200_000, 3: [NOW_MS + 9] * 50})

    counting = plan_counts(log.ledgers(), {CURSOR: Acknowledged()}, now_ms=NOW_MS, cores=2)
    counts = [count for task in counting for count in count_rows(log, task, rules).counts]
    building = plan_tasks(counts, {CURSOR: Acknowledged()}, rules, cores=2)

    assert max(sum(part.entries for part in task.ranges) for task in counting) <= 200_100 / 12 + 1
    assert max(sum(bucket.row_count for bucket in task) for task in building) <= 200_100 / 12 + 1
    assert sum(bucket.row_count for task in building for bucket in task) == 200_100


def _slowest(tasks: list[int], cores: int) -> float:
    """How many rows the busiest core has if each takes the next task when it is free, relative to an equal share."""
    loads = [0] * cores
    for rows in tasks:
        loads[loads.index(min(loads))] += rows
    return max(loads) * cores / sum(loads)


def test_one_topic_with_half_of_all_ledgers_keeps_no_core_waiting() -> None:
    """Beside ten small topics, on eight cores: both stages take hardly longer than an equal share."""
    topics = ["large"] * 100 + [f"small-{number % 10}" for number in range(100)]
    ledgers = [LedgerExtent(topic, number, 50_000, False, NOW_MS, NOW_MS + 9) for number, topic in enumerate(topics)]
    ledgers.sort()
    acknowledged = {CursorName(topic, "c"): Acknowledged() for topic in set(topics)}

    counting = plan_counts(ledgers, acknowledged, now_ms=NOW_MS, cores=8)
    counts = [RangeCount("c", part, part.entries) for task in counting for part in task.ranges]
    building = plan_tasks(counts, acknowledged, RebuildRules(now_ms=NOW_MS), cores=8)

    assert _slowest([sum(part.entries for part in task.ranges) for task in counting], 8) < 1.2
    assert _slowest([sum(bucket.row_count for bucket in task) for task in building], 8) < 1.2


@pytest.mark.parametrize(("cores", "entries"), [(2, 5_000_000), (8, 40_000_000)])
def test_one_ledger_with_half_of_all_messages_keeps_no_core_waiting(cores: int, entries: int) -> None:
    """By the default rules: it is counted in pieces, and its buckets, of 10 million rows at most, are begun first."""
    large = LedgerExtent("t", 50, entries, False, NOW_MS, NOW_MS + 9)
    numbers = [number for number in range(entries // 50_000 + 1) if number != 50]
    ledgers = sorted([large, *(LedgerExtent("t", number, 50_000, False, NOW_MS, NOW_MS + 9) for number in numbers)])

    counting = plan_counts(ledgers, {CURSOR: Acknowledged()}, now_ms=NOW_MS, cores=cores)
    counts = [RangeCount(CURSOR.cursor, part, part.entries) for task in counting for part in task.ranges]
    building = plan_tasks(counts, {CURSOR: Acknowledged()}, RebuildRules(now_ms=NOW_MS), cores=cores)

    assert max(part.entries for task in counting for part in task.ranges) <= READ_ENTRIES_MAX
    assert _slowest([sum(part.entries for part in task.ranges) for task in counting], cores) < 1.2
    assert _slowest([sum(bucket.row_count for bucket in task) for task in building], cores) < 1.2


def test_what_all_subscriptions_are_past_is_not_read() -> None:
    """Nor what is due in a ledger's record."""
    log = TimesLog({1: [NOW_MS + 5], 2: [NOW_MS], 3: [NOW_MS + 5], 4: [NOW_MS + 5]})
    past = {CURSOR: Acknowledged(Position(3, 0)), CursorName("t", "d"): Acknowledged(Position(2, 0))}

    (task,) = plan_counts(log.ledgers(), past, now_ms=NOW_MS, cores=1)
    counted = count_rows(log, task, RebuildRules(now_ms=NOW_MS))

    assert [part.ledger_id for part in task.ranges] == [3, 4]
    assert [(count.cursor, count.part.ledger_id, count.row_count) for count in counted.counts] == [
        ("c", 3, 0),
        ("d", 3, 1),
        ("c", 4, 1),
        ("d", 4, 1),
    ]


def test_bad_rows_are_told_apart() -> None:
    """Each with the first thing that is wrong with it, and the others stay in order."""
    good = [(NOW_MS + 5, 1, 0), (NOW_MS + 6, 1, 2**32 - 1), (-1, 1, 2)]
    bad = [(MISSING, 1, 3), (5, MISSING, 4), (5, -1, 5), (5, 2, 6), (5, 1, -7), (5, 1, 2**32), (-2, 1, 8)]

    rows, found = split_rows("t", DelayedIndexes.from_rows([good[0], *bad, *good[1:]]), 1)

    assert rows.to_rows() == good
    assert found == [
        BadRow("t", 1, 3, None, REASONS[0]),
        BadRow("t", None, 4, 5, REASONS[0]),
        BadRow("t", -1, 5, 5, REASONS[1]),
        BadRow("t", 2, 6, 5, REASONS[2]),
        BadRow("t", 1, -7, 5, REASONS[3]),
        BadRow("t", 1, 2**32, 5, REASONS[3]),
        BadRow("t", 1, 8, -2, REASONS[4]),
    ]


def test_a_log_that_changed_between_is_noticed(tmp_path: Path) -> None:
    """A bucket is never built of other rows than were planned, and its task leaves no file."""
    rules = RebuildRules(now_ms=NOW_MS)
    log = TimesLog({1: [NOW_MS + 5] * 3})
    (task,) = plan_counts(log.ledgers(), {CURSOR: Acknowledged()}, now_ms=NOW_MS, cores=1)
    ((bucket,),) = plan_tasks(count_rows(log, task, rules).counts, {CURSOR: Acknowledged()}, rules, cores=1)
    log.times[1] = []

    with pytest.raises(LogChangedError, match="0 of the 3 rows"), StagingWriter(tmp_path, "0") as writer:
        build_task(log, bucket, rules, writer)

    assert list(tmp_path.iterdir()) == []


_POSITIONS = st.sets(st.tuples(st.integers(3, 6), st.integers(0, 3)))


@given(st.lists(st.tuples(st.tuples(st.integers(2, 6), st.integers(-1, 3)), _POSITIONS), min_size=1, max_size=3))
def test_a_shared_index_lacks_what_all_subscriptions_have_acknowledged(
    subscriptions: list[tuple[tuple[int, int], set[tuple[int, int]]]],
) -> None:
    """Position by position, up to the mark-delete position of each of them and beyond it."""
    entries = dict.fromkeys(range(3, 7), 4)
    each = [
        Acknowledged(
            Position(*mark_delete),
            {ledger: BitMap(e for of, e in beyond if of == ledger).serialize() for ledger in {of for of, _ in beyond}},
        )
        for mark_delete, beyond in subscriptions
    ]

    common = acknowledged_by_all(each, entries)

    for ledger_id, count in entries.items():
        expected = {
            entry
            for entry in range(count)
            if all((ledger_id, entry) <= mark or (ledger_id, entry) in beyond for mark, beyond in subscriptions)
        }
        assert set(common.entries_of(ledger_id, count)) == expected
