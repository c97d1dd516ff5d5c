"""Stores a checkpoint of the log as objects, and fetches one: incremental, and valid at each moment of a crash.

    read the manifest ─► claim ─► new tables ─► the manifest
                               └──────────────┴────────────┴──► what no manifest names is deleted

Up to the second change of the manifest the checkpoint of before counts; a claim of another writer refuses that change.
A table that the manifest has under the same name, size and end is not stored again. Names alone do not tell: a copy of
a log, or a restored one, goes on with the same numbers. But RocksDB writes into each table's end a random id of the
session that made it, and the table's number in that.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.errors import BackupError, BackupTakenError
from managed_ledger.objects.manifest import MANIFEST, TABLES, Manifest, TableObject, epoch_of, table_name
from managed_ledger.objects.object_store import ObjectStore, ReadObjects
from managed_ledger.rocksdb_store.files import IDENTITY_FILE, RESTORED_ID_FILE, sync_folder

logger = logging.getLogger(__name__)

Thing = TypeVar("Thing")
Result = TypeVar("Result")

FILES_AT_ONCE: Final = 4
_END_BYTES: Final = 16 * 1024
"""The properties of a table are some 1.5 KiB before its last 100 bytes."""
_OBJECTS: Final = (".sst", ".log")
"""The files that are objects: a write-ahead log may have some MiB."""

OnBytes = Callable[[int, int], None]
"""Receives the bytes that are stored or fetched, and how many there are in all; from any thread."""


class StoredCheckpoint(NamedTuple):
    """A checkpoint that was stored."""

    manifest: Manifest
    new_tables: int
    """How many files were stored anew; the others were there."""
    new_bytes: int


def store_checkpoint(
    objects: ObjectStore,
    folder: Path,
    *,
    made_at_ms: int,
    on_bytes: OnBytes,
    is_stopping: Callable[[], bool],
    replaces_other: bool = False,
) -> StoredCheckpoint:
    """Store a checkpoint in place of the one that is there.

    Args:
        objects: The place.
        folder: The checkpoint, as `RocksDatabase.checkpoint` makes it.
        made_at_ms: When it was made.
        on_bytes: Told of the progress.
        is_stopping: Whether to give up; asked before each file.
        replaces_other: Whether it takes the place of the checkpoint of another log, too.

    Raises:
        BackupError: There is something else in the place, or the checkpoint of another log; nothing has changed. Or
            there is no room, or it was given up; the checkpoint of before counts.
        BackupTakenError: Another writer has claimed the place meanwhile; its checkpoint, or that of before, counts.
        Exception: As `ObjectStore` raises; the checkpoint of before counts.
    """
    found = objects.read(MANIFEST)
    if found is None and next(iter(objects.names("")), None) is not None:
        raise BackupError(f"{objects} has other files than a backup's: name an empty place, or one that is not there")
    before = Manifest() if found is None else Manifest.decode(found[0], str(objects))
    log = _log_of(folder)
    if before.log not in ("", log) and not replaces_other:
        raise BackupError(
            f"{objects} has the backup of another log, or of the one that this log was restored from, which would be "
            "lost: name another place, or replace it by `postdate backup --replace`"
        )
    claim = replace(before, epoch=before.epoch + 1, owner=secrets.token_hex(8))
    tag = _changed(objects, claim, None if found is None else found[1])
    _delete_unnamed(objects, claim)
    tables, new = _compared(folder, claim)
    new_bytes, stored_bytes = sum(file.stat().st_size for file in new), 0

    def put(file: Path) -> TableObject:
        if is_stopping():
            raise BackupError("The backup is given up, as the service stops; the one before is valid")
        name = table_name(claim.epoch, file.name)
        objects.put_file(name, file)
        return TableObject(name, file.stat().st_size, digest_of(file), digest_of_end(file))

    room_bytes = objects.room_bytes()
    if room_bytes is not None and room_bytes < new_bytes:
        had = f"{new_bytes / 2**20:,.1f} MiB are new, and it may take {max(0, room_bytes) / 2**20:,.1f} MiB"
        raise BackupError(f"{objects} has no room: {had}")
    on_bytes(0, new_bytes)
    try:
        for file, table in zip(new, at_once(put, new), strict=True):
            tables[file.name] = table
            stored_bytes += table.size_bytes
            on_bytes(stored_bytes, new_bytes)
    except Exception:
        # Not after the last change of the manifest: one that fails may have been carried out.
        _delete_unnamed(objects, claim)
        raise
    made = replace(claim, log=log, made_at_ms=made_at_ms, tables=tables, files=_small_files_of(folder))
    _changed(objects, made, tag)
    _delete_unnamed(objects, made)
    return StoredCheckpoint(made, len(new), new_bytes)


def fetch_checkpoint(
    objects: ReadObjects,
    folder: Path,
    *,
    on_bytes: OnBytes,
    complete: Callable[[Path], None] = lambda _log: None,
) -> Manifest:
    """Make the folder of a log of a checkpoint, and check every byte of it; the folder is there then, or is not.

    Args:
        objects: The place.
        folder: The folder, which is not there. Whole files that a call that was cut off has left beside it are kept.
        on_bytes: Told of the progress.
        complete: Called with the log before the folder is there, to add what is not in the checkpoint.

    Raises:
        BackupError: There is no whole checkpoint, or it is damaged.
        LedgerError: The log in it is damaged, or of another format.
        Exception: As `ObjectStore` raises, or the system.
    """
    found = objects.read(MANIFEST)
    if found is None:
        raise BackupError(f"There is no backup in {objects}")
    manifest = Manifest.decode(found[0], str(objects))
    if not manifest.files:
        raise BackupError(f"No backup in {objects} has come to its end")
    beside = restoring_folder(folder)
    beside.mkdir(parents=True, exist_ok=True)
    for file in beside.iterdir():
        if file.name not in manifest.tables:
            file.unlink()
    fetched_bytes = 0

    def fetch(name: str) -> int:
        table, file = manifest.tables[name], beside / name
        # A call that was cut off has left it, whole or not.
        if file.exists() and file.stat().st_size == table.size_bytes and digest_of(file) == table.sha256:
            return table.size_bytes
        if not objects.fetch_file(table.name, file):
            if objects.read(MANIFEST) != found:
                raise BackupError(f"The backup in {objects} was replaced meanwhile: repeat it")
            raise BackupError(f"The backup in {objects} is damaged: {table.name} ({name}) is missing")
        if (size_bytes := file.stat().st_size) != table.size_bytes:
            fault = f"{table.name} ({name}) has {size_bytes} bytes, and had {table.size_bytes}"
            raise BackupError(f"The backup in {objects} is damaged: {fault}")
        if digest_of(file) != table.sha256:
            raise BackupError(f"The backup in {objects} is damaged: {table.name} ({name}) is not what was written")
        return size_bytes

    on_bytes(0, manifest.size_bytes)
    for size_bytes in at_once(fetch, manifest.tables):
        fetched_bytes += size_bytes
        on_bytes(fetched_bytes, manifest.size_bytes)
    for name, data in manifest.files.items():
        (beside / name).write_bytes(data)
    # So that it does not replace the backup of the log that it is a copy of, which may live on.
    (beside / RESTORED_ID_FILE).write_text(str(uuid4()))
    RocksDatabase.open_read_only(beside).release()
    complete(beside)
    for file in beside.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_folder(beside)
    beside.rename(folder)
    sync_folder(folder.parent)
    return manifest


def manifest_of(folder: Path, *, made_at_ms: int) -> Manifest:
    """Return the manifest that a checkpoint in a folder would have as objects.

    Args:
        folder: The checkpoint, as `RocksDatabase.checkpoint` makes it.
        made_at_ms: When it was made.
    """
    tables = {
        file.name: TableObject(table_name(1, file.name), file.stat().st_size, digest_of(file), digest_of_end(file))
        for file in sorted(folder.iterdir())
        if file.suffix in _OBJECTS
    }
    return Manifest(epoch=1, log=_log_of(folder), made_at_ms=made_at_ms, tables=tables, files=_small_files_of(folder))


def restoring_folder(folder: Path) -> Path:
    """Return where a folder is made that is being restored."""
    return folder.with_name(f"{folder.name}.restoring")


def _changed(objects: ObjectStore, manifest: Manifest, tag: str | None) -> str:
    new_tag = objects.replace(MANIFEST, manifest.encode(), tag)
    if new_tag is None:
        raise BackupTakenError(f"Another backup to {objects} has begun meanwhile; this one is given up")
    return new_tag


def _log_of(folder: Path) -> str:
    return (folder / IDENTITY_FILE).read_text().strip()


def _small_files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix not in _OBJECTS}


def _compared(folder: Path, claim: Manifest) -> tuple[dict[str, TableObject], list[Path]]:
    """Return the objects of files that are stored already, and the other files."""
    tables: dict[str, TableObject] = {}
    new: list[Path] = []
    for file in sorted(folder.iterdir()):
        known = claim.tables.get(file.name)
        # A write-ahead log grows, and its end says nothing about the rest.
        if known is not None and file.suffix == ".sst" and is_same_table(file, known):
            tables[file.name] = known
        elif file.suffix in _OBJECTS:
            new.append(file)
    return tables, new


def is_same_table(file: Path, known: TableObject) -> bool:
    """Whether a table, which never changes once it is written, is the one that was stored."""
    return (known.size_bytes, known.end_sha256) == (file.stat().st_size, digest_of_end(file))


def at_once(work: Callable[[Thing], Result], things: Iterable[Thing]) -> Iterator[Result]:
    """Give the results of work that is done in a few threads; after a failure nothing more is begun."""
    pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="objects")
    try:
        yield from pool.map(work, things)
    finally:
        pool.shutdown(cancel_futures=True)


def _delete_unnamed(objects: ObjectStore, made: Manifest) -> None:
    """Delete tables that no manifest names: of the checkpoint before, of writers that failed or were killed."""
    named = {table.name for table in made.tables.values()}
    try:
        for name in list(objects.names(TABLES)):
            epoch = epoch_of(name)
            # A later claimant may be storing others.
            if name not in named and epoch is not None and epoch <= made.epoch:
                objects.delete(name)
    # What stays takes room, until the next one.
    except Exception as error:
        logger.warning("tables that no backup in %s needs are deleted by the next one: %s", objects, error)


def digest_of_end(file: Path) -> str:
    """Return the hash of the last bytes of a file."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _END_BYTES))
        return hashlib.sha256(opened.read()).hexdigest()


def digest_of(file: Path) -> str:
    """Return the hash of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
