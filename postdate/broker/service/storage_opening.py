"""Open the snapshot storage in the background, with retries while it cannot be reached.

Snapshots are a derived index, so a service starts without them: fresh messages are delivered, and delayed messages in
snapshots follow when the storage is open. A lasting error (no such bucket, refused credentials, an id that cannot be
written) ends a start that finds it. A storage that cannot be reached does not end the start. If a lasting error is
found later, the service stays up and unhealthy, names the error, and tries again, since an operator may mend it
meanwhile.

    begin ──► settled: open ─────────────────────────────► serve
                  ├──► lasting error: the start ends
                  └──► unreachable: serve, `problem` names it ──► open later

Until it is open, its calls raise `StorageClosedError`, which trackers treat as any other failure.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

from snapshot_storage.backoff import Backoff
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotStorage

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 3.0
"""How long a start waits for a storage that cannot be reached: it may be starting at the same time."""

ANSWER_WAIT_S: Final = 8.0
"""How long a start waits for any first answer: a slow machine must still find a lasting error, and a server that takes
connections and never answers must not keep fresh messages waiting."""

PAUSE_S_MIN: Final = 0.2
"""Between the first two tries; each further pause is twice as long."""

PAUSE_S_MAX: Final = 10.0


class StorageOpening:
    """Starts a storage, in the background.

    Args:
        storage: The storage to start; its caller closes it.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.storage = storage
        self._sleep = sleep
        # Spreads the calls of services that lost one server at one moment.
        self._chance = Random()
        self._task: asyncio.Task[None] | None = None
        self._has_answered = asyncio.Event()
        self._error: SnapshotStorageError | None = None
        self._is_served_without = False

    @property
    def problem(self) -> str | None:
        """Why it is not open, for `/health`; None while all is well."""
        if not self._is_served_without:
            return None
        if self._error is None:
            return "the snapshot storage is away: it does not answer"
        return f"the snapshot storage {'is away' if self._error.retriable else 'cannot be used'}: {self._error}"

    def begin(self) -> None:
        """Start it; must be called on the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._open())

    async def settled(self) -> None:
        """Wait until it is open or seems unreachable; in the second case the tries go on.

        Raises:
            SnapshotStorageError: The error is a lasting one.
        """
        assert self._task is not None

        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WAIT_S):
                await self._has_answered.wait()
        await asyncio.wait([self._task], timeout=PATIENCE_S)
        if self._task.done():
            await self._task
            return
        self._is_served_without = True
        logger.warning(
            "%s; fresh messages are delivered meanwhile, and delayed messages in snapshots when it is there",
            self.problem,
        )

    async def close(self) -> None:
        """Stop trying."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _open(self) -> None:
        pauses = Backoff(min_ms=round(1_000 * PAUSE_S_MIN), max_ms=round(1_000 * PAUSE_S_MAX), chance=self._chance)
        while True:
            try:
                await self.storage.start()
            except SnapshotStorageError as error:
                if not error.retriable and not self._is_served_without:
                    raise
                self._note(error)
            else:
                break
            finally:
                self._has_answered.set()
            await self._sleep(pauses.next_seconds())
        if self._is_served_without:
            self._is_served_without = False
            logger.info("the snapshot storage is there")

    def _note(self, error: SnapshotStorageError) -> None:
        """Log a lasting error once each time that it is found; an outage was logged at its begin."""
        was_told = self._error is not None and str(self._error) == str(error)
        self._error = error
        if not error.retriable and not was_told:
            logger.error("%s; nothing of it is changed, and the log has all messages", self.problem)
