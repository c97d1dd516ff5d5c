"""The interface between the dispatcher and a connected consumer.

The broker's connection object implements `ConsumerHandle`. The dispatcher never looks inside it; it uses these
members on its event loop, and identifies consumers by object identity, since names and ids may repeat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


class KeySharedMode(Enum):
    """How Key_Shared consumers get their hashes."""

    AUTO_SPLIT = "AUTO_SPLIT"
    STICKY = "STICKY"


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """The mode and the ranges that a Key_Shared consumer asks for when it subscribes; an Exclusive one may name ranges.

    Args:
        mode: Whether the broker assigns hashes or the consumer names them.
        allow_out_of_order_delivery: Move hashes at once, without draining.
        ranges: Inclusive ranges of slots, for `STICKY` and Exclusive only.
    """

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    allow_out_of_order_delivery: bool = False
    ranges: tuple[tuple[int, int], ...] = ()


class Delivery(NamedTuple):
    """One entry on its way to a consumer."""

    ledger_id: int
    entry_id: int
    redelivery_count: int
    payload: bytes
    ack_set: tuple[int, ...]
    """Words of 64 bits, lowest first, bit 1 for a message still to be acknowledged; empty when none of them is."""


class ConsumerHandle(Protocol):
    """A connected consumer, as far as the dispatcher needs it."""

    @property
    def consumer_id(self) -> int:
        """The id that the client gave it; unique within a connection only."""

    @property
    def name(self) -> str:
        """The consumer's name, which may repeat."""

    @property
    def priority_level(self) -> int:
        """0 is served first."""

    @property
    def key_shared_policy(self) -> KeySharedPolicy:
        """The policy it subscribed with; read for Key_Shared, and of Exclusive the ranges."""

    @property
    def is_writable(self) -> bool:
        """Whether its connection takes more bytes now. `Dispatcher.consumer_writable` tells when that changes."""

    def begin_read(self, size: int) -> None:
        """Note that so many bytes are being read for it; its connection counts them before it takes more.

        Several consumers may have one connection, and what each of them reads arrives together.
        """

    def end_read(self, size: int) -> None:
        """Note that these were written, or will not be; follows each `begin_read`."""

    def send_messages(self, deliveries: Sequence[Delivery]) -> None:
        """Write the deliveries to the connection, in this order. Must not raise for a connection that is gone."""

    def active_consumer_changed(self, is_active: bool) -> None:
        """Tell a Failover consumer whether it is the active one."""
