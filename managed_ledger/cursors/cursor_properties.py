"""The properties of all cursors in a log's folder, for tools that know no topic and deliver nothing.

They are read beside a service that has the folder open, or read and changed while none has. Positions that a
cursor has acknowledged are not read.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from managed_ledger.cursors.cursor_records import encode_properties
from managed_ledger.disk import keys
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.errors import NameNotFoundError, StoreCorruptedError, StoreUnavailableError
from managed_ledger.names import subscription_of

_WRITE_BUFFER_BYTES = 2**20


class CursorName(NamedTuple):
    """A cursor of a managed ledger: a subscription of a topic."""

    topic: str
    cursor: str

    @property
    def subscription(self) -> str:
        """The name that clients use."""
        return subscription_of(self.cursor)

    def __str__(self) -> str:
        return f"{self.subscription} of {self.topic}"


class CursorPropertiesFolder:
    """A log's folder, of which only the properties of cursors are of interest; a context manager."""

    def __init__(
        self,
        path: Path,
        *,
        is_read_only: bool,
        open_read_only: Callable[[Path], RocksDatabase] = RocksDatabase.open_read_only,
        opened: ReopeningDatabase | None = None,
    ) -> None:
        """Open the folder, which must exist.

        Args:
            path: The folder of the log.
            is_read_only: Read the durable properties, also beside a service. Otherwise, no service can open it
                meanwhile.
            open_read_only: Opens the folder to read.
            opened: The log in it, where it is open to be changed already; it is closed with this.

        Raises:
            StoreLockedError: It is in use, and is to be changed.
            StoreUnavailableError: There is no log, or it cannot be read.
            LedgerError: It is damaged, or of another version.
        """
        self._path = path
        self._open_read_only = open_read_only
        self._database: RocksDatabase | ReopeningDatabase
        self._read_only: RocksDatabase | None = None
        if opened is not None:
            assert not is_read_only
            self._database = opened
            return
        # Also before opening to write, which would make a log where there is none.
        read_only = open_read_only(path)
        if is_read_only:
            self._database = self._read_only = read_only
        else:
            read_only.release()
            self._database = RocksDatabase.open(path, write_buffer_bytes=_WRITE_BUFFER_BYTES)

    @property
    def database(self) -> RocksDatabase | ReopeningDatabase:
        """The open folder, for callers that look at more than properties."""
        return self._database

    def read(self) -> dict[CursorName, dict[str, str]]:
        """Return the properties of every cursor, also of those that have none.

        Raises:
            StoreCorruptedError: They are not readable.
            StoreUnavailableError: The disk refuses, or the folder changes all the time.
        """
        try:
            return self._read()
        except StoreUnavailableError:
            if self._read_only is None:
                raise
            # The service has compacted away the files that were open here: open the present ones.
            self._read_only.release()
            self._database = self._read_only = self._open_read_only(self._path)
            return self._read()

    def _read(self) -> dict[CursorName, dict[str, str]]:
        try:
            return {name: self._read_one(cursor_id) for name, cursor_id in self._cursor_ids().items()}
        except ValueError as error:
            raise StoreCorruptedError(
                f"The properties of a cursor in {self._path} make no sense ({error}). Restore the folder from a copy"
            ) from error

    def put(self, changed: Mapping[CursorName, Mapping[str, str]]) -> None:
        """Replace the properties of some cursors: of all of them, durably, or of none.

        Raises:
            NameNotFoundError: There is no such cursor.
            LedgerError: They could not be written.
        """
        assert self._read_only is None
        ids = self._cursor_ids()
        batch = self._database.new_batch()
        for name, properties in changed.items():
            if name not in ids:
                raise NameNotFoundError(f"The log in {self._path} has no cursor {name}")
            batch.put(Family.CURSORS, _properties_key(ids[name]), encode_properties(properties))
        self._database.write(batch, sync=True)

    def close(self) -> None:
        """Let go of the folder."""
        if self._read_only is not None:
            self._read_only.release()
        else:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topics(self) -> set[str]:
        """All topics, also those without a cursor."""
        return set(self._owners().values())

    def _owners(self) -> dict[int, str]:
        return {
            int.from_bytes(owner_id, "little"): key[1:].decode()
            for key, owner_id in self._database.scan(Family.META, *keys.prefix_range(b"m"))
        }

    def _cursor_ids(self) -> dict[CursorName, int]:
        names = self._owners()
        return {
            CursorName(names[owner_id], key[9:].decode()): int.from_bytes(cursor_id, "little")
            for key, cursor_id in self._database.scan(Family.META, *keys.prefix_range(b"c"))
            # The cursors of a managed ledger that was deleted go with it.
            if (owner_id := int.from_bytes(key[1:9])) in names
        }

    def _read_one(self, cursor_id: int) -> dict[str, str]:
        stored = self._database.get(Family.CURSORS, _properties_key(cursor_id))
        properties = {} if stored is None else json.loads(stored)
        if not isinstance(properties, dict):
            raise ValueError(f"{stored!r} is no object")
        return {str(key): str(value) for key, value in properties.items()}


def _properties_key(cursor_id: int) -> bytes:
    return keys.cursor_state_key(cursor_id, keys.CURSOR_PROPERTIES)
