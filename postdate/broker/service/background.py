"""Work in the background that somebody keeps hold of, and that ends with its owner."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """The tasks of a service, or of a bundle; belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work in the background and keep hold of it until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, ends_at_s: float) -> None:
        """Wait for all tasks, and cancel what has not ended at a time of the event loop's clock."""
        if self._tasks:
            left_s = ends_at_s - asyncio.get_running_loop().time()
            _, unfinished = await asyncio.wait(self._tasks, timeout=max(left_s, 0))
            for task in unfinished:
                logger.warning("did not end in the time for it: %r", task)
                task.cancel()
