"""One tracker's calls in flight: each is a task, and its answer is given back."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from managed_ledger.value_types import Clock
from snapshot_storage.errors import StorageUnavailableError
from tracker.core.actions import (
    Answer,
    Call,
    CallFailed,
    CreateSnapshot,
    DeleteSnapshot,
    LoadSegments,
    MergeSnapshots,
    PutName,
    RemoveName,
)
from tracker.shell.next_turn import do_nothing
from tracker.shell.outages import Outages
from tracker.shell.tracker_calls import TrackerCalls
from tracker.stats import BucketOperation, OperationStats, TrackerStats

_COUNTED_AS: Final[dict[type[Call], BucketOperation]] = {
    CreateSnapshot: BucketOperation.CREATE,
    LoadSegments: BucketOperation.LOAD,
    DeleteSnapshot: BucketOperation.DELETE,
    MergeSnapshots: BucketOperation.MERGE,
}


class CallsInFlight:
    """The calls in flight.

    Args:
        calls: Makes them.
        outages: Is told what works and what fails.
        stats: Count them.
        now_ms: The wall clock in milliseconds.
        give_back: Called with each call and its answer.
    """

    __slots__ = ("_calls", "_give_back", "_log_tasks", "_now_ms", "_outages", "_stats", "_tasks")

    def __init__(
        self,
        calls: TrackerCalls,
        outages: Outages,
        stats: TrackerStats,
        *,
        now_ms: Clock,
        give_back: Callable[[Call, Answer], None],
    ) -> None:
        self._calls = calls
        self._outages = outages
        self._stats = stats
        self._now_ms = now_ms
        self._give_back = give_back
        # In order of their start: a set would end them in another order in each process.
        self._tasks: dict[asyncio.Task[None], None] = {}
        # Those that write to the cursor, and so wait for the log and not for the storage.
        self._log_tasks: dict[asyncio.Task[None], None] = {}

    def start(self, calls: Sequence[Call]) -> None:
        """Start calls."""
        for call in calls:
            task = asyncio.get_running_loop().create_task(self._run(call))
            tasks = self._log_tasks if isinstance(call, PutName | RemoveName) else self._tasks
            tasks[task] = None
            task.add_done_callback(tasks.pop)

    def cancel_storage_calls(self) -> None:
        """Let go of the storage; writes to the cursor go on, and no answer is given back any more."""
        # The tracker and this refer to each other. Without that, the memory of a closed one goes without a collection
        # of cycles.
        self._give_back = do_nothing
        for task in tuple(self._tasks):
            task.cancel()

    async def wait_for_log(self, time_s: float) -> None:
        """Wait until what is written to the cursor has its answer; after this time, give up what has none.

        One that is given up is as one before a crash.
        """
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
            unavailable = StorageUnavailableError(f"the call was cancelled there: {error}")
            answer = self._outages.count_failure(call, unavailable, self._now_ms())
        except Exception as error:  # A supervisor: any error in a call is an answer to the core.
            answer = self._outages.count_failure(call, error, self._now_ms())
        else:
            self._outages.count_success(call)
        if isinstance(answer, CallFailed):
            operation.failed += 1
        else:
            operation.count_success(max(0, self._now_ms() - started_at_ms))
        self._give_back(call, answer)
