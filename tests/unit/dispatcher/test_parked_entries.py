"""Entries far back in the queue of their slot, where a bitmap of a ledger says which are not wanted any more."""

import numpy as np
import pytest

from dispatcher.core.items import ITEM_ROW, Item
from dispatcher.core.queues.parked import ParkedEntries


@pytest.mark.parametrize("never_was", [-1, 2**32, 2**63, 2**64 - 1])
def test_discarding_an_entry_id_that_no_bitmap_holds_leaves_the_others_alone(never_was: int) -> None:
    items: list[Item] = [(entry_id, 1, entry_id, 1, 100, 7) for entry_id in range(3)]
    parked = ParkedEntries()
    parked.add(np.array(items, dtype=ITEM_ROW))

    parked.discard((1, never_was))
    parked.discard((1, 1))

    assert parked.take(7, 3) == [items[0], items[2]]
