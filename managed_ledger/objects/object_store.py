"""A place of objects: the few calls that checkpoints need, and their form in a folder."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from managed_ledger.rocksdb_store.disk_room import measure_room
from managed_ledger.rocksdb_store.files import sync_folder

_LOCK_FILE: Final = "lock"
_NEW: Final = ".new"
_COPY_BYTES: Final = 1024 * 1024


class ObjectStore(Protocol):
    """Objects by name. Calls block, come from any thread, and have tried patiently when they fail.

    They raise OSError or what the storage's room has for failures; an outcome that a caller may expect is a value. What
    returns is there for good. `str` gives the place, for people.
    """

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return a small object and its tag, None where there is none."""

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write a small object, at once and as a whole, if its tag is this one; with None, if there is none.

        Returns:
            Its new tag; None where the condition does not hold, and nothing has changed.
        """

    def put_file(self, name: str, path: Path) -> None:
        """Write an object whose name nobody else uses."""

    def fetch_file(self, name: str, path: Path) -> bool:
        """Write an object to a file; False where there is none."""

    def names(self, prefix: str) -> Iterator[str]:
        """Give the names that begin so."""

    def delete(self, name: str) -> None:
        """Delete an object if it is there."""

    def room_bytes(self) -> int | None:
        """Return how much may be written; None where the place knows no bound. There is an object already."""

    def close(self) -> None:
        """Close the connections."""


class FolderObjects:
    """Objects that are files of a folder; the folder is made with its first object, the one above it must be there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def read(self, name: str) -> tuple[bytes, str] | None:
        try:
            data = (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        return data, hashlib.sha256(data).hexdigest()

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        self._path.mkdir(mode=0o700, exist_ok=True)
        # The system lets go of the lock when the file is closed, also where the process is killed.
        with (self._path / _LOCK_FILE).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self.read(name)
            if (None if found is None else found[1]) != tag:
                return None
            beside = self._path / f"{name}{_NEW}"
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path / name)
            sync_folder(self._path)
        return hashlib.sha256(data).hexdigest()

    def put_file(self, name: str, path: Path) -> None:
        target = self._path / name
        target.parent.mkdir(exist_ok=True)
        # Opened once: a backup that began later may delete this table at any moment.
        with path.open("rb") as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(target.parent)

    def fetch_file(self, name: str, path: Path) -> bool:
        try:
            shutil.copyfile(self._path / name, path)
        except FileNotFoundError:
            return False
        return True

    def names(self, prefix: str) -> Iterator[str]:
        for folder, _, files in os.walk(self._path):
            found = ((Path(folder) / file).relative_to(self._path).as_posix() for file in files)
            yield from (one for one in found if one.startswith(prefix) and one != _LOCK_FILE and not one.endswith(_NEW))

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self._path / name).unlink()

    def room_bytes(self) -> int | None:
        room = measure_room(self._path)
        # Where the data is on the same disk, the service must go on taking messages.
        return room.free_bytes - 2 * room.margin_bytes

    def close(self) -> None:
        pass
