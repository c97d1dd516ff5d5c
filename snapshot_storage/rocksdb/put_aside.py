"""Folders of snapshots that were put aside because they are damaged: their names, their sizes, and their removal.

A folder is put aside by a rename, `snapshots` to `snapshots-put-aside-<time>`. No program reads it any more: its index
was read from the log again. It is kept as evidence of the disk's fault, until an operator removes it. A file or a link
that stands where the folder should be is put aside in the same way.
"""

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_MARK = "-put-aside-"


@dataclass(frozen=True, slots=True, order=True)
class PutAside:
    """A folder that was put aside."""

    path: Path
    size_bytes: int
    """Of its files, as far as they can be looked at."""


def put_aside(path: Path) -> Path:
    """Rename what is at the place of a folder, so that an empty one can take its place, and return the new name.

    Raises:
        OSError: The system refuses.
    """
    aside = path.with_name(f"{path.name}{_MARK}{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}")
    if path.is_dir():
        return path.rename(aside)
    # No folder is renamed onto a file. So the second of two programs does not take what the first has made here.
    aside.touch(exist_ok=False)
    try:
        return path.rename(aside)
    except OSError:
        aside.unlink()
        raise


def put_aside_folders(path: Path) -> list[PutAside]:
    """Return the folders that were put aside from a place, the oldest first; blocks while it looks at each file.

    Raises:
        OSError: The folder above cannot be read.
    """
    if not path.parent.exists():
        return []
    names = [one.name for one in os.scandir(path.parent) if one.name.startswith(f"{path.name}{_MARK}")]
    return sorted(_measured(path.with_name(name)) for name in names)


def remove_put_aside(folder: PutAside) -> None:
    """Delete a folder that was put aside.

    Raises:
        OSError: The system refuses; a part of it may be gone.
    """
    assert _MARK in folder.path.name

    if folder.path.is_dir() and not folder.path.is_symlink():
        shutil.rmtree(folder.path)
    else:
        folder.path.unlink()


def _measured(path: Path) -> PutAside:
    if path.is_symlink() or not path.is_dir():
        return PutAside(path, path.lstat().st_size)
    size_bytes = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                size_bytes += (Path(folder) / file).lstat().st_size
            except OSError:
                # The file is being removed, or the disk fails: only files that can be seen count.
                continue
    return PutAside(path, size_bytes)
