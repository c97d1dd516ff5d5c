"""`AsyncScheduler`: `Scheduler` for asyncio.

Each call runs on a thread of the loop's executor, since both `pulsar-client` and the standard library's HTTP block. The
event loop never waits. A call that is cancelled goes on in its thread, as its request may be on its way already.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

from postdate.scheduling.api import PAGE_MESSAGES
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import Matching, ScheduledMessage

P = ParamSpec("P")
R = TypeVar("R")


def _as_of(_made: Callable[P, Scheduler]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor that hands all on the arguments of `Scheduler`, for checkers and `help`."""
    return lambda init: wraps(Scheduler.__init__)(init)


def _on_thread(
    call: Callable[Concatenate[Scheduler, P], R],
) -> Callable[Concatenate["AsyncScheduler", P], Coroutine[Any, Any, R]]:
    """Return a method of `Scheduler` as a coroutine: the same arguments, result and errors."""

    @wraps(call)
    async def run(self: "AsyncScheduler", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(call, self._scheduler, *args, **kwargs)

    # The examples there are of the other class.
    run.__doc__ = f"Do what `Scheduler.{call.__name__}` does."
    return run


class AsyncScheduler:
    """Schedules messages on one topic; the arguments, results and errors of all methods are those of `Scheduler`.

    >>> async def remind() -> tuple[int, ...]:
    ...     handle = await async_scheduler.schedule(b"water the plants", key="anna", after=timedelta(hours=3))
    ...     moved = await async_scheduler.reschedule(handle, shift=timedelta(minutes=5))
    ...     listed = [one async for one in async_scheduler.upcoming(Matching(key="anna"), limit=1)]
    ...     sent = await async_scheduler.deliver_now(moved.handles[handle])
    ...     left = await async_scheduler.count(Matching(key="nobody"))
    ...     cancelled = await async_scheduler.cancel(Matching(key="nobody"))
    ...     return moved.changed, len(listed), sent.changed, left, cancelled.changed
    >>> asyncio.run(remind())
    (1, 1, 1, 0, 0)
    """

    @_as_of(Scheduler)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._scheduler = Scheduler(*args, **kwargs)

    async def __aenter__(self) -> "AsyncScheduler":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    close = _on_thread(Scheduler.close)
    schedule = _on_thread(Scheduler.schedule)
    cancel = _on_thread(Scheduler.cancel)
    reschedule = _on_thread(Scheduler.reschedule)
    deliver_now = _on_thread(Scheduler.deliver_now)
    count = _on_thread(Scheduler.count)

    async def upcoming(
        self, matching: Matching | None = None, *, limit: int | None = None, has_payload: bool = False
    ) -> AsyncIterator[ScheduledMessage]:
        """Give scheduled messages in order of time, as `Scheduler.upcoming` does."""
        messages = self._scheduler.upcoming(matching, limit=limit, has_payload=has_payload)
        while page := await asyncio.to_thread(lambda: list(islice(messages, PAGE_MESSAGES))):
            for message in page:
                yield message
