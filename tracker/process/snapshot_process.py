"""A snapshot storage in a process of its own, where the tracker's sorting, encoding, decoding and merging happen too.

Threads of one interpreter take turns: while one encodes a bucket or waits inside RocksDB, an add waits for it on any
number of cores. So a program can give its trackers a `SnapshotProcess` as their storage: the storage is made and opened
in another process, trackers send it their actions whole (`run_actions`), and only the part of the answer that they need
comes back. An error there is the same error here as of a storage in this process. If the process itself ends, calls
fail as in an outage, and the next one starts it again. One that is frozen is killed: after a call that it did not
answer, it sent nothing for another time limit of a call.

    storage = SnapshotProcess(partial(RocksDBBucketSnapshotStorage, Path("snapshots")))

POSIX only. Left out: more than one process, as one encodes several million rows a second.
"""

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from snapshot_storage.backoff import Backoff
from snapshot_storage.errors import SnapshotStorageError, StorageClosedError, StorageUnavailableError
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from tracker.core.actions import Event, MergeBuckets, PersistBucket, SnapshotCreated, StorageAction
from tracker.process.child import START_WAIT_S, Child, Recipe, in_words, started
from tracker.shell.heap import Heap, trim_of_c_library
from tracker.shell.storage_worker import SnapshotOwner, StorageWorker, in_thread, rows_handled

logger = logging.getLogger(__name__)

MakeStorage = Callable[[], BucketSnapshotStorage]

LIFE_S_MIN: Final = 60.0
"""A process that ends before this age, or cannot be started, is started again only after a pause."""

PAUSE_S_MIN: Final = 1.0
"""The first pause; each further one is twice as long."""

PAUSE_S_MAX: Final = 60.0

LOCK_WAIT_S: Final = 3.0
"""How long opening waits for a lock: the process of a program that was just killed lets go a moment after it."""

_MAIN_MODULE: Final = b"\x8c\x08__main__"
"""How a pickle names the module of what is defined in the program itself."""

PATIENCE_S: Final = 2.0
"""Calls wait for a start that is so near, and fail at once before."""

PERSISTED_AT_ONCE_MAX: Final = 4
"""So many snapshots are made at a time: one is sorted and encoded while others are written, some tenths of a second on
S3."""

ANSWER_WAIT_S: Final = 5.0
"""How long an answer may be on its way beyond the time that the action itself is given."""


class SnapshotProcess(StorageWorker):
    """A storage and the work on it, in another process.

    Args:
        make_storage: Makes the storage, there: a class, a function of a module that can be imported, or a `partial`
            of these. Relative paths begin where the program was when this was constructed.
        lock_wait_s: How long opening waits for a lock.
        start_wait_s: How long starting the process and opening the storage may take altogether.
        pause_s_max: The longest pause before it is started again.
        answer_wait_s: How long an answer may be on its way beyond the time that the action itself is given.

    Raises:
        TypeError: `make_storage` cannot be sent to another process.
    """

    def __init__(
        self,
        make_storage: MakeStorage,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        start_wait_s: float = START_WAIT_S,
        pause_s_max: float = PAUSE_S_MAX,
        answer_wait_s: float = ANSWER_WAIT_S,
    ) -> None:
        try:
            pickled = pickle.dumps(make_storage)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(f"what makes the storage must be importable by another process: {error}") from error
        if _MAIN_MODULE in pickled:
            raise TypeError(
                "what makes the storage must be importable by another process, and the program's main module is not: "
                "put it into a module of its own"
            )
        self._recipe = Recipe(pickled, str(Path.cwd()), lock_wait_s, start_wait_s, self._note_unclaimed)
        self._pauses = Backoff(min_ms=round(1_000 * min(PAUSE_S_MIN, pause_s_max)), max_ms=round(1_000 * pause_s_max))
        self._answer_wait_s = answer_wait_s
        self._heap = Heap(in_thread, trim_of_c_library())
        self._is_open = False
        self._actions_at_once_max = 1
        self._child: Child | None = None
        self._restarts = 0
        self._starting: asyncio.Task[Child] | None = None
        self._next_start_s = 0.0
        self._last_error: SnapshotStorageError | None = None
        # Starting and closing take turns.
        self._turn = asyncio.Lock()
        # Snapshots are made one after the other there: rows that wait for that wait here, where they are in memory
        # anyway.
        self._persisting = asyncio.Semaphore(PERSISTED_AT_ONCE_MAX)
        self._deletions: set[asyncio.Task[None]] = set()
        self._frozen_watch: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int | None:
        """The id of the other process, None while there is none."""
        child = self._child
        return None if child is None or child.is_ended else child.process_id

    @property
    def restarts(self) -> int:
        """How often it had to be started again."""
        return self._restarts

    async def start(self) -> None:
        """Start the process. A call that is cancelled leaves none.

        Raises:
            StorageUnavailableError: The process cannot be started.
        """
        self._leave_other_loop()
        async with self._turn:
            if self._is_open:
                await self._present("start")
            else:
                self._child, self._actions_at_once_max = await started(self._recipe)
                self._is_open = True

    async def close(self) -> None:
        """End the process."""
        self._leave_other_loop()
        async with self._turn:
            self._is_open = False
            if self._frozen_watch is not None:
                self._frozen_watch.cancel()
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.wait([self._starting])
            child, self._child = self._child, None
            if child is not None:
                await child.close()

    def _leave_other_loop(self) -> None:
        """Take leave of an event loop that ended before this was closed."""
        if self._child is not None and self._child.loop is not asyncio.get_running_loop():
            self._child.disown()
            self._child = self._starting = self._frozen_watch = None
            self._deletions.clear()
            self._is_open = False
        if self._child is None and not self._is_open:
            self._turn = asyncio.Lock()
            self._persisting = asyncio.Semaphore(PERSISTED_AT_ONCE_MAX)

    # The work of trackers.

    @property
    def actions_at_once_max(self) -> int:
        return self._actions_at_once_max

    async def run_actions(self, owner: SnapshotOwner, actions: Sequence[StorageAction]) -> Sequence[Event | Exception]:
        # Each call of a merge has its own time, there.
        is_merge = isinstance(actions[0], MergeBuckets)
        time_s = None if is_merge else owner.config.operation_timeout_ms / 1_000 + self._answer_wait_s
        turn = self._persisting if isinstance(actions[0], PersistBucket) else nullcontext()
        answers: Sequence[Event | Exception]
        try:
            async with turn, asyncio.timeout(time_s):
                answers = await self._call("run_actions", owner, actions)
        except TimeoutError:
            if time_s is not None:
                self._watch_frozen(time_s)
            raise
        # Memory of data that came over the connection is free here, too, once the data is handed out.
        self._heap.note_freed(sum(map(rows_handled, answers)))
        return answers

    def _watch_frozen(self, wait_s: float) -> None:
        """Have a process that did not answer in time end if it answers nothing at all, one look at a time."""
        if self._child is not None and (self._frozen_watch is None or self._frozen_watch.done()):
            self._frozen_watch = asyncio.ensure_future(self._child.end_if_frozen(wait_s))

    async def list_snapshots(self, topic_name: str | None = None) -> list[BucketSnapshotInfo]:
        infos: list[BucketSnapshotInfo] = await self._call("list_snapshots", topic_name)
        return infos

    async def list_topics(self, topic_names: Sequence[str]) -> list[list[BucketSnapshotInfo]]:
        infos: list[list[BucketSnapshotInfo]] = await self._call("list_topics", topic_names)
        return infos

    async def delete_snapshot(self, bucket_id: int) -> None:
        await self._call("delete_snapshot", bucket_id)

    async def _call(self, method: str, *args: Any) -> Any:
        child = self._child
        if child is None or child.is_ended:
            child = await self._present(in_words(method))
        return await child.call(method, *args)

    async def _present(self, operation: str) -> Child:
        """Return a process that runs; start it again if it has ended, once for all callers that wait.

        Raises:
            StorageClosedError: It is not to run.
            StorageUnavailableError: It cannot be started, or is not to be started that soon.
        """
        if not self._is_open:
            raise StorageClosedError(operation)
        if self._child is not None and not self._child.is_ended:
            return self._child
        if self._starting is None:
            wait_s = max(0.0, self._next_start_s - time.monotonic())
            if wait_s > PATIENCE_S:
                raise self._outage(operation)
            self._starting = asyncio.ensure_future(self._start_again(wait_s))
        starting = self._starting
        try:
            # A caller that gives up does not end the start for the others.
            return await asyncio.shield(starting)
        except SnapshotStorageError:
            raise self._outage(operation) from None
        except asyncio.CancelledError:
            if starting.cancelled() and not self._is_open:
                raise StorageClosedError(operation) from None
            raise

    def _outage(self, operation: str) -> SnapshotStorageError:
        why = self._last_error if self._last_error is not None else "it ended a moment ago"
        return StorageUnavailableError(f"cannot {operation}: the process for snapshots is not there: {why}")

    async def _start_again(self, wait_s: float) -> Child:
        try:
            await asyncio.sleep(wait_s)
            dead = self._child
            if dead is not None:
                await dead.kill()
            lived_s = time.monotonic() - dead.started_s if dead is not None and self._last_error is None else 0.0
            if lived_s >= LIFE_S_MIN:
                self._pauses.reset()
            self._next_start_s = time.monotonic() + self._pauses.next_seconds()
            child, _ = await started(self._recipe)
            self._child = child
        except SnapshotStorageError as error:
            self._last_error = error
            logger.warning("the process for snapshots cannot be started again: %s", error)
            raise
        else:
            self._last_error = None
            self._restarts += 1
            logger.warning("the process for snapshots was started again")
            return child
        finally:
            self._starting = None

    def _note_unclaimed(self, value: Any) -> None:
        """Delete a snapshot whose caller did not wait any more: no tracker knows its id."""
        if isinstance(value, SnapshotCreated) and self._is_open:
            deletion = asyncio.ensure_future(self._delete_unclaimed(value.bucket_id))
            self._deletions.add(deletion)
            deletion.add_done_callback(self._deletions.discard)

    async def _delete_unclaimed(self, bucket_id: int) -> None:
        # A later start finds it, whichever error this is: no caller waits.
        with suppress(Exception):
            await self.delete_snapshot(bucket_id)
