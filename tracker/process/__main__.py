"""The other process: a `StorageWork` on one storage, which runs actions until its parent closes the socket or dies.

    python -m tracker.process FD PARENT

Not for people: `SnapshotProcess` starts it. It has no state that outlives it but the storage's, so it can be killed
at any time, and simply ends when its parent does. Signals that a supervisor sends to all processes at once are left to
the parent, which still has buckets to seal.
"""

import asyncio
import logging
import logging.handlers
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from snapshot_storage.errors import SnapshotStorageError, StorageUnavailableError
from tracker.process.messages import Answer, Call, Cancel
from tracker.process.tuning import SNAPSHOTS_MMAP_BYTES_MIN, leave_first_processor, tune_process
from tracker.shell.snapshot_work import StorageWork

PARENT_CHECK_S: Final = 1.0
"""A parent that dies closes the socket, unless a fork of it keeps that open."""


class _Host:
    """Runs calls on the event loop, any number at a time; one thread receives, one sends."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._unsent: SimpleQueue[Answer | logging.LogRecord] = SimpleQueue()
        self._work: StorageWork | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def receive_all(self) -> None:
        """Take what is sent until the parent has gone; the storage is closed then, or crash-safe."""
        with suppress(EOFError, OSError):
            while True:
                self._loop.call_soon_threadsafe(self._take, self._connection.recv())
        os._exit(0)

    def send_all(self) -> None:
        """Send what is to be sent until the parent has gone; without this thread every caller would wait for ever."""
        try:
            while True:
                # No variable keeps a message that may have megabytes.
                self._connection.send_bytes(_pickled(self._unsent.get()))
        finally:
            os._exit(1)

    # On the event loop.

    def _take(self, message: Call | Cancel) -> None:
        if isinstance(message, Call):
            task = self._tasks[message.number] = self._loop.create_task(self._answer(message))
            # Also of one that is cancelled before it has begun.
            task.add_done_callback(lambda _: self._tasks.pop(message.number))
        elif message.number in self._tasks:
            self._tasks[message.number].cancel()

    async def _answer(self, call: Call) -> None:
        try:
            own: dict[str, Callable[..., Awaitable[Any]]] = {"start": self._start, "ping": self._ping}
            method = own.get(call.method) or getattr(self._work, call.method)
            value = await method(*call.args)
        except asyncio.CancelledError:
            # Unless the parent asked for the cancellation, its caller waits for an answer.
            self._unsent.put(Answer(call.number, error=StorageUnavailableError("the call was cancelled there")))
            raise
        except Exception as error:  # A supervisor: any error is the answer.
            if not isinstance(error, SnapshotStorageError | TimeoutError | ValueError):
                error.add_note("In the process for snapshots:\n" + "".join(traceback.format_exception(error)))
            self._unsent.put(Answer(call.number, error=error))
        else:
            self._unsent.put(Answer(call.number, value))

    async def _start(self, make_storage: bytes, log_level: int) -> int:
        """Make and open the storage, and return how many heads it likes to be asked for at once."""
        if self._work is None:
            # Not `basicConfig`, which would have the lines formatted here.
            logging.getLogger().addHandler(logging.handlers.QueueHandler(self._unsent))
            logging.getLogger().setLevel(log_level)
            self._work = StorageWork(pickle.loads(make_storage)())
        await self._work.start()
        return self._work.actions_at_once_max

    async def _ping(self) -> None:
        """Answer at once: the event loop runs, however long the storage takes."""


def _pickled(message: Answer | logging.LogRecord) -> bytes:
    """Return a message as it is sent; of one that cannot be, an error or the text alone."""
    try:
        if isinstance(message, Answer) and message.error is not None:
            # There are errors that pickle and do not unpickle.
            pickle.loads(pickle.dumps(message.error))
        return pickle.dumps(message, protocol=5)
    except Exception as error:  # Pickling of a caller's object may raise anything.
        if isinstance(message, logging.LogRecord):
            text = message.getMessage()
            return pickle.dumps(logging.LogRecord(message.name, message.levelno, "", 0, text, None, None))
        what = repr(message.error) if message.error is not None else f"a {type(message.value).__name__}"
        return pickle.dumps(Answer(message.number, error=RuntimeError(f"{what} cannot be sent back: {error!r}")))


async def _serve(connection: Connection, parent_id: int) -> None:
    host = _Host(connection, asyncio.get_running_loop())
    for work in (host.receive_all, host.send_all):
        Thread(target=work, daemon=True).start()
    while os.getppid() == parent_id:  # noqa: ASYNC110, nothing tells of it
        await asyncio.sleep(PARENT_CHECK_S)
    os._exit(0)


def main() -> None:
    """Serve the socket of the given number."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leave_first_processor()
    tune_process(mmap_bytes_min=SNAPSHOTS_MMAP_BYTES_MIN)
    asyncio.run(_serve(Connection(int(sys.argv[1])), int(sys.argv[2])))


if __name__ == "__main__":
    main()
