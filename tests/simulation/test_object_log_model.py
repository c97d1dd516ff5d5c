"""The protocol of the log on object storage holds in every order of events, and loses entries without any of its rules.

`python tests/simulation/object_log_model.py` walks further; its head says how.
"""

import pytest

from tests.simulation.object_log_model import Bounds, Rule, explore, wander

pytestmark = pytest.mark.slow

WHOLE_SPACES = (
    Bounds(epochs=2, checkpoints=1),
    Bounds(faults=0),
    Bounds(owners=3, epochs=2, entries=2, checkpoints=1, faults=0),
    Bounds(epochs=2, entries=2, checkpoints=1, depth=2),
)
NEAREST = {
    Rule.FENCES: Bounds(checkpoints=1),
    Rule.SECOND_LOOK: Bounds(faults=0),
    Rule.MANIFEST_FIRST: Bounds(checkpoints=1),
    Rule.OWNER: Bounds(checkpoints=1),
}
"""Bounds in which what a rule prevents is found soon."""


@pytest.mark.parametrize("bounds", WHOLE_SPACES, ids=str)
def test_nothing_acknowledged_is_lost_in_any_order_of_events(bounds: Bounds) -> None:
    walked = explore(bounds)
    assert walked.broken == ""
    assert walked.is_all
    assert walked.acknowledged_max == bounds.entries


@pytest.mark.parametrize("depth", [1, 2])
def test_nothing_acknowledged_is_lost_on_long_ways(depth: int) -> None:
    walked = wander(Bounds(owners=3, epochs=4, entries=6, checkpoints=3, faults=4, depth=depth), walks=400, seed=depth)
    assert walked.broken == ""
    assert walked.acknowledged_max > 3


@pytest.mark.parametrize("rule", Rule)
def test_each_rule_is_needed(rule: Rule) -> None:
    """Without it an acknowledged entry is lost."""
    assert explore(NEAREST[rule], without=rule).broken.startswith("acknowledged but gone")
