"""`postdate snapshots drop`: delete what no cursor names, or give up snapshots that cannot be read.

Without an id, what takes space and nothing reads: snapshots without a property, and damaged folders that were put aside
at a start. With ids, these snapshots: without a running service, the cursor properties that name one are removed first,
in one durable write, and then the snapshot, as far as the storage can delete it. Beside a service with snapshots on S3
the snapshot alone is deleted: the service notices at its next try, and reads the messages from the log.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.errors import StoreLockedError
from managed_ledger.positions.value_types import Json, OnStage, OnStep
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import location_of, retries_of, snapshots_folder
from postdate.index.opening import Filter, OpenIndex, readable_segments
from postdate.snapshot_tools.options import opened
from snapshot_storage.encoding.codec import decode_metadata, decode_segment
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotUnreadableError,
)
from snapshot_storage.inspection import orphans
from snapshot_storage.rocksdb.put_aside import PutAside, put_aside_folders, remove_put_aside
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


@dataclass(slots=True)
class Unused:
    """What takes space and nothing reads."""

    which: Filter
    """The topic and the cursor of each snapshot."""
    seen: int = 0
    """The number of snapshots that were looked at, damaged ones included."""
    infos: list[BucketSnapshotInfo] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    """Snapshots of an unknown owner and the reason, by id; filled only without a filter."""
    damaged: dict[int | None, str] = field(default_factory=dict)
    """Faults of snapshots that a cursor names, as far as their ids are known; they are left to the service."""
    folders: list[PutAside] = field(default_factory=list)
    """Damaged folders that were put aside; found only without a filter."""
    is_beside_service: bool = False
    """Whether a service runs, which deletes by itself the snapshots that no cursor names."""

    @property
    def count(self) -> int:
        """The number of things to delete."""
        return len(self.infos) + len(self.unreadable) + len(self.folders)


async def delete_unused(
    config: BrokerConfig,
    which: Filter,
    *,
    is_dry_run: bool,
    on_found: Callable[[Unused], None],
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> None:
    """Delete what nothing reads.

    Args:
        config: The configuration of the service.
        which: The topic and cursor.
        is_dry_run: Only look; possible beside a service, where a snapshot that is just being made counts as well.
        on_found: Called before anything is deleted; an error leaves all as it is.
        on_stage: Called with the number of deletions when they begin.
        on_step: Called with the number of deletions since the last call.

    Raises:
        StoreLockedError: A service is running, this is no dry run, and no folder was put aside.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened or does not answer.
    """
    try:
        async with opened(config, is_read_only=is_dry_run) as index:
            which = await index.resolve(which)
            found = await _unnamed(index, which)
            # Opening the folder to write may have put it aside.
            found.folders = _folders(config, which)
            on_found(found)
            if not is_dry_run:
                on_stage("delete", found.count)
                for bucket_id in (*(info.bucket_id for info in found.infos), *found.unreadable):
                    await index.storage.delete_bucket_snapshot(bucket_id)
                    on_step(1)
                _remove(found.folders, on_step)
    except StoreLockedError:
        found = Unused(which, folders=_folders(config, which), is_beside_service=True)
        if not found.folders:
            raise
        on_found(found)
        on_stage("delete", found.count)
        _remove(found.folders, on_step)


async def _unnamed(index: OpenIndex, which: Filter) -> Unused:
    infos, faults = await index.readable_infos(which)
    properties = await index.properties(Filter())
    named = {one.bucket_id for one in properties}
    unreadable = {one: str(fault) for one, fault in faults.items() if one is not None and one not in named}
    damaged = {one: str(fault) for one, fault in faults.items() if one not in unreadable}
    return Unused(which, len(infos) + len(faults), orphans(infos, properties), unreadable, damaged)


def _folders(config: BrokerConfig, which: Filter) -> list[PutAside]:
    return put_aside_folders(snapshots_folder(config)) if which == Filter() else []


def _remove(folders: list[PutAside], on_step: OnStep) -> None:
    for folder in folders:
        remove_put_aside(folder)
        on_step(1)


@dataclass(slots=True)
class GivenUp:
    """The result for one snapshot."""

    bucket_id: int
    cursors_updated: int = 0
    is_beside_service: bool = False
    """Whether a service runs, which notices by itself."""
    left: str | None = None
    """Why the storage could not delete it, if so: it takes space, and no property names it."""

    def as_json(self) -> Json:
        """The result for programs."""
        return asdict(self)


async def give_up(
    config: BrokerConfig, bucket_id: int, *, is_dry_run: bool, on_doubt: Callable[[str], None] = lambda _doubt: None
) -> GivenUp:
    """Give a snapshot up, so that its messages are read from the log again.

    Args:
        config: The configuration.
        bucket_id: Its id.
        is_dry_run: Only look.
        on_doubt: Called, with the reason, before a snapshot is given up that may not be lost, as in an outage; an
            error leaves it as it is. A damaged one is given up without a question.

    Raises:
        BucketNotFoundError: There is none of this id, and no cursor names one.
        StoreLockedError: A service is running, and has the storage to itself.
        LedgerError: The log cannot be opened or written.
        SnapshotStorageError: The storage cannot be opened, or cannot delete what a running service reads.
    """
    try:
        async with opened(config, is_read_only=is_dry_run) as index:
            await _tell_doubt(index.storage, bucket_id, on_doubt)
            changed = await _without(index, bucket_id)
            if not changed:
                await _check_there(index.storage, bucket_id)
            given_up = GivenUp(bucket_id, len(changed))
            if is_dry_run:
                return given_up
            if changed:
                await index.put_properties(changed)
            try:
                await index.storage.delete_bucket_snapshot(bucket_id)
            except SnapshotStorageError as error:
                given_up.left = str(error)
            return given_up
    except StoreLockedError:
        if config.snapshot_storage != "s3":
            raise
    async with location_of(config).patient_storage(retries=retries_of(config)) as storage:
        await _check_there(storage, bucket_id)
        await _tell_doubt(storage, bucket_id, on_doubt)
        await storage.delete_bucket_snapshot(bucket_id)
    return GivenUp(bucket_id, is_beside_service=True)


async def _without(index: OpenIndex, bucket_id: int) -> dict[CursorName, dict[str, str]]:
    """Return the properties of the cursors that name a snapshot, without these."""
    now = await index.cursor_properties()
    changed: dict[CursorName, dict[str, str]] = {}
    for one in await index.properties(Filter()):
        if one.bucket_id == bucket_id:
            name = CursorName(one.topic_name, one.cursor_name)
            del changed.setdefault(name, dict(now[name]))[one.key]
    return changed


async def _check_there(storage: BucketSnapshotStorage, bucket_id: int) -> None:
    """Refuse an id without a snapshot; an unreadable snapshot counts as present.

    Raises:
        BucketNotFoundError: There is none.
    """
    with suppress(SnapshotUnreadableError):
        await storage.get_bucket_snapshot_length(bucket_id)


async def _tell_doubt(storage: BucketSnapshotStorage, bucket_id: int, on_doubt: Callable[[str], None]) -> None:
    """Say why a snapshot may not be lost; of one that is damaged or missing there is nothing to say."""
    try:
        head = await storage.get_bucket_snapshot_head(bucket_id)
        decode_metadata(head.metadata)
        async for number, data in readable_segments(storage, head.info):
            if isinstance(data, SnapshotUnreadableError):
                raise data
            decode_segment(data, entry=number)
    except (SnapshotCorruptedError, BucketNotFoundError):
        return
    except SnapshotStorageError as error:
        on_doubt(f"It may only be an outage: {error}.")
    else:
        on_doubt(f"All of the snapshot {bucket_id} can be read.")
