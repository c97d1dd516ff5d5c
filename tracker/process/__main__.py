"""The other process: opens one storage and does what it is asked to, until its parent closes the socket or dies.

    python -m tracker.process FD

Not for people: `SnapshotProcess` starts it. It has no state that outlives it but the storage's, so it can be killed
at any time, and simply ends when its parent does. Signals that a terminal or a supervisor sends to all processes at
once are left to the parent, which still has buckets to seal.
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
from queue import SimpleQueue
from typing import Any, Final

from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotWriter
from tracker.heap import TRIM_INTERVAL_MS, Heap, trim_of_c_library
from tracker.process.channel import ChannelEnd
from tracker.process.messages import STORAGE, WORKER, WRITERS_FROM, Answer, Call, Cancel, Logged, Opening, WriterMade
from tracker.process.tuning import give_way, tune_process
from tracker.snapshot_work import StorageWork, rows_handled

_DECODED_AT_ONCE_BYTES_MAX: Final = 2**19
"""A load of 16,384 rows and more, in 3 ms. Nobody is kept waiting here, and a way to a thread and back costs as much as
a thousand rows."""


class _Host:
    """Carries out calls, any number at a time."""

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._targets: dict[int, Any] = {}
        self._refusal: Exception | None = None
        self._is_trim_planned = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._next_target = WRITERS_FROM
        self._heap = Heap(trim_of_c_library())
        self._channel = ChannelEnd(
            end,
            "parent",
            on_message=self._receive,
            # The storage is closed, or crash-safe, and the parent's successor may be waiting for its lock.
            on_end=lambda: os._exit(0),
        )
        self._channel.start()

    def _receive(self, message: Opening | Call | Cancel) -> None:
        self._loop.call_soon_threadsafe(self._take, message)

    def send(self, message: Answer | Logged) -> None:
        def on_unsendable(error: Exception) -> None:
            if isinstance(message, Answer):
                self.send(Answer(message.number, error=RuntimeError(f"cannot be sent back: {error}")))

        self._channel.send(message, on_unsendable)

    def _take(self, message: Opening | Call | Cancel) -> None:
        match message:
            case Opening():
                # Not `basicConfig`, which would have the lines formatted here.
                logging.getLogger().addHandler(_Forwarding(self))
                logging.getLogger().setLevel(message.log_level)
                self._open(message.make_storage)
            case Call():
                self._tasks[message.number] = self._loop.create_task(self._carry_out(message))
            case Cancel():
                if message.number in self._tasks:
                    self._tasks[message.number].cancel()

    def _open(self, make_storage: bytes) -> None:
        try:
            storage = pickle.loads(make_storage)()
        except Exception as error:  # Whatever somebody's function raises.
            self._refusal = error
        else:
            self._targets = {
                STORAGE: storage,
                WORKER: StorageWork(storage, decoded_at_once_bytes_max=_DECODED_AT_ONCE_BYTES_MAX),
            }

    async def _carry_out(self, call: Call) -> None:
        try:
            self.send(Answer(call.number, await self._value_of(call)))
        except Exception as error:  # A supervisor: whatever goes wrong is the answer.
            if not isinstance(error, SnapshotStorageError | TimeoutError | ValueError):
                error.add_note("In the process for snapshots:\n" + "".join(traceback.format_exception(error)))
            self.send(Answer(call.number, error=error))
        finally:
            del self._tasks[call.number]
            if not self._tasks and not self._is_trim_planned:
                self._is_trim_planned = True
                self._loop.call_later(TRIM_INTERVAL_MS / 1_000, self._trim)

    def _trim(self) -> None:
        """Give memory back; some time after it was freed, as it mostly is needed again at once."""
        self._is_trim_planned = False
        if (trim := self._heap.take_trim(time.monotonic_ns() // 1_000_000)) is not None:
            self._loop.run_in_executor(None, trim)

    async def _value_of(self, call: Call) -> Any:
        if self._refusal is not None:
            raise self._refusal
        value = getattr(self._targets[call.target], call.method)(*call.args, **call.kwargs)
        if inspect.isawaitable(value):
            value = await value
        if isinstance(value, BucketSnapshotWriter):
            target, self._next_target = self._next_target, self._next_target + 1
            self._targets[target] = value
            return WriterMade(target)
        if call.target >= WRITERS_FROM and call.method == "abort":
            del self._targets[call.target]
        self._heap.note_freed(rows_handled(value))
        return value


class _Forwarding(logging.handlers.QueueHandler):
    """Gives what is logged to the parent."""

    def __init__(self, host: _Host) -> None:
        super().__init__(SimpleQueue[Any]())
        self._host = host

    def enqueue(self, record: logging.LogRecord) -> None:
        self._host.send(Logged(record))


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
