"""Pages, counts and filters over the columns of ledgers, against a list of dictionaries."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from managed_ledger.entries.headers import (
    CHUNK,
    MESSAGE_SHIFT,
    NOT_DELAYED,
    OWN_ID,
    PACK_ROW,
    EntryHeaders,
    decode_rows,
)
from postdate.broker.scheduled.ledger_schedule import LedgerSchedule, extended, order_of_times
from postdate.broker.scheduled.selection import (
    PageBuilder,
    Wanted,
    bucket_edges,
    counts_between,
    rows_of,
    times_of,
)
from tracker.columns.row_order import RowKey, key_of

TIMES = st.one_of(st.just(NOT_DELAYED), st.integers(0, 30))


class ListedEntry(NamedTuple):
    """One entry of a log that is kept in a list."""

    deliver_at_ms: int
    ledger_id: int
    entry_id: int
    sticky_hash: int
    is_acknowledged: bool
    id_hash: int
    """0 for a message without an own id."""


@st.composite
def logs(draw: st.DrawFn) -> list[list[ListedEntry]]:
    """Draw the entries of some ledgers."""
    ledgers = []
    for ledger_id in range(1, draw(st.integers(0, 4)) + 1):
        ids = st.integers(0, 2) if draw(st.booleans()) else st.just(0)
        drawn = draw(st.lists(st.tuples(TIMES, st.integers(0, 3), st.booleans(), ids), max_size=20))
        ledgers.append([ListedEntry(due, ledger_id, number, *others) for number, (due, *others) in enumerate(drawn)])
    return ledgers


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**62 - 1)), max_size=40))
def test_times_are_ordered_and_equal_ones_stay_in_place(times: list[int]) -> None:
    """Also where times are so far apart that they leave no room for a row behind them."""
    order = order_of_times(np.array(times, np.int64)).tolist()

    assert order == sorted(range(len(times)), key=times.__getitem__)


def headers_of(entries: list[ListedEntry]) -> EntryHeaders:
    rows = decode_rows(b"".join(PACK_ROW(one.deliver_at_ms, 0, one.sticky_hash, 10, 1, _flags(one)) for one in entries))
    ids = np.array([[one.ledger_id, one.entry_id] for one in entries], np.int64).reshape(-1, 2)
    return EntryHeaders.from_rows(ids[:, 0], ids[:, 1], rows)


def _flags(one: ListedEntry) -> int:
    # The upper half of a chunk's flags is another hash.
    return OWN_ID | one.id_hash << MESSAGE_SHIFT if one.id_hash else CHUNK | 1 << MESSAGE_SHIFT


def schedule_of(ledger_id: int, entries: list[ListedEntry], cut: int) -> LedgerSchedule:
    """Build a schedule in two steps, as of a ledger that grows."""
    cut = min(cut, len(entries))
    first = extended(None, ledger_id, cut, [headers_of(entries[:cut])])
    return extended(first, ledger_id, len(entries), [headers_of(entries[cut:])])


def acknowledged_of(entries: list[ListedEntry]) -> BitMap:
    return BitMap(one.entry_id for one in entries if one.is_acknowledged)


def expected(ledgers: list[list[ListedEntry]], wanted: Wanted) -> list[RowKey]:
    """The rows that a walk over all entries finds."""
    places = []
    for one in (entry for ledger in ledgers for entry in ledger):
        place = RowKey(one.deliver_at_ms, one.ledger_id, one.entry_id)
        if (
            one.deliver_at_ms != NOT_DELAYED
            and not one.is_acknowledged
            and (wanted.from_ms is None or one.deliver_at_ms >= wanted.from_ms)
            and (wanted.until_ms is None or one.deliver_at_ms < wanted.until_ms)
            and (wanted.sticky_hash is None or one.sticky_hash == wanted.sticky_hash)
            and (wanted.id_hashes is None or one.id_hash in wanted.id_hashes)
            and (wanted.after is None or place > wanted.after)
        ):
            places.append(place)
    return sorted(places)


WANTED = st.builds(
    Wanted,
    st.none() | st.integers(0, 31),
    st.none() | st.integers(0, 31),
    st.none() | st.integers(0, 3),
    st.none() | st.builds(RowKey, st.integers(0, 30), st.integers(0, 5), st.integers(-1, 20)),
    st.none() | st.frozensets(st.integers(1, 2), min_size=1),
)


@given(logs(), WANTED, st.integers(1, 30), st.integers(0, 20), st.randoms(use_true_random=False))
def test_a_page_is_what_a_walk_over_all_entries_finds_first(ledgers, wanted, limit, cut, random) -> None:
    """The ledgers come in any order, and are cut anywhere."""
    page = PageBuilder(limit)
    for entries in random.sample(ledgers, len(ledgers)):
        if entries:
            schedule = schedule_of(entries[0].ledger_id, entries, cut)
            page.add(rows_of(schedule, acknowledged_of(entries), wanted, limit))

    rows = page.rows()
    assert [key_of(rows, row) for row in range(len(rows))] == expected(ledgers, wanted)[:limit]


@given(logs(), st.integers(1, 7))
def test_pages_one_after_the_other_give_every_row_once(ledgers, limit) -> None:
    found: list[RowKey] = []
    after: RowKey | None = None
    while True:
        page = PageBuilder(limit)
        for entries in ledgers:
            if entries:
                schedule = schedule_of(entries[0].ledger_id, entries, 3)
                page.add(rows_of(schedule, acknowledged_of(entries), Wanted(after=after), limit))
        rows = page.rows()
        found += [key_of(rows, row) for row in range(len(rows))]
        if len(rows) < limit:
            break
        after = found[-1]

    assert found == expected(ledgers, Wanted())


@given(logs(), st.integers(0, 30), st.integers(1, 30), st.integers(1, 9))
def test_a_histogram_counts_each_row_of_its_time_once(ledgers, from_ms, span_ms, buckets) -> None:
    edges = bucket_edges(from_ms, from_ms + span_ms, buckets)
    counts = np.zeros(len(edges) - 1, np.int64)
    for entries in ledgers:
        if entries:
            schedule = schedule_of(entries[0].ledger_id, entries, 5)
            counts += counts_between(times_of(schedule, acknowledged_of(entries), from_ms, from_ms + span_ms), edges)

    places = expected(ledgers, Wanted(from_ms, from_ms + span_ms))
    pairs = list(pairwise(edges))
    assert counts.tolist() == [sum(begin <= one.deliver_at_ms < end for one in places) for begin, end in pairs]
    assert all(begin < end for begin, end in pairs)
    assert (edges[0], edges[-1]) == (from_ms, from_ms + span_ms)
