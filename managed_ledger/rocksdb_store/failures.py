"""Why a call of rocksdict failed, told apart by its text alone, and how that becomes an error of the caller's room."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rocksdict import DbClosedError

from managed_ledger.rocksdb_store.disk_room import NO_ROOM

_NO_RIGHTS = tuple(map(os.strerror, (errno.EACCES, errno.EPERM, errno.EROFS)))
_LOCKED = ("lock hold by current process", "Resource temporarily unavailable")
_OTHER_LAYOUT = ("does not exist", "comparator", "olumn famil")


class Cause(StrEnum):
    """The kind of a failure."""

    DAMAGED = "bytes that RocksDB did not write"
    FILE_MISSING = "a file that must be there is not"
    OTHER_LAYOUT = "other column families or options than those that are asked for"
    LOCKED = "another process or store has the folder open"
    NO_ROOM = "the disk, a quota or a file is full"
    NO_RIGHTS = "rights are missing"
    CLOSED = "the store is closed"
    REFUSED = "any other refusal of the system"


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed."""

    cause: Cause
    doing: str
    """The operation, such as `read the log`."""
    path: Path
    """The folder that was asked for, not a view of it."""
    text: str
    """The text of rocksdict's or the system's error, or what we found ourselves."""
    is_system: bool
    """Whether the text is the system's, or our own, and not RocksDB's."""
    is_shared: bool
    """Whether another process may change the folder meanwhile, so that a missing file is no damage."""


Errors = Callable[[Failure], Exception]
"""Returns the error of a room for a failure."""


class Translated:
    """Raises a room's error instead of what rocksdict raises in a `with`; other exceptions pass.

    A class: since Python 3.12, an error that a generator of `contextlib` raises for another keeps that one in a cycle,
    with all that its traceback has. A living iterator among it keeps the folder locked.
    """

    __slots__ = ("_doing", "_errors", "_is_shared", "_path")

    def __init__(self, errors: Errors, path: Path, doing: str, *, is_shared: bool = False) -> None:
        self._errors = errors
        self._path = path
        self._doing = doing
        self._is_shared = is_shared

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Exception):
            return
        cause = _cause_of(error)
        if cause is None:
            return
        is_system = isinstance(error, OSError)
        raise self._errors(Failure(cause, self._doing, self._path, str(error), is_system, self._is_shared)) from error


def _cause_of(error: Exception) -> Cause | None:
    text = str(error)
    if isinstance(error, DbClosedError):
        return Cause.CLOSED
    is_system = isinstance(error, OSError)
    # Any other subclass is not rocksdict's.
    if not is_system and type(error) is not Exception:
        return None
    for signs, cause in ((NO_ROOM, Cause.NO_ROOM), (_NO_RIGHTS, Cause.NO_RIGHTS)):
        if any(sign in text for sign in signs):
            return cause
    if is_system:
        return Cause.REFUSED
    if any(sign in text for sign in _LOCKED):
        return Cause.LOCKED
    if "No such file" in text:
        return Cause.FILE_MISSING
    if text.startswith("Corruption"):
        return Cause.DAMAGED
    return Cause.OTHER_LAYOUT if any(sign in text for sign in _OTHER_LAYOUT) else Cause.REFUSED
