"""Backups of the service's log, one at a time: a checkpoint in the data folder, which threads store elsewhere.

Messages are taken and delivered meanwhile. The delayed index is no part of a backup: a start on a restored folder reads
it again from the log.
"""

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from managed_ledger.bundles import WHOLE, BundleRange
from managed_ledger.completion import completed
from managed_ledger.errors import BackupError, BackupTakenError, StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.checkpoints import OnBytes, StoredCheckpoint, store_checkpoint
from managed_ledger.objects.object_store import FolderObjects, ObjectStore
from managed_ledger.objects.place_checkpoints import (
    MadeBackup,
    SummedBytes,
    check_place,
    complete_place,
    objects_of,
)
from managed_ledger.objects.shared_records import encode_records
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.data_place import SettingsStore
from postdate.index.object_places import objects_at

logger = logging.getLogger(__name__)


class Backups:
    """The backups of a service.

    Args:
        config: The configuration, whose settings of S3 count where a target names none.
        stores: Gives the logs of the bundles that are open.
        now_ms: The clock.
        ranges: All bundles; what this service does not have open, another one adds to the same place.
        shared: The records that are of no single topic; None where the only log has them.
    """

    def __init__(
        self,
        config: BrokerConfig,
        stores: Callable[[], Mapping[BundleRange, LedgerStore]],
        now_ms: Clock,
        *,
        ranges: Sequence[BundleRange] = (WHOLE,),
        shared: SettingsStore | None = None,
    ) -> None:
        self._config = config
        self._stores = stores
        self._now_ms = now_ms
        self._ranges, self._shared = tuple(ranges), shared
        self._target: str | None = None
        self._stopping = threading.Event()
        self.last_success_s: float | None = None
        """When the last backup of this process was made; None before the first."""

    @completed
    async def make(self, target: str, on_bytes: OnBytes, *, replaces_other: bool = False) -> MadeBackup:
        """Make a backup of all that has a receipt now.

        Each bundle is as of a moment of its own, after the call.

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
        made_at_ms = self._now_ms()
        try:
            # A disk in a network may hang, and boto3 may ask servers for credentials.
            objects = await asyncio.to_thread(self._objects_at, target)
            try:
                await asyncio.to_thread(check_place, objects, self._ranges, replaces_other=replaces_other)
                progress = SummedBytes(on_bytes)
                stored = {
                    bundle: await _stored(
                        store,
                        partial(
                            store_checkpoint,
                            objects_of(objects, bundle),
                            made_at_ms=made_at_ms,
                            on_bytes=progress.part(),
                            is_stopping=self._stopping.is_set,
                            replaces_other=replaces_other,
                        ),
                    )
                    for bundle, store in list(self._stores().items())
                }
                await asyncio.to_thread(complete_place, objects, self._ranges, await self._shared_records())
            finally:
                await asyncio.to_thread(objects.close)
        finally:
            self._target = None
        made = MadeBackup(
            made_at_ms,
            files=sum(len(one.manifest.tables) for one in stored.values()),
            size_bytes=sum(one.manifest.size_bytes for one in stored.values()),
            new_files=sum(one.new_tables for one in stored.values()),
            new_bytes=sum(one.new_bytes for one in stored.values()),
            missing=tuple(one for one in self._ranges if one not in stored),
        )
        self.last_success_s = made_at_ms / 1_000
        logger.info("a backup is in %s: %d of %d files are new", objects, made.new_files, made.files)
        return made

    async def _shared_records(self) -> bytes | None:
        if self._shared is None:
            return None
        # Another process may have changed them just before the backup was asked for.
        await self._shared.look()
        if self._shared.problem is not None:
            raise StoreUnavailableError(f"The backup is not whole: {self._shared.problem}")
        return encode_records(self._shared.records)

    def _objects_at(self, target: str) -> ObjectStore:
        objects = objects_at(target, self._config.snapshots_s3, self._stopping.wait)
        if isinstance(objects, FolderObjects):
            _check_folder(Path(target), self._config.local_folder)
        return objects

    def stop(self) -> None:
        """Give up a backup that is under way, after the file that is being stored."""
        self._stopping.set()


def _check_folder(folder: Path, data: Path) -> None:
    if not folder.is_absolute():
        raise BackupError(
            f"{folder}: write an absolute path, as the service has another working folder than the caller"
        )
    if folder.resolve().is_relative_to(data.resolve()):
        raise BackupError(f"{folder} is inside the data folder, with which it would be lost")


async def _stored(log: LedgerStore, store: Callable[[Path], StoredCheckpoint]) -> StoredCheckpoint:
    folder = await log.checkpoint()
    return await asyncio.to_thread(_store_and_remove, store, folder)


def _store_and_remove(store: Callable[[Path], StoredCheckpoint], folder: Path) -> StoredCheckpoint:
    try:
        return store(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
