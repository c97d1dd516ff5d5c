"""What is known of messages that consumers give back: permits, parts of batches, and whose turn it is."""

from managed_ledger.positions.position import Position
from tests.helpers.fakes.core_feed import CoreFeed


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
