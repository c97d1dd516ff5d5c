"""PIP-195's bucket tracker on an event loop: the shell around `core`, which makes every decision.

The shell starts the core's actions as tasks, gives the core their answers, keeps one timer, and tells the
dispatcher when to look. It has no condition about buckets. Encoding and decoding happen in worker threads, storage
calls are awaited; no add and no poll ever waits for either.

An exception of the core is a defect, and a core that is half changed must decide and store nothing more: the tracker
stops, its owner is told, and the snapshots that the cursor's properties name stay as they are for the next tracker.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from random import Random
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from managed_ledger.position import Position
from managed_ledger.value_types import Clock
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.columns.offers import check_integers, check_offer
from tracker.columns.row_order import NEVER
from tracker.config import TrackerConfig
from tracker.core.actions import Event, MetadataRead, PositionsRead, SegmentsLoaded
from tracker.core.questions import BucketFigures
from tracker.core.timers import AT_ONCE
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, ScheduledMessages, TrackerContext
from tracker.errors import TrackerClosedError, TrackerError
from tracker.shell.action_runner import ActionRunner
from tracker.shell.alarms import Alarms, TrackerTimer
from tracker.shell.callbacks import call_program
from tracker.shell.next_turn import NextTurn
from tracker.shell.outages import Outages
from tracker.shell.snapshot_merge import RunBlocking
from tracker.shell.snapshot_work import SnapshotWork, worker_on
from tracker.shell.storage_worker import StorageWorker, in_thread
from tracker.shell.topic_lists import TopicLists
from tracker.shell.wake_up import WakeUp
from tracker.stats import TrackerStats

logger = logging.getLogger(__name__)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(method: _Method) -> _Method:
    """Refuse a call from another event loop or thread; stop the tracker for an exception of the core, and raise it."""

    @wraps(method)
    def guarded(self: "BucketDelayedDeliveryTracker", *arguments: Any, **named: Any) -> Any:
        self._next_turn.check_loop()
        try:
            return method(self, *arguments, **named)
        except Exception as error:
            self._note_error(error)
            raise

    return cast(_Method, guarded)


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
        lists: TopicLists | None = None,
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
            reads_ahead=not context.keeps_positions,
        )
        if context.tick_time_ms is not None:
            self._core.set_tick_time(context.tick_time_ms)
        self._stats = TrackerStats()
        self._outages = Outages(self._name, self._stats, config.unsealed_row_count_max)
        self._actions = ActionRunner(
            SnapshotWork(config, context, worker_on(storage, run_blocking), lists),
            self._outages,
            self._stats,
            calls_in_flight_max=config.operations_in_flight_max,
            now_ms=now_ms,
            take=self._take,
        )
        self._next_turn = NextTurn(self._turn)
        self._turn_soon = self._next_turn.want
        self._timer = TrackerTimer(alarms if alarms is not None else Alarms(now_ms), self._turn_soon)
        self._wakes_before_ms = NEVER
        """A message that is added and due before this wants another timer."""
        self._wanted_ledger_id = -1
        """The ledger that was wanted last, in this turn."""
        self._is_news = False
        self._wake_up = WakeUp()
        self._is_settled: asyncio.Event | None = None
        """Set when no bucket is in flight any more; None while `close` does not wait for it."""
        self._is_closed = False
        self._is_abandoned = False
        self.failure: Exception | None = None
        """The defect that stopped it, None while all is well."""

    def start(self) -> None:
        """Begin to recover what the cursor's properties name; call once, on the event loop."""
        self._core.trim(self._context.cursor.mark_delete_position.ledger_id)
        named = self._core.recover(self._context.cursor.properties, now_ms=self._now_ms())
        # Last: where the core raises, no caller has this tracker, and the cursor has to tell it nothing.
        self._context.cursor.add_listener(self._on_mark_delete_moved)
        for key, value in named.malformed.items():
            logger.warning("%s: ignored the property %s=%s, which names no bucket", self._name, key, value)
        self._turn_soon()

    # The tracker's interface.

    @property
    @_guarded
    def lead_ms(self) -> int:
        return self._core.lead_ms

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        if self._is_closed:
            raise TrackerClosedError("add a message")
        core = self._core
        try:
            # Before anything changes, as this refuses a call from another thread. A check of its own would make each
            # add an eighth slower.
            if deliver_at < self._wakes_before_ms:
                self._turn_soon()
            is_tracked = core.add_message(ledger_id, entry_id, deliver_at, self._now_ms())
        except Exception as error:
            # Wrong arguments have changed nothing.
            check_offer(ledger_id, entry_id, deliver_at)
            self._note_error(error)
            raise
        # `core.has_work`, without a call: this is asked for every message.
        if core.timers.earliest_ms == AT_ONCE:
            self._turn_soon()
        return is_tracked

    @_guarded
    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        self._check_open("add messages")
        is_tracked = self._core.add_messages(ledger_ids, entry_ids, deliver_ats, now_ms=self._now_ms())
        self._turn_soon()
        return is_tracked

    @_guarded
    def will_read(self, ledger_id: int) -> None:
        # Once a turn for each ledger is enough.
        if ledger_id != self._wanted_ledger_id:
            check_integers(ledger_id)
            self._wanted_ledger_id = ledger_id
            self._core.want(ledger_id)
            self._turn_if_needed()

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        core = self._core
        try:
            is_tracked = core.contains_message(ledger_id, entry_id)
        except Exception as error:
            check_integers(ledger_id, entry_id)
            self._note_error(error)
            raise
        return is_tracked

    @_guarded
    def tracked_in(self, ledger_id: int) -> BitMap | None:
        check_integers(ledger_id)
        return self._core.tracked_in(ledger_id)

    @_guarded
    def tracked_ledger_ids(self) -> list[int]:
        """Return the ledgers in which something is tracked, in no order."""
        return self._core.tracked_ledger_ids()

    @_guarded
    def is_recovering(self, ledger_id: int) -> bool:
        check_integers(ledger_id)
        return self._core.is_recovering(ledger_id)

    @_guarded
    def take_untracked(self) -> Mapping[int, BitMap]:
        return self._core.take_untracked()

    @_guarded
    def take_untracked_ranges(self) -> Sequence[LedgerRange]:
        return self._core.take_untracked_ranges()

    def has_message_available(self) -> bool:
        try:
            is_available = self._core.has_due(now_ms=self._now_ms())
        except Exception as error:
            self._note_error(error)
            raise
        if not is_available and self._wake_up.note_nothing_due():
            self._turn_soon()
        return is_available

    @_guarded
    def next_delivery_time(self) -> int | None:
        return self._core.next_deliver_at_ms()

    @_guarded
    def first_withheld_time(self) -> int | None:
        withheld_ms = self._core.first_withheld_ms(now_ms=self._now_ms())
        self._wake_up.note_withheld(withheld_ms)
        return withheld_ms

    @_guarded
    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        if self.failure is not None:
            # A dispatcher that only polls learns of the defect here.
            raise TrackerClosedError("hand out messages") from self.failure
        # The next tracker of the cursor hands out all that a closed one has in memory.
        self._check_open("hand out messages")
        check_integers(max_messages)
        rows = self._core.pop_due(now_ms=self._now_ms(), limit=max_messages)
        self._wake_up.note_nothing_due()
        self._turn_soon()
        return rows

    def number_of_delayed_messages(self) -> int:
        try:
            return self._core.message_count
        except Exception as error:
            self._note_error(error)
            raise

    @_guarded
    def number_of_future_messages(self) -> int:
        """Count messages that are not due.

        Exact but where a segment begins before now and ends after it and could not be loaded in time: its rows count.
        """
        return self._core.future_count(now_ms=self._now_ms())

    @_guarded
    def due_positions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ledger and entry ids of what is due, loaded and not handed out."""
        return self._core.due_positions(now_ms=self._now_ms())

    @_guarded
    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget acknowledged messages; positions of segments that are not loaded are read first, in the background."""
        self._core.note_acknowledged(ledger_id, entry_ids)
        self._turn_soon()

    @_guarded
    def should_pause_all_deliveries(self) -> bool:
        is_paused = self._core.should_pause(now_ms=self._now_ms())
        self._wake_up.note_paused(is_paused)
        return is_paused

    @_guarded
    def reset_tick_time(self, tick_time_ms: int) -> None:
        self._core.set_tick_time(tick_time_ms)
        self._turn_soon()

    @_guarded
    def stats(self) -> TrackerStats:
        """Return the tracker's figures; the same object each time, brought up to date."""
        self._stats.message_count = self._core.message_count
        self._stats.bucket_total = self._core.bucket_total
        self._stats.index_loaded = self._core.loaded_row_count
        self._stats.segment_rows_loaded = self._core.segment_row_count
        self._stats.snapshot_size_bytes = self._core.snapshot_size_bytes
        self._outages.tell()
        return self._stats

    @_guarded
    def buckets(self) -> list[BucketFigures]:
        """Return the figures of each immutable bucket, in the order of their ledgers."""
        return self._core.buckets()

    def check(self) -> None:
        """Assert every invariant of the core, O(n)."""
        self._core.check()

    async def clear(self) -> None:
        """Forget all messages; properties name each snapshot until it is deleted, so a crash leaves none behind."""
        self._check_open("clear")
        self._clear()

    @_guarded
    def _clear(self) -> None:
        self._core.clear()
        self._turn_soon()

    async def close(self) -> None:
        """Close the tracker; seal the mutable bucket if it is worth it, so that a restart need not read it again."""
        self._next_turn.check_loop()
        if not (self._is_abandoned or self._is_closed) and self._begin_to_close():
            await self._settle()
        await self._stop()

    def _begin_to_close(self) -> bool:
        """Seal the mutable bucket if it is worth it; return whether buckets are in flight."""
        try:
            if self._config.index_count_at_close_min >= 0:
                self._core.seal(index_count_min=self._config.index_count_at_close_min)
            return self._core.unsettled_count > 0
        except Exception as defect:
            # Closing goes on: the snapshots that the cursor's properties name are whole, and the log has the rest.
            self.stop_for_defect(defect)
            return False

    async def _settle(self) -> None:
        """Wait until no bucket is in flight, but not for too long."""
        if self._is_settled is None:
            self._is_settled = asyncio.Event()
        self._turn_soon()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.close_timeout_ms / 1_000):
                await self._is_settled.wait()

    def abandon(self) -> None:
        self._is_abandoned = True

    async def _stop(self) -> None:
        if not (self._is_abandoned or self._is_closed) and self._core.unsettled_count:
            logger.warning("%s: closed with %d buckets in flight", self._name, self._core.unsettled_count)
        self._stop_at_once()
        # The log answers, and the next tracker of the cursor needs its answers. The storage may not answer even to a
        # cancellation (a merge removes what it has written), so this does not wait for it.
        await self._actions.wait_for_log(self._config.operation_timeout_ms / 1_000)

    def _stop_at_once(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._context.cursor.remove_listener(self._on_mark_delete_moved)
        if self._is_settled is not None:
            self._is_settled.set()
        self._next_turn.close()
        self._timer.close()
        self._actions.cancel_storage_calls()

    def stop_for_defect(self, defect: Exception) -> None:
        """Stop at once: a part of the index raised this, and may be half changed.

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
        call_program(self._context.on_defect, defect)

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

    def _turn_if_needed(self) -> None:
        if self._core.has_work:
            self._turn_soon()

    def _turn(self) -> None:
        """Bring everything up to date, once per turn of the loop, and tell the dispatcher."""
        self._wanted_ledger_id = -1
        try:
            is_wanted = self._bring_up_to_date()
        except Exception as defect:
            # A supervisor: the core may be half changed.
            self.stop_for_defect(defect)
            return
        if is_wanted:
            call_program(self._context.on_available)

    def _bring_up_to_date(self) -> bool:
        """Do the work that the events of this turn have left; return whether the dispatcher is to look again."""
        now_ms = self._now_ms()
        for key, reason in self._core.take_losses():
            self._stats.buckets_lost += 1
            self._is_news = True
            logger.warning("%s: gave up the bucket %s, to be read from the log again: %s", self._name, key, reason)
        self._actions.start(self._core.plan(now_ms=now_ms))
        if self._outages.are_there:
            self._outages.keep(self._core.retried())
        wakeup_ms = self._core.next_wakeup_ms(now_ms=now_ms)
        self._wakes_before_ms = NEVER if wakeup_ms is None else wakeup_ms
        self._timer.set(wakeup_ms)
        self._outages.note_full(self._core.is_full)
        is_wanted = self._wake_up.is_wanted(
            deliver_at_ms=self._core.first_deliver_at_ms(now_ms=now_ms),
            withheld_ms=self._core.first_withheld_ms(now_ms=now_ms),
            is_paused=self._core.should_pause(now_ms=now_ms),
        )
        if self._is_settled is not None and self._core.unsettled_count == 0:
            self._is_settled.set()
        is_wanted = is_wanted or self._is_news
        self._is_news = False
        # More work may be due than one turn should take.
        self._turn_if_needed()
        return is_wanted

    def _take(self, event: Event) -> None:
        """Give the core the answer to an action."""
        if self._is_closed:
            # A closed tracker plans no more; after a defect its core is not even the one that asked.
            return
        try:
            self._core.handle(event, now_ms=self._now_ms())
            has_losses = self._core.has_losses
        except Exception as defect:
            # A supervisor: the core may be half changed.
            self.stop_for_defect(defect)
            return
        if isinstance(event, MetadataRead):
            self._stats.buckets_recovered += 1
        # Ranges that became readable are news, as is anything due.
        is_readable = isinstance(event, SegmentsLoaded | PositionsRead | MetadataRead)
        self._is_news = self._is_news or is_readable
        if has_losses:
            # No later row may be handed out before the dispatcher knows that an earlier one is to be read again.
            self._next_turn.run()
        else:
            self._turn_soon()
