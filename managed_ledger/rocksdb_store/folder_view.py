"""A temporary folder that shows the data of another one: how a folder is read without a write to where it is.

Rocksdict and RocksDB write beside the data also to read it: a configuration, a diary. So a reader opens a temporary
folder, with links to tables and logs and copies of the small files that say which of them count.

The copies come first: every file that the list names is there before it is named. A file that goes meanwhile is
missed at opening, and the reader makes another view.
"""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Self

_COPIED = ("CURRENT", "MANIFEST-*", "IDENTITY", "rocksdict-config.json")


class FolderView:
    """A temporary folder; `close` removes it."""

    def __init__(self, path: Path) -> None:
        """Take over a folder that `of` fills."""
        self.path = path
        # At the latest when the process ends, if the owner does not close it.
        self._removal = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)

    @classmethod
    def of(cls, source: Path) -> Self:
        """Make a view of a folder as it is now.

        Raises:
            OSError: There is no room for it, or the source cannot be read.
        """
        view = cls(Path(tempfile.mkdtemp(prefix="postdate-view-")))
        try:
            view._fill(source.resolve())
        except OSError:
            view.close()
            raise
        return view

    def _fill(self, source: Path) -> None:
        for pattern in _COPIED:
            for file in source.glob(pattern):
                self._copy(file)
        for pattern in ("*.log", "*.sst"):
            for file in source.glob(pattern):
                (self.path / file.name).symlink_to(file)

    def _copy(self, file: Path) -> None:
        try:
            shutil.copyfile(file, self.path / file.name)
        except FileNotFoundError:
            # It went meanwhile; opening misses it if it counts.
            (self.path / file.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the view; nothing of the source."""
        self._removal()
