"""The service's own periodic work on APScheduler, and the judge of its turns while the wall clock is set.

Each job must have the turns of the time that passes on the loop's clock. A step may let a scheduled job begin anew, and
moves no job that keeps a time limit. APScheduler must not list the turns that a step seems to have left out: the loop
stands still meanwhile.
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from postdate.broker.service.clock_steps import LOOK_INTERVAL_S, STEP_MS_MIN
from postdate.broker.service.scheduler import Housekeeping, Job
from tests.helpers.fakes.apscheduler_clock import ListedTurns

if TYPE_CHECKING:
    from tests.simulation.whole_service.simulation import Simulation

_JOBS: Final = {"keep-alive", "roll over and trim", "statistics"}
"""The others would close or delete the topic of the story, or expire messages of it unseen."""

_LISTED_MAX: Final = 200
"""Turns that may be listed beyond two for each turn that is taken."""


class Upkeep:
    """The periodic jobs of one life.

    Args:
        sim: The run.
        listed: The turns that APScheduler lists.
    """

    def __init__(self, sim: "Simulation", listed: ListedTurns) -> None:
        self._sim = sim
        self._loop = sim.life.loop
        self._listed = listed
        self._listed_before = listed.count
        self._turns = 0
        self._jobs = [self._judged(job) for job in sim.life.service.housekeeping() if job.name in _JOBS]
        assert len(self._jobs) == len(_JOBS)
        self._housekeeping = Housekeeping(self._jobs, sim.life.service.clock_watch)
        self._last_s = dict.fromkeys(self._jobs, self._loop.time())
        self._steps_since: dict[Job, list[float]] = {job: [] for job in self._jobs}
        """When the clock was set since the last turn but one of each."""
        self._step_count = 0
        self._is_closed = False

    def start(self) -> None:
        """Begin."""
        self._housekeeping.start()

    async def close(self) -> None:
        """End it, as a service does before it stops."""
        self._is_closed = True
        await self._housekeeping.close(timeout_s=1.0)

    def clock_was_set(self) -> None:
        """Count a step of the wall clock."""
        self._step_count += 1
        for steps in self._steps_since.values():
            steps.append(self._loop.time())

    def judge(self) -> None:
        """Complain of a job whose turn is overdue, and of turns that were listed for nothing."""
        for job in [] if self._is_closed else self._jobs:
            due_s = self._last_s[job] + job.interval_s
            if not job.is_time_limit and self._steps_since[job]:
                due_s = max(due_s, self._steps_since[job][-1] + LOOK_INTERVAL_S + job.interval_s)
            if self._loop.time() > due_s + self._unseen_s(job) + 0.01:
                self._sim.complain(f"{job.name} has had no turn for {self._loop.time() - self._last_s[job]:.1f} s")
        listed = self._listed.count - self._listed_before
        if listed > 2 * self._turns + len(self._jobs) * self._step_count + _LISTED_MAX:
            self._sim.complain(f"{listed} turns were listed for {self._turns} turns of the jobs")

    def _judged(self, job: Job) -> Job:
        run: Callable[[], Any] = job.run

        def turn() -> Coroutine[Any, Any, None] | None:
            self._note(judged)
            # While a rest is judged nothing else may happen.
            result: Coroutine[Any, Any, None] | None = None if self._sim.is_resting else run()
            return result

        judged = replace(job, run=turn)
        return judged

    def _note(self, job: Job) -> None:
        passed_s = self._loop.time() - self._last_s[job]
        if passed_s < job.interval_s - self._unseen_s(job) - 0.01:
            self._sim.complain(f"{job.name} has a turn {passed_s:.3f} s after the last one, not {job.interval_s} s")
        self._turns += 1
        # The timer of this turn was set before, and only the next one is set by the clock as it is now.
        self._steps_since[job] = [at for at in self._steps_since[job] if at > self._last_s[job]]
        self._last_s[job] = self._loop.time()

    def _unseen_s(self, job: Job) -> float:
        """How much smaller steps than are seen may have moved its turn."""
        return 0.0 if job.is_time_limit else len(self._steps_since[job]) * STEP_MS_MIN / 1_000
