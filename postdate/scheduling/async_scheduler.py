"""`AsyncScheduler`: `Scheduler` for asyncio.

Each call runs on a thread of the loop's executor, since both `pulsar-client` and the standard library's HTTP block. The
event loop never waits. A call that is cancelled goes on in its thread, as its request may be on its way already.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from itertools import islice

from postdate.scheduling.api import PAGE_MESSAGES, Token
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import Matching, Outcome, ScheduledMessage, Time, Which


class AsyncScheduler:
    """Schedules messages on one topic; the arguments, results and errors of all methods are those of `Scheduler`.

    >>> async def remind() -> int:
    ...     handle = await async_scheduler.schedule(b"water the plants", after=timedelta(hours=3))
    ...     return (await async_scheduler.cancel(handle)).changed
    >>> asyncio.run(remind())
    1
    """

    def __init__(
        self,
        service_url: str,
        admin_url: str,
        topic: str,
        *,
        subscription: str | None = None,
        token: Token = None,
        tls_trust_certs_file: str | None = None,
        tls_certificate_file: str | None = None,
        tls_private_key_file: str | None = None,
    ) -> None:
        self._scheduler = Scheduler(
            service_url,
            admin_url,
            topic,
            subscription=subscription,
            token=token,
            tls_trust_certs_file=tls_trust_certs_file,
            tls_certificate_file=tls_certificate_file,
            tls_private_key_file=tls_private_key_file,
        )

    async def __aenter__(self) -> "AsyncScheduler":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        await asyncio.to_thread(self._scheduler.close)

    async def schedule(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        at: Time | None = None,
        after: timedelta | None = None,
    ) -> str:
        """Publish a message for later, as `Scheduler.schedule` does, with the same look for a subscription.

        >>> asyncio.run(async_scheduler.schedule(b"pay", key="order-7", after=timedelta(days=1)))
        '...:...'
        """
        return await asyncio.to_thread(
            self._scheduler.schedule, payload, key=key, properties=properties, at=at, after=after
        )

    async def cancel(self, which: Which, *, is_dry_run: bool = False) -> Outcome:
        """Cancel messages, as `Scheduler.cancel` does.

        >>> asyncio.run(async_scheduler.cancel(Matching(key="nobody"))).changed
        0
        """
        return await asyncio.to_thread(self._scheduler.cancel, which, is_dry_run=is_dry_run)

    async def reschedule(
        self,
        which: Which,
        *,
        at: Time | None = None,
        after: timedelta | None = None,
        shift: timedelta | None = None,
        operation_id: str | None = None,
        is_dry_run: bool = False,
    ) -> Outcome:
        """Give messages another time, as `Scheduler.reschedule` does.

        >>> handle = asyncio.run(async_scheduler.schedule(b"call", after=timedelta(hours=1)))
        >>> asyncio.run(async_scheduler.reschedule(handle, shift=timedelta(minutes=5))).changed
        1
        """
        return await asyncio.to_thread(
            self._scheduler.reschedule,
            which,
            at=at,
            after=after,
            shift=shift,
            operation_id=operation_id,
            is_dry_run=is_dry_run,
        )

    async def deliver_now(self, which: Which, *, is_dry_run: bool = False) -> Outcome:
        """Let messages be due at once, as `Scheduler.deliver_now` does.

        >>> handle = asyncio.run(async_scheduler.schedule(b"call", after=timedelta(hours=1)))
        >>> asyncio.run(async_scheduler.deliver_now(handle)).changed
        1
        """
        return await asyncio.to_thread(self._scheduler.deliver_now, which, is_dry_run=is_dry_run)

    async def upcoming(
        self, matching: Matching | None = None, *, limit: int | None = None, has_payload: bool = False
    ) -> AsyncIterator[ScheduledMessage]:
        """Give scheduled messages in order of time, as `Scheduler.upcoming` does.

        >>> async def first() -> int:
        ...     return len([one async for one in async_scheduler.upcoming(limit=1)])
        >>> asyncio.run(first())
        1
        """
        messages = self._scheduler.upcoming(matching, limit=limit, has_payload=has_payload)
        while page := await asyncio.to_thread(lambda: list(islice(messages, PAGE_MESSAGES))):
            for message in page:
                yield message

    async def count(self, matching: Matching | None = None) -> int:
        """Return how many messages are scheduled, as `Scheduler.count` does.

        >>> asyncio.run(async_scheduler.count()) >= 0
        True
        """
        return await asyncio.to_thread(self._scheduler.count, matching)
