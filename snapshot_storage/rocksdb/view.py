"""A folder of one's own that shows another one's data: how snapshots are read without a write to where they are.

Rocksdict and RocksDB write beside the data also to read it: a configuration, a diary. So a reader opens a temporary
folder, with links to tables and logs and copies of the small files that say which of them count. It is also a place to
repair what is damaged, for the eyes of this reader alone: then logs are copies too, and tables are never changed.

The copies come first: whatever the list of files names then, is there before it is named. A file that goes meanwhile is
missed at opening, and the reader makes another view.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Self

_COPIED = ("CURRENT", "MANIFEST-*", "IDENTITY", "rocksdict-config.json")


class FolderView:
    """A temporary folder; `close` removes it."""

    def __init__(self, path: Path, folder: tempfile.TemporaryDirectory[str]) -> None:
        """Take over a folder that `of` fills."""
        self.path = path
        self._folder = folder

    @classmethod
    def of(cls, source: Path, *, copies_logs: bool) -> Self:
        """Make a view of a folder as it is now.

        Raises:
            OSError: There is no room for it, or the source cannot be read.
        """
        folder = tempfile.TemporaryDirectory(prefix="postdate-snapshots-", ignore_cleanup_errors=True)
        view = cls(Path(folder.name), folder)
        try:
            view._fill(source.resolve(), copies_logs=copies_logs)
        except OSError:
            view.close()
            raise
        return view

    def _fill(self, source: Path, *, copies_logs: bool) -> None:
        for pattern in _COPIED:
            for file in source.glob(pattern):
                self._copy(file)
        for file in source.glob("*.log"):
            if copies_logs:
                self._copy(file)
            else:
                self._link(file)
        for file in source.glob("*.sst"):
            self._link(file)

    def _copy(self, file: Path) -> None:
        try:
            shutil.copyfile(file, self.path / file.name)
        except FileNotFoundError:
            # It went meanwhile; opening misses it if it counts.
            (self.path / file.name).unlink(missing_ok=True)

    def _link(self, file: Path) -> None:
        (self.path / file.name).symlink_to(file)

    def close(self) -> None:
        """Remove the view; nothing of the source."""
        self._folder.cleanup()
