"""The cost of decisions in calls, not in time: nothing per message while nothing drains, and no walk over a queue."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dispatcher import DispatcherConfig
from dispatcher.core.consumers import UNLIMITED, ConsumerState
from dispatcher.core.fences import draining_hashes
from dispatcher.factory import key_shared_core
from tests.helpers.fakes.core_feed import CoreFeed


def calls(work: Callable[[], object]) -> Counter[str]:
    """Count the calls of functions, by the file that they are in or, of those in C, that calls them."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call"):
            counts[frame.f_code.co_filename] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def asked_of_draining_hashes(entries: int) -> list[int]:
    """Count the calls into the tracker of draining hashes while entries are given, and while they are acknowledged."""
    feed = CoreFeed()
    consumer = feed.join(10**6)
    keys = [str(number) for number in range(entries)]
    reading = calls(lambda: feed.read(*keys, is_checked=False))
    positions = list(consumer.pending.items)
    assert len(positions) == entries
    acknowledging = calls(lambda: feed.core.acknowledge(consumer, positions, {}))
    return [count[str(Path(draining_hashes.__file__))] for count in (reading, acknowledging)]


def test_draining_hashes_cost_nothing_per_message_while_nothing_drains() -> None:
    """The tracker is asked as often for a thousand entries as for ten: whether it is active."""
    few, many = asked_of_draining_hashes(10), asked_of_draining_hashes(1_000)

    assert few == many
    assert 0 < max(few) <= 4


def calls_to_give_ten(waiting: int) -> int:
    """Count all calls while one of a hundred consumers asks for ten messages, and so many entries wait."""
    feed = CoreFeed(look_ahead_per_consumer=0, unacked_per_consumer_max=0, unacked_per_subscription_max=0)
    for _ in range(100):
        feed.join(0, is_checked=False)
    for first in range(0, waiting, 500):
        feed.read(*[f"key-{number}" for number in range(first, first + 500)], is_checked=False)
    assert len(feed.core.replay_queue) == waiting
    consumer = max(feed.core.consumers.values(), key=lambda one: len(one.heads))
    count = calls(lambda: feed.core.flow(consumer, 10)).total()
    assert len(consumer.pending) == 10
    return count


def test_what_is_given_from_a_queue_costs_what_is_given_and_not_what_waits() -> None:
    # A few calls differ, by how many slots the entries have.
    assert calls_to_give_ten(20_000) < 1.1 * calls_to_give_ten(2_000)


@pytest.mark.parametrize(
    ("per_consumer", "per_subscription", "consumers", "limit"),
    [
        (10, 100, 1, 10),
        (10, 100, 3, 30),
        (10, 15, 3, 15),
        (0, 15, 3, 15),
        (10, 0, 3, 30),
        (0, 0, 3, 12),
    ],
)
def test_the_look_ahead_is_bounded_by_both_thresholds(
    per_consumer: int, per_subscription: int, consumers: int, limit: int
) -> None:
    """Per consumer times consumers, capped per subscription; with neither, what may be unacknowledged is the limit."""
    config = DispatcherConfig(
        look_ahead_per_consumer=per_consumer,
        look_ahead_per_subscription=per_subscription,
        unacked_per_consumer_max=4,
        unacked_per_subscription_max=0,
    )
    core = key_shared_core(config, has_delays=True)
    for number in range(consumers):
        core.add_consumer(ConsumerState(number, f"c{number}"))

    assert core.budget.look_ahead_limit() == core.replay_queue.entries_max == limit
    assert limit < UNLIMITED
