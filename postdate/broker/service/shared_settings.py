"""The settings that all bundles share: grants, and policies of namespaces.

    one bundle  records of its log, as ever
    several     the object `settings.json` beside the bundles, which any process may replace, and looks at each second

A change is made to what is stored at that moment: of two at once both count, and of two whole values the later one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from managed_ledger.errors import LedgerWriteError, StoreCorruptedError, StoreUnavailableError, StoreVersionError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.object_store import ObjectStore
from managed_ledger.objects.shared_records import SHARED_RECORDS, decode_records, encode_records
from snapshot_storage.errors import SnapshotStorageError

logger = logging.getLogger(__name__)

_STORAGE_ERRORS: Final = (OSError, SnapshotStorageError)


class RecordsOfOneLog:
    """The settings of a place with one bundle, which are records of its log; empty before that is opened first."""

    problem = None

    def __init__(self) -> None:
        self._store: LedgerStore | None = None

    def use(self, store: LedgerStore) -> None:
        """Use the records of a log that was opened."""
        self._store = store

    @property
    def records(self) -> Mapping[str, bytes]:
        """All records, by name."""
        return {} if self._store is None else self._store.records

    async def put_record(self, name: str, value: bytes | None) -> None:
        """Store a record, or remove it; durable on return.

        Raises:
            LedgerError: It is not durable, or the bundle is not open now; the record is as before.
        """
        assert self._store is not None
        await self._store.put_record(name, value)

    async def change_record(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Store what `change` makes of a record as it is now, None for no record; who calls has one change at a time.

        Raises:
            LedgerError: It is not durable, or the bundle is not open now; the record is as before.
        """
        await self.put_record(name, change(self.records.get(name)))

    async def look(self) -> bool:
        """No other process has the log open."""
        return False


class SharedSettings:
    """The settings of a place with several bundles; `open` reads them.

    Args:
        objects: Where the object is.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._records: dict[str, bytes] = {}
        self._tag: str | None = None
        self._lock = asyncio.Lock()
        self._has_news = False
        """Whether a read has found what another process has changed, which no look has told yet."""
        self.problem: str | None = None
        """Why they may be older than what other processes have stored; None while all is well."""

    @classmethod
    async def open(cls, objects: ObjectStore) -> "SharedSettings":
        """Read the settings.

        Raises:
            StoreUnavailableError: They cannot be read now.
            StoreVersionError: They are of another format.
            StoreCorruptedError: They make no sense.
        """
        settings = cls(objects)
        try:
            await settings._read()
        except _STORAGE_ERRORS as error:
            raise StoreUnavailableError(f"{SHARED_RECORDS} of {objects} cannot be read: {error}") from error
        settings._has_news = False
        return settings

    @property
    def records(self) -> Mapping[str, bytes]:
        """All records, by name, as this process has last seen them."""
        return MappingProxyType(self._records)

    async def look(self) -> bool:
        """Look whether another process has changed them since the last look. A failure is in `problem`."""
        try:
            async with self._lock:
                await self._read()
        except (*_STORAGE_ERRORS, StoreCorruptedError, StoreVersionError) as error:
            problem = f"grants and policies of namespaces may be old: {error}"
            if self.problem is None:
                logger.warning("%s", problem)
            self.problem = problem
            return False
        self.problem = None
        has_news, self._has_news = self._has_news, False
        return has_news

    async def put_record(self, name: str, value: bytes | None) -> None:
        """Store a record, or remove it; durable on return.

        Raises:
            LedgerWriteError: It is not durable; it is not changed here.
        """
        await self.change_record(name, lambda _: value)

    async def change_record(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Store what `change` makes of a record as it is stored now, None for no record; durable on return.

        Raises:
            LedgerWriteError: It is not durable; it is not changed here.
        """
        try:
            async with self._lock:
                while True:
                    await self._read()
                    value = change(self._records.get(name))
                    changed = {other: kept for other, kept in self._records.items() if other != name}
                    if value is not None:
                        changed[name] = value
                    tag = await asyncio.to_thread(
                        self._objects.replace, SHARED_RECORDS, encode_records(changed), self._tag
                    )
                    if tag is not None:
                        self._records, self._tag = changed, tag
                        return
        except (*_STORAGE_ERRORS, StoreCorruptedError, StoreVersionError) as error:
            raise LedgerWriteError(f"{SHARED_RECORDS} of {self._objects} cannot be changed: {error}") from error

    async def _read(self) -> None:
        found = await asyncio.to_thread(self._objects.read, SHARED_RECORDS)
        if found is not None and found[1] == self._tag:
            return
        before = self._records
        if found is None:
            self._records, self._tag = {}, None
        else:
            self._records, self._tag = decode_records(found[0], f"{SHARED_RECORDS} of {self._objects}"), found[1]
        self._has_news |= self._records != before
