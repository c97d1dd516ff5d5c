"""The other process as its parent sees it: start it, call methods there, end it, and notice when it ends by itself."""

import asyncio
import itertools
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple

from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageClosedError,
    StorageLockedError,
    StorageUnavailableError,
)
from tracker.process.messages import Answer, Call, Cancel

logger = logging.getLogger(__name__)

CLOSE_WAIT_S: Final = 5.0
"""How long it may take to close its storage, with the calls in flight: trackers have waited for theirs before.

A process that is killed leaves snapshots that are whole, and at worst one that no cursor names.
"""


START_WAIT_S: Final = 60.0
"""How long a process may take to come up and to open its storage: a large log is replayed in seconds, and a server that
does not answer has failed by the time limits of its client before."""


class Recipe(NamedTuple):
    """The settings of a process."""

    make_storage: bytes
    """A pickled function without arguments."""
    folder: str
    """The folder in which relative paths begin."""
    lock_wait_s: float
    """How long opening waits for a lock."""
    start_wait_s: float
    """How long starting and opening may take altogether."""
    on_unclaimed: Callable[[Any], None]
    """Called on the event loop with the result of a call whose caller does not wait any more."""


class Child:
    """One run of the other process; used from one event loop.

    A message is any object that `multiprocessing` pickles. One thread sends and one receives, so copying megabytes does
    not block the event loop. `multiprocessing.Process` is not used: it imports the program's main module in the other
    process, and starts a third one.

    Made in a thread of its own (`started`): while another thread holds the interpreter, as RocksDB's opening of the log
    does, each step here waits for it.

    Args:
        recipe: The settings.
        loop: The event loop that uses it.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, recipe: Recipe, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.started_s = time.monotonic()
        self._on_unclaimed = recipe.on_unclaimed
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[asyncio.Future[Any], str]] = {}
        self._is_closed = False
        self._heard = 0
        self._how_ended: str | None = None
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tracker.process", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=recipe.folder,
                # Modules that can be imported here can be imported there. An empty path is the working directory.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(os.fspath(path) or os.curdir for path in sys.path)},
                # Signals of the terminal (Ctrl-C) are for the parent.
                start_new_session=True,
            )
        self._unsent: SimpleQueue[Call | Cancel | None] = SimpleQueue()
        # Daemons: a program that ends without closing this must not hang.
        self._threads = [
            Thread(target=self._receive_all, name="snapshots-receive", daemon=True),
            Thread(target=self._send_all, name="snapshots-send", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def process_id(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def is_ended(self) -> bool:
        """Whether it has ended, wanted or not."""
        return self._how_ended is not None

    def _gone(self, operation: str) -> SnapshotStorageError:
        if self._is_closed:
            return StorageClosedError(operation)
        return StorageUnavailableError(f"cannot {operation}: the process for snapshots {self._how_ended}")

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method there and return what it returns.

        Raises:
            StorageUnavailableError: The process has ended, or ends meanwhile.
            StorageClosedError: It was closed meanwhile.
            Exception: The method raised it.
        """
        operation = in_words(method)
        if self.is_ended or self._is_closed:
            raise self._gone(operation)
        number = next(self._numbers)
        answer: asyncio.Future[Any] = self.loop.create_future()
        self._waiting[number] = answer, operation
        self._unsent.put(Call(number, method, args))
        try:
            return await answer
        except asyncio.CancelledError:
            self._unsent.put(Cancel(number))
            raise
        finally:
            self._waiting.pop(number, None)

    async def end_if_frozen(self, wait_s: float) -> None:
        """Kill it if it sends nothing for this long, not even the answer to a ping; that is an end by itself.

        Its storage does not matter for that: its event loop answers while its threads wait for a disk.
        """
        heard = self._heard
        try:
            async with asyncio.timeout(wait_s):
                await self.call("ping")
        except SnapshotStorageError:
            # It has ended.
            return
        except TimeoutError:
            if self._heard == heard:
                logger.error("the process for snapshots is killed, as it answers nothing for %g s", wait_s)
                self._process.kill()

    async def close(self) -> None:
        """Close its storage and end the process, which is killed if that takes too long. Never raises."""
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self.call("close")
        except (SnapshotStorageError, TimeoutError) as error:
            if not self.is_ended:
                logger.warning("the process for snapshots is killed, as it does not close: %r", error)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, if it has not ended by itself."""
        await asyncio.to_thread(self.disown)

    def disown(self) -> None:
        """End it at once where its event loop may be gone; blocks for some milliseconds."""
        self._is_closed = self._is_closed or not self.is_ended
        self._process.kill()
        self._unsent.put(None)
        for thread in self._threads:
            thread.join()
        self._connection.close()

    # In threads of its own.

    def _send_all(self) -> None:
        # The receiving thread finds out that the process has ended.
        with suppress(OSError):
            while (message := self._unsent.get()) is not None:
                self._send(message)
                # It may have megabytes, and the next one may be long in coming.
                del message

    def _send(self, message: Call | Cancel) -> None:
        try:
            data = pickle.dumps(message, protocol=5)
        except Exception as error:  # Pickling of a caller's object may raise anything.
            self._on_loop(partial(self._settle, Answer(message.number, error=error)))
        else:
            self._connection.send_bytes(data)

    def _receive_all(self) -> None:
        try:
            while True:
                self._take(self._connection.recv())
        except (EOFError, OSError):
            pass
        except Exception:
            # Answers are of our own types, and errors were tried there: the two processes run different code.
            logger.exception("the process for snapshots is killed, as it cannot be understood")
            self._process.kill()
        code = self._process.wait()
        self._how_ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        self._on_loop(self._note_end)

    def _take(self, message: Answer | logging.LogRecord) -> None:
        self._heard += 1
        if isinstance(message, Answer):
            self._on_loop(partial(self._settle, message))
            return
        # An error of a program's log handler or filter must not end the thread.
        with suppress(Exception):
            its_logger = logging.getLogger(message.name)
            if its_logger.isEnabledFor(message.levelno):
                its_logger.handle(message)

    def _on_loop(self, work: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(work)
        except RuntimeError:
            # The loop was closed before the storage was: no caller waits.
            self._process.kill()

    # On the event loop.

    def _note_end(self) -> None:
        if not self._is_closed:
            logger.error("the process for snapshots %s", self._how_ended)
        for answer, operation in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._gone(operation))

    def _settle(self, message: Answer) -> None:
        answer, _ = self._waiting.get(message.number, (None, ""))
        if answer is None or answer.done():
            self._on_unclaimed(message.value)
        elif message.error is not None:
            answer.set_exception(message.error)
        else:
            answer.set_result(message.value)


async def started(recipe: Recipe) -> tuple[Child, int]:
    """Start a process and open its storage; if that fails or is cancelled, there is none.

    Returns:
        The process, and how many heads its storage likes to be asked for at once.

    Raises:
        StorageUnavailableError: The process cannot be started, or its storage is not open in time.
        SnapshotStorageError: As `start` of the storage.
    """
    try:
        child = await _made(recipe)
    except OSError as error:
        raise StorageUnavailableError(f"cannot start the process for snapshots: {error}") from error
    try:
        async with asyncio.timeout(recipe.start_wait_s):
            return child, await _open_storage(child, recipe)
    except TimeoutError as error:
        await child.kill()
        raise StorageUnavailableError(
            f"the process for snapshots did not open its storage within {recipe.start_wait_s:g} s"
        ) from error
    except BaseException:
        await child.kill()
        raise


async def _made(recipe: Recipe) -> Child:
    """Start a process in a thread; a caller that is cancelled leaves none.

    Raises:
        OSError: It cannot be started.
    """
    making = asyncio.ensure_future(asyncio.to_thread(Child, recipe, asyncio.get_running_loop()))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        # A thread cannot be stopped. A task of its own waits for it, as the caller may be cancelled once more.
        await asyncio.shield(asyncio.ensure_future(_end_made(making)))
        raise


async def _end_made(making: asyncio.Future[Child]) -> None:
    with suppress(OSError):
        child = await making
        await child.kill()


async def _open_storage(child: Child, recipe: Recipe) -> int:
    deadline_s = time.monotonic() + recipe.lock_wait_s
    log_level = logging.getLogger().getEffectiveLevel()
    while True:
        try:
            heads_at_once_max: int = await child.call("start", recipe.make_storage, log_level)
        except StorageLockedError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.05)
        else:
            return heads_at_once_max


def in_words(method: str) -> str:
    """Return what a method does, in words for an error."""
    return method.replace("_", " ")
