"""The other process as its parent sees it: start it, call methods there, end it, and notice when it ends by itself."""

import asyncio
import itertools
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageClosedError,
    StorageLockedError,
    StorageUnavailableError,
)
from tracker.process.channel import ChannelEnd
from tracker.process.messages import NO_CALL, STORAGE, WORKER, WRITERS_FROM, Answer, Call, Cancel, Logged, Opening

log = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 3.0
"""How long opening waits for a lock: the process of a program that was just killed lets go a moment after it."""

CLOSE_WAIT_S: Final = 30.0
"""How long it may take to close its storage, with the calls in flight."""

EXIT_WAIT_S: Final = 10.0
"""How long it may take to end once its storage is closed."""

T = TypeVar("T")


class Recipe(NamedTuple):
    """What a process is made of."""

    make_storage: bytes
    """A pickled function without arguments."""
    folder: str
    """Where relative paths begin."""
    on_unclaimed: Callable[[Any], None]
    """Called on the event loop with what a call returned that nobody waits for any more."""


class _Waiting(NamedTuple):
    answer: asyncio.Future[Any]
    operation: str


class Child:
    """One run of the other process; used from one event loop.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.loop = asyncio.get_running_loop()
        self.started_s = time.monotonic()
        self.metadata_at_once_max = 1
        self._on_unclaimed = recipe.on_unclaimed
        self._numbers = itertools.count()
        self._targets = itertools.count(WRITERS_FROM)
        self._waiting: dict[int, _Waiting] = {}
        self._is_closed = False
        self._how_ended: str | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tracker.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=recipe.folder,
                # What can be imported here can be there. An empty path is the working directory.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(os.fspath(path) or os.curdir for path in sys.path)},
                # What is typed at a terminal is for the parent.
                start_new_session=True,
            )
        self._channel = ChannelEnd(ours, "snapshots", self)
        self._channel.start()
        opening = Opening(recipe.make_storage, logging.getLogger().getEffectiveLevel())
        self._channel.send(NO_CALL, opening, lambda error: log.error("the process for snapshots: %s", error))

    @property
    def process_id(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def is_ended(self) -> bool:
        """Whether it has ended, wanted or not."""
        return self._how_ended is not None

    def new_target(self) -> int:
        """Return a number for what a call is to make."""
        return next(self._targets)

    def gone(self, operation: str) -> SnapshotStorageError:
        """Make the error of a call whose process has ended."""
        if self._is_closed:
            return StorageClosedError(operation)
        return StorageUnavailableError(f"cannot {operation}: the process for snapshots {self._how_ended}")

    async def call(self, call: Call) -> Any:
        """Call a method there and return what it returns.

        Raises:
            StorageUnavailableError: The process has ended, or ends meanwhile.
            StorageClosedError: It was closed meanwhile.
            Exception: Whatever the method raises.
        """
        operation = in_words(call.method)
        if self.is_ended:
            raise self.gone(operation)
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting(self.loop.create_future(), operation)
        self._channel.send(number, call, lambda error: self.take(number, Answer(error=error)))
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._channel.send(number, Cancel(), lambda _: None)
            raise
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Close its storage and end the process, which is killed if that takes too long. Never raises."""
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self.call(Call(STORAGE, "close"))
        except (SnapshotStorageError, TimeoutError) as error:
            if not self.is_ended:
                log.warning("the process for snapshots is killed, as it does not close: %r", error)
                self._process.kill()
        except asyncio.CancelledError:
            self._process.kill()
            raise
        finally:
            self._is_closed = True
            await asyncio.to_thread(self._channel.close)

    async def kill(self) -> None:
        """End it at once, if it has not ended by itself."""
        self._is_closed = self._is_closed or not self.is_ended
        self._process.kill()
        await asyncio.to_thread(self._channel.close)

    def disown(self) -> None:
        """End it at once where its event loop is gone; blocks for some milliseconds."""
        self._is_closed = True
        self._process.kill()
        self._channel.close()

    # From the channel's threads.

    def take(self, number: int, message: Answer | Logged) -> None:
        """See `Receiver`."""
        if isinstance(message, Answer):
            self._on_loop(self._settle, (number, message))
            return
        # Whatever somebody's handler or filter raises must not end the channel.
        with suppress(Exception):
            logger = logging.getLogger(message.record.name)
            if logger.isEnabledFor(message.record.levelno):
                logger.handle(message.record)

    def take_unreadable(self, number: int, error: Exception) -> None:
        """See `Receiver`."""
        self.take(number, Answer(error=RuntimeError(f"the answer of the other process cannot be read: {error!r}")))

    def take_end(self) -> None:
        """See `Receiver`."""
        try:
            code = self._process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._how_ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        self._on_loop(self._note_end, self._how_ended)

    def _on_loop(self, work: Callable[[T], None], argument: T) -> None:
        try:
            self.loop.call_soon_threadsafe(work, argument)
        except RuntimeError:
            # The loop was closed before the storage was: nobody waits.
            self._process.kill()

    # On the event loop.

    def _note_end(self, how_ended: str) -> None:
        if not self._is_closed:
            log.error("the process for snapshots %s", how_ended)
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(self.gone(waiting.operation))

    def _settle(self, numbered: tuple[int, Answer]) -> None:
        number, message = numbered
        waiting = self._waiting.get(number)
        if waiting is None or waiting.answer.done():
            if message.value is not None:
                self._on_unclaimed(message.value)
        elif message.error is not None:
            waiting.answer.set_exception(message.error)
        else:
            waiting.answer.set_result(message.value)


async def started(recipe: Recipe) -> Child:
    """Start a process and open its storage; if that fails or is cancelled, there is none.

    Raises:
        StorageUnavailableError: The process cannot be started.
        SnapshotStorageError: As `start` of the storage.
    """
    try:
        child = Child(recipe)
    except OSError as error:
        raise StorageUnavailableError(f"cannot start the process for snapshots: {error}") from error
    try:
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                await child.call(Call(STORAGE, "start"))
                child.metadata_at_once_max = await child.call(Call(WORKER, "metadata_at_once_max"))
            except StorageLockedError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.05)
            else:
                return child
    except BaseException:
        await child.kill()
        raise


def in_words(method: str) -> str:
    """Return what a method does, in words for an error."""
    return method.replace("_", " ")
