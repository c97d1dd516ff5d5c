"""A lock for each name, while a task holds it or waits for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NamedLocks:
    """Lets one task at a time work on a name; tasks of other names do not wait."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._holders: dict[str, int] = {}
        self._released: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name while the body runs."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._holders[name] = self._holders.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._locks[name], self._holders[name]
            if not self._holders and self._released is not None and not self._released.done():
                self._released.set_result(None)

    async def all_released(self) -> None:
        """Wait until no task holds a lock, including the tasks that wait for one now."""
        while self._holders:
            self._released = asyncio.get_running_loop().create_future()
            await self._released
