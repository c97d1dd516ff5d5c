"""The one task that reads: it asks the core for its next reads, makes them, and sleeps only when there are none.

Every event sets the same wake-up: new entries, permits, acknowledgements, the tracker, a timer. So nothing that can be
delivered waits for an unrelated event. A reset meanwhile replaces the plan; entries that a read then brings are
dropped. A read of the log that fails is tried again, without the entries that are damaged, if it names such; any other
exception is a defect, which ends the dispatcher.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Final, TypeVar

import numpy as np
from pyroaring import BitMap

from dispatcher.config import DispatcherConfig
from dispatcher.core.actions import Action
from dispatcher.core.items import Key
from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.ports import Log, SubscriptionCursor
from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders
from managed_ledger.errors import EntriesDamagedError
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from managed_ledger.positions.value_types import Clock, Int64Array
from snapshot_storage.backoff import Backoff
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import is_in, ledger_bitmaps
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker

logger = logging.getLogger(__name__)

_Read = TypeVar("_Read")

_NONE: Final = BitMap()


class _ReadError(Exception):
    """The log could not be read; `__cause__` says why. Nothing has changed by that."""


async def _from_log(read: Awaitable[_Read]) -> _Read:
    try:
        return await read
    except Exception as error:
        raise _ReadError from error


def _nothing() -> None:
    """Stand for a callback that is not needed."""


class Reader:
    """Feeds a core with the log and the tracker.

    Args:
        core: Decides.
        log: The managed ledger.
        cursor: The subscription's cursor.
        new_tracker: Makes the tracker, given what to call when something is available; None where nothing is delayed.
        run_actions: Runs what the core decided.
        on_damage: Told of entries whose headers are damaged, and puts them aside.
        on_defect: Told of an exception that must not be.
        config: Waits.
        now_ms: The clock.
        defers_tracker: Whether the tracker is made when the first entry is delayed.
    """

    def __init__(
        self,
        core: SubscriptionCore,
        log: Log,
        cursor: SubscriptionCursor,
        new_tracker: Callable[[Callable[[], None]], DelayedDeliveryTracker] | None,
        run_actions: Callable[[list[Action]], None],
        on_damage: Callable[[EntriesDamagedError], None],
        on_defect: Callable[[Exception], None],
        config: DispatcherConfig,
        now_ms: Clock,
        *,
        defers_tracker: bool = False,
    ) -> None:
        self.tracker: DelayedDeliveryTracker | None = None
        """None where nothing is delayed, and while nothing was if it can be made later."""
        self.on_drained: Callable[[], None] = _nothing
        """Called when a smooth resume has let out all that waited."""
        self._core = core
        self._intake = core.intake
        self._log = log
        self._cursor = cursor
        self._new_tracker = new_tracker
        self._defers_tracker = defers_tracker
        self._tick_time_ms: int | None = None
        """The last tick that was set, for a tracker that is made later."""
        self._run_actions = run_actions
        self._on_damage = on_damage
        self._on_defect = on_defect
        self._config = config
        self._now_ms = now_ms
        self._is_woken = False
        self._task: asyncio.Task[None] | None = None
        """Runs while there may be something to read; a quiet subscription has none."""
        self._pauses = 0
        self._is_closed = False
        self.is_reading = False
        """Whether the log is being read."""
        self._is_tracker_dry = False
        self._has_told_mistimed = False
        self._popped: DelayedIndexes | None = None
        self._to_read_again: list[tuple[int, BitMap]] = []

    def open(self) -> None:
        """Start to read."""
        if not self._defers_tracker:
            self._make_tracker()
        self._log.add_listener(self.wake)
        self.wake()

    @property
    def has_delays(self) -> bool:
        """Whether entries can be delayed."""
        return self.tracker is not None or self._new_tracker is not None

    def _make_tracker(self) -> DelayedDeliveryTracker | None:
        """Return the tracker, made now if it was deferred; None where nothing is delayed."""
        if self._new_tracker is not None:
            new_tracker, self._new_tracker = self._new_tracker, None
            self.tracker = new_tracker(self._on_available)
            if self._tick_time_ms is not None:
                self.tracker.reset_tick_time(self._tick_time_ms)
        return self.tracker

    def stop(self) -> None:
        """Read nothing any more, from this call on."""
        if self._is_closed:
            return
        self._is_closed = True
        self._log.remove_listener(self.wake)
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop; the tracker keeps its index in the storage."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self.tracker is not None:
            await self.tracker.close()
        self._let_go()

    def _let_go(self) -> None:
        """Refer to nothing that refers to this: the memory of a closed reader goes without a collection of cycles."""
        # A task that is cancelled before its first step has not removed itself.
        self.tracker = self._new_tracker = self._task = None
        self._run_actions = self._on_damage = self._on_defect = _do_nothing

    @property
    def reads_due(self) -> bool:
        """Whether headers of due entries are being read."""
        return self._popped is not None

    @property
    def waits_for_entries(self) -> bool:
        """Whether everything is read, and there are consumers."""
        return self.has_read_all and bool(self._core.consumers)

    @property
    def has_read_all(self) -> bool:
        """Whether every durable entry was read."""
        plan = self._core.plan
        is_at_end = plan is not None and plan.next_immediate > self._log.last_confirmed_position
        return is_at_end and not self.is_reading

    def wake(self) -> None:
        """Look again whether there is something to read."""
        self._is_woken = True
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def pause(self) -> None:
        """Forget reads on their way and begin none until `resume`; the core was reset."""
        self._pauses += 1
        self.forget()

    def forget(self) -> None:
        """Drop reads on their way: the core was reset, and reads their entries again."""
        self._popped = None
        self._is_tracker_dry = False
        self._to_read_again.clear()
        self._note_rereading()

    def resume(self) -> None:
        """Read again, from the cursor's position."""
        self._pauses -= 1
        self.wake()

    def heed_delays(self, through: Position) -> None:
        """Heed delivery times of entries up to a position; those behind it are due when they are read."""
        if self._intake is None or not self.has_delays:
            return
        self._intake.delays_heeded(through)
        if through != AFTER_EVERYTHING and self.tracker is not None:
            self.tracker.end_fixed_delays()
        self.wake()

    def reset_tick_time(self, tick_time_ms: int) -> None:
        """Set the tracker's tick."""
        self._tick_time_ms = tick_time_ms
        if self.tracker is not None:
            self.tracker.reset_tick_time(tick_time_ms)

    def track(self, headers: EntryHeaders) -> None:
        """Give delayed entries to the tracker; those that it refuses are due."""
        tracker = self._make_tracker()
        assert tracker is not None
        assert self._intake is not None

        is_tracked = tracker.add_messages(headers.ledger_ids, headers.entry_ids, headers.deliver_at_ms)
        if not is_tracked.all():
            self._look_at_tracker()
            self._run_actions(self._intake.on_refused(headers.where(~is_tracked)))

    def reread(self, entries: Mapping[int, BitMap]) -> None:
        """Read these again, and track or deliver them: they were withdrawn, and are to be delivered after all."""
        if self._make_tracker() is None:
            # They are found by reading from the cursor's position.
            self.forget()
            self._core.reset()
        else:
            self._to_read_again.extend((ledger_id, BitMap(entry_ids)) for ledger_id, entry_ids in entries.items())
            self._note_rereading()
        self.wake()

    def forget_delayed(self, positions: list[Key]) -> None:
        """Tell the tracker which entries were acknowledged without being given to a consumer."""
        if self.tracker is None:
            return
        columns = np.array(positions, dtype=np.int64)
        for ledger_id, entry_ids in ledger_bitmaps(columns[:, 0], columns[:, 1]):
            self.tracker.remove_acknowledged(ledger_id, entry_ids)

    def forget_delayed_through(self, position: Position) -> None:
        """Tell the tracker that mark-delete has passed a position; it passes ledgers by itself."""
        if self.tracker is not None and position.entry_id >= 0:
            passed = BitMap()
            passed.add_range(0, position.entry_id + 1)
            self.tracker.remove_acknowledged(position.ledger_id, passed)

    # The loop.

    async def _run(self) -> None:
        try:
            await self._read_all()
        finally:
            self._task = None

    async def _read_all(self) -> None:
        waits = Backoff(
            min_ms=self._config.read_failure_backoff_initial_ms,
            max_ms=self._config.read_failure_backoff_max_ms,
        )
        while True:
            self._is_woken = False
            try:
                has_worked = await self._step()
                if not has_worked:
                    self._note_drained()
                waits.reset()
            except _ReadError as error:
                if isinstance(error.__cause__, EntriesDamagedError):
                    # The same read goes on without them.
                    self._on_damage(error.__cause__)
                    continue
                wait = waits.next_seconds()
                logger.error("cannot read for %r; again in %.1f s", self._cursor.name, wait, exc_info=error.__cause__)
                await asyncio.sleep(wait)
                continue
            except Exception as defect:
                # A supervisor: the core, or the tracker's, may be half changed.
                self._on_defect(defect)
                return
            if has_worked:
                # Cached entries are read without suspending; other tasks get a turn in between.
                await asyncio.sleep(0)
            elif not self._is_woken:
                return

    async def _step(self) -> bool:
        """Do one piece of each kind of work; return whether there was any."""
        if self._pauses:
            return False
        self._core.advance(self._now_ms())
        if self._core.plan is None:
            self._start_plan()
        has_worked = await self._read_lost()
        has_worked |= await self._take_due()
        if self._pauses or self._core.plan is None:
            return True
        if self.tracker is not None and self.tracker.should_pause_all_deliveries():
            return has_worked
        self._core.advance(self._now_ms())
        request = self._core.next_read(self._log.last_confirmed_position)
        if request is None:
            return has_worked
        return await self._read(request) or has_worked

    def _start_plan(self) -> None:
        first = self._cursor.next_unacknowledged_position
        self._core.start(first, self._log.last_confirmed_position)
        # The start may have set a timer.
        self._run_actions([])

    def _is_recovering(self, ledger_id: int) -> bool:
        """Return whether a read of a ledger has to wait until it is known what is tracked of it."""
        return self.tracker is not None and self.tracker.is_recovering(ledger_id)

    async def _read(self, request: ReadRequest) -> bool:
        """Make the requested read; return whether it gave anything."""
        plan = self._core.plan
        assert plan is not None

        left_out: list[LogPart] = []
        # Made once at most, and only where a ledger is left out.
        entries = cache(lambda: {ledger.ledger_id: ledger.entries for ledger in self._log.ledgers()})
        skip = partial(self._skipped_by_scan, request, plan, left_out, entries) if request.is_scan else self._skipped_in
        self.is_reading = True
        try:
            read = await _from_log(
                self._log.read_headers(
                    request.first,
                    entries_max=request.entries_max,
                    skip=skip,
                    through=request.through,
                )
            )
        finally:
            self.is_reading = False
        if self._core.plan is not plan:
            return True
        headers = self._without_tracked(read.headers)
        self._note_undelayed(headers)
        self._look_at_tracker()
        self._core.advance(self._now_ms())
        self._run_actions(self._core.on_headers(request, headers, read.next_position, left_out))
        if left_out and self._intake is not None:
            # Their recovery may have ended meanwhile.
            self._intake.recovered(self._is_recovering)
        # A log that gives nothing and stays where it is must not keep the loop spinning.
        return len(read.headers) > 0 or read.next_position != request.first

    def _without_tracked(self, headers: EntryHeaders) -> EntryHeaders:
        """Leave out what another subscription has had tracked since the read began; the tracker will give it."""
        if self.tracker is None:
            return headers
        is_tracked = is_in(self.tracker.tracked_in, headers.ledger_ids, headers.entry_ids)
        return headers.where(~is_tracked) if is_tracked.any() else headers

    def _note_undelayed(self, headers: EntryHeaders) -> None:
        if self.tracker is not None and (headers.deliver_at_ms == NOT_DELAYED).any():
            self.tracker.end_fixed_delays()

    def _skipped_in(self, ledger_id: int) -> BitMap:
        skipped = self._cursor.acknowledged_in(ledger_id)
        if self.tracker is not None:
            skipped |= self.tracker.tracked_in(ledger_id) or _NONE
        skipped |= self._core.deliverable.damaged_in(ledger_id)
        return skipped

    def _skipped_by_scan(
        self,
        request: ReadRequest,
        plan: ReadPlan,
        left_out: list[LogPart],
        entries: Callable[[], dict[int, int]],
        ledger_id: int,
    ) -> BitMap:
        """Return which entries of a ledger a scan skips: all, while it is not known which of them the tracker has.

        The snapshots of a ledger may be in recovery: a due entry that the tracker has as well would be delivered twice.
        """
        skipped = self._skipped_in(ledger_id)
        skipped |= plan.taken_early.bitmaps.get(ledger_id, _NONE)
        first = max(request.first, Position(ledger_id, 0))
        if first > plan.needs_index_through or not self._is_recovering(ledger_id):
            return skipped
        last = Position(ledger_id, entries()[ledger_id] - 1)
        through = min(plan.needs_index_through, last, request.through or last)
        left_out.append(LogPart(first, through))
        skipped.add_range(first.entry_id, through.entry_id + 1)
        return skipped

    async def _headers_at(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> EntryHeaders:
        """Read the headers of these positions that are not put aside."""
        are_damaged = self._core.deliverable.are_damaged(ledger_ids, entry_ids)
        if are_damaged is not None:
            ledger_ids, entry_ids = ledger_ids[~are_damaged], entry_ids[~are_damaged]
        return await _from_log(self._log.read_headers_at(ledger_ids, entry_ids))

    def _note_drained(self) -> None:
        """End a smooth resume after its last waiting message: let everything pass again."""
        if self._core.gate.rate_per_second is None or (self.tracker and self.tracker.has_message_available()):
            return
        if self._core.is_drained(self._log.last_confirmed_position):
            self._run_actions(self._core.open_gate(None))
            self.on_drained()

    # The tracker.

    def _on_available(self) -> None:
        if self._is_closed:
            return
        assert self.tracker is not None

        self._is_tracker_dry = False
        if self._intake is not None:
            self._intake.recovered(self._is_recovering)
        self._to_read_again.extend(self.tracker.pop_to_read_again().items())
        self._note_rereading()
        self.wake()

    def _note_rereading(self) -> None:
        """Tell the core whether due entries wait for what the tracker lost: it may be due before them."""
        if self._intake is not None:
            self._intake.lost_rows_told(are_left=bool(self._to_read_again))

    def _look_at_tracker(self) -> bool:
        """Tell the core when the tracker's first message was due; return whether the tracker can give it now."""
        if self._intake is None or self.tracker is None:
            return False
        is_available = self.tracker.has_message_available()
        times_ms = [self.tracker.first_withheld_time(), self.tracker.next_delivery_time() if is_available else None]
        self._intake.tracker_told(min((time_ms for time_ms in times_ms if time_ms is not None), default=None))
        # A tracker that gave nothing and has more, as a view of a shared index does after many acknowledged rows, tells
        # when to ask again. Until then held entries wait for it all the same.
        return is_available and not self._is_tracker_dry

    async def _take_due(self) -> bool:
        """Admit due entries: held ones up to the tracker's first, otherwise the tracker's."""
        if self._intake is None or not self.has_delays:
            return False
        if self._popped is None:
            wanted = self._intake.due_entries_wanted()
            if wanted == 0 and not self._intake.held_due:
                return False
            is_available = self._look_at_tracker()
            if self._intake.has_held_to_admit():
                self._run_actions(self._intake.admit_held())
                return True
            if wanted == 0 or not is_available:
                return False
            assert self.tracker is not None
            popped = self.tracker.get_scheduled_messages(wanted)
            self._is_tracker_dry = len(popped) == 0
            if self._is_tracker_dry:
                # Its rows may be gone in the meantime, and held entries wait for them no longer.
                return bool(self._intake.held_due)
            self._intake.on_popped(popped.ledger_ids, popped.entry_ids)
            self._popped = popped
        popped = self._popped
        headers = await self._headers_at(popped.ledger_ids, popped.entry_ids)
        # A reset meanwhile has forgotten them; they are found again by reading.
        if self._popped is popped:
            self._popped = None
            self._core.advance(self._now_ms())
            tracker = self.tracker
            assert tracker is not None
            due = self._intake.on_due(headers, popped, lead_ms=tracker.lead_ms, may_repeat=tracker.may_repeat)
            self._run_actions(due)
            self._tell_mistimed()
        return True

    def _tell_mistimed(self) -> None:
        """Warn of an index with other times than the log has, once."""
        if self._core.totals.index_mistimed and not self._has_told_mistimed:
            self._has_told_mistimed = True
            logger.warning(
                "the delayed index of %r has other times than the log: a message that it gives too early waits for its "
                "time, one that it gives too late is late. `postdate check` lists them; with the service "
                "stopped, `postdate pipeline rebuild` makes the index anew from the log",
                self._cursor.name,
            )

    async def _read_lost(self) -> bool:
        """Read again what the tracker lost with a snapshot, and track it or deliver it."""
        if self._intake is None or not self._to_read_again:
            return False
        ledger_id, lost = self._to_read_again[0]
        entries_max = self._config.lookup_entries_max
        ids = np.frombuffer(lost[:entries_max].to_array(), dtype=np.uint32).astype(np.int64)
        ledger_ids = np.full(len(ids), ledger_id, dtype=np.int64)
        self._intake.on_popped(ledger_ids, ids)
        headers = await self._headers_at(ledger_ids, ids)
        if self._to_read_again and self._to_read_again[0][1] is lost:
            del self._to_read_again[0]
            if len(lost) > entries_max:
                self._to_read_again.insert(0, (ledger_id, lost[entries_max:]))
            self._note_rereading()
            self._core.advance(self._now_ms())
            self._run_actions(self._intake.on_untracked(headers))
        return True


def _do_nothing(_: object) -> None:
    """Stand for a receiver that is not told any more."""
