"""Copy an index to another storage, or move it there.

Snapshots get new ids in the target. Copies of an earlier run are found again by their names and their content, so an
interrupted run is resumed by the next one, and a second run copies nothing. The order of the steps keeps a move safe:

1. every snapshot that a property names is copied, read again and compared, or found and compared; if one cannot be
   read or is missing, nothing further is done;
2. the properties of all cursors are changed to the new ids in one durable write;
3. only then, if requested, the old snapshots are deleted.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from postdate.index.cursor_snapshots import bucket_properties
from postdate.index.opening import Filter
from snapshot_storage.copying import copy_snapshot, found_copy
from snapshot_storage.errors import BucketNotFoundError, SnapshotUnreadableError
from snapshot_storage.inspection import BucketProperty, matched, readable_infos
from snapshot_storage.retrying import Retries
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage

COPIES_IN_FLIGHT_MAX = 8
"""Memory holds so many snapshots at a time, each of as many bytes as it has."""

OnCopied = Callable[[int, int], None]
"""Receives the number of bytes done, and of all bytes."""


class SnapshotToCopy(NamedTuple):
    """A snapshot that a property names, and the snapshots of the target that may be copies of it already."""

    info: BucketSnapshotInfo
    candidates: tuple[int, ...]


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
    """The number of named snapshots that are in the target, since an earlier run has updated the cursors."""
    cursors_updated: int = 0
    cursors_left: bool = False
    """Whether a requested update of the cursors was left out, since not all snapshots are in the target."""
    deleted: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    """Named snapshots that cannot be read or are missing, and the reasons, by old id."""


async def copy_index(
    here: BucketSnapshotStorage,
    there: BucketSnapshotStorage,
    cursors: CursorPropertiesFolder,
    *,
    retries: Retries,
    chosen: Filter,
    updates_cursors: bool,
    deletes_source: bool,
    advance: OnCopied,
) -> Copied:
    """Copy the snapshots that the chosen cursors name.

    Args:
        here: The storage of the index.
        there: The target.
        cursors: The properties of all cursors; open to write if they are to be updated.
        retries: How often a copy is written again where the target does not answer.
        chosen: Only these cursors, by the log's own names.
        updates_cursors: Whether the cursors shall name the copies.
        deletes_source: Whether the old snapshots shall be deleted in the end.
        advance: Told of the progress.

    Raises:
        LedgerError: The cursors cannot be read or written.
        SnapshotStorageError: One of the storages does not answer.
    """
    assert updates_cursors or not deletes_source
    copied = Copied()
    properties = bucket_properties(await asyncio.to_thread(cursors.read))
    chosen_properties = [one for one in properties if chosen.has(CursorName(one.topic_name, one.cursor_name))]
    wanted = await _plan(here, there, chosen, chosen_properties, copied)
    await _copy(here, there, wanted, retries, copied, advance)
    copied.cursors_left = updates_cursors and bool(copied.failed)
    if updates_cursors and not copied.failed:
        copied.cursors_updated = await asyncio.to_thread(_update_cursors, cursors, copied)
        if deletes_source:
            copied.deleted = await _delete_source(here, cursors, copied)
    return copied


Owner = tuple[int | None, str, str, str]
"""The id of a snapshot with the topic, the cursor and the key of the property that names it."""


def is_named(info: BucketSnapshotInfo, owners: Collection[Owner]) -> bool:
    """Whether a property names a snapshot: an id alone is no proof, as each storage gives its own."""
    return _owner(info) in owners


def _owner(info: BucketSnapshotInfo) -> Owner:
    return info.bucket_id, info.topic_name, info.cursor_name, info.bucket_key


async def _plan(
    here: BucketSnapshotStorage,
    there: BucketSnapshotStorage,
    chosen: Filter,
    properties: Sequence[BucketProperty],
    copied: Copied,
) -> list[SnapshotToCopy]:
    """Find the snapshots to copy, those that an earlier run has moved, and those that are unreadable or missing."""
    named = {one.bucket_id for one in properties if one.bucket_id is not None}
    owners = {(one.bucket_id, *one[:3]) for one in properties}
    in_target = await there.list_bucket_snapshots()
    moved = {info.bucket_id for info in in_target if is_named(info, owners)}
    # After a move, properties have the target's ids. A snapshot of the source with such an id has it by chance.
    copied.moved_before = len(moved)
    infos, faults = await readable_infos(here, named)
    infos = [info for info in infos if chosen.has(CursorName(info.topic_name, info.cursor_name))]
    copied.infos = [info for info in infos if info.bucket_id in named and info.bucket_id not in moved]
    copied.unnamed = len({info.bucket_id for info in infos} - named)
    for bucket_id, fault in faults.items():
        if bucket_id is not None and bucket_id in named and bucket_id not in moved:
            copied.failed[bucket_id] = str(fault)
        elif chosen == Filter():
            # The owner of an unreadable snapshot is unknown, so a selection leaves it out.
            copied.unnamed_damaged[bucket_id] = str(fault)
    found = {info.bucket_id for info in infos} | moved
    for one in properties:
        if one.bucket_id is not None and one.bucket_id not in found:
            reason = f"{one.key} of {one.cursor_name}, {one.topic_name} names it: it is missing"
            copied.failed.setdefault(one.bucket_id, reason)
    candidates = matched(copied.infos, [info for info in in_target if info.bucket_id not in moved])
    return [SnapshotToCopy(info, tuple(candidates[info.bucket_id])) for info in copied.infos]


async def _copy(
    here: BucketSnapshotStorage,
    there: BucketSnapshotStorage,
    wanted: Sequence[SnapshotToCopy],
    retries: Retries,
    copied: Copied,
    advance: OnCopied,
) -> None:
    """Copy snapshots, or find their copies, several at a time.

    Raises:
        SnapshotStorageError: One of the storages does not answer.
    """
    done, total = 0, sum(info.length_bytes for info, _ in wanted)
    advance(0, total)
    gate = asyncio.Semaphore(COPIES_IN_FLIGHT_MAX)

    async def copy_each(snapshots: Sequence[SnapshotToCopy]) -> None:
        nonlocal done
        taken: set[int] = set()
        for info, candidates in snapshots:
            async with gate:
                try:
                    metadata = await here.get_bucket_snapshot_metadata(info.bucket_id)
                    free = [bucket_id for bucket_id in candidates if bucket_id not in taken]
                    found_id = await found_copy(here, there, info, metadata, free)
                    if found_id is None:
                        # All of it is written again after a failure: what may be there already is an orphan.
                        new_id = await retries.run(partial(copy_snapshot, here, there, info, metadata))
                        copied.written += 1
                        copied.written_bytes += info.length_bytes
                    else:
                        new_id = found_id
                        taken.add(found_id)
                    copied.new_ids[info.bucket_id] = new_id
                except (SnapshotUnreadableError, BucketNotFoundError) as error:
                    copied.failed[info.bucket_id] = str(error)
            done += info.length_bytes
            advance(done, total)

    # Snapshots that may have the same copy follow each other, so that no two take it.
    groups: defaultdict[Hashable, list[SnapshotToCopy]] = defaultdict(list)
    for snapshot in wanted:
        groups[snapshot.candidates or snapshot.info.bucket_id].append(snapshot)
    try:
        async with asyncio.TaskGroup() as tasks:
            for group in groups.values():
                tasks.create_task(copy_each(group))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def _update_cursors(cursors: CursorPropertiesFolder, copied: Copied) -> int:
    """Point every property of a copied snapshot to its copy, in one durable write.

    A property that names another cursor's snapshot is left alone: its tracker drops it, and reads the log.
    """
    new_ids = {_owner(info): str(copied.new_ids[info.bucket_id]) for info in copied.infos}
    now = cursors.read()
    changed: dict[CursorName, dict[str, str]] = {}
    for one in bucket_properties(now):
        new_id = new_ids.get((one.bucket_id, *one[:3]))
        if new_id is not None:
            name = CursorName(one.topic_name, one.cursor_name)
            changed.setdefault(name, dict(now[name]))[one.key] = new_id
    if changed:
        cursors.put(changed)
    return len(changed)


async def _delete_source(here: BucketSnapshotStorage, cursors: CursorPropertiesFolder, copied: Copied) -> int:
    """Delete the copied snapshots, but for those that any cursor still names, rightly or not."""
    still_named = {one.bucket_id for one in bucket_properties(await asyncio.to_thread(cursors.read))}
    old_ids = copied.new_ids.keys() - still_named
    for bucket_id in old_ids:
        await here.delete_bucket_snapshot(bucket_id)
    return len(old_ids)
