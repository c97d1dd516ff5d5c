"""Messages that consumers give back by the thousand go to their queues in portions, and no order is lost meanwhile.

The core alone, so that every event can fall between two portions.
"""

import pytest

from managed_ledger.positions.position import Position
from tests.helpers.fakes.core_feed import CoreFeed


def test_nothing_overtakes_what_a_leaver_gives_back() -> None:
    """Not even before the first entry of its slot is back."""
    feed = CoreFeed()
    leaver, heir = feed.join(100), feed.join(100)
    first, key = feed.keys_of(leaver, 2)
    assert feed.read(first, key, key, key) == [("c0", 0), ("c0", 1), ("c0", 2), ("c0", 3)]

    feed.given(feed.core.remove_consumer(leaver))
    assert feed.read(key) == []
    assert feed.given(feed.core.flow(heir, 100)) == []
    feed.timers()

    assert list(heir.pending.items) == [(1, entry) for entry in range(5)]


def test_nothing_overtakes_what_is_asked_for_again() -> None:
    """Although a later entry of the key was offered to the consumer already and waits for its permits."""
    feed = CoreFeed()
    consumer = feed.join(4)
    assert feed.read("first", *["k"] * 5) == [("c0", 0), ("c0", 1), ("c0", 2), ("c0", 3)]

    feed.given(feed.core.redeliver(consumer, None, ()))
    given = feed.given(feed.core.flow(consumer, 100))

    assert given + feed.timers() == [("c0", entry) for entry in range(6)]
    assert list(feed.core.redelivery_counts.values()) == [1, 1, 1, 1]
    assert (consumer.messages_redelivered, consumer.permits) == (4, 94)


@pytest.mark.parametrize("is_draining", [False, True])
@pytest.mark.parametrize("event", ["acknowledged", "expired"])
def test_the_end_of_what_came_back_first_lets_nothing_overtake_the_rest(event: str, is_draining: bool) -> None:
    """Then the next entry that waits would be the first of its slot; while slots drain it is offered another way."""
    feed = CoreFeed()
    consumer = feed.join(3)
    key = "k"
    if is_draining:
        feed.read(*map(str, range(3)))
        feed.join(0)
        (key,) = feed.keys_of(consumer, 1)
        assert feed.core.assignor.fence.is_active
        feed.core.flow(consumer, 3)
    first = feed.entries
    assert len(feed.read(*[key] * 4)) == 3
    slot_entries = [(1, first + number) for number in range(3)]

    feed.given(feed.core.redeliver(consumer, slot_entries, ()))
    actions = (
        feed.core.acknowledge(None, slot_entries[:1], {})[1]
        if event == "acknowledged"
        else feed.core.mark_deleted(Position(1, first))
    )
    given = feed.given(actions) + feed.given(feed.core.flow(consumer, 100))

    assert given + feed.timers() == [("c0", first + number) for number in (1, 2, 3)]


def test_what_is_acknowledged_on_its_way_back_is_not_given_again() -> None:
    feed = CoreFeed()
    consumer = feed.join(100)
    feed.read("k", "k", "k", "other")
    feed.core.redeliver(consumer, None, ())
    acknowledged, actions = feed.core.acknowledge(consumer, [(1, 1), (1, 2), (1, 3)], {})

    assert acknowledged == [(1, 1), (1, 2), (1, 3)]
    assert feed.given(actions) + feed.timers() == [("c0", 0)]
    assert feed.core.redelivery_counts == {(1, 0): 1}


def test_what_expires_on_its_way_back_is_not_given_again() -> None:
    feed = CoreFeed()
    consumer = feed.join(100)
    feed.read("k", "k", "k", "k")
    feed.core.redeliver(consumer, None, ())

    assert feed.given(feed.core.mark_deleted(Position(1, 2))) + feed.timers() == [("c0", 3)]


def test_what_expires_while_it_is_read_is_not_given() -> None:
    feed = CoreFeed()
    feed.join(100)
    feed.core.mark_deleted(Position(1, 1))

    assert feed.read("k", "k", "k") == [("c0", 2)]


def test_a_batch_that_is_half_acknowledged_costs_the_permits_of_the_whole() -> None:
    """A client asks again for every message it skips, so counting less would let its permits grow (PIP-491)."""
    feed = CoreFeed()
    consumer = feed.join(20)
    feed.read("k", messages=10)
    feed.core.acknowledge(consumer, [(1, 0)], {(1, 0): (0b1100000000,)})
    assert (consumer.permits, consumer.unacked) == (10, 2)

    feed.core.redeliver(consumer, [(1, 0)], ())
    feed.timers()

    assert (consumer.permits, consumer.unacked, feed.core.budget.unacked) == (0, 2, 2)
    # A client has acknowledged more messages than there are, and some of them twice.
    feed.core.acknowledge(consumer, [(1, 0)], {(1, 0): (0b0100000000, -1)})
    assert (consumer.unacked, consumer.messages_acked) == (1, 9)
    feed.core.acknowledge(consumer, [(1, 0)], {})
    assert (consumer.unacked, feed.core.budget.unacked, consumer.messages_acked) == (0, 0, 10)


def test_who_has_waited_longest_is_served_first() -> None:
    """Otherwise a consumer with a long queue keeps the others from theirs, turn after turn."""
    feed = CoreFeed(serve_entries_max=3)
    first, second = feed.join(0), feed.join(0)
    (key,), (other,) = feed.keys_of(first, 1), feed.keys_of(second, 1)
    assert feed.read(*[key] * 9, *[other] * 9) == []

    given = feed.given(feed.core.flow(first, 100)) + feed.given(feed.core.flow(second, 100)) + feed.timers()

    assert [name for name, _ in given[::3]] == ["c0", "c1"] * 3


def test_parts_of_batches_that_nobody_has_been_given_are_not_remembered() -> None:
    """A client can name any position, as often as it likes."""
    feed = CoreFeed()
    consumer = feed.join(100)
    feed.read("k", messages=3)
    feed.core.acknowledge(consumer, [(1, 0)], {(1, 0): (0b110,)})
    for entry in range(1, 1_000):
        assert feed.core.acknowledge(consumer, [(1, entry)], {(1, entry): (0b110,)}) == ([], [])

    assert feed.core.ack_sets == {(1, 0): (0b110,)}


def test_parts_of_batches_that_wait_are_remembered_until_they_expire() -> None:
    feed = CoreFeed()
    leaver = feed.join(100)
    feed.read("k", "k", messages=3)
    feed.core.redeliver(leaver, None, ())
    feed.timers()
    feed.core.acknowledge(leaver, [(1, 0)], {(1, 0): (0b110,)})
    feed.given(feed.core.remove_consumer(leaver))
    heir = feed.join(0)
    feed.timers()
    for entry in (0, 1):
        feed.core.acknowledge(None, [(1, entry)], {(1, entry): (0b101,)})
    assert feed.core.ack_sets == {(1, 0): (0b100,), (1, 1): (0b101,)}

    feed.core.mark_deleted(Position(1, 0))

    assert feed.core.ack_sets == {(1, 1): (0b101,)}
    assert feed.given(feed.core.flow(heir, 100)) == [("c1", 1)]
    assert heir.unacked == 2
