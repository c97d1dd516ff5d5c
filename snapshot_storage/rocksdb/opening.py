"""How a RocksDB folder of snapshots is opened, so that one flipped bit costs what it is in, and never the folder.

A writer tries, until the folder opens and lists its snapshots:

1. strictly: what a crash leaves, a log that ends within a write, is no damage;
2. without the part of a log that is damaged, which is then brought back as far as it is whole (`salvage`);
3. with tables whose end is damaged, and without compaction: their entries are corruption to whoever reads them;
4. after RocksDB's repair, which makes the list of files anew.

Nothing that comes to light so is taken for data: every value has a checksum over its key. What was synced and does
not come to light is named in a warning, as far as it can be (`reached`), and the tracker builds it again. A
folder whose headers are lost in both copies is refused: an operator has to know.

A reader opens a view of the folder (`view`) strictly. Beside a writer a folder changes meanwhile: its tables
and its log are read one after the other, and a file may go in between. So what looks like damage to a reader is looked
at again, a few times. What stays is opened as a writer would, in a view of its own.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocksdict import Rdict, WriteBatch

from snapshot_storage.errors import (
    SnapshotCorruptedError,
    SnapshotVersionError,
    StorageAccessError,
    StorageCorruptedError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.database import (
    Leniency,
    disk_refused,
    mapped,
    names_missing_manifest,
    open_database,
    open_database_to_read,
    repair,
)
from snapshot_storage.rocksdb.headers import RocksDBHeaders
from snapshot_storage.rocksdb.layout import FORMAT, FORMATS_READ, INDEX_FAMILY
from snapshot_storage.rocksdb.lock import WriterLock
from snapshot_storage.rocksdb.reached import Reached, read_reached
from snapshot_storage.rocksdb.salvage import KeptLogs
from snapshot_storage.rocksdb.view import FolderView

log = logging.getLogger(__name__)

# What a writer does to its files takes some milliseconds, and a slow disk's time.
_READ_ONLY_TRIES: Final = 5
_READ_ONLY_PAUSE_S: Final = 0.1

# Of snapshots that may be gone.
_NAMED_MAX: Final = 100


@dataclass(slots=True)
class OpenDatabase:
    """A database that was found to be one of snapshots."""

    path: Path
    """The folder that was asked for: what is open may be a view of it."""
    database: Rdict
    headers: RocksDBHeaders
    next_bucket_id: int = 0
    """Larger than any that it knows to be given."""
    lost: Sequence[SnapshotCorruptedError] = ()
    """What may be gone although it was synced."""
    view: FolderView | None = None
    lock: WriterLock | None = None

    def close(self) -> None:
        """Let go of it; for one that nothing else has taken over."""
        self.headers.close()
        self.database.close()
        self.close_beside()

    def close_beside(self) -> None:
        """Let go of what there is beside the database, which is closed."""
        if self.view is not None:
            self.view.close()
        if self.lock is not None:
            self.lock.release()


def open_to_write(path: Path, *, memory: RocksDBMemory) -> OpenDatabase:
    """Open a folder, or make it.

    Raises:
        StorageLockedError: It is in use by another writer.
        SnapshotVersionError: Its layout is another one.
        StorageCorruptedError: No header in it can be trusted to be found.
        StorageAccessError: It cannot be written.
        StorageUnavailableError: The disk refuses.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = WriterLock.take(path)
    except OSError as error:
        raise disk_refused("use the folder", path, error) from error
    try:
        opened = _open_somehow(path, path, memory=memory)
    except BaseException:
        lock.release()
        raise
    opened.lock = lock
    return opened


def open_to_read(path: Path, *, memory: RocksDBMemory, pause: Callable[[float], None] = time.sleep) -> OpenDatabase:
    """Open a view of a folder as it is now.

    Args:
        path: The folder.
        memory: How much memory to take.
        pause: Waits for so many seconds before it is looked at again.

    Raises:
        SnapshotVersionError: Its layout is another one.
        StorageCorruptedError: No header in it can be trusted to be found.
        StorageAccessError: There is none, or it cannot be read.
        StorageUnavailableError: It changes all the time, or there is no room for a view.
    """
    for _ in range(_READ_ONLY_TRIES - 1):
        try:
            return _open_view(path, memory=memory)
        except (StorageCorruptedError, StorageUnavailableError):
            pause(_READ_ONLY_PAUSE_S)
    try:
        return _open_view(path, memory=memory)
    except StorageUnavailableError:
        if not names_missing_manifest(path):
            raise
    except StorageCorruptedError as error:
        log.warning("reading what is left: %s", error.reason)
    view = _view(path, copies_logs=True)
    try:
        opened = _open_somehow(view.path, path, memory=memory)
    except BaseException:
        view.close()
        raise
    opened.view = view
    return opened


def _open_view(path: Path, *, memory: RocksDBMemory) -> OpenDatabase:
    said = read_reached(path)
    view = _view(path, copies_logs=False)
    try:
        with mapped("open the snapshots", path, is_shared=True):
            database = open_database_to_read(view.path, INDEX_FAMILY, memory=memory)
            headers = RocksDBHeaders(path, database, is_read_only=True)
        opened = OpenDatabase(path, database, headers, view=view)
    except BaseException:
        view.close()
        raise
    try:
        _check_format(opened, may_be_new=not _has_tables(path))
        if _is_behind(opened, said):
            raise StorageCorruptedError(str(path), "the end of its log is missing")
    except BaseException:
        opened.close()
        raise
    return opened


def _view(path: Path, *, copies_logs: bool) -> FolderView:
    try:
        if not (path / "CURRENT").exists():
            raise StorageAccessError(f"there are no snapshots in {path}: name the folder that a service has written")
        return FolderView.of(path, copies_logs=copies_logs)
    except OSError as error:
        raise disk_refused("make a view to read what is", path, error) from error


def _open_somehow(folder: Path, path: Path, *, memory: RocksDBMemory) -> OpenDatabase:
    """Open a folder to write, which is `path` or a view of it."""
    said = read_reached(path)
    try:
        kept = KeptLogs.keep(folder)
    except OSError as error:
        raise disk_refused("keep the log", path, error) from error
    first_error: StorageCorruptedError | None = None
    for leniency in Leniency:
        try:
            opened = _open_once(folder, path, memory=memory, leniency=leniency)
        except StorageCorruptedError as error:
            log.warning("%s cannot be opened %s: %s", path, leniency.value, error.reason)
            first_error = first_error or error
            continue
        except BaseException:
            if leniency is Leniency.STRICT:
                # Nothing was dropped, and whoever goes on with these logs goes on from here.
                kept.undo()
            raise
        try:
            _bring_back(opened, kept, said, leniency)
            _make_current(opened)
        except BaseException:
            opened.close()
            raise
        kept.remove()
        return opened
    assert first_error is not None
    # What was linked only to open it is no part of what an operator gets to see.
    kept.remove()
    raise first_error


def _open_once(folder: Path, path: Path, *, memory: RocksDBMemory, leniency: Leniency) -> OpenDatabase:
    """Open a folder, and check that it is what it was.

    Raises:
        StorageCorruptedError: It is not.
    """
    has_tables = _has_tables(folder)
    with mapped("open the snapshots", path):
        if leniency is Leniency.REPAIRED:
            repair(folder, memory=memory)
        elif has_tables and not (folder / "CURRENT").exists():
            raise StorageCorruptedError(str(path), "there are tables, and no list of them")
        try:
            database = open_database(folder, INDEX_FAMILY, memory=memory, leniency=leniency)
        except Exception as error:
            if names_missing_manifest(folder):
                raise StorageCorruptedError(str(path), "CURRENT names a file that is not there") from error
            raise
        headers = RocksDBHeaders(path, database, is_read_only=False)
    opened = OpenDatabase(path, database, headers)
    try:
        _check_format(opened, may_be_new=not has_tables and leniency in (Leniency.STRICT, Leniency.BROKEN_LOG))
        if leniency is not Leniency.STRICT:
            opened.headers.infos(None, None)
        opened.next_bucket_id = opened.headers.next_bucket_id() or 0
    except BaseException:
        opened.close()
        raise
    return opened


def _has_tables(folder: Path) -> bool:
    return any(folder.glob("*.sst"))


def _check_format(opened: OpenDatabase, *, may_be_new: bool) -> None:
    found = opened.headers.format()
    if found is not None and found not in FORMATS_READ:
        supported = " or ".join(known.decode() for known in FORMATS_READ)
        raise SnapshotVersionError(str(opened.path), found=found.decode(errors="replace"), supported=supported)
    if found is None and not may_be_new:
        # A damaged manifest can open as an empty database without an error.
        raise StorageCorruptedError(str(opened.path), "there are tables, but the database came up empty")


def _make_current(opened: OpenDatabase) -> None:
    """Make the index of a folder of an older layout, or of a new one."""
    if opened.headers.format() == FORMAT:
        return
    batch = WriteBatch(raw_mode=True)
    with mapped("make the index", opened.path):
        opened.headers.put_format(batch)
        opened.database.write(batch)
        opened.database.flush_wal(sync=True)


def _is_behind(opened: OpenDatabase, said: Reached | None) -> bool:
    return said is not None and opened.database.latest_sequence_number() < said.sequence


def _bring_back(opened: OpenDatabase, kept: KeptLogs, said: Reached | None, leniency: Leniency) -> None:
    """Write again what opening dropped, and find what is gone."""
    # A repaired list of files has forgotten how far it had come.
    is_behind = leniency is not Leniency.REPAIRED and _is_behind(opened, said)
    if leniency is Leniency.STRICT and not is_behind and not kept.are_left_over:
        return
    with mapped("bring back what is in the log", opened.path):
        kept.put_back(opened.path, opened.database, opened.headers)
    if said is not None and is_behind:
        opened.lost = _lost(opened, said)
        for error in opened.lost:
            log.warning("%s: %s", opened.path, error)
        opened.next_bucket_id = max(opened.next_bucket_id, said.next_bucket_id)


def _lost(opened: OpenDatabase, said: Reached) -> list[SnapshotCorruptedError]:
    """Tell which snapshots are not there that may have been synced."""
    found = {info.bucket_id for info in opened.headers.infos(None, None)}
    ids = range(max(opened.next_bucket_id, said.first_bucket_id), said.next_bucket_id)
    if len(ids) > _NAMED_MAX:
        reason = f"the end of the log is missing, and with it what there was of buckets {ids[0]} to {ids[-1]}"
        return [SnapshotCorruptedError(reason)]
    reason = "it is missing, with the end of the log, unless it was deleted"
    return [SnapshotCorruptedError(reason, bucket_id=bucket_id) for bucket_id in ids if bucket_id not in found]
