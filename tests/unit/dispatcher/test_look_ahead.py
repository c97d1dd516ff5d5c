"""How many entries of a subscription may wait for its consumers as objects."""

import pytest

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.core.consumers import UNLIMITED, ConsumerState
from dispatcher.factory import make_core


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
    core = make_core(SubscriptionType.KEY_SHARED, config, has_delays=True)
    for number in range(consumers):
        core.add_consumer(ConsumerState(number, f"c{number}"))

    assert core.budget.look_ahead_limit() == core.replay_queue.entries_max == limit
    assert limit < UNLIMITED
