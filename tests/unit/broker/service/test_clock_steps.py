"""Steps of the wall clock, told from time that passes."""

import pytest

from postdate.broker.service.clock_steps import ClockWatch
from postdate.testing import FakeClock

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("wall_ms", "steady_ms", "step_ms"),
    [
        (0, 0, 0),
        (60_000, 60_000, 0),
        (60_900, 60_000, 0),
        (DAY_MS + 43_200, DAY_MS, 0),
        (DAY_MS - 43_200, DAY_MS, 0),
        (3_600_000, 3_000, 3_597_000),
        (-3_600_000, 3_000, -3_603_000),
        # A machine that slept: its steady clock stood still.
        (DAY_MS, 0, DAY_MS),
    ],
)
def test_a_step_is_told_once(caplog: pytest.LogCaptureFixture, wall_ms: int, steady_ms: int, step_ms: int) -> None:
    wall, steady = FakeClock(1_800_000_000_000), FakeClock(5)
    watch = ClockWatch(wall, steady)
    wall.now_ms += wall_ms
    steady.now_ms += steady_ms
    watch.look()
    watch.look()
    assert watch.steps == (step_ms != 0)
    told = [f"{abs(step_ms) / 1_000:.3f} s" in one.getMessage() for one in caplog.records]
    assert told == [True] * watch.steps
