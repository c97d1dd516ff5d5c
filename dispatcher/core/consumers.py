"""One consumer's flow inside the core: permits, unacknowledged messages, pending entries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatcher.consumer import KeySharedPolicy
from dispatcher.core.acknowledgements.pending_acks import PendingAcksMap
from dispatcher.core.items import COUNT, Item

UNLIMITED = 2**62

AUTO_SPLIT = KeySharedPolicy()

_OLD_SHARE: Final = 0.9
"""How much of an average stays when something new comes to it; Pulsar's."""


@dataclass(slots=True, eq=False)
class ConsumerState:
    """A registered consumer; told apart by identity and by `index`, which is never used again."""

    index: int
    name: str
    priority_level: int = 0
    policy: KeySharedPolicy = AUTO_SPLIT

    permits: int = 0
    """Messages it has asked for. A batch is never split, so this can go below zero. Of a batch of which a part is
    acknowledged the whole counts: a client asks again for what it skips, too (PIP-491; Pulsar lets permits drift)."""
    unacked: int = 0
    """Messages that it holds and has not acknowledged; at least one per pending entry."""
    is_blocked: bool = False
    """It holds too many messages; served again at half of the limit."""
    pending: PendingAcksMap = field(default_factory=PendingAcksMap)
    heads: list[Item] = field(default_factory=list)
    """Heap of the heads of its slots that may be sent. Some are out of date: compare with the slot's head."""

    messages_out: int = 0
    """Messages that were written to its connection, like `bytes_out`; an entry may be given and never written."""
    bytes_out: int = 0
    messages_acked: int = 0
    messages_redelivered: int = 0
    messages_per_entry: float = 0.0
    """Of what it was given, the latest counting most, as Pulsar averages it."""
    first_flow_ms: int = 0
    last_flow_ms: int = 0
    first_sent_ms: int = 0
    last_sent_ms: int = 0
    last_acked_ms: int = 0

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges it asked for."""
        return self.policy.ranges

    def budget(self, unacked_max: int) -> int:
        """Return how many messages it can take now; at most 0 when none."""
        if self.is_blocked:
            return 0
        return min(self.permits, unacked_max - self.unacked) if unacked_max else self.permits

    def charge(self, messages: int, unacked_max: int) -> None:
        """Note that it holds this many messages more; `unacked_max` is the most it may hold, 0 for any number."""
        self.unacked += messages
        if unacked_max and self.unacked >= unacked_max:
            self.is_blocked = True

    def note_given(self, messages: int, entries: int, now_ms: int) -> None:
        """Note that it was given this many messages in so many entries; they take its permits."""
        self.permits -= messages
        average = messages / entries
        before = self.messages_per_entry
        self.messages_per_entry = _OLD_SHARE * before + (1 - _OLD_SHARE) * average if before else average
        self.first_sent_ms = self.first_sent_ms or now_ms
        self.last_sent_ms = now_ms

    def note_sent(self, messages: int, payload_bytes: int) -> None:
        """Note that this many messages were written to its connection."""
        self.messages_out += messages
        self.bytes_out += payload_bytes

    def note_flow(self, permits: int, now_ms: int) -> None:
        """Note that it asked for this many messages more."""
        self.permits += permits
        self.first_flow_ms = self.first_flow_ms or now_ms
        self.last_flow_ms = now_ms

    def refund(self, items: Sequence[Item]) -> None:
        """Give permits back for entries that were given to it and not sent."""
        self.permits += sum(item[COUNT] for item in items)

    def let_go_of_everything(self) -> None:
        """Note that it holds nothing any more; its permits stay."""
        self.pending.take_all()
        self.heads.clear()
        self.unacked = 0
        self.is_blocked = False

    def release(self, messages: int, unacked_max: int) -> None:
        """Note that it holds this many messages less."""
        self.unacked -= messages
        assert self.unacked >= 0
        if self.is_blocked and self.unacked <= unacked_max // 2:
            self.is_blocked = False
