"""The next reads and the entries that become ready: the log, the tracker, and the order between the two.

Delayed entries of the future go to the tracker. Those that were due when they were read are *held* in columns and
admitted in order of time together with what the tracker has available. The tracker is asked while some consumer can
take an entry, as its rest comes after all that it gave. A held entry can be due before what waits already, so it is
admitted while entries wait, too. No due entry is admitted while a part of the log is unread that may hold earlier
entries (`_is_holding_due`): the part that the scan after a start has not come by, and the part that the tracker has
lost with a snapshot. So entries that fell due during an outage come out in order of time. That wait is bounded: by
`DispatcherConfig.order_wait_ms_max`, for a range still in recovery by `_RECOVERY_WAIT_MS_MAX` too, and for held rows
by their number.

The tracker gives a position at the time that the index has. An entry that is not due by its header is not delivered
then: it goes back to the tracker, at the header's time (`index_times`). One that is due by now, and has an earlier time
in the index than in its header, is held until the tracker has given what is due before it.

Whether an entry is acknowledged is asked in one place, `_deliverable_now`: when an entry is taken in, and when a held
one is admitted. From then on an acknowledgement finds the entry where it waits (`queues/waiting.py`), or at its
consumer.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher.config import DispatcherConfig
from dispatcher.core.acknowledgements.acknowledged import NOTHING_ACKNOWLEDGED, Acknowledgements
from dispatcher.core.actions import Action, TrackDelayed
from dispatcher.core.consumers import UNLIMITED
from dispatcher.core.index_times import in_log, is_future
from dispatcher.core.items import Key
from dispatcher.core.queues.held_headers import HeldHeaders
from dispatcher.core.queues.waiting import WaitingEntries
from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest, is_at_or_behind
from dispatcher.core.subscription_core import SubscriptionCore
from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders
from managed_ledger.position import AFTER_EVERYTHING, Position
from managed_ledger.value_types import Int64Array, Mask
from snapshot_storage.encoding.columns import DelayedIndexes, order_of_rows
from tracker.columns.positions import ledger_bitmaps
from tracker.columns.row_order import NEVER, RowKey, first_key_at, key_of

_RECOVERY_WAIT_MS_MAX: Final = 1_000
"""How long due entries wait for the index of other ledgers after a start. Recovery takes tens of milliseconds; being on
time comes before order across a ledger that takes longer."""

_NONE: Final = EntryHeaders.empty()


class Intake(SubscriptionCore):
    """Reads for many consumers, as far ahead as they need.

    Args:
        config: Limits and intervals.
        has_delays: Whether delayed entries go to a tracker.
        cursor: The acknowledgements.
    """

    __slots__ = (
        "_last_confirmed",
        "_mark_deleted_through",
        "_scan_target",
        "_started_ms",
        "_unread_since_ms",
        "config",
        "delays_through",
        "has_delays",
        "held_due",
        "is_rereading",
        "tracker_deliver_at_ms",
        "waiting",
    )

    def __init__(
        self,
        config: DispatcherConfig,
        *,
        has_delays: bool,
        cursor: Acknowledgements = NOTHING_ACKNOWLEDGED,
    ) -> None:
        super().__init__(cursor)
        self.config = config
        self.has_delays = has_delays
        self.waiting = WaitingEntries(config.return_entries_max)
        self.held_due = HeldHeaders()
        self.tracker_deliver_at_ms: int | None = None
        """When the first message was due that the tracker has or is loading; the shell keeps it up to date."""
        self._mark_deleted_through: Key = (-1, -1)
        self._last_confirmed = Position(-1, -1)
        self._scan_target = Position(-1, -1)
        self._started_ms = 0
        self._unread_since_ms: int | None = None
        """Since when a part of the log is unread that may hold earlier due entries; None where none is."""
        self.is_rereading = False
        """Whether entries that the tracker lost are still to be read again; the shell keeps it up to date."""
        self.delays_through = AFTER_EVERYTHING
        """The last entry of which the delivery time is heeded when it is scanned; those behind it are due."""

    @property
    def is_by_position(self) -> bool:
        """Whether entries are delivered in the order of their positions, not of their times."""
        return False

    @abstractmethod
    def _has_demand(self) -> bool:
        """Return whether some consumer can take an entry now."""

    @abstractmethod
    def _make_ready(self, headers: EntryHeaders, orders_ms: NDArray[np.int64]) -> list[Action]:
        """Give entries to consumers or let them wait; they come in order."""

    def start(self, first: Position, last_confirmed: Position) -> None:
        assert self.plan is None

        # A seek may have moved the cursor back.
        self._mark_deleted_through = (-1, -1)
        self.plan = ReadPlan.start(first, last_confirmed, has_delays=self.has_delays)
        self._scan_target = self._last_confirmed = last_confirmed
        self._started_ms = self._unread_since_ms = self.now_ms

    def next_read(self, last_confirmed: Position) -> ReadRequest | None:
        if self.plan is None:
            return None
        self._last_confirmed = last_confirmed
        immediates_max = 0
        if self._has_demand() and not self._has_surplus_held():
            immediates_max = min(self.room(), self.config.read_batch_entries_max)
        scan_entries_max = self.config.scan_entries_max if len(self.held_due) < self.config.held_entries_max else 0
        return self.plan.next_request(last_confirmed, immediates_max=immediates_max, scan_entries_max=scan_entries_max)

    def on_headers(
        self,
        request: ReadRequest,
        headers: EntryHeaders,
        next_position: Position,
        left_out: Sequence[LogPart] = (),
    ) -> list[Action]:
        assert self.plan is not None

        self.entries_read_total += len(headers)
        headers = self._deliverable_now(headers)
        actions: list[Action] = []
        if self.has_delays:
            is_delayed = headers.deliver_at_ms != NOT_DELAYED
            if is_delayed.any():
                if request.is_scan:
                    actions = self._take_delayed(headers, is_delayed)
                headers = headers.where(~is_delayed)
        self.plan.put_aside(request, left_out)
        room = self.room() if request.takes_immediate and not self._has_surplus_held() else 0
        first_not_taken = None
        if request.takes_immediate or request.is_at_frontier:
            before = len(headers)
            if left_out:
                first = left_out[0].first
                before -= int(np.count_nonzero(is_at_or_behind(headers.ledger_ids, headers.entry_ids, first)))
            if left_out and before <= room:
                # The immediate entries of the part that was left out come first.
                room, first_not_taken = before, first
            elif len(headers) > room:
                first_not_taken = Position(int(headers.ledger_ids[room]), int(headers.entry_ids[room]))
        immediate = headers.take(slice(0, room)) if len(headers) > room else headers
        self.plan.complete(request, next_position=next_position, first_not_taken=first_not_taken)

        orders_ms = np.minimum(immediate.publish_time_ms, self.now_ms)
        if len(immediate):
            # A slot's immediate entries keep the order of the log although clocks of producers differ.
            orders_ms[0] = max(int(orders_ms[0]), self.plan.order_floor_ms)
            np.maximum.accumulate(orders_ms, out=orders_ms)
            self.plan.order_floor_ms = int(orders_ms[-1])
        return actions + self._admit(immediate, orders_ms, self._take_held(others=len(immediate)))

    def _take_delayed(self, headers: EntryHeaders, is_delayed: NDArray[np.bool_]) -> list[Action]:
        ledger_ids, entry_ids, target = headers.ledger_ids, headers.entry_ids, self._scan_target
        was_there = (ledger_ids < target.ledger_id) | (
            (ledger_ids == target.ledger_id) & (entry_ids <= target.entry_id)
        )
        self.delayed_reread_at_recovery_total += int(np.count_nonzero(is_delayed & was_there))
        is_later = is_future(headers, now_ms=self.now_ms, delays_through=self.delays_through)
        held = headers.where(is_delayed & ~is_later)
        if self.delays_through != AFTER_EVERYTHING:
            # An entry of which the time is not heeded is due since it was read.
            held = replace(held, deliver_at_ms=np.minimum(held.deliver_at_ms, self.now_ms))
        self.held_due.add(held)
        return [TrackDelayed(headers.where(is_later))] if is_later.any() else []

    def _admit(self, immediate: EntryHeaders, orders_ms: NDArray[np.int64], held: EntryHeaders) -> list[Action]:
        """Make immediate entries ready, and those that were held, in one order."""
        headers = immediate
        if len(held):
            for ledger_id, entry_ids in ledger_bitmaps(held.ledger_ids, held.entry_ids):
                self.unsent_delayed.setdefault(ledger_id, BitMap()).update(entry_ids)
            if self.is_by_position:
                keys = zip(held.ledger_ids.tolist(), held.entry_ids.tolist(), strict=True)
                self.unsent_deliver_at_ms.update(zip(keys, held.deliver_at_ms.tolist(), strict=True))
            headers = EntryHeaders.concatenate([immediate, held])
            orders_ms = np.concatenate([orders_ms, held.deliver_at_ms])
            order = order_of_rows(orders_ms, headers.ledger_ids, headers.entry_ids)
            if order is not None:
                headers, orders_ms = headers.take(order), orders_ms[order]
        return self._make_ready(headers, orders_ms) if len(headers) else []

    def _note_mark_deleted(self, through: Key) -> None:
        """Forget held entries up to a position, and take in nothing more from there: a read may be under way."""
        self._mark_deleted_through = max(self._mark_deleted_through, through)
        self.held_due.discard_through(through)
        for ledger_id in [passed for passed in self.unsent_delayed if passed < through[0]]:
            del self.unsent_delayed[ledger_id]
        for position in [passed for passed in self.unsent_deliver_at_ms if passed <= through]:
            del self.unsent_deliver_at_ms[position]

    def _deliverable_now(self, headers: EntryHeaders) -> EntryHeaders:
        """Leave out entries that no consumer may get: acknowledged, passed by mark-delete, or put aside."""
        ledger_id, entry_id = self._mark_deleted_through
        if len(headers) and headers.ledger_ids.min() <= ledger_id:
            is_behind = (headers.ledger_ids == ledger_id) & (headers.entry_ids > entry_id)
            headers = headers.where((headers.ledger_ids > ledger_id) | is_behind)
        return self._deliverable(headers)

    # Due entries.

    def due_entries_wanted(self) -> int:
        """Return how many entries can be taken from the tracker now."""
        if self.plan is None or not self._has_demand() or self._is_holding_due():
            return 0
        return min(self.due_room(), self.config.read_batch_entries_max, self.config.admit_entries_max)

    def on_popped(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Note that entries left the tracker; their headers follow."""
        if self.plan is not None:
            self.plan.note_taken(ledger_ids, entry_ids)

    def on_untracked(self, headers: EntryHeaders) -> list[Action]:
        """Take in entries that the tracker has lost: those that are delayed, scanned and held by no consumer."""
        assert self.plan is not None

        headers = self._deliverable_now(headers)
        is_lost = (headers.deliver_at_ms != NOT_DELAYED) & self.plan.has_taken(headers.ledger_ids, headers.entry_ids)
        headers = headers.where(is_lost)
        return [TrackDelayed(headers.where(~self._are_here(headers)))]

    def _are_here(self, headers: EntryHeaders) -> Mask:
        """Return which entries are held, wait, or were given to a consumer."""
        positions = list(zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True))
        in_hand = self._in_hand(set(positions))
        return np.array([at in in_hand or at in self.held_due for at in positions], dtype=np.bool_)

    @abstractmethod
    def _in_hand(self, positions: set[Key]) -> set[Key]:
        """Return which of these entries wait or were given to a consumer."""

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
            is_in_log = in_log(rows, headers)
            missing, rows = rows.take(~is_in_log), rows.take(is_in_log)
            if self.plan is not None:
                self.plan.scan_after_all(missing.ledger_ids, missing.entry_ids)
        if may_repeat:
            is_new = ~self._are_here(headers)
            headers, rows = headers.where(is_new), rows.take(is_new)
        self.index_mistimed_total += int(np.count_nonzero(headers.deliver_at_ms != rows.deliver_at_ms))
        is_early = is_future(headers, now_ms=self.now_ms + lead_ms, delays_through=self.delays_through)
        if not is_early.any():
            return self._admit_due(headers, given_through)
        early = self._deliverable_now(headers.where(is_early))
        return [TrackDelayed(early), *self._admit_due(headers.where(~is_early), given_through)]

    def _admit_due(self, headers: EntryHeaders, given_through: RowKey) -> list[Action]:
        headers = self._deliverable_now(headers)
        is_next = not self.held_due and (headers.deliver_at_ms <= given_through.deliver_at_ms).all()
        if is_next or not len(headers):
            return self._admit(_NONE, _NONE.publish_time_ms, headers)
        # Held entries that were due before the last row of these go first. Entries that are too many for one turn are
        # held, and those of which the index has an earlier time than the log: the tracker may give others before them.
        self.held_due.add(headers)
        held = self.held_due.take(self.config.admit_entries_max, given_through)
        return self._admit(_NONE, _NONE.publish_time_ms, self._deliverable_now(held))

    @property
    def held_count(self) -> int:
        """How many entries are held and still need a delivery."""
        return self.held_due.count_without(self._cursor.acknowledged_in)

    def on_refused(self, headers: EntryHeaders) -> list[Action]:
        """Take in entries that the tracker refused because they are due."""
        self.held_due.add(headers)
        return self.admit_held()

    def admit_held(self) -> list[Action]:
        """Admit entries that were due when they were read, up to the tracker's first, as many as one turn takes."""
        return self._admit(_NONE, _NONE.publish_time_ms, self._take_held(others=0))

    def _take_held(self, *, others: int) -> EntryHeaders:
        """Take held entries that may be admitted, with room beside others."""
        if not self._may_admit_held():
            return _NONE
        entries_max = min(max(0, self.due_room() - others), self.config.admit_entries_max)
        return self._deliverable_now(self.held_due.take(entries_max, self._admitted_through()))

    def _has_surplus_held(self) -> bool:
        """Return whether more held entries may be admitted than one turn takes; immediate ones wait for these."""
        if len(self.held_due) <= self.config.admit_entries_max or not self._may_admit_held() or not self.due_room():
            return False
        return self.held_due.count_through(self._admitted_through()) > self.config.admit_entries_max

    def has_held_to_admit(self) -> bool:
        """Return whether `admit_held` has something to admit."""
        first_ms = self.held_due.first_deliver_at_ms
        tracker_ms = self.tracker_deliver_at_ms
        is_next = first_ms is not None and (tracker_ms is None or first_ms < tracker_ms)
        return is_next and self._may_admit_held() and self.due_room() > 0

    def _may_admit_held(self) -> bool:
        # Waiting entries are served before all others as soon as a consumer can take one, so an earlier entry must be
        # among them by then. While nothing waits, no entry is overtaken, and columns take less memory than objects.
        is_wanted = len(self.waiting) > 0 or self._has_demand()
        return bool(self.held_due) and is_wanted and not self._is_holding_due()

    def _admitted_through(self) -> RowKey:
        """Return the key up to which held entries may be admitted: the tracker gives those behind it in their order."""
        return first_key_at(NEVER if self.tracker_deliver_at_ms is None else self.tracker_deliver_at_ms)

    def _is_holding_due(self) -> bool:
        assert self.plan is not None

        self._note_unread()
        if len(self.held_due) >= self.config.held_entries_max:
            return False
        hold_until_ms = self._hold_until_ms()
        return hold_until_ms is not None and self.now_ms < hold_until_ms

    def _note_unread(self) -> None:
        """Note since when a part of the log is unread that may hold earlier due entries, or that there is none."""
        assert self.plan is not None

        # A clock that is put back must not make the wait longer.
        self._started_ms = min(self._started_ms, self.now_ms)
        if not self.is_rereading and self.plan.is_scanned_through(self._scan_target):
            self._unread_since_ms = None
        elif self._unread_since_ms is None:
            self._unread_since_ms = self.now_ms
        else:
            self._unread_since_ms = min(self._unread_since_ms, self.now_ms)

    def _hold_until_ms(self) -> int | None:
        """Return until when due entries wait for earlier ones that are not read yet; None if all are read."""
        assert self.plan is not None

        wait_ms_max = self.config.order_wait_ms_max if self.config.order_wait_ms_max >= 0 else UNLIMITED
        if self._unread_since_ms is not None:
            return self._unread_since_ms + wait_ms_max
        if self.plan.has_recovering:
            return self._started_ms + min(_RECOVERY_WAIT_MS_MAX, wait_ms_max)
        return None

    def next_wakeup_ms(self) -> int | None:
        if self.plan is None:
            return None
        self._note_unread()
        hold_until_ms = self._hold_until_ms()
        return hold_until_ms if hold_until_ms is not None and self.now_ms < hold_until_ms < UNLIMITED else None

    # Room.

    def look_ahead_limit(self) -> int:
        """Return Pulsar's limit: how many entries may wait as objects."""
        per_consumer = self.config.look_ahead_per_consumer
        per_subscription = self.config.look_ahead_per_subscription
        limit = per_consumer * max(1, len(self.consumers)) if per_consumer else per_subscription
        if per_subscription:
            limit = min(limit, per_subscription)
        if limit:
            return limit
        unacked_limits = (
            self.config.unacked_per_subscription_max,
            self.config.unacked_per_consumer_max * len(self.consumers),
        )
        return min((unacked for unacked in unacked_limits if unacked), default=UNLIMITED)

    def waiting_max(self) -> int:
        """Return how many entries may wait, as objects and parked."""
        return self.look_ahead_limit()

    def room(self) -> int:
        """Return how many entries may be read ahead."""
        return max(0, self.waiting_max() - len(self.waiting))

    def due_room(self) -> int:
        """Return how many due entries may be taken in."""
        # The limit counts twice, so that immediate entries that wait for one consumer do not make due ones late.
        return max(0, self.waiting_max() + self.look_ahead_limit() - len(self.waiting))
