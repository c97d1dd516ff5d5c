"""Makes a data folder's log of one on objects, without owning it: tables and log as they are at one moment.

What is there when the log ends was durable then, whoever goes on writing. A checkpoint that is stored meanwhile deletes
what was still to be read; then it is done again, with the tables that are here already.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.errors import BackupError, LogFencedError
from managed_ledger.objects.checkpoints import OnBytes, restoring_folder
from managed_ledger.objects.local_tables import LocalTables
from managed_ledger.objects.log_object import Replay, apply_changes
from managed_ledger.objects.manifest import MANIFEST, Manifest
from managed_ledger.objects.object_store import ObjectStore
from managed_ledger.objects.takeover import objects_from
from managed_ledger.rocksdb_store.files import RESTORED_ID_FILE, sync_folder

_TRIES: Final = 5
_WRITE_BUFFER_BYTES: Final = 16 * 2**20


class ReadLog(NamedTuple):
    """A log that was read out.

    Attributes:
        manifest: What its tables are of.
        end: The first number that its log did not have.
    """

    manifest: Manifest
    end: int


def read_out(
    objects: ObjectStore,
    folder: Path,
    *,
    on_bytes: OnBytes = lambda _done, _of_all: None,
    complete: Callable[[Path], None] = lambda _log: None,
) -> ReadLog:
    """Make the folder of a log; it is there then, and whole, or is not. A call that was cut off is gone on with.

    Args:
        objects: The place of the log, or of a checkpoint; it may be in use.
        folder: The folder, which is not there.
        on_bytes: Told of the progress of its tables.
        complete: Called with the log before the folder is there, to add what is not in it.

    Raises:
        BackupError: There is no log, it changes all the time, or the manifest is damaged.
        LedgerError: It is damaged, or the disk refuses.
        Exception: As `ObjectStore` raises, or the system.
    """
    beside = restoring_folder(folder)
    log = beside / "log"
    for _ in range(_TRIES):
        found = objects.read(MANIFEST)
        if found is None:
            raise BackupError(f"There is no log in {objects}")
        manifest = Manifest.decode(found[0], str(objects))
        tables = LocalTables(beside)
        try:
            tables.fetch(objects, manifest, on_bytes)
        except LogFencedError:
            continue
        tables.lay_out(manifest, log)
        end = _replay(objects, manifest, log)
        again = objects.read(MANIFEST)
        # A claim alone deletes nothing.
        if again is not None and Manifest.decode(again[0], str(objects)).start == manifest.start:
            complete(log)
            _move(log, folder)
            shutil.rmtree(beside)
            return ReadLog(manifest, end)
    raise BackupError(f"The log in {objects} changes faster than it is read: repeat it")


def _replay(objects: ObjectStore, manifest: Manifest, log: Path) -> int:
    database = RocksDatabase.open(log, write_buffer_bytes=_WRITE_BUFFER_BYTES)

    def apply(changes: bytes) -> None:
        batch = database.new_batch()
        apply_changes(changes, batch)
        database.write(batch, sync=False)

    try:
        replay = Replay(apply)
        end = manifest.start
        for number, found in objects_from(objects, manifest.start):
            if found is None:
                end = number
                break
            replay.take(found)
    except BaseException:
        database.release()
        raise
    database.close()
    return end


def _move(log: Path, folder: Path) -> None:
    # So that it does not replace the backup of the log that it is a copy of, which may live on.
    (log / RESTORED_ID_FILE).write_text(str(uuid4()))
    for file in log.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_folder(log)
    log.rename(folder)
    sync_folder(folder.parent)
