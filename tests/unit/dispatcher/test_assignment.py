"""Assignments of slots: the runs say what a table by slot would, and take a few kilobytes."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.config import DispatcherConfig, SubscriptionType
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.selectors.assignment import NO_OWNER, assigned
from dispatcher.factory import make_core
from dispatcher.slots import SLOTS_END

_runs = st.lists(
    st.tuples(st.integers(0, SLOTS_END - 1), st.integers(0, 3)), max_size=8, unique_by=lambda run: run[0]
).map(sorted)


@given(_runs, st.lists(st.integers(0, SLOTS_END - 1), max_size=100))
def test_an_assignment_says_of_each_slot_what_its_ranges_say(ends: list[tuple[int, int]], slots: list[int]) -> None:
    firsts = [0, *(last + 1 for last, _ in ends)]
    # Owner 0 stands for a gap.
    ranges = [
        (first, last, owner) for first, (last, owner) in zip(firsts, ends, strict=False) if first <= last and owner
    ]
    table = np.full(SLOTS_END, NO_OWNER)
    for first, last, owner in ranges:
        table[first : last + 1] = owner
    one = assigned(ranges)

    assert (one.table() == table).all()
    assert one.take(np.array(slots, np.int32)).tolist() == table[slots].tolist()
    assert [one[slot] for slot in slots] == table[slots].tolist()
    assert [one.by_slot(len(slots))[slot] for slot in slots] == table[slots].tolist()
    for owner in range(1, 4):
        owned = [slot for first, last in one.ranges_of(owner) for slot in range(first, last + 1)]
        assert owned == np.flatnonzero(table == owner).tolist()


def test_a_subscription_with_one_consumer_takes_a_few_kilobytes() -> None:
    """The target is 35 KB for a topic with all that belongs to it; a table by slot alone is 128 KiB."""
    config = DispatcherConfig()
    cores = [_core_with_consumers(config, 1) for _ in range(10)]
    tracemalloc.start()
    cores += [_core_with_consumers(config, 1) for _ in range(100)]
    size = tracemalloc.get_traced_memory()[0] / 100
    tracemalloc.stop()

    assert size < 8_000


def _core_with_consumers(config: DispatcherConfig, consumers: int) -> MultipleConsumersCore:
    core = make_core(SubscriptionType.KEY_SHARED, config, has_delays=True)
    for index in range(consumers):
        core.add_consumer(ConsumerState(index, f"consumer-{index}"))
    return core
