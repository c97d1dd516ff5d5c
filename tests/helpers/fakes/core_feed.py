"""A Key_Shared core that reads what a test tells it to, one event at a time: no loop, no log, no clock."""

import numpy as np

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.core.actions import Action, Deliver
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import ENTRY
from dispatcher.core.read_plan import ReadRequest
from dispatcher.factory import make_core
from dispatcher.slots import CONSISTENT_HASHING_RANGE, sticky_hash
from managed_ledger.entries.headers import NO_CHUNK, NOT_DELAYED, EntryHeaders
from managed_ledger.positions.position import Position


class CoreFeed:
    """A core that reads what it is told to; returns one entry at a time."""

    def __init__(self, portion: int = 1, **config: int) -> None:
        self.core = make_core(
            SubscriptionType.KEY_SHARED, DispatcherConfig(return_entries_max=portion, **config), has_delays=True
        )
        self.core.start(Position(1, 0), Position(1, -1))
        self.entries = 0
        self.joined = 0
        self.is_checked = True

    def join(self, permits: int, *, is_checked: bool = True) -> ConsumerState:
        self.is_checked = is_checked
        consumer = ConsumerState(self.joined, f"c{self.joined}")
        self.joined += 1
        self.given(self.core.add_consumer(consumer))
        self.core.flow(consumer, permits)
        return consumer

    def read(self, *keys: str, messages: int = 1, is_checked: bool = True) -> list[tuple[str, int]]:
        """Read an entry of each key; return the entries that consumers are given by that, with their consumers."""
        self.is_checked = is_checked
        count = len(keys)
        first, self.entries = self.entries, self.entries + count
        headers = EntryHeaders(
            np.full(count, 1, dtype=np.int64),
            np.arange(first, first + count, dtype=np.int64),
            np.full(count, NOT_DELAYED, dtype=np.int64),
            np.zeros(count, dtype=np.int64),
            np.array([sticky_hash(key.encode()) for key in keys], dtype=np.int32),
            np.full(count, 100, dtype=np.int32),
            np.full(count, messages, dtype=np.int32),
            np.full(count, NO_CHUNK, dtype=np.uint32),
        )
        assert self.core.plan is not None
        self.core.next_read(Position(1, self.entries - 1))
        part = self.core.plan.ranges[0]
        request = ReadRequest(part, part.scanned_to, None, count, takes_immediate=True)
        return self.given(self.core.on_headers(request, headers, Position(1, self.entries)))

    def given(self, actions: list[Action]) -> list[tuple[str, int]]:
        if self.is_checked:
            self.core.check()
        return [
            (action.consumer.name, item[ENTRY])
            for action in actions
            if isinstance(action, Deliver)
            for item in action.items
        ]

    def timers(self) -> list[tuple[str, int]]:
        """Let time pass until nothing is left to do; return what is given."""
        given = []
        while (wakeup_ms := self.core.next_wakeup_ms()) is not None:
            self.core.advance(max(wakeup_ms, self.core.now_ms))
            given += self.given(self.core.on_timer())
        return given

    def owner(self, key: str) -> ConsumerState:
        slot = CONSISTENT_HASHING_RANGE.slot(sticky_hash(key.encode()))
        return self.core.consumers[self.core.assignor.owner_of_slot(slot)]

    def keys_of(self, owner: ConsumerState, count: int) -> list[str]:
        return [key for key in map(str, range(1_000)) if self.owner(key) is owner][:count]
