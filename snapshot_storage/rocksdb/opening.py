"""The opening of a RocksDB folder of snapshots, by the three rules of this package, and of a view to read it.

RocksDB does not notice that its newest log is gone, or the end of it. This module does not notice it either, and need
not: the properties of the cursors name the snapshots that were in it, and no id is given again, as ids follow the clock
(`first_bucket_id`).

A reader opens a view of the folder. Beside a writer a folder changes meanwhile: its tables and its log are read one
after the other, and a file may go in between. So a reader that finds damage opens the folder again, a few times.

Tables are compressed with zstd at level 3, RocksDB's own default for it: docs/decisions.md compares it with others.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from managed_ledger.rocksdb_store.failures import Translated
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
from snapshot_storage.rocksdb.layout import FORMAT, FORMAT_KEY, HEADERS, NEXT_ID_KEY, UNFINISHED
from snapshot_storage.rocksdb.lock import LOCK_FILE, WriterLock
from snapshot_storage.rocksdb.put_aside import put_aside

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
    """Open a folder, or make it; put it aside where it is damaged or of another version's format.

    Args:
        path: The folder.
        memory: How much memory to take.
        damage: The damage that was found since it was opened last, so that it is put aside now.

    Raises:
        StorageLockedError: It is in use by another writer.
        StorageAccessError: It cannot be written or renamed, or is no folder.
        StorageUnavailableError: The disk refuses.
    """
    lock = _locked(path)
    try:
        if damage is None:
            try:
                return OpenDatabase(path, _store_in(path, memory), lock)
            except StorageCorruptedError as error:
                damage = error.reason
            except SnapshotVersionError as error:
                damage = f"it has the layout {error.found}, and this program reads {error.supported}"
        _put_aside(path, damage)
    except BaseException:
        lock.release()
        raise
    # The lock went with the folder; the new folder has one of its own.
    lock.release()
    lock = _locked(path)
    try:
        return OpenDatabase(path, _store_in(path, memory), lock)
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


def check_ours(path: Path) -> None:
    """Refuse a folder in which a database is and no writer of ours ever was: a log of messages, say, is not derived.

    Raises:
        StorageAccessError: There is one.
    """
    with Translated(error_of, path, "look at the folder"):
        lock = path / LOCK_FILE
        # Looked for before and after: another writer may exchange the folder meanwhile, and makes its lock first.
        was_locked = lock.exists()
        has_database = any(any(path.glob(name)) for name in ("CURRENT", "MANIFEST-*", "*.sst"))
        if has_database and not (was_locked or lock.exists()):
            raise StorageAccessError(
                f"{path} holds a RocksDB database that is not known as Postdate's snapshots: name an empty folder, or "
                f"move it away; in a copy of snapshots that left out the empty file {LOCK_FILE}, make it again"
            )


def _locked(path: Path) -> WriterLock:
    """Take the lock of a folder, which is made where nothing is in its place."""
    with Translated(error_of, path, "use the folder"):
        # Looked at twice: another writer may be exchanging the folder just now.
        if not path.is_dir() and os.path.lexists(path) and not path.is_dir():
            raise StorageAccessError(f"{path} is no folder: mount the disk that it is on, or move away what is there")
        path.mkdir(parents=True, exist_ok=True)
        return WriterLock.take(path)


def _store_in(path: Path, memory: RocksDBMemory) -> RocksDBStore:
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
    return store


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
        "the snapshots in %s cannot be used (%s): the folder was put aside as %s, and the index is read again from the "
        "log. Postdate reads it no more, so it can be removed",
        path,
        damage,
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
