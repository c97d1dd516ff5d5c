"""Damaged folders of snapshots that were put aside: their names, their sizes, and their removal.

A folder is put aside by a rename, `snapshots` to `snapshots-put-aside-<time>`. Behind a link, its target is renamed and
the link stays, so that the new folder is on the same disk. No program reads what was put aside. It is kept as evidence
of the disk's fault, until an operator removes it.
"""

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_MARK: Final = "-put-aside-"


@dataclass(frozen=True, slots=True, order=True)
class PutAside:
    """A folder that was put aside."""

    path: Path
    size_bytes: int
    """Of its files, as far as they can be looked at."""


def put_aside(path: Path) -> Path:
    """Rename a damaged folder, make an empty one in its place, and return the new name of the damaged one.

    Raises:
        OSError: The system refuses, as where the folder is a mount point.
    """
    folder = path.resolve()
    aside = folder.with_name(f"{folder.name}{_MARK}{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}")
    folder.rename(aside)
    folder.mkdir(exist_ok=True)
    return aside


def put_aside_folders(path: Path) -> list[PutAside]:
    """Return the folders that were put aside from a place, the oldest first; blocks while it looks at each file.

    Raises:
        OSError: The folder above cannot be read.
    """
    folder = path.resolve()
    if not folder.parent.is_dir():
        return []
    found = [one for one in folder.parent.iterdir() if one.name.startswith(f"{folder.name}{_MARK}")]
    return [PutAside(one, _size_bytes(one)) for one in sorted(found)]


def remove_put_aside(folder: PutAside) -> None:
    """Delete a folder that was put aside.

    Raises:
        OSError: The system refuses; a part of it may be gone.
    """
    assert _MARK in folder.path.name

    shutil.rmtree(folder.path)


def _size_bytes(path: Path) -> int:
    size_bytes = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                size_bytes += (Path(folder) / file).lstat().st_size
            except OSError:
                # The file is being removed, or the disk fails: only files that can be seen count.
                continue
    return size_bytes
