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


@pytest.mark.parametrize("slot_count", [1, 40, 3_000])
def test_what_comes_behind_a_parked_entry_is_known_however_many_slots_have_one(slot_count: int) -> None:
    rng = np.random.default_rng(slot_count)
    slots = rng.permutation(np.arange(1, 65_536))[:slot_count].tolist()
    parked = ParkedEntries()
    assert parked.are_behind(np.array([1], np.int32), np.array([1])) is None

    parked.add(np.array([(100 + slot % 7, 1, entry_id, 1, 100, slot) for entry_id, slot in enumerate(slots)], ITEM_ROW))
    asked = np.concatenate([rng.choice(slots, 50), rng.integers(1, 65_536, 50)]).astype(np.int32)
    orders_ms = rng.integers(95, 112, 100)
    behind = parked.are_behind(asked, orders_ms)

    assert behind is not None
    expected = [
        slot in slots and order_ms >= 100 + slot % 7
        for slot, order_ms in zip(asked.tolist(), orders_ms.tolist(), strict=True)
    ]
    assert behind.tolist() == expected
    for slot in slots:
        parked.take(slot, 1)
    assert parked.are_behind(asked, orders_ms) is None
