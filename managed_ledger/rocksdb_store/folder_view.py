"""A temporary folder that shows the data of another one: how a folder is read without a write to where it is.

Rocksdict and RocksDB write beside the data also to read it: a configuration, a diary. So a reader opens a temporary
folder, with links to tables and logs and copies of the small files that say which of them count.

The copies come first: every file that the list names is there before it is named. A file that goes meanwhile is
missed at opening, and the reader makes another view.

A reader keeps its view locked, and the system lets the lock go when the process ends, however it does. So the views of
readers that were killed are found by the next one, which removes them.
"""

import fcntl
import logging
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from managed_ledger.rocksdb_store.files import is_misplaced

logger = logging.getLogger(__name__)

_PREFIX: Final = "postdate-view-"
_OWNER: Final = "OWNER"
"""The file that a reader keeps locked."""
_UNOWNED_S_MAX: Final = 24 * 3_600
"""A view without that file is left of another version, or of a removal that was cut short, if it is as old as this."""
_COPIED = ("CURRENT", "MANIFEST-*", "IDENTITY", "rocksdict-config.json")


class FolderView:
    """A temporary folder; `close` removes it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over a folder that `of` fills, and the lock on it."""
        self.path = path
        # The view is removed when its owner closes it, or at the latest when the process ends.
        self._removal = weakref.finalize(self, _remove, path, descriptor)

    @classmethod
    def of(cls, source: Path) -> Self:
        """Make a view of a folder as it is now, and remove those that killed readers have left.

        Raises:
            OSError: There is no room for it, or the source cannot be read.
        """
        view = cls(*_new_folder())
        try:
            _remove_left(view.path)
            view._fill(source.resolve())
        except OSError:
            view.close()
            raise
        return view

    def _fill(self, source: Path) -> None:
        for pattern in _COPIED:
            for file in source.glob(pattern):
                if not is_misplaced(file):
                    self._copy(file)
        for pattern in ("*.log", "*.sst"):
            for file in source.glob(pattern):
                if not is_misplaced(file):
                    (self.path / file.name).symlink_to(file)

    def _copy(self, file: Path) -> None:
        try:
            shutil.copyfile(file, self.path / file.name)
        except FileNotFoundError:
            # The file went meanwhile; opening the view fails if it was needed.
            (self.path / file.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the view; nothing of the source."""
        self._removal()


def _new_folder() -> tuple[Path, int]:
    """Make a locked folder; another one, if a reader has taken it for one that was left, and removed it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            descriptor = os.open(path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), (path / _OWNER).stat()):
                return path, descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:
            # The file system has no locks, so no reader removes a view that seems to be left.
            return path, descriptor
        os.close(descriptor)


def _remove(path: Path, descriptor: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)


def _remove_left(own: Path) -> None:
    """Remove the views beside one's own whose readers are gone."""
    now_s = own.stat().st_mtime
    removed = 0
    for path in own.parent.glob(f"{_PREFIX}*"):
        # Folders of other users, and those that are removed at this moment, are passed over.
        with suppress(OSError):
            if path == own or path.lstat().st_uid != os.getuid():
                continue
            try:
                descriptor = os.open(path / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                if now_s - path.lstat().st_mtime > _UNOWNED_S_MAX:
                    shutil.rmtree(path)
                    removed += 1
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                removed += 1
            finally:
                os.close(descriptor)
    if removed:
        logger.info("removed %d views of readers that were killed, in %s", removed, own.parent)
