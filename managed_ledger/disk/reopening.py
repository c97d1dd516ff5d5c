"""A database that is opened again when RocksDB takes no more writes, while the service runs on.

After some errors (a full disk, a disk that fails, a compaction that met damage) RocksDB refuses every write until it is
opened anew, though what it has can still be read. So it stays open for readers until opening it has a chance: there is
room for what opening writes. Then it is closed and opened between two commits, in the thread that writes. Readers wait
meanwhile, some milliseconds up to the time that replaying the write-ahead log takes.

Damage is another matter, as RocksDB would meet it again: a compaction that does ends all writes. So from the first
damage on that a read or a write reports, nothing is compacted until the folder is repaired. Its tables stay as they
are, new ones are added, and messages are taken and delivered; opening it again after such a compaction makes it so.

Where the folder is removed or replaced, RocksDB writes on to its open files, which no start would find, and opening it
anew would make an empty log. So all writes fail until the folder is back in its place, and it is not opened again.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.disk.rocksdb_edge import checked
from managed_ledger.errors import LedgerError, StoreCorruptedError, StoreFullError, StoreUnavailableError
from managed_ledger.rocksdb_store.disk_room import REOPEN_BYTES, Room, has_room_to_open
from managed_ledger.rocksdb_store.opening import REOPENING_PAUSE_S, ReopeningPace
from managed_ledger.rocksdb_store.store import RowIterator, StoreBatch

logger = logging.getLogger(__name__)

READERS_MAX = 16
"""Readers at once: more than there are threads."""
SMALL_COMMIT_BYTES = 2**16
"""Commits of more are written only if they fit: acknowledgements and trims take less, and give room back."""
FLUSH_BYTES_MIN = 2**20
"""Write-ahead logs of so much are made tables when room is short, as it may be they that take it."""
FLUSH_MARGIN_PARTS = 8
"""Of a small disk's margin it is this part: entries in the logs take room that a compaction would not have."""


class ReopeningDatabase:
    """A database that is opened again after a failure, while its owner keeps this object."""

    def __init__(
        self,
        path: Path,
        open_folder: Callable[..., RocksDatabase],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the folder.

        Args:
            path: The folder.
            open_folder: Opens it; called with `is_damaged=True` once damage was met.
            monotonic: A clock that never goes back.

        Raises:
            LedgerError: As `RocksDatabase.open`.
        """
        self._path = path
        self._open_folder = open_folder
        self._pace = ReopeningPace(monotonic)
        self._database: RocksDatabase | None = open_folder()
        self._checkpoint = path.with_name(f"{path.name}.checkpoint")
        # A process that was killed has left this.
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._damage: str | None = None
        try:
            with checked(path, "look at the log"):
                # Open, so that the number of the folder is not given again.
                self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except LedgerError:
            self._database.release()
            raise
        self._readers = threading.Semaphore(READERS_MAX)
        """A reader holds one, an opening all of them."""
        self._wanted_bytes = 0
        """Room that the last large commit lacked."""

    @property
    def damage(self) -> str | None:
        """The damage that reads and writes have met, None if none; nothing is compacted from then on.

        A compaction that meets damage ends all writes.
        """
        return self._damage

    def new_batch(self) -> StoreBatch:
        """An empty batch."""
        return self._opened().new_batch()

    def write(self, batch: StoreBatch, *, sync: bool) -> None:
        """Apply a batch once; with `sync` it is on disk on return."""
        self._check_writable(batch.size_bytes)
        with self._damage_noted():
            self._opened().write(batch, sync=sync)

    def _check_writable(self, batch_bytes: int) -> None:
        """Refuse what cannot be written now, before anything has changed."""
        self._check_place()
        if batch_bytes > SMALL_COMMIT_BYTES:
            self._check_room(batch_bytes)
        if self._opened().has_failed_behind:
            # It would refuse this.
            self._mend_behind()

    def mark_synced(self) -> None:
        """Write down how far the last synced write came, so that its loss is noticed; called in the thread that writes.

        Raises nothing: an old mark only asks for less.
        """
        # Without a database nothing is marked; opening it again does so. Nor is another folder.
        if self._database is not None and self._is_in_place:
            self._database.mark_synced()

    def get(self, family: Family, key: bytes) -> bytes | None:
        with self._readers, self._damage_noted():
            return self._opened().get(family, key)

    @contextmanager
    def rows(self, family: Family) -> Iterator[RowIterator]:
        with self._readers, self._damage_noted(), self._opened().rows(family) as rows:
            yield rows

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._readers, self._damage_noted():
            yield from self._opened().scan(family, start, end)

    def listed(self, family: Family, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        with self._readers, self._damage_noted():
            return self._opened().listed(family, start, end)

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Give back the space of deleted entries of a range."""
        with self._readers, self._damage_noted():
            self._opened().compact(family, start, end)

    def merge_small_tables(self) -> None:
        """Make runs of many small tables into few."""
        with self._readers, self._damage_noted():
            self._opened().merge_small_tables()

    def make_tables(self) -> None:
        """Make tables of what is in memory, so that a checkpoint has little to do."""
        with self._readers, self._damage_noted():
            self._opened().make_tables()

    def checkpoint(self) -> Path:
        """Make a checkpoint beside the folder, in place of an earlier one; called in the thread that writes."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        with self._damage_noted():
            self._opened().checkpoint(self._checkpoint)
        return self._checkpoint

    @contextmanager
    def _damage_noted(self) -> Iterator[None]:
        try:
            yield
        except StoreCorruptedError as error:
            if self.damage is None:
                self._damage = str(error)
                logger.error(
                    "Nothing of the log is compacted any more, so that messages are still taken: %s", self.damage
                )
                # Where the damage has ended the writes already, opening anew makes it so.
                with suppress(LedgerError):
                    self._opened().stop_compacting()
            raise

    def room(self, *, was_short: bool) -> Room | None:
        """The room for more entries; None where the system does not tell. Called in the thread that writes."""
        if self._database is None:
            return None
        if self._database.has_failed_behind:
            self._mend_behind()
        room = self._measured_room()
        if room is not None and room.is_short(was_short=was_short):
            return self._flushed(room)
        return room

    def _mend_behind(self) -> None:
        """Open it again after a flush or a compaction that failed: RocksDB writes no more tables after that."""
        with suppress(LedgerError), self._damage_noted():
            # RocksDB refuses this with the reason. Where that is damage, the folder is opened without compactions.
            self._opened().write(self._opened().new_batch(), sync=False)
        self.mend()

    def _check_room(self, commit_bytes: int) -> None:
        """Refuse a commit that does not fit, before RocksDB finds out, which ends all writes."""
        self._wanted_bytes = 0
        room = self._measured_room(is_due=True)
        if room is not None and not room.fits(commit_bytes):
            room = self._flushed(room)
        if room is not None and not room.fits(commit_bytes):
            self._wanted_bytes = 2 * commit_bytes
            raise StoreFullError(
                f"Cannot write {commit_bytes / 2**20:.1f} MiB to the log in {self._path}: of the disk "
                f"{room.free_bytes / 2**20:.1f} MiB are free, and {room.kept_bytes / 2**20:.1f} MiB must stay so"
            )

    def _flushed(self, room: Room) -> Room | None:
        """The room once the log's memory was made tables, if that can help."""
        least_bytes = min(FLUSH_BYTES_MIN, room.margin_bytes // FLUSH_MARGIN_PARTS)
        if not least_bytes <= room.unflushed_bytes <= room.free_bytes - REOPEN_BYTES:
            return room
        try:
            self._opened().flush()
        except LedgerError as error:
            logger.warning("Room is short, and the log's memory could not be made tables: %s", error)
        return self._measured_room(is_due=True)

    def _measured_room(self, *, is_due: bool = False) -> Room | None:
        room = self._opened().measure_room(is_due=is_due)
        return room and replace(room, wanted_bytes=self._wanted_bytes)

    def mend(self) -> None:
        """After a write that failed, make it possible that the next one does not.

        Returns in bounded time, whether that succeeded or not, and is called in the thread that writes.
        """
        if not self._pace.is_due or not self._is_in_place or not has_room_to_open(self._path):
            return
        try:
            self._reopen()
        except LedgerError as error:
            logger.warning("The log could not be opened again, which is tried every %g s: %s", REOPENING_PAUSE_S, error)
        self._pace.put_off()

    def close(self) -> None:
        """Make everything durable and release the folder, also where the former fails."""
        database, self._database = self._database, None
        try:
            if database is not None:
                self._check_place()
                database.close()
        finally:
            if database is not None:
                database.release()
            if self._folder >= 0:
                os.close(self._folder)
            self._folder = -1

    def _reopen(self) -> None:
        for _ in range(READERS_MAX):
            self._readers.acquire()
        try:
            database, self._database = self._database, None
            if database is not None:
                database.release()
            self._database = self._open_folder() if self.damage is None else self._open_folder(is_damaged=True)
        finally:
            self._readers.release(READERS_MAX)
        logger.info("The log in %s was opened again and takes writes", self._path)

    @property
    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._folder), self._path.stat())
        except OSError:
            return False

    def _check_place(self) -> None:
        if not self._is_in_place:
            raise StoreUnavailableError(
                f"The folder of the log, {self._path}, was removed or replaced while the log is open: stop the "
                "service, put the folder back and start it again"
            )

    def _opened(self) -> RocksDatabase:
        if self._database is None:
            raise StoreUnavailableError(f"The log in {self._path} is closed until it can be opened again")
        return self._database
