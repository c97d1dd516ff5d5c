"""Periodic housekeeping on APScheduler: roll over, trim, expire, report.

Deliveries do not depend on these jobs: they have timers of their own. A job that takes longer than its interval skips
turns. A job that fails is logged and runs again at its next turn. Closing waits for running jobs, for a while. Jobs are
not stored; the first turn is one interval after the start.

APScheduler computes with the wall clock. After a step of 30 days it would list each turn that it seems to have missed,
for seconds in which the loop stands still, and after a step back it would wait until the time has come again. So it
looks for steps before it looks for what is due, and after one all jobs are set anew from now. A job that keeps a time
limit has timers of the loop, which a step does not change.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from apscheduler.job import Job as ScheduledJob
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from postdate.broker.service.clock_steps import ClockWatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of periodic work.

    Attributes:
        name: Its name in the log.
        interval_s: The time between two turns; 0 or less means never.
        run: The work, a function or a coroutine function, called on the event loop.
        is_time_limit: Whether others count on its interval, as a supervisor does: it goes by the loop's clock, which is
            never set, and is not begun anew after a step of the wall clock.
    """

    name: str
    interval_s: float
    run: Callable[[], Awaitable[None] | None]
    is_time_limit: bool = False


class _Scheduler(AsyncIOScheduler):  # type: ignore[misc]  # APScheduler has no types.
    """Looks for steps of the clock each time before it looks for jobs that are due.

    Args:
        watch: The watch of the clock.
        options: Those of APScheduler.
    """

    def __init__(self, watch: ClockWatch, **options: Any) -> None:
        super().__init__(**options)
        self._watch = watch

    def _process_jobs(self) -> Any:
        self._watch.look()
        return super()._process_jobs()


class Housekeeping:
    """Runs jobs at their intervals, on the event loop that `start` is called on.

    Args:
        jobs: The jobs.
        watch: Tells of steps of the wall clock; started and closed here.
    """

    def __init__(self, jobs: Sequence[Job], watch: ClockWatch) -> None:
        self._turns = {job: asyncio.Lock() for job in jobs if job.interval_s > 0}
        """Held by a job while it runs, and by `close` for good."""
        self._watch = watch
        self._scheduler: AsyncIOScheduler | None = None
        self._scheduled: dict[Job, ScheduledJob] = {}
        self._time_limits: list[asyncio.Task[None]] = []
        """Repeat the jobs that keep time limits."""
        watch.add_listener(self._set_anew)

    def start(self) -> None:
        """Begin; the first turn of each job is one interval from now."""
        # UTC, because the machine's own time zone may be unknown, and intervals do not need it.
        scheduler = _Scheduler(self._watch, timezone=UTC)
        for job in self._turns:
            if job.is_time_limit:
                continue
            # A late turn is taken; several missed ones are taken as one. A second instance is allowed, and finds that
            # the first still runs: APScheduler itself would warn of each turn that is left out.
            self._scheduled[job] = scheduler.add_job(
                self._take_turn,
                "interval",
                args=(job,),
                name=job.name,
                seconds=job.interval_s,
                coalesce=True,
                max_instances=2,
                misfire_grace_time=None,
            )
        scheduler.start()
        # Last: one that did not start refuses to be shut down, and its own error is the one to be told.
        self._scheduler = scheduler
        loop = asyncio.get_running_loop()
        self._time_limits = [loop.create_task(self._repeat(job)) for job in self._turns if job.is_time_limit]
        self._watch.start()

    async def close(self, timeout_s: float) -> None:
        """End the schedule and wait for the jobs that run; those that take longer are cancelled."""
        if self._scheduler is None:
            return
        scheduler, self._scheduler = self._scheduler, None
        self._watch.close()
        # A turn that is due meanwhile would be cancelled before it begins, which APScheduler logs as an error. Turns
        # that it has submitted already begin before the locks below are taken.
        scheduler.pause()
        # A storage may hang.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(turn.acquire() for turn in self._turns.values())), timeout_s)
        # APScheduler's shutdown cancels what runs, so it comes after the last job.
        scheduler.shutdown()
        for task in self._time_limits:
            task.cancel()
        await asyncio.sleep(0)

    def _set_anew(self) -> None:
        """Let the next turn of each scheduled job be one interval from now."""
        if self._scheduler is not None:
            for job, scheduled in self._scheduled.items():
                scheduled.reschedule("interval", seconds=job.interval_s)

    async def _repeat(self, job: Job) -> None:
        """Give a job that keeps a time limit its turns; missed ones are left out, as by APScheduler."""
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while self._scheduler is not None:
            at_s = max(at_s + job.interval_s, loop.time())
            await asyncio.sleep(at_s - loop.time())
            await self._take_turn(job)

    async def _take_turn(self, job: Job) -> None:
        turn = self._turns[job]
        if turn.locked():
            logger.debug("%s still runs; this turn is left out", job.name)
            return
        async with turn:
            try:
                outcome = job.run()
                if inspect.isawaitable(outcome):
                    await outcome
            except asyncio.CancelledError:
                # By `close`; APScheduler would show where it waited.
                logger.warning("%s did not end in the time of the stop, and is cancelled", job.name)
            except Exception:
                # The supervisor of the jobs: an exception of one must not stop the others, nor its own next turn.
                logger.exception("%s failed; it is tried again in %g s", job.name, job.interval_s)
