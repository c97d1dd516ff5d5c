"""Periodic housekeeping on APScheduler: roll over, trim, expire, report.

Deliveries do not depend on these jobs: they have timers of their own. A job that takes longer than its interval skips
turns. A job that fails is logged and runs again at its next turn. Closing waits for running jobs, for a while. Jobs are
not stored; the first turn is one interval after the start.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC

from apscheduler.schedulers.asyncio import AsyncIOScheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of periodic work.

    Attributes:
        name: Its name in the log.
        interval_s: The time between two turns; 0 or less means never.
        run: The work, a function or a coroutine function, called on the event loop.
    """

    name: str
    interval_s: float
    run: Callable[[], Awaitable[None] | None]


class Housekeeping:
    """Runs jobs at their intervals, on the event loop that `start` is called on."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._turns = {job: asyncio.Lock() for job in jobs if job.interval_s > 0}
        """Held by a job while it runs, and by `close` for good."""
        self._scheduler: AsyncIOScheduler | None = None

    def start(self) -> None:
        """Begin; the first turn of each job is one interval from now."""
        # UTC, because the machine's own time zone may be unknown, and intervals do not need it.
        scheduler = AsyncIOScheduler(timezone=UTC)
        for job in self._turns:
            # A late turn is taken; several missed ones are taken as one. A second instance is allowed, and finds that
            # the first still runs: APScheduler itself would warn of each turn that is left out.
            scheduler.add_job(
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

    async def close(self, timeout_s: float) -> None:
        """End the schedule and wait for the jobs that run; those that take longer are cancelled."""
        if self._scheduler is None:
            return
        scheduler, self._scheduler = self._scheduler, None
        # A turn that is due meanwhile would be cancelled before it begins, which APScheduler logs as an error. Turns
        # that it has submitted already begin before the locks below are taken.
        scheduler.pause()
        # A storage may hang.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(turn.acquire() for turn in self._turns.values())), timeout_s)
        # APScheduler's shutdown cancels what runs, so it comes after the last job.
        scheduler.shutdown()
        await asyncio.sleep(0)

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
