"""The queue of waiting entries against a sorted list, with any split of them into heaps and parked rows."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.core.items import ITEM_ROW, SLOT, Item, position_of
from dispatcher.core.queues.replay_queue import ReplayQueue

_SLOTS = st.integers(1, 4)


class ReplayQueueMachine(RuleBasedStateMachine):
    """Adds, parks, takes and forgets."""

    @initialize(slot_max=st.integers(1, 3), entries_max=st.integers(0, 8))
    def start(self, slot_max: int, entries_max: int) -> None:
        self.waiting = ReplayQueue()
        self.waiting.slot_entries_max = slot_max
        self.waiting.entries_max = entries_max
        self.model: dict[int, list[Item]] = {}
        self.next_entry = 0

    def _item(self, slot: int, order_ms: int) -> Item:
        self.next_entry += 1
        return (order_ms, self.next_entry // 10, self.next_entry % 10, 1, 100, slot)

    @rule(rows=st.lists(st.tuples(_SLOTS, st.integers(0, 20)), max_size=10))
    def read_a_batch(self, rows: list[tuple[int, int]]) -> None:
        """As the core does: entries behind the slot's first parked row are parked, the others are added."""
        items = [self._item(*row) for row in rows]
        for item in items:
            self.model.setdefault(item[SLOT], []).append(item)
        records = np.array(items, dtype=ITEM_ROW)
        is_behind = self.waiting.parked.are_behind(records["slot"], records["order_ms"])
        if is_behind is None:
            is_behind = np.zeros(len(items), dtype=np.bool_)
        heads = self._heads()
        changed = self.waiting.park(records[is_behind])
        assert all(self.waiting.heaps[slot][0] is not heads[slot] for slot in changed)
        for item, behind in zip(items, is_behind.tolist(), strict=True):
            if not behind:
                head = self.waiting.heaps.get(item[SLOT], [None])[0]
                assert self.waiting.add(item) == (self.waiting.heaps[item[SLOT]][0] is not head)
        heads = self._heads()
        self.waiting.park_surplus({item[SLOT] for item in items})
        assert all(self.waiting.heaps[slot][0] is head for slot, head in heads.items())

    def _heads(self) -> dict[int, Item]:
        return {slot: heap[0] for slot, heap in self.waiting.heaps.items()}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.model)))
        queue = self.model[slot]
        first = min(queue)
        assert self.waiting.pop(slot) == first
        queue.remove(first)
        self._drop_empty()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from([item for queue in self.model.values() for item in queue]))
        slot = item[SLOT]
        head = self.waiting.heaps[slot][0]
        changed = self.waiting.discard(position_of(item))
        self.model[slot].remove(item)
        self._drop_empty()
        has_new_head = slot in self.waiting.heaps and self.waiting.heaps[slot][0] is not head
        assert (changed == slot) == has_new_head

    @rule(ledger_id=st.integers(0, 5), entry_id=st.integers(0, 9))
    def discard_through(self, ledger_id: int, entry_id: int) -> None:
        last = (ledger_id, entry_id)
        self.waiting.discard_through(last)
        self.model = {slot: [item for item in queue if position_of(item) > last] for slot, queue in self.model.items()}
        self._drop_empty()

    def _drop_empty(self) -> None:
        self.model = {slot: queue for slot, queue in self.model.items() if queue}

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "waiting"):
            return
        self.waiting.check()
        assert sorted(self.waiting.items()) == sorted(item for queue in self.model.values() for item in queue)
        assert {slot: heap[0] for slot, heap in self.waiting.heaps.items()} == {
            slot: min(queue) for slot, queue in self.model.items()
        }


TestReplayQueue = ReplayQueueMachine.TestCase
