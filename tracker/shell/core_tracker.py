"""A tracker's core on an event loop, for the bucket tracker and the in-memory one.

It decides nothing, and no add and no poll ever waits. An exception of the core is a defect, and a core that is half
changed must decide and store nothing more: the tracker stops, its owner is told, and the snapshots that the cursor's
properties name stay as they are for the next tracker.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from random import Random
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Clock
from tracker.columns.offers import check_integers, check_offer
from tracker.columns.row_order import NEVER
from tracker.config import TrackerConfig
from tracker.core.actions import Call
from tracker.core.tracker_core import TrackerCore
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker, ScheduledMessages, TrackerContext
from tracker.errors import TrackerClosedError, TrackerError
from tracker.shell.next_turn import NextTurn, WallClockWatch, call_program
from tracker.shell.wake_up import WakeUp

logger = logging.getLogger(__name__)

_Method = TypeVar("_Method", bound=Callable[..., Any])


def guarded(method: _Method) -> _Method:
    """Refuse a call from another event loop or thread; stop the tracker for an exception of the core, and raise it."""

    @wraps(method)
    def call(self: "CoreTracker", *arguments: Any, **named: Any) -> Any:
        self._next_turn.check_loop()
        try:
            return method(self, *arguments, **named)
        except Exception as error:
            self.stop_if_defect(error)
            raise

    return cast(_Method, call)


class CoreTracker(DelayedDeliveryTracker):
    """A tracker around a core."""

    def __init__(
        self,
        context: TrackerContext,
        config: TrackerConfig,
        *,
        now_ms: Clock,
        rng: Random | None = None,
        watch: WallClockWatch | None = None,
    ) -> None:
        self._context = context
        self._config = config
        self._now_ms = now_ms
        # Jitter only: nothing here needs to be unpredictable, and a seed makes a run repeatable.
        self._core = TrackerCore(
            config, acknowledged_in=context.cursor.acknowledged_in, rng=rng if rng is not None else Random()
        )
        self._core.trim(context.cursor.mark_delete_position.ledger_id)
        if context.tick_time_ms is not None:
            self._core.set_tick_time(context.tick_time_ms)
        self._name = f"{context.topic_name} / {context.cursor_name}"
        self._next_turn = NextTurn(self._turn, watch if watch is not None else WallClockWatch(now_ms))
        self._turn_soon = self._next_turn.want
        self._wakes_before_ms = NEVER
        """A message that is added and due before this wants another timer."""
        self._wake_up = WakeUp()
        self._is_news = False
        self._is_closed = False
        self.failure: Exception | None = None
        """The defect that stopped it, None while all is well."""

    # The tracker's interface.

    @property
    @guarded
    def lead_ms(self) -> int:
        return self._core.lead_ms

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        if self._is_closed:
            raise TrackerClosedError("add a message")
        core = self._core
        try:
            # Before anything changes, as this refuses a call from another thread.
            if deliver_at < self._wakes_before_ms:
                self._turn_soon()
            is_tracked = core.add_message(ledger_id, entry_id, deliver_at, self._now_ms())
            if core.writes.first_tries and not core.writes.is_full:
                self._turn_soon()
        except Exception as error:
            # Wrong arguments have changed nothing.
            check_offer(ledger_id, entry_id, deliver_at)
            self.stop_if_defect(error)
            raise
        return is_tracked

    @guarded
    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        if self._is_closed:
            raise TrackerClosedError("add messages")
        is_tracked = self._core.add_messages(ledger_ids, entry_ids, deliver_ats, now_ms=self._now_ms())
        self._turn_soon()
        return is_tracked

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        try:
            return self._core.contains_message(ledger_id, entry_id)
        except Exception as error:
            check_integers(ledger_id, entry_id)
            self.stop_if_defect(error)
            raise

    @guarded
    def tracked_in(self, ledger_id: int) -> BitMap | None:
        check_integers(ledger_id)
        return self._core.tracked_in(ledger_id)

    @guarded
    def is_recovering(self, ledger_id: int) -> bool:
        check_integers(ledger_id)
        return self._core.is_recovering(ledger_id)

    @guarded
    def pop_to_read_again(self) -> Mapping[int, BitMap]:
        return self._core.pop_to_read_again()

    @guarded
    def has_message_available(self) -> bool:
        is_available = self._core.has_due(now_ms=self._now_ms())
        if not is_available and self._wake_up.wait_for_due():
            self._turn_soon()
        return is_available

    @guarded
    def next_delivery_time(self) -> int | None:
        return self._core.next_deliver_at_ms()

    @guarded
    def first_withheld_time(self) -> int | None:
        withheld_ms = self._core.first_withheld_ms(now_ms=self._now_ms())
        self._wake_up.wait_behind(withheld_ms)
        return withheld_ms

    @guarded
    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        if self._is_closed:
            # The next tracker of the cursor hands out all that this one has in memory. A dispatcher that only polls
            # learns of a defect here.
            raise TrackerClosedError("hand out messages") from self.failure
        check_integers(max_messages)
        rows = self._core.pop_due(now_ms=self._now_ms(), limit=max_messages)
        self._wake_up.wait_for_due()
        self._turn_soon()
        return rows

    def number_of_delayed_messages(self) -> int:
        return self._core.tracked.count

    @guarded
    def number_of_future_messages(self) -> int:
        return self._core.future_count(now_ms=self._now_ms())

    @guarded
    def remove_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        self._core.acknowledge(ledger_id, entry_ids)
        self._turn_soon()

    @guarded
    def should_pause_all_deliveries(self) -> bool:
        is_paused = self._is_paused(self._now_ms())
        self._wake_up.pause(is_paused)
        return is_paused

    @guarded
    def reset_tick_time(self, tick_time_ms: int) -> None:
        self._core.set_tick_time(tick_time_ms)
        self._turn_soon()

    async def clear(self) -> None:
        """Track nothing any more; properties name each snapshot until it is deleted, so a crash leaves none behind."""
        if self._is_closed:
            raise TrackerClosedError("clear")
        self._clear()

    @guarded
    def _clear(self) -> None:
        self._core.clear()
        self._turn_soon()

    # The loop: plan, start calls, set the timer, tell the dispatcher.

    @abstractmethod
    def _start_calls(self, calls: Sequence[Call]) -> None:
        """Start the core's calls."""

    def _is_paused(self, now_ms: int) -> bool:
        """Whether the dispatcher is to stop reading for now."""
        return self._core.is_full and not self._core.has_due(now_ms=now_ms)

    @guarded
    def _on_mark_delete_moved(self, mark_delete: Position) -> None:
        self._core.pass_through(mark_delete.ledger_id, mark_delete.entry_id)
        self._turn_soon()

    def _turn(self) -> None:
        """Do the work that the events of this turn have left, and tell the dispatcher to look if it is to."""
        core = self._core
        try:
            now_ms = self._now_ms()
            self._start_calls(core.plan(now_ms=now_ms))
            wakeup_ms = core.next_wakeup_ms(now_ms=now_ms)
            self._wakes_before_ms = NEVER if wakeup_ms is None else wakeup_ms
            self._next_turn.set_timer(wakeup_ms)
            is_wanted = self._wake_up.is_wanted(
                deliver_at_ms=core.first_deliver_at_ms(now_ms=now_ms),
                withheld_ms=core.first_withheld_ms(now_ms=now_ms),
                is_paused=self._is_paused(now_ms),
            )
        except Exception as defect:
            # A supervisor: the core may be half changed.
            self.stop_for_defect(defect)
            return
        is_wanted, self._is_news = is_wanted or self._is_news, False
        if is_wanted:
            call_program(self._context.on_available)

    # The end.

    def _stop(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._context.cursor.remove_listener(self._on_mark_delete_moved)
        self._next_turn.close()

    def stop_for_defect(self, defect: Exception) -> None:
        """Stop at once: a part of the index raised this, and may be half changed; tell the owner by `on_defect`, once.

        From then on adding and polling raise `TrackerClosedError`, and nothing is tracked.
        """
        if self._is_closed:
            return
        self.failure = defect
        logger.critical("%s: the delayed index stops for a defect", self._name, exc_info=defect)
        self._stop()
        # The core that failed is not asked any more.
        self._core = TrackerCore(self._config, acknowledged_in=self._context.cursor.acknowledged_in, rng=Random(0))
        call_program(self._context.on_defect, defect)

    def stop_if_defect(self, error: Exception) -> None:
        """Tell a refusal, after which nothing has changed, from a defect."""
        if not isinstance(error, ValueError | TrackerError):
            self.stop_for_defect(error)
