"""The next reads and the entries that become ready: the log, the tracker, and the order between the two.

Delayed entries of the future go to the tracker. Those that were due when they were read are *held* in columns and
admitted in order of time together with what the tracker has available. The tracker is asked while some consumer can
take an entry, as its rest comes after all that it gave. A held entry can be due before what waits already, so it is
admitted while entries wait, too. No due entry is admitted while a part of the log is unread that may hold earlier
entries (`is_holding_due`): the part that the scan after a start has not come by, and the part that the tracker has
lost with a snapshot. So entries that fell due during an outage come out in order of time. That wait is bounded: by
`DispatcherConfig.order_wait_ms_max`, for a range still in recovery by `_RECOVERY_WAIT_MS_MAX` too, and for held rows
by their number.

The tracker gives a position at the time that the index has, which a program may have written (`postdate pipeline
ingest`, a migration) with other times than the log has; the log is the truth. An entry that is not due by its header
goes back to the tracker, at the header's time. One that is due by now, and has an earlier time in the index than in its
header, is held until the tracker has given what is due before it.

Whether an entry is acknowledged is asked in one place, `DeliverableEntries.among`: when an entry is taken in, and when
a held one is admitted. From then on an acknowledgement finds the entry where it waits, or at its consumer.

Left out: the consumer of an entry that is ready (`assignor.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dispatcher.config import DispatcherConfig
from dispatcher.core.acknowledgements.deliverable import DeliverableEntries
from dispatcher.core.actions import Action, TrackDelayed
from dispatcher.core.assignor import ConsumerAssignor
from dispatcher.core.consumers import UNLIMITED
from dispatcher.core.items import is_behind, position_of
from dispatcher.core.queues.held_headers import HeldHeaders
from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest, ReadTotals, UnscannedRange
from dispatcher.core.unsent_delayed import UnsentDelayed
from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from managed_ledger.positions.value_types import Int64Array, Mask
from snapshot_storage.encoding.columns import DelayedIndexes, order_of_rows
from tracker.columns.position_set import PositionSet
from tracker.columns.positions import is_in
from tracker.columns.row_order import NEVER, RowKey, first_key_at, key_of

_RECOVERY_WAIT_MS_MAX: Final = 1_000
"""How long due entries wait for the index of other ledgers after a start. Recovery takes tens of milliseconds; being on
time comes before order across a ledger that takes longer."""

_NONE: Final = EntryHeaders.empty()


class Intake:
    """Reads for many consumers, as far ahead as they need.

    Args:
        config: Limits and intervals.
        deliverable: Which entries a consumer may still get.
        assignor: Takes the entries that are ready, in order.
        unsent_delayed: Told of delayed entries that are ready.
        totals: Counts what is read.
        has_delays: Whether delayed entries go to a tracker.
    """

    def __init__(
        self,
        config: DispatcherConfig,
        deliverable: DeliverableEntries,
        assignor: ConsumerAssignor,
        unsent_delayed: UnsentDelayed,
        totals: ReadTotals,
        *,
        has_delays: bool,
    ) -> None:
        self._config = config
        self._deliverable = deliverable
        self._assignor = assignor
        self._budget = assignor.budget
        self._unsent_delayed = unsent_delayed
        self.has_delays = has_delays
        self.plan: ReadPlan | None = None
        """The reads to come; None asks for `start`."""
        self.held_due = HeldHeaders()
        self._totals = totals
        self.last_confirmed = Position(-1, -1)
        """The end of the log when it was read last."""
        self.tracker_deliver_at_ms: int | None = None
        """When the first message was due that the tracker has or is loading."""
        self._scan_target = Position(-1, -1)
        self._started_ms = 0
        self._unread_since_ms: int | None = None
        """Since when a part of the log is unread that may hold earlier due entries; None where none is."""
        self._is_rereading = False
        """Whether entries that the tracker lost are still to be read again."""
        self._delays_through = AFTER_EVERYTHING
        """The last entry of which the delivery time is heeded when it is scanned; those behind it are due."""

    def start(self, first: Position, last_confirmed: Position) -> None:
        """Plan to read from `first` on."""
        assert self.plan is None

        self._deliverable.begin_anew()
        self.plan = ReadPlan(first, last_confirmed, [UnscannedRange(first, None)] if self.has_delays else [])
        self._scan_target = self.last_confirmed = last_confirmed
        self._started_ms = self._unread_since_ms = self._budget.now_ms

    def clear(self) -> None:
        """Forget what was read; `start` must follow."""
        self.plan = None
        self.held_due.clear()

    # What the tracker and the broker tell.

    def delays_heeded(self, through: Position) -> None:
        """From now on delivery times are heeded up to a position."""
        self._delays_through = through

    def tracker_told(self, deliver_at_ms: int | None) -> None:
        """The first message that the tracker has or is loading was due then."""
        self.tracker_deliver_at_ms = deliver_at_ms

    def lost_rows_told(self, *, are_left: bool) -> None:
        """Whether entries that the tracker lost are still to be read again."""
        self._is_rereading = are_left

    def recovered(self, is_recovering: Callable[[int], bool]) -> None:
        """The tracker may have recovered ledgers; `is_recovering` tells which it has not."""
        if self.plan is not None:
            self.plan.note_recovered(is_recovering)

    # Reading.

    def next_read(self, last_confirmed: Position) -> ReadRequest | None:
        """Return the next read of the log, or None when none is wanted."""
        if self.plan is None:
            return None
        self.last_confirmed = last_confirmed
        immediates_max = 0
        if self._budget.has_demand() and not self._has_surplus_held():
            immediates_max = min(self._budget.room(), self._config.read_batch_entries_max)
        scan_entries_max = self._config.scan_entries_max if len(self.held_due) < self._config.held_entries_max else 0
        return self.plan.next_request(last_confirmed, immediates_max=immediates_max, scan_entries_max=scan_entries_max)

    def on_headers(
        self, request: ReadRequest, headers: EntryHeaders, next_position: Position, left_out: Sequence[LogPart]
    ) -> list[Action]:
        """Take the result of a read; see `SubscriptionCore.on_headers`."""
        assert self.plan is not None

        self._totals.entries_read += len(headers)
        headers = self._deliverable.among(headers)
        to_track = None
        if self.has_delays:
            is_delayed = headers.deliver_at_ms != NOT_DELAYED
            if is_delayed.any():
                if request.is_scan:
                    to_track = self._hold_delayed(headers, is_delayed)
                headers = headers.where(~is_delayed)
        self.plan.put_aside(request, left_out)
        room = self._budget.room() if request.takes_immediate and not self._has_surplus_held() else 0
        first_not_taken = None
        if request.takes_immediate or request.is_at_frontier:
            before = len(headers)
            if left_out:
                # The part itself gave none.
                first = left_out[0].first
                before -= int(np.count_nonzero(is_behind(headers.ledger_ids, headers.entry_ids, first)))
            if left_out and before <= room:
                # The immediate entries of the part that was left out come first.
                room, first_not_taken = before, first
            elif len(headers) > room:
                first_not_taken = Position(int(headers.ledger_ids[room]), int(headers.entry_ids[room]))
        immediate = headers.take(slice(0, room)) if len(headers) > room else headers
        self.plan.complete(request, next_position=next_position, first_not_taken=first_not_taken)

        orders_ms = np.minimum(immediate.publish_time_ms, self._budget.now_ms)
        if len(immediate):
            # A slot's immediate entries keep the order of the log although clocks of producers differ.
            orders_ms[0] = max(int(orders_ms[0]), self.plan.order_floor_ms)
            np.maximum.accumulate(orders_ms, out=orders_ms)
            self.plan.order_floor_ms = int(orders_ms[-1])
        actions: list[Action] = [] if to_track is None else [TrackDelayed(to_track)]
        return actions + self._make_ready(self._take_held(others=len(immediate)), immediate, orders_ms)

    def _hold_delayed(self, headers: EntryHeaders, is_delayed: NDArray[np.bool_]) -> EntryHeaders | None:
        """Hold the delayed entries that are due; return the others, which are the tracker's, if there are any."""
        was_there = ~is_behind(headers.ledger_ids, headers.entry_ids, self._scan_target)
        self._totals.delayed_reread_at_recovery += int(np.count_nonzero(is_delayed & was_there))
        is_later = self._are_delayed_until_after(self._budget.now_ms, headers)
        held = headers.where(is_delayed & ~is_later)
        if self._delays_through != AFTER_EVERYTHING:
            # An entry of which the time is not heeded is due since it was read.
            held = replace(held, deliver_at_ms=np.minimum(held.deliver_at_ms, self._budget.now_ms))
        self.held_due.add(held)
        return headers.where(is_later) if is_later.any() else None

    def _make_ready(
        self,
        due: EntryHeaders,
        immediate: EntryHeaders = _NONE,
        orders_ms: Int64Array = _NONE.publish_time_ms,
    ) -> list[Action]:
        """Hand on delayed entries that are due and immediate ones, which have these orders, in one order."""
        ready = immediate
        if len(due):
            self._unsent_delayed.add(due, are_ordered_by_position=self._assignor.is_by_position)
            ready = EntryHeaders.concatenate([immediate, due])
            orders_ms = np.concatenate([orders_ms, due.deliver_at_ms])
            order = order_of_rows(orders_ms, ready.ledger_ids, ready.entry_ids)
            if order is not None:
                ready, orders_ms = ready.take(order), orders_ms[order]
        return self._assignor.make_ready(ready, orders_ms) if len(ready) else []

    def _are_delayed_until_after(self, time_ms: int, headers: EntryHeaders) -> Mask:
        is_later: Mask = headers.deliver_at_ms > time_ms
        if self._delays_through != AFTER_EVERYTHING:
            is_later &= ~is_behind(headers.ledger_ids, headers.entry_ids, self._delays_through)
        return is_later

    # Due entries.

    def due_entries_wanted(self) -> int:
        """Return how many entries can be taken from the tracker now."""
        if self.plan is None or not self._budget.has_demand() or self.is_holding_due():
            return 0
        return min(self._budget.due_room(), self._config.read_batch_entries_max, self._config.admit_entries_max)

    def on_popped(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Note that entries left the tracker; their headers follow."""
        if self.plan is not None:
            self.plan.note_taken(ledger_ids, entry_ids)

    def on_untracked(self, headers: EntryHeaders) -> list[Action]:
        """Take in entries that the tracker has lost: those that are delayed, scanned and held by no consumer.

        The tracker hears of it also where none is left of them.
        """
        assert self.plan is not None

        headers = self._deliverable.among(headers)
        is_lost = (headers.deliver_at_ms != NOT_DELAYED) & self.plan.has_taken(headers.ledger_ids, headers.entry_ids)
        headers = headers.where(is_lost)
        return [TrackDelayed(headers.where(~self._are_here(headers)))]

    def _are_here(self, headers: EntryHeaders) -> Mask:
        """Return which entries are held, wait, or were given to a consumer."""
        positions = list(zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True))
        asked = set(positions)
        here = {at for item in self._assignor.replay_queue.items() if (at := position_of(item)) in asked}
        for consumer in self._assignor.consumers.values():
            here |= asked & consumer.pending.items.keys()
        return np.array([at in here or at in self.held_due for at in positions], dtype=np.bool_)

    def on_due(
        self, headers: EntryHeaders, rows: DelayedIndexes, *, lead_ms: int = 0, may_repeat: bool = False
    ) -> list[Action]:
        """Take in entries that the tracker gave; its remaining rows come after them.

        Those that are not due by their headers go back to the tracker.

        Args:
            headers: Their headers, in the order of the rows, without those that the log does not have.
            rows: The rows that the tracker gave.
            lead_ms: How long before its time an entry counts as due.
            may_repeat: Whether the tracker may give an entry again that was delivered, see `DelayedDeliveryTracker`.
        """
        if not len(rows):
            return []
        given_through = key_of(rows, -1)
        if len(rows) != len(headers):
            found = PositionSet()
            found.add(headers.ledger_ids, headers.entry_ids)
            is_in_log = is_in(found.bitmaps.get, rows.ledger_ids, rows.entry_ids)
            missing, rows = rows.take(~is_in_log), rows.take(is_in_log)
            if self.plan is not None:
                self.plan.taken_early.discard(missing.ledger_ids, missing.entry_ids)
        if may_repeat:
            is_new = ~self._are_here(headers)
            headers, rows = headers.where(is_new), rows.take(is_new)
        self._totals.index_mistimed += int(np.count_nonzero(headers.deliver_at_ms != rows.deliver_at_ms))
        is_early = self._are_delayed_until_after(self._budget.now_ms + lead_ms, headers)
        if not is_early.any():
            return self._admit_due(headers, given_through)
        early = self._deliverable.among(headers.where(is_early))
        return [TrackDelayed(early), *self._admit_due(headers.where(~is_early), given_through)]

    def _admit_due(self, headers: EntryHeaders, given_through: RowKey) -> list[Action]:
        headers = self._deliverable.among(headers)
        is_next = not self.held_due and (headers.deliver_at_ms <= given_through.deliver_at_ms).all()
        if is_next or not len(headers):
            return self._make_ready(headers)
        # Held entries that were due before the last row of these go first. Entries that are too many for one turn are
        # held, and those of which the index has an earlier time than the log: the tracker may give others before them.
        self.held_due.add(headers)
        held = self.held_due.take(self._config.admit_entries_max, given_through)
        return self._make_ready(self._deliverable.among(held))

    @property
    def held_count(self) -> int:
        """How many entries are held and still need a delivery."""
        return self.held_due.count_without(self._deliverable.cursor.acknowledged_in)

    def on_refused(self, headers: EntryHeaders) -> list[Action]:
        """Take in entries that the tracker refused because they are due."""
        self.held_due.add(headers)
        return self.admit_held()

    def admit_held(self) -> list[Action]:
        """Admit entries that were due when they were read, up to the tracker's first, as many as one turn takes."""
        return self._make_ready(self._take_held(others=0))

    def _take_held(self, *, others: int) -> EntryHeaders:
        """Take held entries that may be admitted, with room beside others."""
        if not self._may_admit_held():
            return _NONE
        entries_max = min(max(0, self._budget.due_room() - others), self._config.admit_entries_max)
        return self._deliverable.among(self.held_due.take(entries_max, self._admitted_through()))

    def _has_surplus_held(self) -> bool:
        """Return whether more held entries may be admitted than one turn takes; immediate ones wait for these."""
        entries_max = self._config.admit_entries_max
        if len(self.held_due) <= entries_max or not self._may_admit_held() or not self._budget.due_room():
            return False
        return self.held_due.count_through(self._admitted_through()) > entries_max

    def has_held_to_admit(self) -> bool:
        """Return whether `admit_held` has something to admit."""
        first_ms = self.held_due.first_deliver_at_ms
        tracker_ms = self.tracker_deliver_at_ms
        is_next = first_ms is not None and (tracker_ms is None or first_ms < tracker_ms)
        return is_next and self._may_admit_held() and self._budget.due_room() > 0

    def _may_admit_held(self) -> bool:
        # Waiting entries are served before all others as soon as a consumer can take one, so an earlier entry must be
        # among them by then. While nothing waits, no entry is overtaken, and columns take less memory than objects.
        is_wanted = len(self._budget.waiting) > 0 or self._budget.has_demand()
        return bool(self.held_due) and is_wanted and not self.is_holding_due()

    def _admitted_through(self) -> RowKey:
        """Return the key up to which held entries may be admitted: the tracker gives those behind it in their order."""
        return first_key_at(NEVER if self.tracker_deliver_at_ms is None else self.tracker_deliver_at_ms)

    def is_holding_due(self) -> bool:
        """Return whether due entries wait for a part of the log that is unread."""
        assert self.plan is not None

        self._note_unread()
        if len(self.held_due) >= self._config.held_entries_max:
            return False
        hold_until_ms = self._hold_until_ms()
        return hold_until_ms is not None and self._budget.now_ms < hold_until_ms

    def _note_unread(self) -> None:
        """Note since when a part of the log is unread that may hold earlier due entries, or that there is none."""
        assert self.plan is not None

        # A clock that is put back must not make the wait longer.
        self._started_ms = min(self._started_ms, self._budget.now_ms)
        if not self._is_rereading and self.plan.is_scanned_through(self._scan_target):
            self._unread_since_ms = None
        elif self._unread_since_ms is None:
            self._unread_since_ms = self._budget.now_ms
        else:
            self._unread_since_ms = min(self._unread_since_ms, self._budget.now_ms)

    def _hold_until_ms(self) -> int | None:
        """Return until when due entries wait for earlier ones that are not read yet; None if all are read."""
        assert self.plan is not None

        wait_ms_max = self._config.order_wait_ms_max if self._config.order_wait_ms_max >= 0 else UNLIMITED
        if self._unread_since_ms is not None:
            return self._unread_since_ms + wait_ms_max
        if self.plan.has_recovering:
            return self._started_ms + min(_RECOVERY_WAIT_MS_MAX, wait_ms_max)
        return None

    def next_wakeup_ms(self) -> int | None:
        """Return when due entries have waited long enough for unread ones."""
        if self.plan is None:
            return None
        self._note_unread()
        hold_until_ms = self._hold_until_ms()
        return hold_until_ms if hold_until_ms is not None and self._budget.now_ms < hold_until_ms < UNLIMITED else None

    def is_drained(self, last_confirmed: Position) -> bool:
        """Return whether everything is read and nothing is held or due."""
        if self.plan is None or self.held_due:
            return False
        is_due = self.tracker_deliver_at_ms is not None and self.tracker_deliver_at_ms <= self._budget.now_ms
        return not is_due and not self.is_holding_due() and self.plan.next_immediate > last_confirmed
