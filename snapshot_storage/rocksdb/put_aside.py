"""Folders of snapshots that were put aside because they are damaged: their names, their sizes, and their removal.

A folder is put aside by a rename, `snapshots` to `snapshots-put-aside-<time>`. No program reads it any more: its index
was read from the log again. It is kept as evidence of the disk's fault, until an operator removes it.
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


def new_place(path: Path) -> Path:
    """Return the name under which a folder is put aside now."""
    return path.with_name(f"{path.name}{_MARK}{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}")


def put_aside_folders(path: Path) -> list[PutAside]:
    """Return the folders that were put aside from a place, the oldest first; blocks while it looks at each file.

    Raises:
        OSError: The folder above cannot be read.
    """
    if not path.parent.exists():
        return []
    names = [one.name for one in os.scandir(path.parent) if one.is_dir(follow_symlinks=False)]
    return sorted(_measured(path.with_name(name)) for name in names if name.startswith(f"{path.name}{_MARK}"))


def remove_put_aside(folder: PutAside) -> None:
    """Delete a folder that was put aside.

    Raises:
        OSError: The system refuses; a part of it may be gone.
    """
    assert _MARK in folder.path.name

    shutil.rmtree(folder.path)


def _measured(path: Path) -> PutAside:
    size_bytes = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                size_bytes += (Path(folder) / file).lstat().st_size
            except OSError:
                # It is removed meanwhile, or the disk fails: visible files count.
                continue
    return PutAside(path, size_bytes)
