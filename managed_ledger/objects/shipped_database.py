"""A log whose promises are an object storage's: each write is an object before it is RocksDB's.

    write ─► create log/<next> ─► RocksDB, on the local disk ─► receipts
                  │ another's object is there: the log is lost
                  │ no answer: the same bytes again, until there is one or the log is given up
    beside it: checkpoints, by the bytes of the log and by time

RocksDB's folder is for reading, and is made anew by each takeover, so it is never synced, and never opened again. Where
RocksDB refuses a write whose object is there, that write is durable: the log is let go, and the next owner replays it.
It never "failed". So it is where RocksDB would have to be opened again, for another reason than a full disk.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.errors import LedgerError, LogFencedError, StoreUnavailableError
from managed_ledger.objects.bundle_checkpoints import BundleCheckpoints, Patience
from managed_ledger.objects.local_tables import LocalTables
from managed_ledger.objects.log_object import LogObject, Replay, ShippedBatch, apply_changes, log_name
from managed_ledger.objects.object_store import ObjectStore
from managed_ledger.objects.takeover import TakenLog, claim_log, replay_and_fence, sweep
from managed_ledger.positions.value_types import Clock
from managed_ledger.rocksdb_store.store import StoreBatch

logger = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 64 * 2**20
"""Changes after which a checkpoint is stored."""
CHECKPOINT_OBJECTS: Final = 100
"""A takeover reads some hundred objects a second, and its clients wait for it."""
HAND_OVER_BYTES: Final = 2**20
HAND_OVER_OBJECTS: Final = 50
"""What the next owner replays in less time than a checkpoint takes."""
CHECKPOINT_S: Final = 600.0
"""The time after which it is, if there are any."""
WRITE_BUFFER_BYTES_MAX: Final = 16 * 2**20
"""A checkpoint makes tables of the memory, and commits wait for what is left of that."""
_LOOK_S: Final = 5.0
"""How often the time of the next checkpoint is looked at."""


def open_shipped(
    path: Path,
    config: ManagedLedgerConfig,
    *,
    objects: ObjectStore,
    now_ms: Clock,
    on_lost: Callable[[], None],
    given_up: threading.Event | None = None,
    checkpoint_bytes: int = CHECKPOINT_BYTES,
) -> "ShippedDatabase":
    """Take over the log of a bundle, as `LedgerStore.open` wants it: with `partial` for the rest.

    Args:
        path: The bundle's folder on the local disk, of this process alone; tables that are there are not downloaded.
        config: Limits.
        objects: The place of the bundle, which the caller closes after the database.
        now_ms: The clock, for the time in the manifest.
        on_lost: Called once, from any thread, when the log is another owner's or was given up: nothing is written then.
        given_up: Set it when there is no use in waiting for the storage any more, as the lease is gone.
        checkpoint_bytes: Changes after which a checkpoint is stored.

    Raises:
        LogFencedError: Another one took it over at the same time.
        LedgerError: It is damaged, or of another format, or the storage or the disk refuses.
    """
    try:
        claim = claim_log(objects)
        tables, log = LocalTables(path), path / "log"
        tables.fetch(objects, claim.manifest)
        tables.lay_out(claim.manifest, log)
        buffer_bytes = min(config.write_buffer_bytes, WRITE_BUFFER_BYTES_MAX)
        database = ShippedDatabase(
            log,
            partial(RocksDatabase.open, log, write_buffer_bytes=buffer_bytes),
            objects=objects,
            now_ms=now_ms,
            on_lost=on_lost,
            given_up=given_up or threading.Event(),
            checkpoint_bytes=checkpoint_bytes,
        )
        try:
            served = replay_and_fence(objects, claim, Replay(database.apply))
        except BaseException:
            database.let_go()
            raise
    except LedgerError:
        raise
    # The room of the storage has errors of its own.
    except Exception as error:
        raise StoreUnavailableError(f"The log in {objects} cannot be taken over now: {error}") from error
    database.serve(served, tables)
    return database


class ShippedDatabase(ReopeningDatabase):
    """The database of a log on objects; `open_shipped` makes one."""

    def __init__(
        self,
        path: Path,
        open_folder: Callable[..., RocksDatabase],
        *,
        objects: ObjectStore,
        now_ms: Clock,
        on_lost: Callable[[], None],
        given_up: threading.Event,
        checkpoint_bytes: int,
    ) -> None:
        super().__init__(path, open_folder)
        self._objects = objects
        self._now_ms = now_ms
        self._on_lost = on_lost
        self._given_up = given_up
        self._checkpoint_bytes = checkpoint_bytes
        self._frozen = path.with_name(f"{path.name}.frozen")
        self._lost: str | None = None
        self._losing = threading.Lock()
        self._writing = threading.RLock()
        """Held while an object is created and applied, and while RocksDB is frozen or opened again."""
        self._epoch, self._owner, self._next = 0, "", 0
        self._start = 0
        self._log_bytes, self._since_s = 0, 0.0
        self._is_due = threading.Event()
        self._is_closing = False
        self._served: TakenLog | None = None
        self._tables: LocalTables | None = None
        self._checkpoints: BundleCheckpoints | None = None
        self._keeper = threading.Thread(target=self._keep_checkpoints, name="ledger-checkpoint", daemon=True)

    def apply(self, changes: bytes) -> None:
        """Apply the changes of an object: of one that is replayed."""
        batch = self._opened().new_batch()
        apply_changes(changes, batch)
        self._opened().write(batch, sync=False)

    def serve(self, served: TakenLog, tables: LocalTables) -> None:
        """Begin to take writes."""
        manifest = served.claim.manifest
        self._epoch, self._owner, self._next = manifest.epoch, manifest.owner, served.next_number
        self._start = manifest.start
        self._note_log(served.size_bytes)
        self._served, self._tables = served, tables
        self._checkpoints = BundleCheckpoints(self._objects, tables, served, self._given_up)
        self._keeper.start()

    def new_batch(self) -> StoreBatch:
        return ShippedBatch(super().new_batch())

    def write(self, batch: StoreBatch, *, sync: bool) -> None:
        """Apply a batch once. It is on the storage on return, whether that is asked for or not.

        Raises:
            LogFencedError: The log is lost, now or before; whether the batch is durable is not known.
            LedgerError: The local disk refuses; nothing has changed.
        """
        del sync
        assert isinstance(batch, ShippedBatch)
        with self._writing:
            self._check_not_lost()
            self._check_writable(batch.size_bytes)
            # RocksDB may have failed behind.
            self._check_not_lost()
            changes = batch.changes
            self._create(LogObject(self._epoch, self._owner, self._next, changes).encode())
            try:
                with self._damage_noted():
                    self._opened().write(batch, sync=False)
            except LedgerError as error:
                self._lose(f"the local disk refuses what is stored already: {error}")
                raise self._fenced() from error
            self._note_log(len(changes))

    def _create(self, data: bytes) -> None:
        name, patience = log_name(self._next), Patience(self._given_up)
        while True:
            try:
                is_own = self._objects.create(name, data)
            # Whether it is there is not known, and nothing can be said about it before it is.
            except Exception as error:
                try:
                    patience.wait(self._objects, error)
                except LogFencedError as given_up:
                    self._lose(str(given_up))
                    raise
                continue
            if not is_own:
                self._lose("another owner has taken it over")
                raise self._fenced()
            self._next += 1
            return

    def _note_log(self, size_bytes: int) -> None:
        if not self._log_bytes:
            self._since_s = time.monotonic()
        self._log_bytes += size_bytes
        if self._log_bytes >= self._checkpoint_bytes or self._next - self._start >= CHECKPOINT_OBJECTS:
            self._is_due.set()

    def mark_synced(self) -> None:
        """Mark nothing: the folder is not what the log is opened from."""

    def mend(self) -> None:
        """Lose the log if RocksDB takes no more writes: the end of an unsynced folder may be gone without a sign."""
        if self._opened().has_failed_behind:
            self._lose("the local disk failed")

    def close(self) -> None:
        """Store a checkpoint, unless the next owner has little to replay, and release the folder."""
        self._is_closing = True
        self._is_due.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        is_long = self._log_bytes > HAND_OVER_BYTES or self._next - self._start > HAND_OVER_OBJECTS
        if is_long and self._lost is None and not self._given_up.is_set():
            self._try_checkpoint()
        self.let_go()

    def let_go(self) -> None:
        """Release the folder and remove it: the next takeover makes another one, of the tables beside it."""
        is_own = self._is_in_place
        try:
            super().close()
        # Nothing of it is needed.
        except LedgerError as error:
            logger.info("The local folder of the log in %s was not closed well: %s", self._objects, error)
        if is_own:
            shutil.rmtree(self._path, ignore_errors=True)
        if self.damage is not None and self._tables is not None:
            # It may be theirs.
            self._tables.remove()

    def _keep_checkpoints(self) -> None:
        assert self._served is not None
        # Beside the first commits: what it deletes, no manifest after the claim's names, and nobody reads again.
        sweep(self._objects, self._served)
        while not self._is_closing and self._lost is None:
            self._is_due.wait(_LOOK_S)
            is_old = self._log_bytes > 0 and time.monotonic() - self._since_s >= CHECKPOINT_S
            if self._is_closing or not (is_old or self._is_due.is_set()):
                continue
            self._is_due.clear()
            self._try_checkpoint()

    def _try_checkpoint(self) -> None:
        try:
            self.store_checkpoint()
        except LogFencedError:
            pass
        # The checkpoint before counts, and the log goes on growing.
        except Exception as error:
            logger.warning("A checkpoint of the log in %s is tried again later: %s", self._objects, error)
            self._given_up.wait(_LOOK_S)

    def store_checkpoint(self) -> None:
        """Store a checkpoint now; called in one thread at a time.

        Raises:
            LogFencedError: The log is lost.
            Exception: The disk or the storage refuses; the checkpoint before counts.
        """
        assert self._checkpoints is not None
        # While commits go on.
        self.merge_small_tables()
        self.make_tables()
        shutil.rmtree(self._frozen, ignore_errors=True)
        frozen_bytes = 0
        try:
            with self._writing:
                self._check_not_lost()
                start = self._next
                self._opened().checkpoint(self._frozen)
                frozen_bytes, self._log_bytes = self._log_bytes, 0
            self._checkpoints.store(self._frozen, start, self._now_ms())
            self._start = start
        except LogFencedError as error:
            self._lose(str(error))
            raise
        except BaseException:
            self._log_bytes += frozen_bytes
            raise
        finally:
            shutil.rmtree(self._frozen, ignore_errors=True)

    def _check_not_lost(self) -> None:
        if self._lost is not None:
            raise self._fenced()
        if self._given_up.is_set():
            self._lose("it was given up")
            raise self._fenced()

    def _fenced(self) -> LogFencedError:
        return LogFencedError(f"The log in {self._objects} is not this service's any more: {self._lost}")

    def _lose(self, reason: str) -> None:
        with self._losing:
            if self._lost is not None:
                return
            self._lost = reason
        logger.warning("The log in %s is lost: %s", self._objects, reason)
        self._on_lost()
