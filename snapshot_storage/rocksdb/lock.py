"""One writer for a RocksDB folder of snapshots, from before its files are touched until after it is closed.

RocksDB locks a folder when it opens it. But what is done before that, to keep the logs as they are, must not be done
beside a writer either: logs that it goes on with would be taken for what a crash has left. The system lets the lock go
when the process ends, however it does.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from snapshot_storage.errors import StorageLockedError

_FILE = "WRITER"


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
        descriptor = os.open(path / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise StorageLockedError(str(path)) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Let others write; once."""
        os.close(self._descriptor)
