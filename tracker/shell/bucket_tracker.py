"""PIP-195's bucket tracker on an event loop: the shell around `core`, which makes every decision.

The shell starts the core's actions as tasks, gives the core their answers, keeps one timer, and tells the
dispatcher when to look. It has no condition about buckets. Encoding and decoding happen in worker threads, storage
calls are awaited; no add and no poll ever waits for either.

An exception of the core is a defect, and what it left half changed must decide and store nothing any more: the tracker
stops, its owner is told, and the snapshots that the cursor's properties name stay as they are for the next tracker.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import wraps
from random import Random
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from managed_ledger.position import Position
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.columns.row_order import NEVER
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    ActionFailed,
    DeleteSnapshot,
    Event,
    LoadSegments,
    MergeBuckets,
    MetadataRead,
    PositionsRead,
    PutProperty,
    ReadMetadata,
    ReadPositions,
    RemoveProperty,
    SegmentsLoaded,
)
from tracker.core.load_queue import LOAD_ROW_COUNT_MAX
from tracker.core.questions import BucketFigures
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import (
    DelayedDeliveryTracker,
    ScheduledMessages,
    TrackerContext,
)
from tracker.errors import TrackerClosedError, TrackerError
from tracker.shell.alarms import Alarm, Alarms
from tracker.shell.snapshot_merge import RunBlocking
from tracker.shell.snapshot_work import SnapshotWork, worker_on
from tracker.shell.storage_worker import StorageWorker, in_thread, is_lost, lost_bucket_id
from tracker.shell.wake_up import WakeUp
from tracker.stats import UNREADABLE_AFTER, TrackerStats, operation_of

logger = logging.getLogger(__name__)

Clock = Callable[[], int]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(method: _Method) -> _Method:
    """Stop the tracker for an exception of the core, and raise it."""

    @wraps(method)
    def guarded(self: "BucketDelayedDeliveryTracker", *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as error:
            self._note_error(error)
            raise

    return cast(_Method, guarded)


_CALLED_TOGETHER: Final = (ReadMetadata, LoadSegments, DeleteSnapshot, PutProperty, RemoveProperty)
"""Actions of which the core lets more buckets go than calls may be in flight."""

_NONE_FAILING: Final[frozenset[str]] = frozenset()

PROPERTIES_AT_ONCE_MAX = 64
"""So many properties are written in one write of the cursor."""


def _parts(actions: Sequence[Action], at_once_max: int) -> Iterator[Sequence[Action]]:
    """Cut actions of one kind into parts that go together: not too many, and of loads, not too many rows."""
    start = row_count = 0
    for number, action in enumerate(actions):
        load_row_count = action.row_count if isinstance(action, LoadSegments) else 0
        row_count += load_row_count
        if number - start == at_once_max or (row_count > LOAD_ROW_COUNT_MAX and number > start):
            yield actions[start:number]
            start, row_count = number, load_row_count
    if start < len(actions):
        yield actions[start:]


class BucketDelayedDeliveryTracker(DelayedDeliveryTracker):
    """Keeps the index in snapshots, loads what is due soon, and survives restarts."""

    def __init__(
        self,
        context: TrackerContext,
        config: TrackerConfig,
        storage: BucketSnapshotStorage | StorageWorker,
        *,
        now_ms: Clock,
        run_blocking: RunBlocking = in_thread,
        rng: Random | None = None,
        alarms: Alarms | None = None,
    ) -> None:
        self._context = context
        self._config = config
        self._now_ms = now_ms
        # Jitter only: nothing here needs to be unpredictable, and a seed makes a run repeatable.
        self._core = TrackerCore(
            config,
            acknowledged_in=context.cursor.acknowledged_in,
            rng=rng if rng is not None else Random(),
            keeps_positions=context.keeps_positions,
        )
        if context.tick_time_ms is not None:
            self._core.set_tick_time(context.tick_time_ms)
        self._run_blocking = run_blocking
        self._work = SnapshotWork(config, context, worker_on(storage, run_blocking))
        self._stats = TrackerStats()
        self._tasks: dict[asyncio.Task[None], None] = {}
        # Those that write to the cursor, and so wait for the log and not for the storage.
        self._log_tasks: dict[asyncio.Task[None], None] = {}
        # For those of `_CALLED_TOGETHER` that were needed.
        self._calls: dict[type[Action], asyncio.Semaphore] = {}
        self._alarms = alarms if alarms is not None else Alarms(now_ms)
        self._timer: Alarm | None = None
        self._timer_at_ms: int | None = None
        self._wakes_before_ms = NEVER
        """A message that is added and due before this wants another timer."""
        self._wanted_ledger_id = -1
        """The ledger that was wanted last, in this turn."""
        self._turn_handle: asyncio.Handle | None = None
        self._is_news = False
        self._wake_up = WakeUp()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._is_closed = False
        self._is_abandoned = False
        self.failure: Exception | None = None
        """The defect that stopped it, None while all is well."""
        # Kinds of actions that failed when they were last tried.
        self._failing = _NONE_FAILING
        self._read_failures: Counter[int] = Counter()
        """By bucket id, how often in a row a snapshot could not be read."""
        self._was_full = False

    def start(self) -> None:
        """Begin to recover what the cursor's properties name; call once, on the event loop."""
        self._core.trim(self._context.cursor.mark_delete_position.ledger_id)
        self._context.cursor.add_listener(self._on_mark_delete_moved)
        named = self._core.recover(self._context.cursor.properties, now_ms=self._now_ms())
        for key, value in named.malformed.items():
            logger.warning("%s: ignored the property %s=%s, which names no bucket", self._name, key, value)
        self._turn_soon()

    # The tracker's interface.

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """See base."""
        if self._is_closed:
            raise TrackerClosedError("add a message")
        core, now_ms = self._core, self._now_ms
        try:
            is_tracked = core.add_message(ledger_id, entry_id, deliver_at, now_ms())
        except Exception as error:
            self._note_error(error)
            raise
        if core.has_work or (is_tracked and deliver_at < self._wakes_before_ms):
            self._turn_soon()
        return is_tracked

    @_guarded
    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        """See base."""
        self._check_open("add messages")
        is_tracked = self._core.add_messages(ledger_ids, entry_ids, deliver_ats, now_ms=self._now_ms())
        self._turn_soon()
        return is_tracked

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """See base."""
        core = self._core
        try:
            is_tracked = core.contains_message(ledger_id, entry_id)
            if ledger_id != self._wanted_ledger_id:
                self._want(ledger_id)
        except Exception as error:
            self._note_error(error)
            raise
        return is_tracked

    def _want(self, ledger_id: int) -> None:
        """Tell the core that a ledger is read; once a turn for each is enough."""
        if ledger_id == self._wanted_ledger_id:
            return
        self._wanted_ledger_id = ledger_id
        self._core.want(ledger_id)
        self._turn_if_needed()

    @_guarded
    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """See base."""
        tracked = self._core.tracked_in(ledger_id)
        self._want(ledger_id)
        return tracked

    def tracked_ledger_ids(self) -> list[int]:
        """Return the ledgers in which something is tracked, in no order."""
        return self._core.tracked_ledger_ids()

    @_guarded
    def is_recovering(self, ledger_id: int) -> bool:
        """See base."""
        is_recovering = self._core.is_recovering(ledger_id)
        self._want(ledger_id)
        return is_recovering

    def take_untracked(self) -> Mapping[int, BitMap]:
        """See base."""
        return self._core.take_untracked()

    def take_untracked_ranges(self) -> Sequence[LedgerRange]:
        """See base."""
        return self._core.take_untracked_ranges()

    @_guarded
    def has_message_available(self) -> bool:
        """See base."""
        is_available = self._core.has_due(now_ms=self._now_ms())
        if not is_available:
            self._wake_up.note_nothing_due()
        return is_available

    def next_delivery_time(self) -> int | None:
        """See base."""
        return self._core.next_deliver_at_ms()

    def first_withheld_time(self) -> int | None:
        """See base."""
        withheld_ms = self._core.first_withheld_ms(now_ms=self._now_ms())
        self._wake_up.note_withheld(withheld_ms)
        return withheld_ms

    @_guarded
    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        """See base."""
        if self.failure is not None:
            # A dispatcher that only polls must hear of it.
            raise TrackerClosedError("hand out messages") from self.failure
        rows = self._core.pop_due(now_ms=self._now_ms(), limit=max_messages)
        self._wake_up.note_nothing_due()
        self._turn_soon()
        return rows

    def number_of_delayed_messages(self) -> int:
        """See base."""
        return self._core.message_count

    def number_of_future_messages(self) -> int:
        """See base.

        Exact but where a segment begins before now and ends after it and could not be loaded in time: its rows count.
        """
        return self._core.future_count(now_ms=self._now_ms())

    def due_positions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ledger and entry ids of what is due, loaded and not handed out."""
        return self._core.due_positions(now_ms=self._now_ms())

    @_guarded
    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """See base; of segments that are not loaded, the positions are read first, in the background."""
        self._core.note_acknowledged(ledger_id, entry_ids)
        self._turn_soon()

    def should_pause_all_deliveries(self) -> bool:
        """See base."""
        is_paused = self._core.should_pause(now_ms=self._now_ms())
        self._wake_up.note_paused(is_paused)
        return is_paused

    @_guarded
    def reset_tick_time(self, tick_time_ms: int) -> None:
        """See base."""
        self._core.set_tick_time(tick_time_ms)
        self._turn_soon()

    def stats(self) -> TrackerStats:
        """Return the tracker's figures; the same object each time, brought up to date."""
        self._stats.message_count = self._core.message_count
        self._stats.bucket_total = self._core.bucket_total
        self._stats.index_loaded = self._core.loaded_row_count
        self._stats.segment_rows_loaded = self._core.segment_row_count
        self._stats.snapshot_size_bytes = self._core.snapshot_size_bytes
        self._stats.failing = self._failing
        if self._read_failures or self._stats.unreadable:
            failures = self._read_failures.items()
            self._stats.unreadable = frozenset(bucket_id for bucket_id, times in failures if times >= UNREADABLE_AFTER)
        return self._stats

    def buckets(self) -> list[BucketFigures]:
        """Return the figures of each immutable bucket, in the order of their ledgers."""
        return self._core.buckets()

    def check(self) -> None:
        """Assert every invariant of the core, O(n)."""
        self._core.check()

    async def clear(self) -> None:
        """See base; the properties name each snapshot until it is deleted, so a crash leaves none behind."""
        self._check_open("clear")
        self._core.clear()
        self._turn_soon()

    async def close(self) -> None:
        """See base; seals the mutable bucket when that is worth it, so that a restart need not read it again."""
        if not (self._is_abandoned or self._is_closed):
            if self._config.index_count_at_close_min >= 0:
                self._core.seal(index_count_min=self._config.index_count_at_close_min)
            await self._wait_for(lambda: self._core.unsettled_count == 0, self._config.close_timeout_ms)
        await self._stop()

    def abandon(self) -> None:
        """See base."""
        self._is_abandoned = True

    async def _stop(self) -> None:
        if self._core.unsettled_count and not (self._is_abandoned or self._is_closed):
            logger.warning("%s: closed with %d buckets in flight", self._name, self._core.unsettled_count)
        self._stop_at_once()
        # The log answers, and the next tracker of the cursor needs its answers. The storage may not answer even to a
        # cancellation (a merge removes what it has written), so this does not wait for it.
        await asyncio.gather(*self._log_tasks, return_exceptions=True)

    def _stop_at_once(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._context.cursor.remove_listener(self._on_mark_delete_moved)
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._turn_handle is not None:
            self._turn_handle.cancel()
        if self._timer is not None:
            self._alarms.cancel(self._timer)
        for task in self._tasks.keys() - self._log_tasks.keys():
            task.cancel()

    def stop_for_defect(self, defect: Exception) -> None:
        """Stop at once: something that belongs to the index raised this, and may be half changed.

        The owner hears of it by `TrackerContext.on_defect`, once. Adding and polling raise `TrackerClosedError` from
        then on, and nothing is tracked any more. A new tracker finds in the log what no snapshot has.
        """
        if self._is_closed:
            return
        self.failure = defect
        self._is_abandoned = True
        logger.critical("%s: the delayed index stops for a defect", self._name, exc_info=defect)
        self._stop_at_once()
        # The core that failed is not asked any more.
        self._core = TrackerCore(self._config, acknowledged_in=self._context.cursor.acknowledged_in, rng=Random(0))
        self._context.on_defect(defect)

    def _note_error(self, error: Exception) -> None:
        """Tell a refusal, after which nothing has changed, from a defect."""
        if not isinstance(error, ValueError | TrackerError):
            self.stop_for_defect(error)

    @_guarded
    def _on_mark_delete_moved(self, mark_delete: Position) -> None:
        self._core.pass_through(mark_delete.ledger_id, mark_delete.entry_id)
        self._turn_if_needed()

    # The loop: take answers, plan, start actions, set the timer, tell the dispatcher.

    @property
    def _name(self) -> str:
        return f"{self._context.topic_name} / {self._context.cursor_name}"

    def _check_open(self, operation: str) -> None:
        if self._is_closed:
            raise TrackerClosedError(operation)

    def _turn_soon(self) -> None:
        if self._turn_handle is None and not self._is_closed:
            self._turn_handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn_if_needed(self) -> None:
        if self._core.has_work:
            self._turn_soon()

    def _turn(self) -> None:
        """Bring everything up to date, once per turn of the loop, and tell the dispatcher."""
        self._turn_handle = None
        self._wanted_ledger_id = -1
        try:
            is_wanted = self._bring_up_to_date()
        except Exception as defect:
            # A supervisor: the core may be half changed.
            self.stop_for_defect(defect)
            return
        if is_wanted:
            self._context.on_available()

    def _bring_up_to_date(self) -> bool:
        """Do the work that the events of this turn have left; return whether the dispatcher is to look again."""
        now_ms = self._now_ms()
        for key, reason in self._core.take_losses():
            self._stats.buckets_lost += 1
            self._is_news = True
            logger.warning("%s: gave up the bucket %s, to be read from the log again: %s", self._name, key, reason)
        self._start_actions(self._core.plan(now_ms=now_ms))
        if self._failing:
            # A call that is not wanted any more, as its bucket is gone, fails no longer.
            self._failing &= {kind.__name__ for kind in self._core.retried()}
        self._set_timer(now_ms)
        self._tell_when_full()
        is_wanted = self._wake_up.is_wanted(
            deliver_at_ms=self._core.first_deliver_at_ms(now_ms=now_ms),
            withheld_ms=self._core.first_withheld_ms(now_ms=now_ms),
            is_paused=self._core.should_pause(now_ms=now_ms),
        )
        for is_met, waiter in self._waiters:
            if not waiter.done() and is_met():
                waiter.set_result(None)
        is_wanted = is_wanted or self._is_news
        self._is_news = False
        # There may be more than one turn should take.
        self._turn_if_needed()
        return is_wanted

    def _start_actions(self, actions: Sequence[Action]) -> None:
        """Start actions; those of one kind that need a moment each go together."""
        together: dict[type[Action], list[Action]] = {}
        for action in actions:
            if type(action) in _CALLED_TOGETHER:
                together.setdefault(type(action), []).append(action)
            else:
                self._start(self._run(action))
        for kind, group in together.items():
            is_of_log = kind in (PutProperty, RemoveProperty)
            calls = self._calls.setdefault(kind, asyncio.Semaphore(self._config.operations_in_flight_max))
            at_once_max = PROPERTIES_AT_ONCE_MAX if is_of_log else self._work.actions_at_once_max
            for part in _parts(group, at_once_max):
                task = self._start(self._run_together(part, calls))
                if is_of_log:
                    self._log_tasks[task] = None
                    task.add_done_callback(self._log_tasks.pop)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _tell_when_full(self) -> None:
        is_full = self._core.is_full
        if is_full and not self._was_full:
            logger.warning(
                "%s: %d indexes wait in memory for a snapshot that cannot be stored; reading pauses until it can",
                self._name,
                self._config.unsealed_row_count_max,
            )
        self._was_full = is_full

    def _set_timer(self, now_ms: int) -> None:
        wakeup_ms = self._core.next_wakeup_ms(now_ms=now_ms)
        self._wakes_before_ms = NEVER if wakeup_ms is None else wakeup_ms
        if wakeup_ms == self._timer_at_ms:
            return
        if self._timer is not None:
            self._alarms.cancel(self._timer)
            self._timer = None
        self._timer_at_ms = wakeup_ms
        if wakeup_ms is not None:
            self._timer = self._alarms.set(wakeup_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ms = None
        self._turn_soon()

    async def _run(self, action: Action) -> None:
        """Run an action and give its answer to the core."""
        operation = operation_of(action)
        if operation is not None:
            self._stats.operations[operation].all += 1
        started_at_ms = self._now_ms()
        answer: Event | Exception
        try:
            answer = await self._work.run(action)
        except Exception as error:  # A supervisor: any error in an action is an answer to the core.
            answer = error
        self._take(action, answer, started_at_ms)

    async def _run_together(self, actions: Sequence[Action], calls: asyncio.Semaphore) -> None:
        """Run several actions of one kind in one call and give each answer to the core."""
        operation = operation_of(actions[0])
        if operation is not None:
            self._stats.operations[operation].all += len(actions)
        answers: Sequence[Event | Exception]
        try:
            async with calls:
                started_at_ms = self._now_ms()
                answers = await self._answers(actions)
        except Exception as error:  # A supervisor, as in `_run`.
            started_at_ms = self._now_ms()
            answers = [error] * len(actions)
        for action, answer in zip(actions, answers, strict=True):
            self._take(action, answer, started_at_ms)

    async def _answers(self, actions: Sequence[Action]) -> Sequence[Event | Exception]:
        writes = [action for action in actions if isinstance(action, PutProperty | RemoveProperty)]
        if writes:
            return await self._work.write_properties(writes)
        small = [action for action in actions if isinstance(action, ReadMetadata | LoadSegments | DeleteSnapshot)]
        if len(small) == 1:
            return [await self._work.run(small[0])]
        return await self._work.run_together(small)

    def _take(self, action: Action, answer: Event | Exception, started_at_ms: int) -> None:
        """Give the core the answer to an action."""
        event: Event
        if isinstance(answer, Exception):
            event = self._failed(action, answer)
        else:
            event = answer
            self._note_works(action)
        now_ms = self._now_ms()
        operation = operation_of(action)
        counters = None if operation is None else self._stats.operations[operation]
        if counters is not None and isinstance(event, ActionFailed):
            counters.failed += 1
        elif counters is not None:
            counters.note_success(max(0, now_ms - started_at_ms))
        if self._is_closed:
            # A closed tracker plans no more; after a defect its core is not even the one that asked.
            return
        try:
            self._core.handle(event, now_ms=now_ms)
        except Exception as defect:
            # A supervisor: the core may be half changed.
            self.stop_for_defect(defect)
            return
        if isinstance(event, MetadataRead):
            self._stats.buckets_recovered += 1
        # Ranges that became readable are news, as is anything due.
        is_readable = isinstance(event, SegmentsLoaded | PositionsRead | MetadataRead)
        self._is_news = self._is_news or is_readable
        self._turn_soon()

    def _note_works(self, action: Action) -> None:
        if isinstance(action, ReadMetadata | ReadPositions | LoadSegments | DeleteSnapshot):
            self._read_failures.pop(action.bucket_id, None)
        what = type(action).__name__
        if what in self._failing:
            self._failing -= {what}
            logger.info("%s: %s works again", self._name, what)

    def _failed(self, action: Action, error: Exception) -> ActionFailed:
        what = type(action).__name__
        # An outage is told once, not at each retry.
        level = logging.DEBUG if what in self._failing else logging.WARNING
        is_read = isinstance(action, ReadMetadata | ReadPositions | LoadSegments | MergeBuckets)
        is_gone = is_read and is_lost(error)
        if isinstance(action, ReadMetadata | ReadPositions | LoadSegments):
            # A snapshot that is gone is given up, and not asked for again.
            failures = 0 if is_gone else self._read_failures[action.bucket_id] + 1
            self._read_failures[action.bucket_id] = failures
        if not is_gone:
            if not self._failing:
                self._stats.failing_since_ms = self._now_ms()
            self._stats.last_failure = str(error) or type(error).__name__
            # A call for a snapshot that is gone is not tried again: that is no outage.
            self._failing |= {what}
        if isinstance(error, SnapshotStorageError | TimeoutError):
            logger.log(level, "%s: %s failed: %s", self._name, what, error or type(error).__name__)
        else:
            logger.log(level, "%s: %s failed", self._name, what, exc_info=error)
        return ActionFailed(action, is_gone, str(error), lost_bucket_id(error))

    async def _wait_for(self, is_met: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until a condition holds after some turn; False after the timeout, or when the tracker is closed."""
        if is_met():
            self._turn_soon()
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((is_met, waiter))
        self._turn_soon()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.remove((is_met, waiter))
        return is_met()
