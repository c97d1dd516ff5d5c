"""Folders of snapshots that were put aside because they are damaged: their names, their sizes, and their removal.

A folder is put aside by a rename, `snapshots` to `snapshots-put-aside-<time>`, where it really is: behind a link its
target is renamed, and the link stays. A folder that cannot be renamed, as a mount point, gives its files to a new
folder in it, `snapshots/put-aside-<time>`. So does one with files of others in it, as a program may keep its own log
beside its snapshots: those stay. No program reads what was put aside: its index was read from the log again. It is
kept as evidence of the disk's fault, until an operator removes it. An empty file or a pipe, or a link to one, that
stands where the folder should be is put aside by a rename too.
"""

import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from managed_ledger.rocksdb_store.files import ROCKSDB_NAMES
from snapshot_storage.rocksdb.lock import LOCK_FILE

INSIDE: Final = "put-aside-"
"""The beginning of the name of a folder within a mount point, to which the files of that were moved."""
_MARK: Final = f"-{INSIDE}"
_OWN_NAMES: Final = re.compile(f"{ROCKSDB_NAMES}|{LOCK_FILE}.*|{INSIDE}.*|REACHED.*")
"""`REACHED` is a file of folders of layout 3."""
_STAYING: Final = (LOCK_FILE, "lost+found")
"""The lock, which the caller holds; and the folder that a disk's file system has at its top, which is root's."""
_LAST_FILE: Final = "CURRENT"
"""Without it RocksDB takes a folder for a new one: it goes last, so that a kill half way leaves a damaged folder."""


@dataclass(frozen=True, slots=True, order=True)
class PutAside:
    """A folder that was put aside."""

    path: Path
    size_bytes: int
    """Of its files, as far as they can be looked at."""


def put_aside(path: Path) -> Path:
    """Let an empty folder take the place of a damaged one, and return where the damaged files are now.

    Where something else stands in the place of the folder, the place is empty after it.

    Raises:
        OSError: The system refuses.
    """
    name = f"{INSIDE}{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%fZ')}"
    if path.is_dir():
        folder = path.resolve() if path.is_symlink() else path
        if foreign_names(folder):
            return _moved_inside(folder, folder / name)
        aside = folder.with_name(f"{folder.name}-{name}")
        try:
            folder.rename(aside)
        except OSError:
            # A mount point, or a folder above that is not the service's own.
            return _moved_inside(folder, folder / name)
        folder.mkdir(exist_ok=True)
        return aside
    aside = path.with_name(f"{path.name}-{name}")
    # No folder is renamed onto a file. So the second of two programs does not take what the first has made here.
    aside.touch(exist_ok=False)
    try:
        return path.rename(aside)
    except OSError:
        aside.unlink()
        raise


def foreign_names(folder: Path) -> list[str]:
    """Return the names of the files that neither RocksDB nor a service makes in a folder of snapshots, in order.

    Raises:
        OSError: The folder cannot be read.
    """
    return sorted(file.name for file in folder.iterdir() if not _OWN_NAMES.fullmatch(file.name))


def _moved_inside(folder: Path, aside: Path) -> Path:
    """Move the files of a folder into a new one in it, but for those that stay and those of others."""
    staying = {*_STAYING, *foreign_names(folder)}
    files = [one for one in folder.iterdir() if one.name not in staying and not one.name.startswith(INSIDE)]
    aside.mkdir()
    for file in sorted(files, key=lambda file: file.name == _LAST_FILE):
        file.rename(aside / file.name)
    return aside


def is_inside(aside: Path) -> bool:
    """Whether what `put_aside` returned is in the folder itself, which stays where it is."""
    return aside.name.startswith(INSIDE)


def put_aside_folders(path: Path) -> list[PutAside]:
    """Return the folders that were put aside from a place, the oldest first; blocks while it looks at each file.

    Raises:
        OSError: The folder above cannot be read.
    """
    real = path.resolve() if path.is_symlink() and path.is_dir() else path
    beside = {one for place in (path, real) for one in _named(place.parent, f"{place.name}{_MARK}")}
    return sorted(map(_measured, beside | set(_named(real, INSIDE))), key=lambda one: _time_in(one.path))


def _named(folder: Path, prefix: str) -> list[Path]:
    return [folder / one.name for one in os.scandir(folder) if one.name.startswith(prefix)] if folder.is_dir() else []


def _time_in(path: Path) -> str:
    return path.name.rpartition(INSIDE)[2]


def remove_put_aside(folder: PutAside) -> None:
    """Delete a folder that was put aside.

    Raises:
        OSError: The system refuses; a part of it may be gone.
    """
    assert INSIDE in folder.path.name

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
