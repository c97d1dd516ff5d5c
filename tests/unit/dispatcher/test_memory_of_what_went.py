"""Memory of what consumers held: it is let go with the acknowledgements, although nothing more is given."""

import tracemalloc
from collections.abc import Callable

import numpy as np
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
    [take_one_by_one, lambda pending: pending.take(list(pending.items)), PendingAcksMap.take_all],
    ids=["one by one", "at once", "all"],
)
def test_what_a_consumer_held_goes_with_its_acknowledgements(take: Take) -> None:
    pending = PendingAcksMap()
    tracemalloc.start()
    try:
        items: list[Item] = [(10**12 + number, 1, number, 1, 100_000 + number, 1) for number in range(COUNT)]
        pending.add_all(items, now_ms=7)
        assert pending.given_ms[position_of(items[0])] == 7
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


def column_bytes() -> int:
    """Return the bytes of all arrays of numpy that were made since the trace began."""
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([domain]).traces)
