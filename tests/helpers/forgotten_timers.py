"""The calls of the core that set a timer, how one is left out, and the check that notices it.

After each plan the core has started all that it could start. So a copy of its state in which every reason is looked at,
timer or no timer, must find nothing to do. Where a reason is a matter of time alone (how often the cache is looked
through, when a late snapshot is searched for), its timer is compared with the time at which it must come.
"""

import ast
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from postdate.testing import FakeCursor
from tests.helpers.core_state import state_of
from tests.helpers.frames import frame_below
from tracker.core.actions import (
    LoadSegments,
)
from tracker.core.state import TrackerState
from tracker.core.timers import Timers, Why
from tracker.core.tracker_core import TrackerCore
from tracker.core.transitions import planning

CORE: Final = Path(planning.__file__).parents[1]

OF_TIME_ALONE: Final = (Why.EVICTION, Why.LATE_ORPHANS, Why.READ_AHEAD)
"""To look for one of these reasons too early does something; `checks` compares their timers with the clock."""


class TimerCall(NamedTuple):
    """A call that sets a timer."""

    file: str
    line: int
    why: Why | None = None
    """Which timer; None for all that the line sets."""


def timer_calls() -> set[TimerCall]:
    """Return all calls in the core that set a timer, as its source has them."""
    return {
        TimerCall(str(path.relative_to(CORE)), node.lineno)
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("wake", "at")
        and ast.unparse(node.func.value).rpartition(".")[2] in ("timers", "_timers")
    }


@contextmanager
def timers_but(left_out: TimerCall | None, met: set[TimerCall]) -> Iterator[None]:
    """Leave one call out, and note the calls that are met."""
    prefix = len(str(CORE)) + 1
    wake, at = Timers.wake, Timers.at

    def is_left_out(why: Why) -> bool:
        # The frame below is that of `Timers`' method, and the one below that has called it.
        frame = frame_below(2)
        call = TimerCall(frame.f_code.co_filename[prefix:], frame.f_lineno, why)
        met.add(call)
        return left_out is not None and left_out[:2] == call[:2] and left_out.why in (None, why)

    def wake_or_not(self: Timers, why: Why) -> None:
        if not is_left_out(why):
            wake(self, why)

    def at_or_not(self: Timers, why: Why, at_ms: int) -> None:
        if not is_left_out(why):
            at(self, why, at_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timers, "wake", wake_or_not)
        patch.setattr(Timers, "at", at_or_not)
        yield


def assert_nothing_forgotten(core: TrackerCore, now_ms: int, cursor: FakeCursor) -> None:
    """Assert that no reason whose time has not come has anything to do now."""
    state = state_of(core)
    looked_at = copy.deepcopy(state, {id(one): one for one in (cursor, state.config)})
    before = _outline(looked_at)
    for why in Why:
        if why in OF_TIME_ALONE or state.timers.when(why) <= now_ms:
            continue
        through_ms = looked_at.due_through_ms(now_ms, looked_at.config.prefetch_ms)
        # A bucket that was due before the clock was put back may be loaded early, and need not be.
        early = {one.serial for one in looked_at.buckets.values() if one.next_segment_deliver_at_ms > through_ms}
        found = planning.look(looked_at, why, now_ms)
        actions = [one for one in found if not (isinstance(one, LoadSegments) and one.serial in early)]
        assert not actions, f"no timer is set for {why.name}: {actions}"
        assert _outline(looked_at) == before, f"no timer is set for {why.name}"


def _outline(state: TrackerState) -> object:
    return (
        [(serial, bucket.state, bucket.merging_into) for serial, bucket in sorted(state.buckets.items())],
        sorted(state.positions.overlapping.ranges.items()),
        len(state.recovery.unopened),
        len(state.cleared),
        state.barriers.barrier,
    )
