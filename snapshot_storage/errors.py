"""The errors that leave this package: one base, and callers branch on `retriable`, never on a text."""

from typing import Any, ClassVar


class SnapshotStorageError(Exception):
    """A snapshot could not be stored, found, read or understood."""

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later, with nothing else changed."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text and the attributes, as `__init__` takes other arguments than the text."""
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[SnapshotStorageError], args: tuple[Any, ...]) -> SnapshotStorageError:
    return kind.__new__(kind, *args)


class BucketNotFoundError(SnapshotStorageError, LookupError):
    """There is no snapshot of this id: it was deleted, or never existed."""

    def __init__(self, bucket_id: int) -> None:
        super().__init__(f"no snapshot has the bucket id {bucket_id}")
        self.bucket_id = bucket_id


class SnapshotUnreadableError(SnapshotStorageError):
    """One snapshot cannot be read, damaged or not: a tool names it and handles the others."""

    _fault: ClassVar[str] = "cannot be read"

    def __init__(self, reason: str, *, bucket_id: int | None = None, entry: int | None = None) -> None:
        place = "snapshot" if bucket_id is None else f"snapshot of bucket {bucket_id}"
        place = place if entry is None else f"entry {entry} of {place}"
        super().__init__(f"{place} {self._fault}: {reason}")
        self.reason = reason
        self.bucket_id = bucket_id
        self.entry = entry


class SnapshotCorruptedError(SnapshotUnreadableError):
    """Bytes were read that no correct writer wrote. Never retried: the bucket is rebuilt from the log."""

    _fault = "is corrupt"


class SnapshotVersionError(SnapshotStorageError):
    """The storage was written by a version whose layout this one does not know."""

    def __init__(self, where: str, *, found: str, supported: str) -> None:
        super().__init__(
            f"{where} has the layout version {found}, and this program reads {supported}: "
            "use the program that wrote it, or move the folder away and let the index be rebuilt from the log"
        )
        self.found = found
        self.supported = supported


class StorageUnavailableError(SnapshotStorageError):
    """The storage did not answer, or its disk refused. The call may or may not have taken effect."""

    retriable = True


class SnapshotUnavailableError(SnapshotUnreadableError, StorageUnavailableError):
    """The storage does not answer for one snapshot, or refuses it, however often it was asked.

    An outage, an archived object, or damage that a server hides: nothing was read, so no tool takes it for damage.
    """

    _fault = "cannot be read now"


class StorageBusyError(StorageUnavailableError):
    """The storage refused for now, before it did anything: the call has taken no effect."""


class StorageAccessError(SnapshotStorageError):
    """The storage cannot be used as it is configured: credentials, rights, a name or a clock are wrong."""


class StorageReadOnlyError(SnapshotStorageError):
    """A write was asked of a storage that was opened to read."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"cannot {operation}: the storage was opened read-only")


class StorageLockedError(SnapshotStorageError):
    """Another process, or another storage of this one, has the folder open."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"{folder} is in use by another process or another open storage: stop the other one, "
            "or set `dataDirectory` to another folder"
        )
        self.folder = folder


class StorageCorruptedError(SnapshotStorageError):
    """The folder as a whole is damaged, so that no snapshot in it can be trusted to be found."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"{folder} is damaged ({reason}): the next start of a service puts it aside, and reads the index again "
            "from the log"
        )
        self.folder = folder
        self.reason = reason


class StorageClosedError(SnapshotStorageError):
    """The storage was used before `start` or after `close`."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"cannot {operation}: the storage is not open")
