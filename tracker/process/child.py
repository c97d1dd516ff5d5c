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
from typing import Any, Final, TypeVar

from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageClosedError,
    StorageLockedError,
    StorageUnavailableError,
)
from tracker.process.channel import ChannelEnd
from tracker.process.messages import STORAGE, Answer, Call, Cancel, Logged, Opening

log = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 3.0
"""How long opening waits for a lock: the process of a program that was just killed lets go a moment after it."""

EXIT_WAIT_S: Final = 10.0
"""How long it may take to end once its storage is closed."""

T = TypeVar("T")


class Child:
    """One run of the other process; used from one event loop.

    Args:
        make_storage: A pickled function without arguments.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, make_storage: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._is_wanted = True
        self._how_ended: str | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tracker.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # What can be imported here can be there. An empty path is the working directory.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)},
            )
        self._channel = ChannelEnd(ours, "snapshots", on_message=self._receive, on_end=self._note_end)
        self._channel.start()
        level = logging.getLogger().getEffectiveLevel()
        self._send(Opening(make_storage, level), self._fail_all)

    @property
    def process_id(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def is_ended(self) -> bool:
        """Whether it has ended, wanted or not."""
        return self._how_ended is not None

    def gone(self, operation: str) -> SnapshotStorageError:
        """Make the error of a call whose process has ended."""
        if not self._is_wanted:
            return StorageClosedError(operation)
        return StorageUnavailableError(f"cannot {operation}: the process for snapshots {self._how_ended}")

    async def call(self, target: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method there and return what it returns.

        Raises:
            StorageUnavailableError: The process has ended, or ends meanwhile.
            StorageClosedError: It was closed meanwhile.
            Exception: Whatever the method raises.
        """
        if self.is_ended:
            raise self.gone(words(method))
        number = next(self._numbers)
        answer = self._waiting[number] = self._loop.create_future()
        self._send(Call(number, target, method, args, kwargs), lambda error: self._receive(Answer(number, error=error)))
        try:
            return await answer
        except asyncio.CancelledError:
            self._send(Cancel(number), self._fail_all)
            raise
        finally:
            self._waiting.pop(number, None)

    def end(self) -> None:
        """End the process, which has closed its storage or is not to be waited for; blocks."""
        self._is_wanted = False
        self._channel.close()

    def kill(self) -> None:
        """End it at once."""
        self._is_wanted = False
        self._process.kill()

    def _send(self, message: Opening | Call | Cancel, on_unsendable: Callable[[Exception], None]) -> None:
        self._channel.send(message, on_unsendable)

    # From the channel's threads.

    def _receive(self, message: Answer | Logged) -> None:
        if isinstance(message, Logged):
            logger = logging.getLogger(message.record.name)
            if logger.isEnabledFor(message.record.levelno):
                logger.handle(message.record)
        else:
            self._on_loop(self._settle, message)

    def _note_end(self) -> None:
        try:
            code = self._process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._how_ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._is_wanted:
            log.error("the process for snapshots %s", self._how_ended)
        self._on_loop(self._fail_all, None)

    def _fail_all(self, error: Exception | None) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error or self.gone("finish what was begun"))

    def _on_loop(self, work: Callable[[T], None], argument: T) -> None:
        try:
            self._loop.call_soon_threadsafe(work, argument)
        except RuntimeError:
            # The loop was closed before the storage was: nobody waits.
            self._process.kill()

    def _settle(self, message: Answer) -> None:
        answer = self._waiting.get(message.number)
        if answer is None or answer.done():
            return
        if message.error is not None:
            answer.set_exception(message.error)
        else:
            answer.set_result(message.value)


async def started(make_storage: bytes) -> Child:
    """Start a process and open its storage; if that fails or is cancelled, there is none.

    Raises:
        StorageUnavailableError: The process cannot be started.
        SnapshotStorageError: As `start` of the storage.
    """
    try:
        child = Child(make_storage)
    except OSError as error:
        raise StorageUnavailableError(f"cannot start the process for snapshots: {error}") from error
    try:
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                await child.call(STORAGE, "start")
            except StorageLockedError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.05)
            else:
                return child
    except BaseException:
        child.kill()
        await asyncio.to_thread(child.end)
        raise


async def ended(child: Child) -> None:
    """Close its storage and end the process."""
    try:
        await child.call(STORAGE, "close")
    except StorageUnavailableError:
        # It has gone already, and what it had is safe.
        pass
    finally:
        await asyncio.to_thread(child.end)


def words(method: str) -> str:
    """Return what a method does, in words for an error."""
    return method.replace("_", " ")
