"""Where the bundles of a service are: what the service asks of a data folder or a prefix."""

from collections.abc import Callable
from typing import Protocol

from managed_ledger.bundles import BundleRange
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.value_types import Clock
from postdate.broker.service.storage_opening import StorageOpening
from postdate.broker.topics.policies import RecordStore
from snapshot_storage.s3.requests import RequestCounts


class SettingsStore(RecordStore, Protocol):
    """The settings of no topic alone: grants, and policies of namespaces."""

    @property
    def problem(self) -> str | None:
        """Why they may be older than what other processes have stored; None while all is well."""

    async def change_record(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Store what `change` makes of a record as it is now, None for no record; durable on return."""

    async def look(self) -> bool:
        """Look whether another process has changed them; returns whether they have since the last look."""


class DataPlace(Protocol):
    """A data folder or a prefix; belongs to one event loop."""

    @property
    def ranges(self) -> tuple[BundleRange, ...]:
        """The bundles, in order."""

    async def open_log(
        self, bundle: BundleRange, config: ManagedLedgerConfig, now_ms: Clock, on_lost: Callable[[], None]
    ) -> LedgerStore:
        """Open the log of a bundle, or create it.

        Args:
            bundle: The bundle.
            config: Limits.
            now_ms: The clock.
            on_lost: Called once, on the event loop, when another process has taken the log.

        Raises:
            LedgerError: It cannot be opened now, or another process has it.
        """

    def snapshots(self, bundle: BundleRange) -> StorageOpening:
        """Return the storage of a bundle's index, and what opens it, which is not begun.

        Raises:
            SnapshotStorageError: It needs what is not there, such as a library.
        """

    async def shared_settings(self) -> SettingsStore:
        """Return the settings that all bundles share.

        Raises:
            LedgerError: They cannot be read.
        """

    async def warm(self, bundle: BundleRange) -> None:
        """Bring what an opening of a bundle would have to read near."""

    def give_up(self, bundle: BundleRange) -> None:
        """Fail all writes to an open log from now on, also one under way: another process may have it already."""

    def request_counts(self) -> RequestCounts | None:
        """Return what was asked of object storage for logs, members and settings; None where that is not used."""

    async def close(self) -> None:
        """Let go of what is not of one bundle."""
