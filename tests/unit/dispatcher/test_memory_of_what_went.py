"""Memory of what was handed out and acknowledged: it is let go, although nothing more is given."""

import tracemalloc
from collections.abc import Callable

import pytest

from dispatcher.core.acknowledgements.pending_acks import PendingAcksMap
from dispatcher.core.items import Item, position_of

COUNT = 20_000

Take = Callable[[PendingAcksMap], object]


def take_one_by_one(pending: PendingAcksMap) -> None:
    for position in list(pending.items):
        pending.remove(position)


@pytest.mark.parametrize(
    "take",
    [take_one_by_one, lambda pending: pending.take(list(pending.items)), PendingAcksMap.take_all, PendingAcksMap.clear],
    ids=["one by one", "at once", "all", "cleared"],
)
def test_what_a_consumer_held_goes_with_its_acknowledgements(take: Take) -> None:
    pending = PendingAcksMap()
    tracemalloc.start()
    try:
        items: list[Item] = [(10**12 + number, 1, number, 1, 100_000 + number, 1) for number in range(COUNT)]
        pending.add_all(items)
        pending.note_given(items, now_ms=7)
        assert pending.given_ms(position_of(items[0])) == 7
        del items
        held_bytes, _ = tracemalloc.get_traced_memory()
        take(pending)
        left_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    pending.check()
    assert held_bytes > 100 * COUNT
    # The table of the positions stays, as large as it was.
    assert left_bytes < held_bytes / 3


def test_it_is_known_of_the_others_when_they_were_given() -> None:
    pending = PendingAcksMap()
    for now_ms in range(3):
        items: list[Item] = [(5, 1, COUNT * now_ms + number, 1, 1, 1) for number in range(COUNT)]
        pending.add_all(items)
        pending.note_given(items, now_ms)
    kept = [(1, COUNT * now_ms) for now_ms in range(3)]
    pending.take([position for position in pending.items if position not in kept])

    assert [pending.given_ms(position) for position in kept] == [0, 1, 2]
    pending.check()
