"""A place of objects in memory, and ways to it that go wrong by a seed: late, lost and doubled requests and answers."""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class MemoryObjects:
    """Objects of a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests = 0
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "memory"

    def read(self, name: str) -> tuple[bytes, str] | None:
        with self._lock:
            self.requests += 1
            data = self.objects.get(name)
        return None if data is None else (data, hashlib.sha256(data).hexdigest())

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        found = self.read(name)
        with self._lock:
            if (None if found is None else found[1]) != tag or self.objects.get(name) != (found and found[0]):
                return None
            self.objects[name] = data
        return hashlib.sha256(data).hexdigest()

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            self.requests += 1
            return self.objects.setdefault(name, data) == data

    def put_file(self, name: str, path: Path) -> None:
        with self._lock:
            self.objects[name] = path.read_bytes()

    def fetch_file(self, name: str, path: Path) -> bool:
        found = self.read(name)
        if found is not None:
            path.write_bytes(found[0])
        return found is not None

    def names(self, prefix: str) -> Iterator[str]:
        return iter([name for name in sorted(self.objects) if name.startswith(prefix)])

    def delete(self, name: str) -> None:
        self.delete_all([name])

    def delete_all(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self.objects.pop(name, None)

    def room_bytes(self) -> None:
        return None

    def close(self) -> None:
        pass


class FaultyObjects:
    """One owner's way to a place, on which requests are refused, carried out without an answer, late, or twice.

    Args:
        objects: The place.
        chance: Decides.
        rate: How often a request goes wrong.
        meanwhile: Called before requests of the thread that made this: others do something.
    """

    def __init__(
        self, objects: MemoryObjects, chance: random.Random, rate: float, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        self.rate = rate
        self._objects = objects
        self._chance = chance
        self._meanwhile = meanwhile
        self._thread = threading.current_thread()
        self.late: list[Callable[[], object]] = []
        """Requests that will land at some time."""

    def __str__(self) -> str:
        return str(self._objects)

    def read(self, name: str) -> tuple[bytes, str] | None:
        return self._asked(lambda: self._objects.read(name))

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        return self._asked(lambda: self._objects.replace(name, data, tag))

    def create(self, name: str, data: bytes) -> bool:
        return self._asked(lambda: self._objects.create(name, data))

    def put_file(self, name: str, path: Path) -> None:
        self._asked(lambda: self._objects.put_file(name, path), is_late=False)

    def fetch_file(self, name: str, path: Path) -> bool:
        return self._asked(lambda: self._objects.fetch_file(name, path), is_late=False)

    def names(self, prefix: str) -> Iterator[str]:
        return self._objects.names(prefix)

    def delete(self, name: str) -> None:
        self.delete_all([name])

    def delete_all(self, names: Sequence[str]) -> None:
        """Delete each by itself: some now, some later."""
        for name in names:
            self._asked(lambda name=name: self._objects.delete(name))

    def room_bytes(self) -> None:
        return None

    def close(self) -> None:
        pass

    def _asked(self, request: Callable[[], T], *, is_late: bool = True) -> T:
        if threading.current_thread() is self._thread:
            self._meanwhile()
        if self.late and self._chance.random() < 0.3:
            self.late.pop(self._chance.randrange(len(self.late)))()
        if self._chance.random() >= self.rate:
            return request()
        match self._chance.randrange(4 if is_late else 2):
            case 0:
                pass
            case 1:
                request()
            case 2:
                self.late.append(request)
            case _:
                # It lands twice, and is answered once.
                self.late.append(request)
                return request()
        raise TimeoutError("the storage does not answer")
