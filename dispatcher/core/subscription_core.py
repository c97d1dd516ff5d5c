"""The interface of a core to its shell, for each subscription type.

The shell reads, waits and sends; a core decides. Every method is synchronous and returns the actions that follow, in
order. Time comes in by `advance`, before anything else is asked. A core never fails for what a client does: an
acknowledgement of something unknown or a redelivery of something that is not pending changes nothing.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher.core.acknowledgements.ack_sets import AckSet
from dispatcher.core.acknowledgements.acknowledged import NOTHING_ACKNOWLEDGED, Acknowledgements, not_acknowledged
from dispatcher.core.actions import Action
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.gate import DeliveryGate
from dispatcher.core.items import COUNT, ENTRY, LEDGER, ORDER, Item, Key, position_of
from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest
from dispatcher.core.selectors.assignment import NO_OWNER
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.position import Position
from managed_ledger.value_types import Int64Array
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import is_in


class SubscriptionCore(ABC):
    """The decisions of one subscription.

    Slots, here and in the classes between: Python keeps more than 30 attributes of an object in 1.5 KB.
    """

    is_shared: ClassVar[bool]
    """Whether consumers share the entries, so that each is acknowledged and redelivered by itself."""

    __slots__ = (
        "_cursor",
        "_damaged",
        "ack_sets",
        "consumers",
        "delayed_reread_at_recovery_total",
        "entries_read_total",
        "gate",
        "index_mistimed_total",
        "now_ms",
        "plan",
        "redelivery_counts",
        "unsent_delayed",
        "unsent_deliver_at_ms",
    )

    def __init__(self, cursor: Acknowledgements = NOTHING_ACKNOWLEDGED) -> None:
        self._cursor = cursor
        self._damaged: dict[int, BitMap] = {}
        """Entries that were put aside, by ledger; some may be acknowledged meanwhile."""
        self.consumers: dict[int, ConsumerState] = {}
        """By index, in the order in which they came."""
        self.plan: ReadPlan | None = None
        """The reads to come; None asks for `start`."""
        self.redelivery_counts: Counter[Key] = Counter()
        """How often entries were redelivered that were so at all."""
        self.ack_sets: dict[Key, AckSet] = {}
        """The unacknowledged messages of batches of which a part was acknowledged."""
        self.gate = DeliveryGate()
        """Lets messages pass, or holds them during a pause."""
        self.unsent_delayed: dict[int, BitMap] = {}
        """Delayed entries that came due and were not sent yet, by ledger."""
        self.unsent_deliver_at_ms: dict[Key, int] = {}
        """Their delivery times, where order is by position and their items have none."""
        self.entries_read_total = 0
        self.delayed_reread_at_recovery_total = 0
        self.index_mistimed_total = 0
        """Entries that the tracker gave at another time than that of their headers."""
        self.now_ms = 0

    def advance(self, now_ms: int) -> None:
        """Note what time it is."""
        self.now_ms = now_ms

    def check(self) -> None:
        """Assert every invariant, O(n); for tests."""
        assert self.now_ms >= 0

    # Reading.

    @abstractmethod
    def start(self, first: Position, last_confirmed: Position) -> None:
        """Plan to read from `first` on. `last_confirmed` is where the log ends now."""

    @abstractmethod
    def next_read(self, last_confirmed: Position) -> ReadRequest | None:
        """Return the next read of the log, or None when none is wanted."""

    @abstractmethod
    def on_headers(
        self,
        request: ReadRequest,
        headers: EntryHeaders,
        next_position: Position,
        left_out: Sequence[LogPart] = (),
    ) -> list[Action]:
        """Take the result of a read.

        Args:
            request: The read.
            headers: The headers that it gave.
            next_position: Where the log goes on.
            left_out: The parts, in order, that a scan left out, as it is unknown what the tracker has of them.
        """

    # Damage.

    def put_aside(self, entries: Mapping[int, BitMap]) -> list[Action]:
        """Give entries to no consumer: the log is damaged where they are. They stay unacknowledged, and out of the way.

        That ends with their acknowledgement, and with `reset`, after which they are read, and found out, again.
        """
        for ledger_id, entry_ids in entries.items():
            self._damaged[ledger_id] = self._damaged.get(ledger_id, BitMap()) | entry_ids
        return []

    def damaged_in(self, ledger_id: int) -> BitMap:
        """Return the entries of a ledger that are put aside and not acknowledged."""
        known = self._damaged.get(ledger_id)
        if known is None:
            return BitMap()
        left = known - self._cursor.acknowledged_in(ledger_id)
        # Of a ledger that was trimmed the cursor knows only that all of it is acknowledged.
        if not left or self._cursor.is_acknowledged(ledger_id, left[0]):
            del self._damaged[ledger_id]
            return BitMap()
        return left

    def damaged(self) -> dict[int, BitMap]:
        """Return all entries that are put aside and not acknowledged, by ledger."""
        found = {ledger_id: self.damaged_in(ledger_id) for ledger_id in sorted(self._damaged)}
        return {ledger_id: entry_ids for ledger_id, entry_ids in found.items() if entry_ids}

    def are_damaged(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> NDArray[np.bool_] | None:
        """Return which of these entries are put aside; None where none is."""
        if not self._damaged:
            return None
        return is_in(self.damaged_in, ledger_ids, entry_ids)

    def _deliverable(self, headers: EntryHeaders) -> EntryHeaders:
        """Leave out entries that are acknowledged, and those that are put aside."""
        headers = not_acknowledged(headers, self._cursor)
        are_damaged = self.are_damaged(headers.ledger_ids, headers.entry_ids)
        return headers if are_damaged is None else headers.where(~are_damaged)

    def next_wakeup_ms(self) -> int | None:
        """Return when `on_timer` wants to be called."""
        return None

    def on_timer(self) -> list[Action]:
        """Do the work whose time has come."""
        return []

    def sent(self, consumer: ConsumerState, items: Sequence[Item], payload_bytes: int) -> list[int]:
        """Note what was written to a consumer's connection.

        Returns:
            How late those of them are that were delayed and are sent for the first time, in milliseconds.
        """
        consumer.note_sent(sum([item[COUNT] for item in items]), payload_bytes)
        if not self.unsent_delayed:
            return []
        now_ms, known = self.now_ms, self.unsent_deliver_at_ms
        by_ledger: defaultdict[int, list[Item]] = defaultdict(list)
        for item in items:
            by_ledger[item[LEDGER]].append(item)
        late_ms: list[int] = []
        for ledger_id in [ledger_id for ledger_id in by_ledger if ledger_id in self.unsent_delayed]:
            unsent = self.unsent_delayed[ledger_id]
            sent = unsent & BitMap([item[ENTRY] for item in by_ledger[ledger_id]])
            unsent -= sent
            if not unsent:
                del self.unsent_delayed[ledger_id]
            late_ms += [
                now_ms - (item[ORDER] or known.pop(position_of(item), now_ms))
                for item in by_ledger[ledger_id]
                if item[ENTRY] in sent
            ]
        return late_ms

    def keeps_order(self, slot: int) -> bool:
        """Whether the entries of a slot are to be sent in order: none before an earlier one that cannot be read now."""
        del slot
        return True

    # Delays: where nothing is delayed, as here, the shell has no tracker, and only heeding them can be asked for.

    def delays_heeded(self, through: Position) -> None:
        """From now on delivery times are heeded up to a position; entries behind it are due when they are scanned."""
        del through

    def tracker_told(self, deliver_at_ms: int | None) -> None:
        """The first message that the tracker has or is loading was due then; None where it has none."""
        del deliver_at_ms

    def lost_rows_told(self, *, are_left: bool) -> None:
        """Whether entries that the tracker lost are still to be read again: they may be due before others."""
        del are_left

    def recovered(self, is_recovering: Callable[[int], bool]) -> None:
        """The tracker may have recovered ledgers; `is_recovering` tells which it has not."""
        if self.plan is not None:
            self.plan.note_recovered(is_recovering)

    @property
    def has_held(self) -> bool:
        """Whether entries that are due are held until it is their turn by time."""
        return False

    def has_held_to_admit(self) -> bool:
        """Return whether `admit_held` has something to admit."""
        return False

    def admit_held(self) -> list[Action]:
        """Admit entries that were due when they were read, up to the tracker's first, as many as one turn takes."""
        return []

    def due_entries_wanted(self) -> int:
        """Return how many entries can be taken from the tracker now."""
        return 0

    def on_popped(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> None:
        """Note that entries left the tracker; their headers follow."""
        raise NotImplementedError

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
        raise NotImplementedError

    def on_untracked(self, headers: EntryHeaders) -> list[Action]:
        """Take in entries that the tracker has lost: those that are delayed, scanned and held by no consumer."""
        raise NotImplementedError

    def on_refused(self, headers: EntryHeaders) -> list[Action]:
        """Take in entries that the tracker refused because they are due."""
        raise NotImplementedError

    # Pause and resume.

    def use_gate(self, gate: DeliveryGate) -> None:
        """Let messages pass by this gate from now on."""
        self.gate = gate

    def close_gate(self) -> None:
        """Let nothing pass until `open_gate`."""
        self.gate.close()

    def open_gate(self, rate_per_second: float | None) -> list[Action]:
        """Let everything pass that waits, or so many messages a second."""
        self.gate.open(self.now_ms, rate_per_second)
        return []

    @abstractmethod
    def is_drained(self, last_confirmed: Position) -> bool:
        """Return whether no due entry could go to a consumer, and some consumer has permits."""

    # Consumers.

    @abstractmethod
    def add_consumer(self, consumer: ConsumerState) -> list[Action]:
        """Register a consumer, or raise `ConsumerBusyError` or `ConsumerAssignError` and change nothing."""

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerState) -> list[Action]:
        """Let a consumer go; its entries wait again. That counts as no redelivery, as in Pulsar 4.2."""

    def owner_of_hash(self, sticky_hash: int) -> int:
        """Return the index of the consumer that gets a key's messages, `NO_OWNER` where none or any of several does."""
        del sticky_hash
        return NO_OWNER

    def flow(self, consumer: ConsumerState, permits: int) -> list[Action]:
        """Give a consumer permits for this many more messages."""
        consumer.note_flow(permits, self.now_ms)
        return []

    def refund(self, consumer: ConsumerState, items: Sequence[Item]) -> None:
        """Give permits back for entries that were given to a consumer and not sent; `on_timer` may then be due."""
        consumer.permits += sum(item[COUNT] for item in items)

    # Acknowledgements.

    @abstractmethod
    def acknowledge(
        self, consumer: ConsumerState | None, positions: Sequence[Key], ack_sets: Mapping[Key, AckSet]
    ) -> tuple[list[Key], list[Action]]:
        """Take acknowledgements; return the positions that are now wholly acknowledged.

        Args:
            consumer: The consumer that acknowledges; None for one that has left.
            positions: Entries; those that other consumers hold count as well.
            ack_sets: For batches of which only a part is meant.
        """

    @abstractmethod
    def redeliver(
        self, consumer: ConsumerState, positions: Collection[Key] | None, unsent: Collection[Key]
    ) -> list[Action]:
        """Put entries that the consumer holds back, all for None; others are ignored."""

    @abstractmethod
    def mark_deleted(self, through: Position) -> list[Action]:
        """Forget everything up to a position that was expired or skipped."""

    def withdraw(self, positions: Sequence[Key]) -> list[Action]:
        """Give out no entries that the cursor withholds from now on; it has them as acknowledged already."""
        return self.acknowledge(None, positions, {})[1]

    @property
    def watches_mark_delete(self) -> bool:
        """Whether `note_unacknowledged_from` is of interest."""
        return False

    def note_unacknowledged_from(self, position: Position) -> list[Action]:
        """Note that everything before a position is acknowledged in the cursor."""
        del position
        return []

    @abstractmethod
    def are_pending(self, consumer: ConsumerState, positions: Sequence[Key]) -> list[bool]:
        """Return which entries that were given to the consumer are still its own to be sent."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything but the consumers and their permits; `start` must follow."""
