"""The plan puts ledgers aside while the index does not know which of their positions are tracked."""

import numpy as np

from dispatcher.core.read_plan import LedgerEnd, ReadPlan, ReadRequest
from managed_ledger.position import Position

EXTENTS = [LedgerEnd(1, 9, True), LedgerEnd(2, 9, True), LedgerEnd(3, 4, False)]
LAST = Position(3, 20)


def next_request(plan: ReadPlan) -> ReadRequest:
    request = plan.next_request(LAST, immediates_max=100, scan_entries_max=100)
    assert request is not None
    return request


def test_a_range_is_put_aside_when_its_index_is_known_no_longer() -> None:
    """It was known, and no read asked for too long; the range is read when it is known again."""
    recovering = {1, 2}
    plan = ReadPlan.start(Position(1, 0), EXTENTS, recovering.__contains__, has_delays=True)
    recovering.clear()
    plan.note_recovered(recovering.__contains__)
    request = next_request(plan)
    assert request.first == Position(1, 0)

    recovering.add(1)
    assert plan.put_aside(request, recovering.__contains__)
    assert next_request(plan).first == Position(2, 0)
    recovering.clear()
    plan.note_recovered(recovering.__contains__)
    assert next_request(plan).first == Position(1, 0)
    assert not plan.put_aside(next_request(plan), recovering.__contains__)


def test_what_was_published_since_the_start_needs_no_index() -> None:
    """No snapshot had it when the plan was made: an open ledger is read on, even if its beginning is not known."""
    plan = ReadPlan.start(Position(3, 0), EXTENTS, {3}.__contains__, has_delays=True)
    plan.note_recovered(set[int]().__contains__)
    request = next_request(plan)
    assert plan.put_aside(request, {3}.__contains__)

    plan.note_recovered(set[int]().__contains__)
    plan.complete(next_request(plan), next_position=Position(3, 5), first_not_taken=None)
    assert next_request(plan).first == Position(3, 5)
    assert not plan.put_aside(next_request(plan), {3}.__contains__)


def test_immediate_entries_are_read_without_the_index() -> None:
    """Delayed ones are left out of such a read by their headers."""
    plan = ReadPlan.start(Position(1, 0), EXTENTS, {1}.__contains__, has_delays=True)
    plan.note_recovered(set[int]().__contains__)
    plan.complete(next_request(plan), next_position=Position(1, 8), first_not_taken=Position(1, 2))
    requests = [next_request(plan) for _ in range(2)]
    [immediate] = [request for request in requests if not request.is_scan]

    assert not plan.put_aside(immediate, {1}.__contains__)
    assert plan.has_taken(np.array([1, 1, 2]), np.array([7, 8, 0])).tolist() == [True, False, False]


def test_a_closed_ledger_is_scanned_to_the_end_that_its_last_commit_gives_it() -> None:
    """It was closed, its index was not known and its last entries were not durable when the plan was made."""
    extents = [LedgerEnd(3, 4, has_ended=False), LedgerEnd(4, -1, has_ended=False)]
    plan = ReadPlan.start(Position(3, 0), extents, {3}.__contains__, has_delays=True)

    scanned = []
    plan.note_recovered(set[int]().__contains__)
    for next_position in (Position(3, 5), Position(4, 0)):
        request = plan.next_request(Position(3, 6), immediates_max=0, scan_entries_max=100)
        assert request is not None
        scanned.append(request.first)
        plan.complete(request, next_position=next_position, first_not_taken=None)

    assert scanned == [Position(3, 0), Position(3, 5)]


def test_entries_that_were_scanned_while_no_consumer_had_permits_are_read_again_from_the_first_immediate_one() -> None:
    plan = ReadPlan.start(Position(1, 0), EXTENTS, set[int]().__contains__, has_delays=True)
    scan = plan.next_request(LAST, immediates_max=0, scan_entries_max=100)
    assert scan is not None
    plan.complete(scan, next_position=Position(3, 21), first_not_taken=Position(1, 7))

    immediate = next_request(plan)

    assert not immediate.is_scan
    assert immediate.first == Position(1, 7)


def test_delayed_entries_that_were_scanned_while_no_consumer_had_permits_are_not_read_again() -> None:
    plan = ReadPlan.start(Position(1, 0), EXTENTS, set[int]().__contains__, has_delays=True)
    scan = plan.next_request(LAST, immediates_max=0, scan_entries_max=100)
    assert scan is not None
    plan.complete(scan, next_position=Position(3, 21), first_not_taken=None)

    assert plan.next_request(LAST, immediates_max=100, scan_entries_max=100) is None
