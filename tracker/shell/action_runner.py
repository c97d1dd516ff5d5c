"""Runs one tracker's actions as tasks, those of one kind together where they can, and gives back each answer."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Final

from managed_ledger.value_types import Clock
from snapshot_storage.errors import StorageUnavailableError
from tracker.core.actions import (
    Action,
    ActionFailed,
    DeleteSnapshot,
    Event,
    LoadSegments,
    PutProperty,
    ReadMetadata,
    RemoveProperty,
)
from tracker.shell.callbacks import do_nothing
from tracker.shell.outages import Outages
from tracker.shell.snapshot_work import SnapshotWork
from tracker.stats import TrackerStats, operation_of

PROPERTIES_AT_ONCE_MAX: Final = 64
"""So many properties are written in one write of the cursor."""

_LIMITED: Final = frozenset({ReadMetadata, LoadSegments, DeleteSnapshot, PutProperty, RemoveProperty})
"""Calls of which the core lets more buckets go than calls may be in flight."""


class ActionRunner:
    """The actions in flight.

    Args:
        work: Runs actions of a kind.
        outages: Is told what works and what fails.
        stats: Count the actions.
        calls_in_flight_max: How many calls of a kind at once.
        now_ms: The wall clock in milliseconds.
        take: Called with the answer to each action.
    """

    __slots__ = ("_calls", "_calls_max", "_log_tasks", "_now_ms", "_outages", "_stats", "_take", "_tasks", "_work")

    def __init__(
        self,
        work: SnapshotWork,
        outages: Outages,
        stats: TrackerStats,
        *,
        calls_in_flight_max: int,
        now_ms: Clock,
        take: Callable[[Event], None],
    ) -> None:
        self._work = work
        self._outages = outages
        self._stats = stats
        self._calls_max = calls_in_flight_max
        self._now_ms = now_ms
        self._take = take
        # In order of their start: a set would end them in another order in each process.
        self._tasks: dict[asyncio.Task[None], None] = {}
        # Those that write to the cursor, and so wait for the log and not for the storage.
        self._log_tasks: dict[asyncio.Task[None], None] = {}
        self._calls: dict[type[Action], asyncio.Semaphore] = {}

    def start(self, actions: Sequence[Action]) -> None:
        """Start actions; writes of the cursor's properties go together."""
        together: dict[type[Action], list[Action]] = {}
        for action in actions:
            if type(action) in _LIMITED:
                together.setdefault(type(action), []).append(action)
            else:
                self._start(self._run([action], nullcontext()))
        for kind, group in together.items():
            is_of_log = kind in (PutProperty, RemoveProperty)
            calls = self._calls.setdefault(kind, asyncio.Semaphore(self._calls_max))
            at_once_max = PROPERTIES_AT_ONCE_MAX if is_of_log else 1
            for part in (group[first : first + at_once_max] for first in range(0, len(group), at_once_max)):
                task = self._start(self._run(part, calls))
                if is_of_log:
                    self._log_tasks[task] = None
                    task.add_done_callback(self._log_tasks.pop)

    def cancel_storage_calls(self) -> None:
        """Let go of the storage; writes to the cursor go on, and no answer is given back any more."""
        # The tracker and this refer to each other. Without that, the memory of a closed one goes without a collection
        # of cycles.
        self._take = do_nothing
        for task in [task for task in self._tasks if task not in self._log_tasks]:
            task.cancel()

    async def wait_for_log(self, time_s: float) -> None:
        """Wait until what is written to the cursor has its answer; after this time, give up what has none.

        The writes that wait for others take their turns within it. One that is given up is as one before a crash.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(time_s):
                # Cancelling this cancels them, and waits for that.
                await asyncio.gather(*self._log_tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def _run(self, actions: Sequence[Action], calls: AbstractAsyncContextManager[None]) -> None:
        """Run actions of one kind in one call, and give back the answer to each."""
        self._count(actions)
        answers: Sequence[Event | Exception]
        started_at_ms = self._now_ms()
        try:
            async with calls:
                started_at_ms = self._now_ms()
                answers = await self._work.run(actions)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The storage gave up its own work, as a pool of threads does that is shut down: an error like others.
            answers = [StorageUnavailableError(f"the call was cancelled there: {error}")] * len(actions)
        except Exception as error:  # A supervisor: any error in an action is an answer to the core.
            answers = [error] * len(actions)
        for action, answer in zip(actions, answers, strict=True):
            self._give_back(action, answer, started_at_ms)

    def _count(self, actions: Sequence[Action]) -> None:
        operation = operation_of(actions[0])
        if operation is not None:
            self._stats.operations[operation].all += len(actions)

    def _give_back(self, action: Action, answer: Event | Exception, started_at_ms: int) -> None:
        now_ms = self._now_ms()
        event: Event
        if isinstance(answer, Exception):
            event = self._outages.note_failure(action, answer, now_ms)
        else:
            event = answer
            self._outages.note_success(action)
        operation = operation_of(action)
        counters = None if operation is None else self._stats.operations[operation]
        if counters is not None and isinstance(event, ActionFailed):
            counters.failed += 1
        elif counters is not None:
            counters.note_success(max(0, now_ms - started_at_ms))
        self._take(event)
