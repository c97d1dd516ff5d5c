"""The plan lets ledgers wait while the index does not know which of their positions are tracked."""

from collections.abc import Collection

import numpy as np

from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest
from managed_ledger.positions.position import Position

LAST = Position(3, 20)
FIRST_LEDGER = Position(1, 0), Position(1, 9)
SECOND_LEDGER = Position(2, 0), Position(2, 9)


def next_request(plan: ReadPlan, last: Position = LAST, *, immediates_max: int = 100) -> ReadRequest:
    request = plan.next_request(last, immediates_max=immediates_max, scan_entries_max=100)
    assert request is not None
    return request


def started(*first: int) -> ReadPlan:
    return ReadPlan.start(Position(*first), LAST, has_delays=True)


def scan(plan: ReadPlan, *left_out: tuple[Position, Position], through: Position = LAST) -> Position:
    """Scan up to a position; return where that began."""
    request = next_request(plan, immediates_max=0)
    assert request.is_scan
    plan.put_aside(request, [LogPart(*part) for part in left_out])
    first_not_taken = left_out[0][0] if left_out else None
    plan.complete(
        request, next_position=Position(through.ledger_id, through.entry_id + 1), first_not_taken=first_not_taken
    )
    return request.first


def recover(plan: ReadPlan, *, still: Collection[int] = ()) -> None:
    plan.note_recovered(still.__contains__)


def test_ledgers_that_the_index_does_not_know_are_scanned_when_it_does() -> None:
    plan = started(1, 5)
    scan(plan, (Position(1, 5), Position(1, 9)), SECOND_LEDGER)
    assert plan.has_recovering
    assert plan.next_request(LAST, immediates_max=0, scan_entries_max=100) is None
    assert plan.has_taken(np.array([1, 2, 3, 3]), np.array([5, 0, 0, 21])).tolist() == [False, False, True, False]

    recover(plan, still={1})
    assert scan(plan, through=Position(2, 9)) == Position(2, 0)
    assert plan.next_request(LAST, immediates_max=0, scan_entries_max=100) is None
    recover(plan)
    assert scan(plan, through=Position(1, 9)) == Position(1, 5)
    assert plan.is_scanned_through(LAST)


def test_a_ledger_that_the_index_forgets_again_waits_again() -> None:
    plan = started(1, 0)
    scan(plan, FIRST_LEDGER, SECOND_LEDGER)
    recover(plan)

    assert scan(plan, FIRST_LEDGER, through=Position(1, 9)) == Position(1, 0)
    assert scan(plan, through=Position(2, 9)) == Position(2, 0)
    recover(plan)
    assert scan(plan, through=Position(1, 9)) == Position(1, 0)
    assert plan.is_scanned_through(LAST)


def test_the_scan_goes_on_behind_a_part_that_was_left_out() -> None:
    plan = started(3, 0)
    scan(plan, (Position(3, 0), Position(3, 4)), through=Position(3, 4))

    assert scan(plan) == Position(3, 5)
    recover(plan)
    request = next_request(plan, immediates_max=0)
    assert (request.first, request.through) == (Position(3, 0), Position(3, 4))


def test_immediate_entries_are_read_without_the_index() -> None:
    """They are read where a ledger was left out, and taken by the scan from there on no more."""
    plan = started(1, 0)
    request = next_request(plan)
    assert request.is_scan
    assert request.takes_immediate
    plan.put_aside(request, [LogPart(*SECOND_LEDGER)])
    plan.complete(request, next_position=Position(3, 21), first_not_taken=Position(2, 0))

    immediate = next_request(plan)
    assert not immediate.is_scan
    assert (immediate.first, immediate.through) == (Position(2, 0), Position(3, 20))


def test_entries_that_were_scanned_while_no_consumer_had_permits_are_read_again_from_the_first_immediate_one() -> None:
    plan = started(1, 0)
    plan.complete(next_request(plan, immediates_max=0), next_position=Position(3, 21), first_not_taken=Position(1, 7))

    immediate = next_request(plan)

    assert not immediate.is_scan
    assert immediate.first == Position(1, 7)


def test_delayed_entries_that_were_scanned_while_no_consumer_had_permits_are_not_read_again() -> None:
    plan = started(1, 0)
    plan.complete(next_request(plan, immediates_max=0), next_position=Position(3, 21), first_not_taken=None)

    assert plan.next_request(LAST, immediates_max=100, scan_entries_max=100) is None
