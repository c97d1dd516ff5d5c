"""The other process: opens one storage and does what it is asked to, until its parent closes the socket or dies.

    python -m tracker.process FD

Not for people: `SnapshotProcess` starts it. It has no state that outlives it but the storage's, so it can be killed
at any time, and simply ends when its parent does. Signals that a supervisor sends to all processes at once are left to
the parent, which still has buckets to seal.
"""

import asyncio
import inspect
import logging
import logging.handlers
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from functools import partial
from queue import SimpleQueue
from typing import Any

from snapshot_storage.errors import SnapshotStorageError, StorageUnavailableError
from tracker.process.channel import ChannelEnd
from tracker.process.messages import NO_CALL, STORAGE, WORKER, WRITERS_FROM, Answer, Call, Cancel, Logged, Opening
from tracker.process.tuning import give_way, tune_process
from tracker.shell.heap import TRIM_INTERVAL_MS, Heap, trim_of_c_library
from tracker.shell.snapshot_work import StorageWork, rows_handled


class _Host:
    """Carries out calls, any number at a time."""

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._targets: dict[int, Any] = {}
        self._refusal: Exception | None = None
        self._is_trim_planned = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._heap = Heap(trim_of_c_library())
        self._channel = ChannelEnd(end, "parent", self)
        self._channel.start()

    def answer(self, number: int, answer: Answer) -> None:
        """Send an answer, or why it cannot be sent."""

        def on_unsendable(error: Exception) -> None:
            what = f"{answer.error!r}" if answer.error is not None else f"a {type(answer.value).__name__}"
            self.answer(number, Answer(error=RuntimeError(f"{what} cannot be sent back: {error}")))

        self._channel.send(number, answer, on_unsendable)

    def forward(self, record: logging.LogRecord) -> None:
        """Send a line of the log."""
        self._channel.send(NO_CALL, Logged(record), lambda _: None)

    # From the channel's thread.

    def take(self, number: int, message: Opening | Call | Cancel) -> None:
        """See `Receiver`."""
        self._loop.call_soon_threadsafe(self._take, number, message)

    def take_unreadable(self, number: int, error: Exception) -> None:
        """See `Receiver`."""
        self.answer(number, Answer(error=TypeError(f"what was sent cannot be read by the other process: {error!r}")))

    def take_end(self) -> None:
        """See `Receiver`: the storage is closed, or crash-safe, and the parent's successor waits for its lock."""
        os._exit(0)

    # On the event loop.

    def _take(self, number: int, message: Opening | Call | Cancel) -> None:
        match message:
            case Opening():
                # Not `basicConfig`, which would have the lines formatted here.
                logging.getLogger().addHandler(_Forwarding(self))
                logging.getLogger().setLevel(message.log_level)
                self._open(message.make_storage)
            case Call():
                task = self._tasks[number] = self._loop.create_task(self._carry_out(number, message))
                # Also of one that is cancelled before it has begun.
                task.add_done_callback(partial(self._done, number))
            case Cancel():
                if number in self._tasks:
                    self._tasks[number].cancel()

    def _open(self, make_storage: bytes) -> None:
        try:
            storage = pickle.loads(make_storage)()
        except Exception as error:  # Whatever somebody's function raises.
            self._refusal = error
        else:
            self._targets = {STORAGE: storage, WORKER: StorageWork(storage)}

    async def _carry_out(self, number: int, call: Call) -> None:
        try:
            answer = Answer(await self._value_of(call))
        except asyncio.CancelledError:
            # Where nobody asked for it here, somebody waits.
            self.answer(number, Answer(error=StorageUnavailableError("the call was cancelled there")))
            raise
        except Exception as error:  # A supervisor: whatever goes wrong is the answer.
            if not isinstance(error, SnapshotStorageError | TimeoutError | ValueError):
                error.add_note("In the process for snapshots:\n" + "".join(traceback.format_exception(error)))
            answer = Answer(error=error)
        self.answer(number, answer)

    async def _value_of(self, call: Call) -> Any:
        if self._refusal is not None:
            raise self._refusal
        if call.target >= WRITERS_FROM and call.method == "abort":
            # It may have been cancelled before it was made.
            writer = self._targets.pop(call.target, None)
            return None if writer is None else await writer.abort()
        value = getattr(self._targets[call.target], call.method)
        if callable(value):
            value = value(*call.args, **call.kwargs)
        if call.makes is not None:
            self._targets[call.makes] = value
            return None
        if inspect.isawaitable(value):
            value = await value
        self._heap.note_freed(rows_handled(value))
        return value

    def _done(self, number: int, _: asyncio.Task[None]) -> None:
        del self._tasks[number]
        if not self._tasks and not self._is_trim_planned:
            self._is_trim_planned = True
            self._loop.call_later(TRIM_INTERVAL_MS / 1_000, self._trim)

    def _trim(self) -> None:
        """Give memory back; some time after it was freed, as it mostly is needed again at once."""
        self._is_trim_planned = False
        if (trim := self._heap.take_trim(time.monotonic_ns() // 1_000_000)) is not None:
            self._loop.run_in_executor(None, trim)


class _Forwarding(logging.handlers.QueueHandler):
    """Gives what is logged to the parent."""

    def __init__(self, host: _Host) -> None:
        super().__init__(SimpleQueue[Any]())
        self._host = host

    def enqueue(self, record: logging.LogRecord) -> None:
        self._host.forward(record)


async def _serve(end: socket.socket) -> None:
    host = _Host(end, asyncio.get_running_loop())
    await asyncio.Event().wait()
    del host


def main() -> None:
    """Serve the socket of the given number."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    give_way()
    tune_process()
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
