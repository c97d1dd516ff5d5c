"""The demo's verdict agrees with slow and obvious rules, for any record."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from postdate.demo.verdict import NEVER, Deliveries, Outage, PublishedMessages, judge

KILLED, RESTARTED = 50, 60
"""In nanoseconds, as small numbers make overlaps likely."""

Row = tuple[int, int, int, int | None]
"""(consumer, message, received, how long it was held; None: never acknowledged)."""

KEYS = 2
MESSAGES = 6
DUE_MS = (0, 0, 1, 1, 2, 2)

rows_strategy = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, MESSAGES - 1),
        st.integers(0, 110),
        st.none() | st.integers(0, 40),
    ),
    max_size=14,
    # Two receipts at one instant have no order that a rule could go by.
    unique_by=lambda row: row[2],
)


def key_of(message: int) -> int:
    return message % KEYS


def acked(row: Row) -> int:
    return NEVER if row[3] is None else row[2] + row[3]


def life(row: Row) -> int:
    return int(row[2] >= RESTARTED)


def first_deliveries(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if all(row[2] <= other[2] for other in rows if other[1] == row[1])]


def disordered(rows: Sequence[Row]) -> set[Row]:
    """Return deliveries with a later one of their key before them."""
    return {
        row
        for row in rows
        for other in rows
        if key_of(row[1]) == key_of(other[1])
        and other[2] < row[2]
        and (DUE_MS[other[1]], other[1]) > (DUE_MS[row[1]], row[1])
    }


def held_times(row: Row) -> set[int]:
    """Return every instant at which the service must have thought the message to be at its consumer.

    That of the receipt always, also if the acknowledgement came within the same tick of the clock.
    """
    if life(row) == 1:
        return {row[2], *range(row[2], min(acked(row), 200))}
    # Pending at the kill is pending at that one moment, also for what the application took from its queue later.
    until = KILLED + 1 if acked(row) > KILLED else acked(row)
    return {min(row[2], KILLED), *range(min(row[2], KILLED), until)}


def keys_with_two_owners(rows: Sequence[Row]) -> set[int]:
    return {
        key_of(one[1])
        for one in rows
        for other in rows
        if key_of(one[1]) == key_of(other[1])
        and one[0] != other[0]
        and life(one) == life(other)
        and held_times(one) & held_times(other)
    }


@given(rows_strategy)
def test_the_verdict_is_that_of_the_obvious_rules(rows: list[Row]) -> None:
    """Lost, out of order, two owners and repetitions, counted by looking at all pairs."""
    first = first_deliveries(rows)
    by_life = [
        first_deliveries([row for row in rows if life(row) == 0]),
        first_deliveries([row for row in rows if life(row) == 1]),
    ]
    expected_disorder = disordered(first) | disordered(by_life[0]) | disordered(by_life[1])

    verdict = judge(published(), deliveries(rows), Outage(KILLED, RESTARTED), ack_grace_ms=0)

    assert verdict.lost.count == MESSAGES - len({row[1] for row in rows})
    assert verdict.delivered == len(first)
    assert verdict.out_of_order.count == len(expected_disorder)
    assert verdict.two_owners.count == len(keys_with_two_owners(rows))
    assert verdict.duplicates_at_kill + verdict.duplicates_other.count == len(rows) - len(first)
    assert verdict.duplicates_at_kill == sum(
        row in by_life[1]
        and any(other[1] == row[1] for other in by_life[0])
        and all(acked(other) >= KILLED for other in rows if other[1] == row[1] and life(other) == 0)
        for row in rows
    )


def published() -> PublishedMessages:
    """Return the messages, entry ids in the order of their numbers."""
    return PublishedMessages(
        ledger_ids=np.full(MESSAGES, 1),
        entry_ids=np.arange(MESSAGES),
        keys=np.array([key_of(message) for message in range(MESSAGES)]),
        deliver_at_ms=np.array(DUE_MS),
    )


def deliveries(rows: Sequence[Row]) -> Deliveries:
    """Return the rows as columns."""
    messages = np.array([row[1] for row in rows], dtype=np.int64)
    return Deliveries(
        consumers=np.array([row[0] for row in rows], dtype=np.int64),
        ledger_ids=np.full(len(rows), 1),
        entry_ids=messages,
        keys=messages % KEYS,
        deliver_at_ms=np.array(DUE_MS)[messages],
        received_ns=np.array([row[2] for row in rows], dtype=np.int64),
        acked_ns=np.array([acked(row) for row in rows], dtype=np.int64),
        redelivery_counts=np.zeros(len(rows), dtype=np.int64),
    )
