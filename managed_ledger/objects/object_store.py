"""A place of objects: the few calls that checkpoints need, and their form in a folder."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from managed_ledger.rocksdb_store.disk_room import measure_room
from managed_ledger.rocksdb_store.files import sync_folder

_LOCK_FILE: Final = "lock"
_NEW: Final = ".new"
_COPY_BYTES: Final = 1024 * 1024


class ReadObjects(Protocol):
    """Objects by name, to read; see `ObjectStore`."""

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return a small object and its tag, None where there is none."""

    def fetch_file(self, name: str, path: Path) -> bool:
        """Write an object to a file; False where there is none."""


class ObjectStore(ReadObjects, Protocol):
    """Objects by name. Calls block, come from any thread, and have tried patiently when they fail.

    They raise OSError or what the storage's room has for failures; an outcome that a caller may expect is a value. What
    returns is there for good. `str` gives the place, for people.
    """

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write a small object, at once and as a whole, if its tag is this one; with None, if there is none.

        Returns:
            Its new tag; None where the condition does not hold, and nothing has changed.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write an object, at once and as a whole, if there is none of this name.

        Returns:
            Whether the object has these bytes: it was made, by this call or one before; false if it has others.
        """

    def put_file(self, name: str, path: Path) -> None:
        """Write an object whose name nobody else uses."""

    def names(self, prefix: str) -> Iterator[str]:
        """Give the names that begin so."""

    def delete(self, name: str) -> None:
        """Delete an object if it is there."""

    def delete_all(self, names: Sequence[str]) -> None:
        """Delete those of these objects that are there; after a failure some may be deleted."""

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
            target = self._path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f"{target.name}{_NEW}")
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
            sync_folder(target.parent)
        return hashlib.sha256(data).hexdigest()

    def create(self, name: str, data: bytes) -> bool:
        if self.replace(name, data, None) is not None:
            return True
        found = self.read(name)
        return found is not None and found[0] == data

    def put_file(self, name: str, path: Path) -> None:
        target = self._path / name
        target.parent.mkdir(parents=True, exist_ok=True)
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

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def room_bytes(self) -> int | None:
        room = measure_room(self._path)
        # Where the data is on the same disk, the service must go on taking messages.
        return room.free_bytes - 2 * room.margin_bytes

    def close(self) -> None:
        pass


class ObjectsBelow:
    """The objects of a place whose names begin so, under the rest of their names.

    Args:
        objects: The place, which its caller closes.
        folder: The beginning of the names, without the slash at its end.
    """

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects = objects
        self._root = f"{folder}/"

    def __str__(self) -> str:
        return f"{self._objects}/{self._root.rstrip('/')}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        return self._objects.read(self._root + name)

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        return self._objects.replace(self._root + name, data, tag)

    def create(self, name: str, data: bytes) -> bool:
        return self._objects.create(self._root + name, data)

    def put_file(self, name: str, path: Path) -> None:
        self._objects.put_file(self._root + name, path)

    def fetch_file(self, name: str, path: Path) -> bool:
        return self._objects.fetch_file(self._root + name, path)

    def names(self, prefix: str) -> Iterator[str]:
        return (name.removeprefix(self._root) for name in self._objects.names(self._root + prefix))

    def delete(self, name: str) -> None:
        self._objects.delete(self._root + name)

    def delete_all(self, names: Sequence[str]) -> None:
        self._objects.delete_all([self._root + name for name in names])

    def room_bytes(self) -> int | None:
        return self._objects.room_bytes()

    def close(self) -> None:
        pass
