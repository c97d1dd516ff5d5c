"""Steps of the wall clock, told from time that passes."""

import pytest

from broker.service.clock_steps import ClockSteps
from postdate.testing import FakeClock

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("wall_ms", "steady_ms", "is_step"),
    [
        (0, 0, False),
        (60_000, 60_000, False),
        (60_900, 60_000, False),
        (DAY_MS + 43_200, DAY_MS, False),
        (DAY_MS - 43_200, DAY_MS, False),
        (3_600_000, 3_000, True),
        (-3_600_000, 3_000, True),
        # A machine that slept: its steady clock stood still.
        (DAY_MS, 0, True),
    ],
)
def test_a_step_is_told_once(wall_ms: int, steady_ms: int, is_step: bool) -> None:
    wall, steady = FakeClock(1_800_000_000_000), FakeClock(5)
    steps = ClockSteps(wall, steady)
    wall.now_ms += wall_ms
    steady.now_ms += steady_ms
    assert [steps.were_made(), steps.were_made()] == [is_step, False]
