"""Newcomers that wait: the worked examples of PIP-282, the classic mode, and what differs between the two."""

from collections.abc import Callable

import numpy as np
import pytest
from pyroaring import BitMap

from dispatcher.config import LAST_SENT_POSITION, DispatcherConfig, SubscriptionType
from dispatcher.core.actions import Action, Deliver
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.recently_joined import LastSentPositionFence, RecentlyJoinedFence
from dispatcher.core.items import Key, position_of
from dispatcher.factory import make_core
from dispatcher.slots import sticky_hash
from managed_ledger.entries.headers import NO_CHUNK, NOT_DELAYED, EntryHeaders
from managed_ledger.ledgers import LedgerInfo
from managed_ledger.positions.position import Position

_CONFIGS = {
    "last sent position": DispatcherConfig(ordering_mode=LAST_SENT_POSITION),
    "classic": DispatcherConfig(use_classic_implementation=True),
}


class _Subscription:
    """A core over a log of ledgers, with a cursor: the setting of the proposal's examples."""

    def __init__(self, config: DispatcherConfig, first: Position, ledgers: dict[int, int]) -> None:
        self.entries = dict(ledgers)
        self.first = first
        self.acknowledged: dict[int, BitMap] = {}
        self.core = make_core(SubscriptionType.KEY_SHARED, config, has_delays=False, cursor=self, ledgers=self.ledgers)
        self.core.start(first, first)
        self.given: list[tuple[str, Key]] = []

    # The state that the fence sees.

    @property
    def next_unacknowledged_position(self) -> Position:
        at = self.first
        while at.entry_id in self.acknowledged_in(at.ledger_id):
            at = self._after(at)
        return at

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        return self.acknowledged.get(ledger_id, BitMap())

    def ledgers(self) -> list[LedgerInfo]:
        last = max(self.entries)
        return [
            LedgerInfo(ledger_id, count, 0, 0, ledger_id == last, ledger_id != last)
            for ledger_id, count in self.entries.items()
        ]

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return entry_id in self.acknowledged_in(ledger_id)

    def _after(self, position: Position) -> Position:
        following = Position(position.ledger_id, position.entry_id + 1)
        if following.entry_id < self.entries[position.ledger_id] or position.ledger_id + 1 not in self.entries:
            return following
        return Position(position.ledger_id + 1, 0)

    # Events.

    def join(self, name: str, permits: int) -> ConsumerState:
        consumer = ConsumerState(len(self.core.consumers) + 10 * len(self.given), name)
        self.run(self.core.add_consumer(consumer))
        self.flow(consumer, permits)
        return consumer

    def leave(self, consumer: ConsumerState) -> None:
        self.run(self.core.remove_consumer(consumer))

    def flow(self, consumer: ConsumerState, permits: int) -> None:
        self.run(self.core.flow(consumer, permits))

    def read(self, keys: dict[Key, bytes]) -> None:
        columns = np.array(list(keys), dtype=np.int64)
        count = len(columns)
        headers = EntryHeaders(
            columns[:, 0],
            columns[:, 1],
            np.full(count, NOT_DELAYED, dtype=np.int64),
            np.zeros(count, dtype=np.int64),
            np.array([sticky_hash(key) for key in keys.values()], dtype=np.int32),
            np.full(count, 10, dtype=np.int32),
            np.ones(count, dtype=np.int32),
            np.full(count, NO_CHUNK, dtype=np.uint32),
        )
        request = self.core.next_read(Position(*max(keys)))
        assert request is not None
        self.run(self.core.on_headers(request, headers, self._after(Position(*max(keys)))))

    def acknowledge(self, consumer: ConsumerState, *positions: Key) -> None:
        acknowledged, actions = self.core.acknowledge(consumer, positions, {})
        for ledger_id, entry_id in acknowledged:
            self.acknowledged.setdefault(ledger_id, BitMap()).add(entry_id)
        self.run(actions)
        self.run(self.core.on_timer())

    def run(self, actions: list[Action]) -> None:
        for action in actions:
            assert isinstance(action, Deliver)
            self.given += [(action.consumer.name, position_of(item)) for item in action.items]
        self.core.check()

    def given_to(self, name: str) -> list[Key]:
        return [position for consumer, position in self.given if consumer == name]

    @property
    def fence(self) -> RecentlyJoinedFence:
        assert isinstance(self.core.assignor.fence, RecentlyJoinedFence)
        return self.core.assignor.fence

    def owner(self, key: bytes) -> str:
        index = self.core.assignor.owner_of_slot(self.core.assignor.selector.hash_range.slot(sticky_hash(key)))
        return self.core.consumers[index].name


def _key(subscription: _Subscription, is_wanted: Callable[[bytes], bool]) -> bytes:
    return next(key for key in (b"key-%d" % number for number in range(10_000)) if is_wanted(key))


def _key_of(config: DispatcherConfig, *, owner: str, after_joining: str | None = None) -> bytes:
    """Return a key that belongs to c1 or c2, and to c3 once that has joined if that is wanted."""
    trial = _Subscription(config, Position(1, 0), {1: 0})
    trial.join("c1", 0)
    trial.join("c2", 0)
    mine = [key for key in (b"key-%d" % number for number in range(1_000)) if trial.owner(key) == owner]
    trial.join("c3", 0)
    return next(key for key in mine if trial.owner(key) == (after_joining or owner))


def test_issue_1_of_the_proposal_is_solved_by_the_last_sent_position() -> None:
    config = _CONFIGS["last sent position"]
    key_a = _key_of(config, owner="c1", after_joining="c3")
    key_b = _key_of(config, owner="c2")
    subscription = _Subscription(config, Position(1, 6), {1: 12})
    c1, c2 = subscription.join("c1", 1), subscription.join("c2", 1_000)

    subscription.read({(1, n): key_a if n < 9 else key_b for n in range(6, 12)})
    assert subscription.given == [("c1", (1, 6)), ("c2", (1, 9)), ("c2", (1, 10)), ("c2", (1, 11))]
    fence = subscription.fence
    assert isinstance(fence, LastSentPositionFence)
    assert fence.first_unsent(subscription.core.consumers) == (1, 7)
    assert fence.individually_sent(subscription.core.consumers) == {1: BitMap([9, 10, 11])}

    c3 = subscription.join("c3", 1_000)
    assert fence.bounds == {c3.index: (1, 7)}
    assert subscription.given_to("c3") == []

    subscription.leave(c1)
    assert subscription.given_to("c3") == [(1, 6)]
    subscription.acknowledge(c3, (1, 6))
    assert subscription.given_to("c3") == [(1, 6), (1, 7), (1, 8)]
    assert c2.unacked == 3


def test_the_classic_mode_has_issue_1() -> None:
    """Messages that were read and not sent go to the newcomer: that is the race that the proposal is about."""
    config = _CONFIGS["classic"]
    key_a = _key_of(config, owner="c1", after_joining="c3")
    subscription = _Subscription(config, Position(1, 6), {1: 12})
    c1 = subscription.join("c1", 1)
    subscription.join("c2", 1_000)
    subscription.read({(1, n): key_a for n in range(6, 9)})

    c3 = subscription.join("c3", 1_000)
    assert subscription.fence.bounds == {c3.index: (1, 9)}
    assert subscription.given_to("c3") == [(1, 7), (1, 8)]
    subscription.leave(c1)
    assert subscription.given_to("c3") == [(1, 7), (1, 8), (1, 6)]


def test_issue_2_of_the_proposal_is_solved_by_the_last_sent_position() -> None:
    config = _CONFIGS["last sent position"]
    key_a = _key_of(config, owner="c1", after_joining="c3")
    subscription = _Subscription(config, Position(2, 1), {2: 3})
    c1 = subscription.join("c1", 1)
    subscription.join("c2", 1_000)
    subscription.read({(2, 1): key_a})
    subscription.read({(2, 2): key_a})
    assert subscription.given == [("c1", (2, 1))]

    c3 = subscription.join("c3", 1_000)
    assert subscription.fence.bounds == {c3.index: (2, 2)}
    assert subscription.given_to("c3") == []
    subscription.leave(c1)
    assert subscription.given_to("c3") == [(2, 1)]
    subscription.acknowledge(c3, (2, 1))
    assert subscription.fence.bounds == {}
    assert subscription.given_to("c3") == [(2, 1), (2, 2)]


def test_the_last_sent_position_follows_the_proposals_example() -> None:
    """3:1 to 3:10 are read; 3:1 to 3:3, 3:5 and 3:8 to 3:10 are sent, then 3:7, 3:6 and 3:4."""
    subscription = _Subscription(_CONFIGS["last sent position"], Position(3, 1), {3: 11})
    consumer = subscription.join("c", 0)
    fence = subscription.fence
    assert isinstance(fence, LastSentPositionFence)

    def send(*entries: int) -> tuple[Position, list[int]]:
        consumer.pending.items.update({(3, entry): (0, 3, entry, 1, 10, 5) for entry in entries})
        consumers = subscription.core.consumers
        first = fence.first_unsent(consumers)
        individually = fence.individually_sent(consumers).get(3, BitMap())
        return Position(first.ledger_id, first.entry_id - 1), list(individually)

    assert send(1, 2, 3, 5, 8, 9, 10) == ((3, 3), [5, 8, 9, 10])
    assert send(7) == ((3, 3), [5, 7, 8, 9, 10])
    assert send(6) == ((3, 3), [5, 6, 7, 8, 9, 10])
    assert send(4) == ((3, 10), [])


def test_ledgers_that_are_being_written_do_not_count_as_sent() -> None:
    """Entries of several ledgers may be on their way to the disk: none is confirmed, and all are unsent."""
    subscription = _Subscription(_CONFIGS["last sent position"], Position(1, 0), {1: 2, 2: 0, 3: 0, 4: 0})
    consumer = subscription.join("c", 0)
    fence = subscription.fence
    assert isinstance(fence, LastSentPositionFence)

    consumer.pending.items.update({(1, entry): (0, 1, entry, 1, 10, 5) for entry in (0, 1)})

    assert fence.first_unsent(subscription.core.consumers) == Position(1, 2)


@pytest.mark.parametrize("mode", _CONFIGS)
def test_a_newcomer_goes_on_when_all_before_it_is_acknowledged(mode: str) -> None:
    config = _CONFIGS[mode]
    key = _key_of(config, owner="c1", after_joining="c3")
    subscription = _Subscription(config, Position(1, 0), {1: 2, 2: 2})
    c1 = subscription.join("c1", 100)
    subscription.join("c2", 100)
    subscription.read({(1, 0): key, (1, 1): key})
    subscription.join("c3", 100)
    subscription.read({(2, 0): key, (2, 1): key})
    assert subscription.given_to("c3") == []

    subscription.acknowledge(c1, (1, 1))
    assert subscription.given_to("c3") == []
    subscription.acknowledge(c1, (1, 0))
    assert subscription.given_to("c3") == [(2, 0), (2, 1)]


@pytest.mark.parametrize("mode", _CONFIGS)
def test_a_newcomer_goes_on_when_the_ledger_of_what_it_waits_for_is_deleted(mode: str) -> None:
    """The cursor tells nothing of its entries then, and no acknowledgement of one comes any more."""
    config = _CONFIGS[mode]
    key = _key_of(config, owner="c1", after_joining="c3")
    subscription = _Subscription(config, Position(1, 0), {1: 2, 2: 2})
    subscription.join("c1", 100)
    subscription.join("c2", 100)
    subscription.read({(1, 0): key, (1, 1): key})
    subscription.join("c3", 100)
    subscription.read({(2, 0): key, (2, 1): key})

    subscription.first = Position(2, 0)
    subscription.run(subscription.core.on_timer())

    assert subscription.given_to("c3") == [(2, 0), (2, 1)]


@pytest.mark.parametrize("mode", _CONFIGS)
def test_the_only_consumer_that_is_left_waits_for_nobody(mode: str) -> None:
    config = _CONFIGS[mode]
    key = _key_of(config, owner="c1", after_joining="c3")
    subscription = _Subscription(config, Position(1, 0), {1: 4})
    c1, c2 = subscription.join("c1", 100), subscription.join("c2", 100)
    subscription.read({(1, 0): key, (1, 1): key})
    c3 = subscription.join("c3", 100)
    subscription.read({(1, 2): key, (1, 3): key})
    subscription.leave(c2)
    assert subscription.fence.bounds == {c3.index: (1, 2)}
    subscription.leave(c1)

    assert subscription.fence.bounds == {}
    assert subscription.given_to("c3") == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_what_was_sent_stays_so_when_it_is_redelivered() -> None:
    config = _CONFIGS["last sent position"]
    key = _key_of(config, owner="c1", after_joining="c3")
    subscription = _Subscription(config, Position(1, 0), {1: 4})
    c1 = subscription.join("c1", 2)
    subscription.join("c2", 100)
    subscription.read({(1, n): key for n in range(4)})
    subscription.run(subscription.core.redeliver(c1, [(1, 1)], ()))

    subscription.join("c3", 0)
    assert list(subscription.fence.bounds.values()) == [(1, 2)]


def test_nobody_waits_who_joins_when_nothing_is_outstanding() -> None:
    for config in _CONFIGS.values():
        subscription = _Subscription(config, Position(1, 0), {1: 2})
        c1 = subscription.join("c1", 100)
        subscription.read({(1, 0): b"k", (1, 1): b"l"})
        subscription.acknowledge(c1, (1, 0), (1, 1))
        subscription.join("c2", 100)

        assert not subscription.core.assignor.fence.is_active
