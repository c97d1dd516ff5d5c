"""The folder of local tables of a process whose log is on object storage. What is in it can be lost at any time.

    cacheDirectory                  locked by the process while it runs, so what clears temporary files passes it by
    cacheDirectory/PLACE/RANGE      the tables of a bundle of the place with this id

Without the key it is DEFAULT/postdate-UID/N (`default_cache_parent`), with the first number N that no other process
holds: so a process that starts again finds the tables of before, and none that is gone fills the disk.
"""

import fcntl
import os
import re
import shutil
import stat
from itertools import count
from pathlib import Path
from typing import Final

from postdate.broker.configuration.object_storage import default_cache_parent
from postdate.broker.errors import ServiceStartError

_PLACE: Final = re.compile(r"[0-9a-f]{32}")


class CacheFolder:
    """A folder that this process alone uses, until `close`.

    Args:
        path: Where the tables of the place are.
        lock: The open folder whose lock is held.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, directory: Path | None, place_id: str) -> "CacheFolder":
        """Take a folder; tables of other places that are in it are removed.

        Args:
            directory: The folder; None for one of the process's own.
            place_id: The id of the place: 32 hexadecimal digits.

        Raises:
            ServiceStartError: Another process has the folder, or it is not this user's alone.
            OSError: The system refuses.
        """
        assert _PLACE.fullmatch(place_id)
        if directory is None:
            taken, lock = _free_folder()
        else:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = _locked(directory)
            if found is None:
                raise ServiceStartError(f"cacheDirectory={directory} is another process's: name one for each process")
            taken, lock = directory, found
        for other in taken.iterdir():
            if _PLACE.fullmatch(other.name) and other.name != place_id and _has_tables_alone(other):
                shutil.rmtree(other)
        path = taken / place_id
        path.mkdir(mode=0o700, exist_ok=True)
        return cls(path, lock)

    def close(self) -> None:
        """Leave the folder to other processes; the tables stay for the next one."""
        os.close(self._lock)


def _has_tables_alone(folder: Path) -> bool:
    """Whether a folder is one of ours: with one for each bundle, and nothing else."""
    return folder.is_dir() and all(one.name.startswith("0x") and one.is_dir() for one in folder.iterdir())


def _free_folder() -> tuple[Path, int]:
    own = default_cache_parent() / f"postdate-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()
    # Anybody may have made it before: whoever can write into it could change messages.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ServiceStartError(f"{own} is not a folder of this user alone: remove it, or set cacheDirectory")
    for number in count():
        folder = own / str(number)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = _locked(folder)
        if lock is not None:
            return folder, lock
    raise AssertionError("there is a free number")


def _locked(folder: Path) -> int | None:
    """Take the lock of a folder, which the system gives back when the process ends; None if another one has it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock
