"""An object of the log: the changes of one synced round, or a fence; created once, and never changed.

    log/<number>   "PDL1", epoch, owner, number, kind │ change │ change │ ... │ CRC32C of all before
    change         kind, family, lengths of two parts │ key, value │ key │ first key, key behind the last

Numbers of a log follow each other without a gap. A **fence** has no changes: an owner that takes over creates it behind
the last object that it found, where the owner before would have created its next one.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import google_crc32c

from managed_ledger.disk.database import Batch
from managed_ledger.disk.keys import Family
from managed_ledger.errors import StoreCorruptedError
from managed_ledger.rocksdb_store.store import StoreBatch

LOGS: Final = "log/"
_MAGIC: Final = b"PDL1"
_HEAD: Final = struct.Struct(">4sQ8sQB")
_CHANGE: Final = struct.Struct(">BBII")
_CHECKSUM: Final = struct.Struct(">I")
_FAMILIES: Final = (Family.META, Family.HEADERS, Family.PAYLOADS, Family.CURSORS)
"""The number of a family is its place here."""
_NUMBER_OF: Final = {family: number for number, family in enumerate(_FAMILIES)}
_ROUND, _FENCE = range(2)
_PUT, _DELETE, _DELETE_RANGE = range(3)


def log_name(number: int) -> str:
    """Return the name of an object.

    >>> log_name(12)
    'log/0000000000000012'
    """
    return f"{LOGS}{number:016}"


def log_number(name: str) -> int | None:
    """Return the number in the name of an object, None for another object.

    >>> log_number("log/0000000000000012"), log_number("log/notes")
    (12, None)
    """
    digits = name.removeprefix(LOGS)
    return int(digits) if digits.isdecimal() else None


class LogObject(NamedTuple):
    """What an object says.

    Attributes:
        epoch: That of its owner's claim.
        owner: The owner, a random name of 16 hexadecimal digits.
        number: Its place in the log.
        changes: The changes of a round; None for a fence.
    """

    epoch: int
    owner: str
    number: int
    changes: bytes | None

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        kind = _FENCE if self.changes is None else _ROUND
        head = _HEAD.pack(_MAGIC, self.epoch, bytes.fromhex(self.owner), self.number, kind)
        data = head + (self.changes or b"")
        return data + _CHECKSUM.pack(google_crc32c.value(data))

    @classmethod
    def decode(cls, data: bytes, number: int, place: str) -> "LogObject":
        """Read the bytes of an object.

        Args:
            data: The bytes.
            number: Its place in the log.
            place: Where they are from, for the error.

        Raises:
            StoreCorruptedError: They are not what was written there.
        """
        body = data[: -_CHECKSUM.size]
        if len(body) < _HEAD.size or _CHECKSUM.pack(google_crc32c.value(body)) != data[-_CHECKSUM.size :]:
            raise StoreCorruptedError(f"{log_name(number)} in {place} is damaged: its checksum is another")
        magic, epoch, owner, found, kind = _HEAD.unpack_from(body)
        if magic != _MAGIC or found != number or kind > _FENCE:
            raise StoreCorruptedError(f"{log_name(number)} in {place} is no object of this log")
        return cls(epoch, owner.hex(), number, body[_HEAD.size :] if kind == _ROUND else None)


class ShippedBatch(StoreBatch):
    """Changes for RocksDB that are kept as bytes as well, since RocksDB's batch does not give out its own."""

    __slots__ = ("_parts",)

    def __init__(self, batch: StoreBatch) -> None:
        """Take over an empty batch."""
        self.raw, self._handles = batch.raw, batch._handles
        self._parts: list[bytes] = []

    @property
    def changes(self) -> bytes:
        """The changes, as an object has them."""
        return b"".join(self._parts)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        super().put(family, key, value)
        self._note(_PUT, family, key, value)

    def delete(self, family: str, key: bytes) -> None:
        super().delete(family, key)
        self._note(_DELETE, family, key, b"")

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        super().delete_range(family, start, end)
        self._note(_DELETE_RANGE, family, start, end)

    def _note(self, kind: int, family: str, first: bytes, second: bytes) -> None:
        self._parts += (_CHANGE.pack(kind, _NUMBER_OF[Family(family)], len(first), len(second)), first, second)


def apply_changes(changes: bytes, batch: Batch) -> None:
    """Put the changes of an object into a batch, in order."""
    at = 0
    while at < len(changes):
        kind, family, first_bytes, second_bytes = _CHANGE.unpack_from(changes, at)
        at += _CHANGE.size
        first = changes[at : at + first_bytes]
        at += first_bytes
        second = changes[at : at + second_bytes]
        at += second_bytes
        if kind == _PUT:
            batch.put(_FAMILIES[family], first, second)
        elif kind == _DELETE:
            batch.delete(_FAMILIES[family], first)
        else:
            batch.delete_range(_FAMILIES[family], first, second)


class Replay:
    """Which objects of a log count, and their changes; objects come in the order of their numbers.

    Attributes:
        fences: The numbers of fences so far.
        size_bytes: The bytes of what was applied.
    """

    def __init__(self, apply: Callable[[bytes], None]) -> None:
        self.fences: list[int] = []
        self.size_bytes = 0
        self._apply = apply
        self._epoch_max = 0

    def take(self, found: LogObject) -> None:
        """Apply an object, unless it is a fence, or stands behind one of a later epoch: then nobody had a receipt."""
        if found.changes is None:
            self.fences.append(found.number)
        elif found.epoch >= self._epoch_max:
            self._apply(found.changes)
            self.size_bytes += len(found.changes)
        self._epoch_max = max(self._epoch_max, found.epoch)


def without(numbers: Iterable[int], fences: Iterable[int]) -> list[str]:
    """Return the names of objects that are no fences."""
    kept = set(fences)
    return [log_name(number) for number in numbers if number not in kept]
