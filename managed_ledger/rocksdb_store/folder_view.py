"""A temporary folder that shows the data of another one: how a folder is read without a write to where it is.

Rocksdict and RocksDB write beside the data also to read it: a configuration, a diary. So a reader opens a temporary
folder, with links to tables and logs and copies of the small files that say which of them count.

The copies come first: every file that the list names is there before it is named. A file that goes meanwhile is
missed at opening, and the reader makes another view. A reader that is killed leaves its links to the system, which
cleans up its temporary folder.
"""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

_COPIED: Final = ("CURRENT", "MANIFEST-*", "IDENTITY", "rocksdict-config.json")
_LINKED: Final = ("*.log", "*.sst")


class FolderView:
    """A view of a folder as it is now; `close` removes it.

    Raises:
        OSError: There is no room for it, or the source cannot be read.
    """

    def __init__(self, source: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="postdate-view-"))
        # The view is removed when its owner closes it, or at the latest when the process ends.
        self._removal = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        try:
            self._fill(source.resolve())
        except OSError:
            self.close()
            raise

    def _fill(self, source: Path) -> None:
        # What is no file, such as a pipe, is left out.
        for file in (file for pattern in _COPIED for file in source.glob(pattern) if file.is_file()):
            try:
                shutil.copyfile(file, self.path / file.name)
            except FileNotFoundError:
                # The file went meanwhile; opening the view fails if it was needed.
                (self.path / file.name).unlink(missing_ok=True)
        for file in (file for pattern in _LINKED for file in source.glob(pattern) if file.is_file()):
            (self.path / file.name).symlink_to(file)

    def close(self) -> None:
        """Remove the view; nothing of the source."""
        self._removal()
