"""The interface of a core to its shell, for each subscription type.

The shell reads, waits and sends; a core decides. Every method is synchronous and returns the actions that follow, in
order. Time comes in by `advance`, before anything else is asked. A core never fails for what a client does: an
acknowledgement of something unknown or a redelivery of something that is not pending changes nothing.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from pyroaring import BitMap

from dispatcher.config import DispatcherConfig
from dispatcher.core.acknowledgements.ack_sets import AckSet
from dispatcher.core.acknowledgements.deliverable import Acknowledgements, DeliverableEntries
from dispatcher.core.actions import Action
from dispatcher.core.budget import Budget
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.gate import DeliveryGate
from dispatcher.core.intake import Intake
from dispatcher.core.items import COUNT, Item, Key
from dispatcher.core.key_shared import KeySharedAssignor
from dispatcher.core.read_plan import LogPart, ReadPlan, ReadRequest, ReadTotals
from dispatcher.core.selectors.assignment import NO_OWNER
from dispatcher.stats import EntryStatus
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position


class SubscriptionCore(ABC):
    """The decisions of one subscription.

    The attributes are for the shell to read. It changes a core by the methods alone.
    """

    is_shared: ClassVar[bool]
    """Whether consumers share the entries, so that each is acknowledged and redelivered by itself."""

    consumers: dict[int, ConsumerState]
    """By index, in the order in which they came."""
    redelivery_counts: Counter[Key]
    """How often entries were redelivered that were so at all."""
    ack_sets: dict[Key, AckSet]
    """The unacknowledged messages of batches of which a part was acknowledged."""
    deliverable: DeliverableEntries
    gate: DeliveryGate
    totals: ReadTotals

    # Parts that a core may lack.
    intake: Intake | None = None
    """Takes in what is read and what is due, for many consumers; the shell tells it about the tracker."""
    keys: KeySharedAssignor | None = None
    """Assigns keys to consumers, in Key_Shared."""
    budget: Budget | None = None
    """Limits what consumers hold, where each entry is acknowledged by itself."""
    active: ConsumerState | None = None
    """The consumer that gets everything, in Exclusive and Failover."""

    def __init__(self, config: DispatcherConfig, cursor: Acknowledgements) -> None:
        self.config = config
        self.now_ms = 0
        self.consumers = {}
        self.redelivery_counts = Counter()
        self.ack_sets = {}
        self.deliverable = DeliverableEntries(cursor)
        self.gate = DeliveryGate()
        self.totals = ReadTotals()

    @property
    @abstractmethod
    def plan(self) -> ReadPlan | None:
        """The reads to come; None asks for `start`."""

    def advance(self, now_ms: int) -> None:
        """Note what time it is."""
        self.now_ms = now_ms

    @abstractmethod
    def check(self) -> None:
        """Assert every invariant, O(n); for tests."""

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
        self.deliverable.put_aside(entries)
        return []

    # Time, and what was sent.

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
        return []

    def keeps_order(self, slot: int) -> bool:
        """Whether the entries of a slot are to be sent in order: none before an earlier one that cannot be read now."""
        del slot
        return True

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
        consumer.refund(items)

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

    @abstractmethod
    def are_pending(self, consumer: ConsumerState, positions: Sequence[Key]) -> list[bool]:
        """Return which entries that were given to the consumer are still its own to be sent."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything but the consumers and their permits; `start` must follow."""

    # Questions of operators.

    @property
    def waiting_count(self) -> int:
        """How many entries were read and wait, for a consumer or for their turn by time."""
        return 0

    @property
    def has_entries_at_hand(self) -> bool:
        """Whether there may be entries that it has read and that are not acknowledged, beside those of the tracker."""
        return True

    @abstractmethod
    def entry_status(self, position: Position, sticky_hash: int) -> EntryStatus:
        """Return where an entry is that is not acknowledged."""
