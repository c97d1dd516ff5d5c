"""The opening of a RocksDB folder of snapshots: strict, and a damaged folder is put aside.

Snapshots are derived from the log, so none is worth a repair. A folder that a writer cannot open, that is empty though
it has tables, or that has another layout, is renamed and kept, an empty one takes its place, and the trackers read
again from the log what cursor properties name and the folder no longer has. So is one in which a folder, a pipe or a
link to nowhere stands where RocksDB has a file, and a pipe or an empty file in the place of the folder: no further try
helps. One line of the log at level ERROR names the folder. A folder that cannot be opened for another reason stays
where it is, and the opening raises an error: another process has the folder open, rights are missing, the disk is full,
the disk fails, the target of a link is not there, a file with bytes stands in its place, or the folder has a log or
another program's database: no writer of ours has left its lock there, and our mark cannot be read from it. A folder
that cannot be renamed, as a mount point, is emptied into a folder in it, and so is one with files of others in it,
which stay (`put_aside`).

A folder that is removed or replaced under its writer is opened again at the next write, with its files of then.

RocksDB does not notice that its newest log is gone, or the end of it. This module does not notice it either, and need
not: the properties of the cursors name the snapshots that were in it, and no id is given again, as ids follow the clock
(`first_bucket_id`).

A reader opens a view of the folder. Beside a writer a folder changes meanwhile: its tables and its log are read one
after the other, and a file may go in between. So a reader that finds damage opens the folder again, a few times.

Compression was chosen by measurement: `python -m benchmarks snapshots compression --buckets 6`, November 2026, 2 busy
cores, rocksdict 0.3.29, buckets of 50,000 rows. Bytes a row at rest, and milliseconds to read a whole bucket:

                   protobuf         lz4      zstd 1      zstd 3      zstd 9   zstd 3, 16 KiB dictionary
    one instant       14.35   4.02  0.5   1.08  1.0   1.08  1.7   1.08  1.0   1.08  1.2
    fixed delay       14.35   6.96  1.3   2.85  2.8   1.89  3.2   1.89  2.8   1.97  1.6
    exponential 1 h   16.46  12.75  0.8   9.21  3.1   9.40  4.0   8.63  4.3   9.48  3.8
    uniform 7 days    18.67  14.33  2.7  10.95  5.6  10.61  6.7  10.30  6.5  10.96  6.5

Zstd at level 3, RocksDB's own default for it: level 1 takes half as much space again where delays are fixed, which is
the common case; level 9 saves at most 8 % and takes two to five times as long to write; a dictionary saves nothing, as
blocks of 16 KiB are large enough. Lz4 reads faster, but a segment is read once and takes 0.1 ms either way.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from managed_ledger.rocksdb_store.failures import Translated
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
from managed_ledger.rocksdb_store.opening import (
    DEFAULT_FAMILY,
    Compression,
    StoreSettings,
    looked_at_again,
)
from managed_ledger.rocksdb_store.opening import open_to_read as open_store_to_read
from managed_ledger.rocksdb_store.opening import open_to_write as open_store_to_write
from managed_ledger.rocksdb_store.store import RocksDBStore
from snapshot_storage.errors import (
    SnapshotVersionError,
    StorageAccessError,
    StorageCorruptedError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.failures import error_of
from snapshot_storage.rocksdb.layout import FORMAT, FORMAT_KEY, HEADERS, MARK, NEXT_ID_KEY, UNFINISHED
from snapshot_storage.rocksdb.lock import LOCK_FILE, WriterLock
from snapshot_storage.rocksdb.put_aside import foreign_names, is_inside, put_aside

logger = logging.getLogger(__name__)

BLOCK_BYTES = 16 * 2**10
"""Below 16 KiB tiny segments compress worse, above it nothing is won."""


class OpenDatabase(NamedTuple):
    """A store that was found to be one of snapshots."""

    path: Path
    store: RocksDBStore
    lock: WriterLock | None = None

    def is_in_place(self) -> bool:
        """Whether it is still the folder at its path, which another program may have removed or replaced.

        Raises:
            OSError: The system refuses.
        """
        return self.lock is None or self.lock.is_in(self.path)

    def close(self) -> None:
        """Let go of it."""
        self.store.release()
        if self.lock is not None:
            self.lock.release()


def open_to_write(path: Path, *, memory: RocksDBMemory, damage: str | None = None) -> OpenDatabase:
    """Open a folder, or make it; put it aside where it is damaged or of another layout.

    Args:
        path: The folder.
        memory: How much memory to take.
        damage: The damage that was found since it was opened last, so that it is put aside now.

    Raises:
        StorageLockedError: It is in use by another writer.
        StorageAccessError: It cannot be written, is a file, is a link to nowhere or to files of others, or has a log or
            a database of others.
        StorageUnavailableError: The disk refuses.
    """
    lock = _locked(path, memory)
    try:
        if damage is None:
            try:
                return _opened(path, memory, lock)
            except StorageCorruptedError as error:
                damage = error.reason
            except SnapshotVersionError as error:
                damage = f"it has the layout {error.found}, and this program reads {error.supported}"
        _put_aside(path, damage)
    except BaseException:
        lock.release()
        raise
    lock.release()
    lock = _locked(path, memory)
    try:
        return _opened(path, memory, lock)
    except BaseException:
        lock.release()
        raise


def open_to_read(path: Path, *, memory: RocksDBMemory, pause: Callable[[float], None] = time.sleep) -> OpenDatabase:
    """Open a view of a folder as it is now.

    Args:
        path: The folder.
        memory: How much memory to take.
        pause: Waits for so many seconds before it is looked at again.

    Raises:
        SnapshotVersionError: Its layout is another one.
        StorageCorruptedError: The folder is damaged.
        StorageAccessError: There is none, or it cannot be read.
        StorageUnavailableError: It changes all the time, or there is no room for a view.
    """

    def open_once() -> OpenDatabase:
        if not (path / "CURRENT").exists():
            if any(path.glob("*.sst")) or any(path.glob("MANIFEST-*")):
                raise StorageCorruptedError(str(path), "its file CURRENT is missing")
            raise StorageAccessError(f"there are no snapshots in {path}: name the folder that a service has written")
        opened = OpenDatabase(path, RocksDBStore(open_store_to_read(path, _settings(memory))))
        try:
            _format_in(opened.store, path)
        except BaseException:
            opened.close()
            raise
        return opened

    def is_worth_it(error: Exception) -> bool:
        return isinstance(error, StorageCorruptedError | StorageUnavailableError)

    return looked_at_again(open_once, is_worth_it, pause=pause)


def _locked(path: Path, memory: RocksDBMemory) -> WriterLock:
    with Translated(error_of, path, "use the folder"):
        is_something_else = os.path.lexists(path) and not path.is_dir()
        is_others_file = path.is_file() and path.stat().st_size > 0
        # The snapshots may be whole, on a disk that is not mounted yet.
        is_target_missing = path.is_symlink() and not path.exists()
        has_log = not is_something_else and _has_log(path)
        foreign = None if is_something_else or not path.is_symlink() else _first_foreign(path)
    if is_target_missing:
        raise StorageAccessError(f"the target of the link {path} is not there: mount it, or remove the link")
    if is_others_file:
        # No writer of ours makes one there. Put aside, it would be gone from its place, and later be removed.
        raise StorageAccessError(f"{path} is a file, not a folder of snapshots: name a folder, or move the file away")
    if has_log:
        # A log is not derived. Put aside, it would be gone from its place, and later be removed.
        raise StorageAccessError(f"{path} is a folder with a log of messages: mend the link, or move the log away")
    if foreign is not None:
        # Found damaged, it would be renamed with all that is in it, and later be removed.
        raise StorageAccessError(f"{path} is a link to a folder that holds {foreign}: let it lead to an empty folder")
    if is_something_else:
        _put_aside(path, "it is no folder")
    if _has_other_database(path, memory):
        # Nor is another program's database derived. A start that went on would write to it, or put it aside.
        raise StorageAccessError(
            f"{path} holds a RocksDB database that is not known as Postdate's: name an empty folder, or move it away"
        )
    with Translated(error_of, path, "use the folder"):
        path.mkdir(parents=True, exist_ok=True)
        return WriterLock.take(path)


def _has_log(path: Path) -> bool:
    """Whether a folder is a log, has one in it as a data folder has, or is a link to a folder around it."""
    return (
        os.path.lexists(path / LOG_MARKER_FILE)
        or any(path.glob(f"*/{LOG_MARKER_FILE}"))
        or (path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()))
    )


def _has_other_database(path: Path, memory: RocksDBMemory) -> bool:
    """Whether there is a database in a folder in which no writer of ours has been, and which is no copy of one of ours.

    A copy may lack the empty lock file, and what else is damaged may be the only other mark. One beside a log of
    messages is a service's all the same.

    Raises:
        SnapshotStorageError: The system refuses.
    """
    with Translated(error_of, path, "look at the folder"):
        has_database = any(any(path.glob(name)) for name in ("CURRENT", "MANIFEST-*", "*.sst"))
        if os.path.lexists(path / LOCK_FILE) or not has_database:
            return False
        if not path.is_symlink() and any(path.parent.glob(f"*/{LOG_MARKER_FILE}")):
            return False
    try:
        store = RocksDBStore(open_store_to_read(path, _settings(memory)))
        try:
            found = store.get(DEFAULT_FAMILY, FORMAT_KEY)
        finally:
            store.release()
    except (StorageCorruptedError, StorageUnavailableError):
        # Another order of keys, or damage: a missing file is an outage to a reader.
        return True
    return found is None or not found.startswith(MARK)


def _first_foreign(path: Path) -> str | None:
    """Return the name of a file that neither RocksDB nor a service makes in a folder of snapshots; None without any.

    A folder in which a writer has been is one of snapshots, also with other files in it.
    """
    return None if os.path.lexists(path / LOCK_FILE) else next(iter(foreign_names(path)), None)


def _opened(path: Path, memory: RocksDBMemory, lock: WriterLock) -> OpenDatabase:
    store = RocksDBStore(open_store_to_write(path, _settings(memory)))
    try:
        if _format_in(store, path) is None:
            batch = store.new_batch()
            batch.put(DEFAULT_FAMILY, FORMAT_KEY, FORMAT)
            store.write(batch, sync=True)
        # The keys that every start needs are read now: where one is damaged, the folder is put aside.
        for start, end in (HEADERS, UNFINISHED):
            for _ in store.scan(DEFAULT_FAMILY, start, end):
                pass
        store.get(DEFAULT_FAMILY, NEXT_ID_KEY)
    except BaseException:
        store.release()
        raise
    return OpenDatabase(path, store, lock)


def _format_in(store: RocksDBStore, path: Path) -> bytes | None:
    """Return the format; None where nothing was ever written."""
    found = store.get(DEFAULT_FAMILY, FORMAT_KEY)
    if found is None and (store.latest_sequence_number() or any(path.glob("*.sst"))):
        raise StorageCorruptedError(str(path), "there are tables, but the database came up empty")
    if found not in (None, FORMAT):
        raise SnapshotVersionError(str(path), found=found.decode(errors="replace"), supported=FORMAT.decode())
    return found


def _put_aside(path: Path, damage: str) -> None:
    # RocksDB's own text of a damage may have several lines.
    damage = " ".join(damage.split())
    with Translated(error_of, path, f"put aside the snapshots, which cannot be used ({damage}),"):
        aside = put_aside(path)
    logger.error(
        "the snapshots in %s cannot be used (%s): %s %s, and the index is read again from the log. Postdate reads them "
        "no more: if nothing else is with them, they can be removed",
        path,
        damage,
        "its files were put aside in" if is_inside(aside) else "the folder was put aside as",
        aside,
    )


def _settings(memory: RocksDBMemory) -> StoreSettings:
    return StoreSettings(
        noun="the snapshots",
        errors=error_of,
        compression=Compression.ZSTD,
        block_cache_bytes=memory.block_cache_bytes,
        write_buffer_bytes=memory.write_buffer_bytes,
        # One buffer is filled while another one is flushed; there is no third.
        write_buffers_max=2,
        tables_before_compaction=memory.tables_before_compaction,
        block_bytes=BLOCK_BYTES,
    )
