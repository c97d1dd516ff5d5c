"""Starts the workers, starts those that have ended again, and ends all together.

    supervisor ─► one task for each worker: start ─► ready ─► end ─► pause ─► start ...

A worker that ends concerns the others in nothing: each is a process of its own, with bundles of its own. When a worker
starts again is decided in `worker_lives`; processes are in `workers`.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from postdate.broker.errors import ServiceStartError
from postdate.broker.server.worker_lives import WorkerLives

logger = logging.getLogger(__name__)

STORED_NOTHING: Final = 1
"""The exit code of a worker whose log took no more writes, or not the last ones of its stop."""


NOT_STARTED: Final = 2
"""The exit code of one that was refused its start."""


class WorkerProcess(Protocol):
    """A worker that runs, or has run."""

    @property
    def pid(self) -> int:
        """The process id."""

    async def wait_ready(self) -> bool:
        """Wait until it serves its bundles, and return whether it does: it may end before."""

    async def wait(self) -> int:
        """Return its exit code when it has ended, negative for a signal."""

    def terminate(self) -> None:
        """Tell it to stop in order; nothing happens if it has ended."""

    def kill(self) -> None:
        """End it at once; nothing happens if it has ended."""


class WorkerProcesses(Protocol):
    """Starts processes of workers."""

    async def start(self, number: int) -> WorkerProcess:
        """Start a worker.

        Raises:
            OSError: No process can be started now.
        """

    async def prepare(self) -> None:
        """Have a process ready for the next start; nothing happens if there is one."""

    async def close(self) -> None:
        """End the process that is ready for the next start."""


class Supervisor:
    """The workers of a service; belongs to one event loop.

    Args:
        names: What each worker is called in problems and in the log.
        processes: Starts them.
    """

    def __init__(self, names: Sequence[str], processes: WorkerProcesses) -> None:
        self._names = names
        self._processes = processes
        self._lives = [WorkerLives(name) for name in names]
        self._running: dict[int, WorkerProcess] = {}
        self._tasks: list[asyncio.Task[int]] = []
        self._tried = asyncio.Event()
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Start all workers; returns when each serves its bundles or has failed to, or a stop has begun.

        Raises:
            ServiceStartError: None serves its bundles.
        """
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_alive(number)) for number in range(len(self._lives))]
        await self._tried.wait()
        if self.unready is not None and not self._stopping.is_set():
            raise ServiceStartError("no worker could be started, and each has said above why")

    @property
    def problems(self) -> list[str]:
        """What is wrong with workers, one text for each."""
        return [problem for one in self._lives if (problem := one.problem) is not None]

    @property
    def unready(self) -> str | None:
        """Why no message can be taken, None while a worker takes those of its topics."""
        return None if any(one.is_ready for one in self._lives) else "No worker is ready"

    async def prepare(self) -> None:
        """Have a process ready for the next worker that ends, once all are well: its start takes a second or two."""
        if not (self.problems or self._stopping.is_set()):
            await self._processes.prepare()

    async def stop(self, timeout_s: float) -> int:
        """Stop all workers in order, and kill those that need too long; a second call changes nothing.

        Returns:
            The exit code of the service: 1 if a worker could not store what was left, else 0.
        """
        self._stopping.set()
        self._tried.set()
        await self._processes.close()
        for one in self._running.values():
            one.terminate()
        if not self._tasks:
            return 0
        await asyncio.wait(self._tasks, timeout=timeout_s)
        for number, process in self._running.items():
            logger.warning("%s did not end within %g s of the stop, and is killed", self._names[number], timeout_s)
            process.kill()
        return STORED_NOTHING if STORED_NOTHING in await asyncio.gather(*self._tasks) else 0

    async def _keep_alive(self, number: int) -> int:
        """Start a worker again and again until the stop; returns its last exit code."""
        name, lives = self._names[number], self._lives[number]
        now_s = asyncio.get_running_loop().time
        exit_code = 0
        while not self._stopping.is_set():
            lives.begin(now_s())
            try:
                exit_code = await self._live(number)
            except Exception:  # Whatever it is, the worker is started again.
                logger.exception("%s cannot be started or watched", name)
                if (process := self._running.pop(number, None)) is not None:
                    process.kill()
                exit_code = NOT_STARTED
            if self._stopping.is_set():
                break
            pause_s = lives.end(now_s(), exit_code)
            self._note_tried()
            logger.error("%s has ended with %d, and is started again in %g s", name, exit_code, pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
        return exit_code

    async def _live(self, number: int) -> int:
        """Start a worker and wait for its end; returns its exit code."""
        try:
            process = self._running[number] = await self._processes.start(number)
        except OSError as error:
            logger.error("no process can be started for %s: %s", self._names[number], error)
            return NOT_STARTED
        if self._stopping.is_set():
            process.terminate()
        if await process.wait_ready():
            self._lives[number].become_ready()
            logger.info("%s is ready: process %d", self._names[number], process.pid)
            self._note_tried()
        exit_code = await process.wait()
        del self._running[number]
        return exit_code

    def _note_tried(self) -> None:
        if all(one.is_tried for one in self._lives):
            self._tried.set()
