"""The interface of a dispatcher to the log and its cursor; `managed_ledger` fits, and so do the fakes of the tests."""

from collections.abc import Callable, Sequence
from typing import Protocol

from pyroaring import BitMap

from dispatcher.core.acknowledgements.deliverable import Acknowledgements
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.ledgers import LedgerInfo
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array
from managed_ledger.reading.selection import HeadersRead
from tracker.delayed_delivery_tracker import TrackedCursor


class Log(Protocol):
    """The managed ledger, as far as it is read here."""

    @property
    def last_confirmed_position(self) -> Position:
        """The last durable entry."""

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers, in order."""

    async def read_headers(
        self,
        first: Position,
        *,
        entries_max: int,
        skip: Callable[[int], BitMap | None] | None = None,
        through: Position | None = None,
    ) -> HeadersRead:
        """Headers from `first` on, without skipped ones."""

    async def read_headers_at(self, ledger_ids: Int64Array, entry_ids: Int64Array) -> EntryHeaders:
        """Headers of these positions, in this order, without trimmed ones."""

    async def read_payloads(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> list[bytes | None]:
        """Payloads of these positions, in this order, None for trimmed ones."""

    def add_listener(self, on_committed: Callable[[], None]) -> None:
        """Be called after entries became durable."""

    def remove_listener(self, on_committed: Callable[[], None]) -> None:
        """Be called no more."""


class SubscriptionCursor(TrackedCursor, Acknowledgements, Protocol):
    """The cursor of the subscription."""

    @property
    def name(self) -> str:
        """The subscription's name."""

    def acknowledge(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> int:
        """Acknowledge positions."""

    def acknowledge_cumulative(self, position: Position) -> int:
        """Acknowledge everything up to a position."""

    async def seek(self, position: Position) -> None:
        """Make `position` the next one to read."""
