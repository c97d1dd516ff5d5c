"""To which consumer a ready entry goes, and in what order those go that must wait: the part in which the types differ.

    entries that are ready ──► given at once, or ──► ReplayQueue ──► offered by slot ──► given when their consumer can
                                                                                         take them

`shared.py` and `key_shared.py` are the two ways. The core tells an assignor what may let something go, and asks it to
serve the consumers; it gives within the `Budget`. Left out: what consumers hold (`multiple_consumers.py`).
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dispatcher.config import DispatcherConfig
from dispatcher.core.actions import Action
from dispatcher.core.budget import Budget
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.items import Item, Key
from dispatcher.core.queues.replay_queue import ReplayQueue
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array


class Way(NamedTuple):
    """The way of an entry to its consumer, for operators."""

    owner: ConsumerState | None = None
    """The consumer that would get it; None where any may get it, or none can."""
    slot: int | None = None
    draining_at: str | None = None
    """The consumer that still holds entries of its slot although the slot moved away."""
    reason: str = ""
    """The reason why its owner may not get it now; empty if it may."""


class ConsumerAssignor(ABC):
    """Assigns entries to consumers.

    Args:
        config: Limits and intervals.
        budget: What each consumer can take.
        replay_queue: What waits.
    """

    __slots__ = ("budget", "config", "consumers", "replay_queue", "to_serve")

    def __init__(self, config: DispatcherConfig, budget: Budget, replay_queue: ReplayQueue) -> None:
        self.config = config
        self.budget = budget
        self.consumers = budget.consumers
        """All that are registered, by index, in the order in which they came."""
        self.replay_queue = replay_queue
        self.to_serve: OrderedDict[int, ConsumerState] = OrderedDict()
        """Consumers that may have something to send that they could not send before; the first has waited longest."""

    def advance(self, now_ms: int) -> None:
        """Take the time."""
        del now_ms

    @abstractmethod
    def make_ready(self, headers: EntryHeaders, orders_ms: Int64Array) -> list[Action]:
        """Give entries to consumers or let them wait; they come in order."""

    @abstractmethod
    def offer(self, slot: int) -> None:
        """Let the head of a slot be considered."""

    def offer_all(self, slots: Iterable[int]) -> None:
        """Let the heads of many slots be considered."""
        for slot in slots:
            self.offer(slot)

    @abstractmethod
    def serve_all(self) -> list[Action]:
        """Give consumers the entries that wait for them, within their permits and limits."""

    def wake(self, consumer: ConsumerState) -> None:
        """Let a consumer be served that could take nothing before."""
        self.to_serve[consumer.index] = consumer

    def wake_all(self) -> None:
        """Let every consumer be served."""
        self.to_serve.update(self.consumers)

    def keeps_order(self, slot: int) -> bool:
        """Whether the entries of a slot are to be sent in order: none before an earlier one that cannot be read now."""
        del slot
        return True

    @property
    def is_by_position(self) -> bool:
        """Whether entries are delivered in the order of their positions, not of their times."""
        return False

    # Consumers.

    @abstractmethod
    def add_consumer(self, consumer: ConsumerState, read_position: Position | None) -> bool:
        """Register a consumer, or raise `ConsumerBusyError` or `ConsumerAssignError` and change nothing.

        Args:
            consumer: The consumer that comes.
            read_position: Everything before it was read.

        Returns:
            Whether waiting entries have to be read anew, as they have no slots of now.
        """

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerState) -> list[int]:
        """Let a consumer go; return slots that are to be offered when what it held waits again."""

    # What may let a slot go on.

    def no_longer_pending(self, consumer: ConsumerState, counts: Mapping[int, int]) -> None:
        """Note that a consumer holds so many entries of each slot less."""

    def taken_back(self, positions: Collection[Key]) -> None:
        """Note that entries which were given wait again."""

    def acknowledged(self, positions: Sequence[Key]) -> None:
        """Note entries that are wholly acknowledged, or put aside."""

    def mark_deleted(self, through: Key) -> None:
        """Note that everything up to a position was expired or skipped."""

    def next_wakeup_ms(self) -> int | None:
        """Return when `on_timer` wants to be called."""
        return None

    def on_timer(self) -> None:
        """Let go what has waited for its time."""

    def clear(self) -> None:
        """Forget everything but the consumers."""
        self.to_serve.clear()

    def check(self) -> None:
        """Assert every invariant, O(n); for tests."""

    # Questions of operators.

    @abstractmethod
    def way_of(self, item: Item | None, sticky_hash: int) -> Way:
        """Return the way of an entry; `item` where it waits."""
