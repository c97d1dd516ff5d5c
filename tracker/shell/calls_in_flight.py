"""One tracker's calls in flight: each is a task, its answer is given back, and its failure told.

An outage is told once in the log, not at each retry, and is there in the figures until the call works again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.positions.value_types import Clock
from snapshot_storage.errors import SnapshotStorageError, StorageUnavailableError
from tracker.core import actions
from tracker.core.actions import Answer, Call, CallFailed
from tracker.shell.next_turn import do_nothing
from tracker.shell.tracker_calls import TrackerCalls, failure_of
from tracker.stats import UNREADABLE_AFTER, BucketOperation, OperationStats, TrackerStats

logger = logging.getLogger(__name__)

_COUNTED_AS: Final[dict[type[Call], BucketOperation]] = {
    actions.CreateSnapshot: BucketOperation.CREATE,
    actions.LoadSegments: BucketOperation.LOAD,
    actions.DeleteSnapshot: BucketOperation.DELETE,
    actions.MergeSnapshots: BucketOperation.MERGE,
}


@dataclass(slots=True)
class CallsInFlight:
    """The calls in flight."""

    _name: str
    _calls: TrackerCalls
    _stats: TrackerStats
    _now_ms: Clock
    _give_back: Callable[[Call, Answer], None]
    _tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)
    """In order of their start: a set would end them in another order in each process."""
    _log_tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)
    """Those that write to the cursor, and so wait for the log and not for the storage."""
    _read_failures: Counter[int] = field(default_factory=Counter)
    """By bucket id, how often in a row a snapshot could not be read."""

    def start(self, calls: Sequence[Call]) -> None:
        """Start calls."""
        for call in calls:
            task = asyncio.get_running_loop().create_task(self._run(call))
            tasks = self._log_tasks if isinstance(call, actions.PutName | actions.RemoveName) else self._tasks
            tasks[task] = None
            task.add_done_callback(tasks.pop)

    def cancel_storage_calls(self) -> None:
        """Let go of the storage; writes to the cursor go on, and no answer is given back any more."""
        # The tracker and this refer to each other; a closed one is to go without a search for cycles.
        self._give_back = do_nothing
        for task in tuple(self._tasks):
            task.cancel()

    async def wait_for_log(self, time_s: float) -> None:
        """Wait until what is written to the cursor has its answer; after this time, give up what has none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(time_s):
                # Cancelling this cancels them, and waits for that.
                await asyncio.gather(*self._log_tasks, return_exceptions=True)

    async def _run(self, call: Call) -> None:
        """Make a call, and give back its answer."""
        kind = _COUNTED_AS.get(type(call))
        operation = OperationStats() if kind is None else self._stats.operations[kind]
        operation.all += 1
        started_at_ms = self._now_ms()
        answer: Answer
        try:
            answer = await self._calls.run(call)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The storage gave up its own work, as a pool of threads does that is shut down: an error like others.
            answer = self.count_failure(call, StorageUnavailableError(f"the call was cancelled there: {error}"))
        except Exception as error:  # A supervisor: any error in a call is an answer to the core.
            answer = self.count_failure(call, error)
        if isinstance(answer, CallFailed):
            operation.failed += 1
        else:
            operation.count_success(max(0, self._now_ms() - started_at_ms))
            self._count_success(call)
        self._give_back(call, answer)

    def _count_success(self, call: Call) -> None:
        if isinstance(call, actions.ReadHead | actions.LoadSegments | actions.DeleteSnapshot):
            self._read_failures.pop(call.bucket_id, None)
            self._stats.unreadable -= {call.bucket_id}
        what = type(call).__name__
        if what in self._stats.failing:
            self._stats.failing -= {what}
            logger.info("%s: %s works again", self._name, what)

    def count_failure(self, call: Call, error: Exception) -> CallFailed:
        """Count a call as failed, and return the answer that the core is given."""
        stats, failure = self._stats, failure_of(call, error)
        what, reason = type(call).__name__, str(error) or type(error).__name__
        level = logging.DEBUG if what in stats.failing else logging.WARNING
        if not failure.is_lost:
            stats.failing_since_ms = stats.failing_since_ms if stats.failing else self._now_ms()
            stats.failing |= {what}
            stats.last_failure = reason
        if isinstance(call, actions.ReadHead | actions.LoadSegments):
            # A snapshot that is gone is given up, and not asked for again: that is no outage.
            times = 0 if failure.is_lost else self._read_failures[call.bucket_id] + 1
            self._read_failures[call.bucket_id] = times
            stats.unreadable -= {call.bucket_id}
            stats.unreadable |= {call.bucket_id} if times >= UNREADABLE_AFTER else set()
        # The errors of a cursor are its program's own: a full disk is no defect to trace.
        if isinstance(error, SnapshotStorageError | TimeoutError) or isinstance(
            call, actions.PutName | actions.RemoveName
        ):
            logger.log(level, "%s: %s failed: %s", self._name, what, reason)
        else:
            logger.log(level, "%s: %s failed", self._name, what, exc_info=error)
        return failure
