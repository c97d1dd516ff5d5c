"""Backups of the service's log, one at a time: a checkpoint in the data folder, which threads store elsewhere.

Messages are taken and delivered meanwhile. The delayed index is no part of a backup: a start on a restored folder reads
it again from the log.
"""

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from managed_ledger.completion import completed
from managed_ledger.errors import BackupError, BackupTakenError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.checkpoints import OnBytes, StoredCheckpoint, store_checkpoint
from managed_ledger.objects.object_store import FolderObjects, ObjectStore
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.command_line.extras import install_advice
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import is_s3, s3_location

logger = logging.getLogger(__name__)


class Backups:
    """The backups of a service.

    Args:
        config: The configuration, whose settings of S3 count where a target names none.
        store: The log.
        now_ms: The clock.
    """

    def __init__(self, config: BrokerConfig, store: LedgerStore, now_ms: Clock) -> None:
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._target: str | None = None
        self._stopping = threading.Event()
        self.last_success_s: float | None = None
        """When the last backup of this process was made; None before the first."""

    @completed
    async def make(self, target: str, on_bytes: OnBytes, *, replaces_other: bool = False) -> StoredCheckpoint:
        """Make a backup of all that has a receipt now.

        Args:
            target: An absolute path of a folder, or a place on S3.
            on_bytes: Told of the progress, from any thread.
            replaces_other: Whether it takes the place of the backup of another log, too.

        Raises:
            BackupError: The target cannot be used, or another backup is under way; nothing has changed there.
            LedgerError: The log cannot be read now.
            SnapshotStorageError: The storage does not answer or refuses.
            OSError: The disk refuses.
        """
        if self._target is not None:
            raise BackupTakenError(f"A backup to {self._target} is under way: wait for its end")
        self._target = target
        made_at_ms, is_stopping = self._now_ms(), self._stopping.is_set
        try:
            # A disk in a network may hang, and boto3 may ask servers for credentials.
            objects = await asyncio.to_thread(self._objects_at, target)
            folder = await self._store.checkpoint()
            store = partial(
                store_checkpoint,
                objects,
                folder,
                made_at_ms=made_at_ms,
                on_bytes=on_bytes,
                is_stopping=is_stopping,
                replaces_other=replaces_other,
            )
            stored = await asyncio.to_thread(_store_and_remove, store, objects, folder)
        finally:
            self._target = None
        self.last_success_s = made_at_ms / 1_000
        logger.info(
            "a backup is in %s: %d of %d files are new", objects, stored.new_tables, len(stored.manifest.tables)
        )
        return stored

    def _objects_at(self, target: str) -> ObjectStore:
        objects = objects_at(target, self._config.s3, self._stopping.wait)
        if isinstance(objects, FolderObjects):
            _check_folder(Path(target), self._config.data_directory)
        return objects

    def stop(self) -> None:
        """Give up a backup that is under way, after the file that is being stored."""
        self._stopping.set()


def objects_at(target: str, s3: S3Config, wait: Callable[[float], bool] | None = None) -> ObjectStore:
    """Return the place that a target names.

    Args:
        target: A folder, or `s3://BUCKET/PREFIX`.
        s3: The settings of S3 that the target leaves out.
        wait: Waits for so many seconds before a request is repeated; true where it is not to be.

    Raises:
        BackupError: The target names no place, or boto3 is missing.
        SnapshotStorageError: The AWS chain's own files are wrong.
    """
    if not is_s3(target):
        if "://" in target or not target.strip():
            raise BackupError("TARGET must be a folder or s3://BUCKET/PREFIX")
        return FolderObjects(Path(target))
    try:
        location = s3_location(target)
        config = location.config(s3)
    except ValueError as error:
        raise BackupError(f"TARGET: {error}") from error
    if not location.prefix:
        raise BackupError("TARGET names a bucket alone: write s3://BUCKET/PREFIX")
    try:
        # Boto3 is an extra, and slow to import.
        from snapshot_storage.s3.objects import S3Objects
    except ImportError as error:
        raise BackupError(install_advice(error.name, ["s3"]) or str(error)) from error
    return S3Objects(config, wait or _slept)


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _check_folder(folder: Path, data: Path) -> None:
    if not folder.is_absolute():
        raise BackupError(
            f"{folder}: write an absolute path, as the service has another working folder than the caller"
        )
    if folder.resolve().is_relative_to(data.resolve()):
        raise BackupError(f"{folder} is inside the data folder, with which it would be lost")


def _store_and_remove(store: Callable[[], StoredCheckpoint], objects: ObjectStore, folder: Path) -> StoredCheckpoint:
    try:
        return store()
    finally:
        objects.close()
        shutil.rmtree(folder, ignore_errors=True)
