"""`postdate snapshots copy`: copy the index of a service to another storage.

Snapshots get new ids there. An earlier copy is found again by its names and its content, so an interrupted run
continues where it stopped, and a second run copies nothing. The order of the steps keeps a move safe:

1. every snapshot that a cursor names is stored, and read again and compared, also one that an earlier run has stored;
   where one is damaged or missing, nothing further is done;
2. the properties of all cursors are changed to the new ids in one durable write;
3. only then, if requested, the old snapshots are deleted.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from broker.configuration.config import BrokerConfig
from broker.server.snapshot_storages import RETRIES, patient_storage_of, snapshots_folder
from managed_ledger.cursor_properties import CursorName
from snapshot_storage.copying import copy_snapshot, found_copy
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, StorageAccessError
from snapshot_storage.inspection import BucketProperty, matched, missing, orphans
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from snapshot_tools.place import Filter, SnapshotPlace, open_place, refuse_inside

Advance = Callable[[int, int], None]
"""Receives the number of bytes done, and of all bytes."""


@dataclass(slots=True)
class Copied:
    """The result of a copy."""

    new_ids: dict[int, int] = field(default_factory=dict)
    """Old id to new id, of every snapshot that is in both storages now."""
    infos: list[BucketSnapshotInfo] = field(default_factory=list)
    """The snapshots to be copied."""
    written: int = 0
    """The number of new copies."""
    written_bytes: int = 0
    unnamed: int = 0
    """The number of snapshots left out because no cursor names them."""
    unnamed_damaged: dict[int | None, str] = field(default_factory=dict)
    """Unreadable snapshots that no cursor names and the reasons, by id as far as known."""
    moved_before: int = 0
    """The number of named snapshots that are in the target alone, since an earlier run has updated the cursors."""
    cursors_updated: int = 0
    cursors_left: bool = False
    """Whether a requested update of the cursors was left out, since not all snapshots are in the target."""
    deleted: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    """Named snapshots that are damaged or missing, and the reasons, by old id."""


async def copy_snapshots(
    config: BrokerConfig,
    target: BrokerConfig,
    which: Filter,
    advance: Advance,
    *,
    updates_cursors: bool = False,
    deletes_source: bool = False,
) -> Copied:
    """Copy the snapshots that cursors name to the storage that `target` names.

    Raises:
        StoreLockedError: A service is running, and its cursors are to be changed.
        LedgerError: The log cannot be opened or written.
        SnapshotStorageError: One of the storages cannot be opened or does not answer.
    """
    assert updates_cursors or not deletes_source
    copied = Copied()
    async with open_place(config, is_read_only=not updates_cursors) as place, AsyncExitStack() as stack:
        which = await place.resolve(which)
        # Opening a target folder creates it, so the checks come first.
        there = await stack.enter_async_context(patient_storage_of(target))
        properties = await place.properties(which)
        await _choose(place, there, which, properties, copied)
        await _copy_all(place, there, which, copied, advance)
        copied.cursors_left = updates_cursors and bool(copied.failed)
        if updates_cursors and not copied.failed:
            copied.cursors_updated = await _update_cursors(place, properties, copied.new_ids)
            if deletes_source:
                for old_id in copied.new_ids:
                    await place.storage.delete_bucket_snapshot(old_id)
                    copied.deleted += 1
    return copied


async def _choose(
    place: SnapshotPlace, there: BucketSnapshotStorage, which: Filter, properties: list[BucketProperty], copied: Copied
) -> None:
    """Find the snapshots that cursors name, and the damaged or missing ones among them."""
    infos, damaged = await place.readable_infos(which)
    named = {one.bucket_id for one in properties}
    for bucket_id, reason in damaged.items():
        if bucket_id is not None and bucket_id in named:
            copied.failed[bucket_id] = reason
        else:
            # Faults without an id come here too: each named snapshot is found, damaged or missing by its own id.
            copied.unnamed_damaged[bucket_id] = reason
    unnamed = {info.bucket_id for info in orphans(infos, properties)}
    copied.unnamed = len(unnamed)
    copied.infos = [info for info in infos if info.bucket_id not in unnamed]
    lost = missing(infos, properties)
    targets = {info.bucket_id: info for info in await there.list_bucket_snapshots()} if lost else {}
    for bucket_id, one in lost.items():
        target = targets.get(bucket_id)
        if target is not None and (target.topic_name, target.cursor_name, target.bucket_key) == one[:3]:
            # A move that was started again after its cursors were updated.
            copied.moved_before += 1
            continue
        copied.failed.setdefault(bucket_id, f"{one.key} of {one.cursor_name}, {one.topic_name} names it: it is missing")


async def _copy_all(
    place: SnapshotPlace, there: BucketSnapshotStorage, which: Filter, copied: Copied, advance: Advance
) -> None:
    total, done = sum(info.length_bytes for info in copied.infos), 0
    advance(0, total)
    candidates = matched(copied.infos, await there.list_bucket_snapshots(which.topic_name, which.cursor_name))
    taken: set[int] = set()
    for info in copied.infos:
        try:
            metadata = await place.storage.get_bucket_snapshot_metadata(info.bucket_id)
            free = [one for one in candidates[info.bucket_id] if one not in taken]
            new_id = await found_copy(place.storage, there, info, metadata, free)
            if new_id is None:
                # The whole of it again: a copy whose answer was lost is found by the next run, or is an orphan there.
                new_id = await RETRIES.run(partial(copy_snapshot, place.storage, there, info, metadata))
                copied.written += 1
                copied.written_bytes += info.length_bytes
            taken.add(new_id)
            copied.new_ids[info.bucket_id] = new_id
        except (SnapshotCorruptedError, BucketNotFoundError) as error:
            copied.failed[info.bucket_id] = str(error)
        done += info.length_bytes
        advance(done, total)


async def _update_cursors(place: SnapshotPlace, properties: list[BucketProperty], new_ids: dict[int, int]) -> int:
    """Point every property of a copied snapshot to its copy, in one durable write."""
    now = await place.cursor_properties()
    changed: dict[CursorName, dict[str, str]] = {}
    for one in properties:
        new_id = None if one.bucket_id is None else new_ids.get(one.bucket_id)
        if new_id is not None:
            name = CursorName(one.topic_name, one.cursor_name)
            changed.setdefault(name, dict(now[name]))[one.key] = str(new_id)
    if changed:
        await place.put_properties(changed)
    return len(changed)


async def make_checkpoint(config: BrokerConfig, path: Path) -> list[BucketSnapshotInfo]:
    """Make a backup of the snapshots' folder, and return its content.

    Raises:
        StorageAccessError: The snapshots are in no folder, or the backup is there already.
        StoreLockedError: A service is running.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened, or the disk refuses.
    """
    if config.bucket_snapshot_storage != "rocksdb":
        raise StorageAccessError(
            f"bucketSnapshotStorage={config.bucket_snapshot_storage}: only a RocksDB folder has checkpoints; "
            "`postdate snapshots copy --to` makes a copy"
        )
    refuse_inside(config, path, f"checkpoint {path}")
    async with open_place(config), RocksDBBucketSnapshotStorage(snapshots_folder(config)) as storage:
        await storage.checkpoint(path)
    async with RocksDBBucketSnapshotStorage(path, is_read_only=True) as backup:
        return await backup.list_bucket_snapshots()
