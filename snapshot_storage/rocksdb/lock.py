"""One writer for a RocksDB folder of snapshots, from before its files are touched until after it is closed.

RocksDB locks a folder when it opens it. But a folder that is damaged is renamed when RocksDB has let go of it, and two
writers must not both do so: the second one would put aside what the first one has just begun. The system lets the lock
go when the process ends, however it does.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from snapshot_storage.errors import StorageLockedError

LOCK_FILE = "WRITER"


class WriterLock:
    """The right to write to a folder."""

    def __init__(self, descriptor: int) -> None:
        """Take over what `take` has locked."""
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Self:
        """Lock a folder that exists.

        Raises:
            StorageLockedError: Another process, or another storage of this one, has it.
            OSError: The system refuses.
        """
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise StorageLockedError(str(path)) from error
        except BaseException:
            os.close(descriptor)
            raise
        lock = cls(descriptor)
        if not lock.is_in(path):
            # A writer has put the folder aside meanwhile, and holds the new one in its place.
            os.close(descriptor)
            raise StorageLockedError(str(path))
        return lock

    def is_in(self, path: Path) -> bool:
        """Whether the locked file is the one of this folder: not where the folder was removed, renamed or replaced.

        Raises:
            OSError: The system refuses.
        """
        try:
            return os.path.samestat(os.fstat(self._descriptor), (path / LOCK_FILE).stat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Let others write; once."""
        os.close(self._descriptor)
