"""Copy an index to another storage: the one plan for a copy, whether one process carries it out or Spark.

Snapshots get new ids in the target. Copies of an earlier run are found again by their names and their content, so an
interrupted run is resumed by the next one, and a second run copies nothing. The order of the steps keeps a move safe:

1. every snapshot that a property names is copied, read again and compared, or found and compared; if one cannot be
   read or is missing, nothing further is done;
2. the properties of all cursors are changed to the new ids in one durable write;
3. only then, if requested, the old snapshots are deleted.

`CopyWorkers` carry out step 1, each with `find_or_copy`: `postdate.snapshot_tools.copy` in this process,
`postdate.pipeline.jobs.copies` in tasks of Spark.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from postdate.pipeline.index.cursor_snapshots import bucket_properties
from postdate.pipeline.index.selection import Selection
from snapshot_storage.copying import found_copy
from snapshot_storage.errors import BucketNotFoundError, SnapshotUnreadableError
from snapshot_storage.inspection import BucketProperty, matched, readable_infos
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage

OnCopied = Callable[[int, int], None]
"""Receives the number of bytes done, and of all bytes."""


class SnapshotToCopy(NamedTuple):
    """A snapshot that a property names, and the snapshots of the target that may be copies of it already."""

    info: BucketSnapshotInfo
    candidates: tuple[int, ...]


class CopyResult(NamedTuple):
    """The result for one snapshot."""

    old_id: int
    new_id: int | None = None
    """None if the snapshot cannot be copied."""
    is_new: bool = False
    """False for a copy that an earlier run has made."""
    error: str = ""


class CopyWorkers(Protocol):
    """Copies snapshots, in any order."""

    may_repeat: bool
    """Whether the target may get several copies of a snapshot, of which the last one is told."""

    def copies(
        self, here: BucketSnapshotStorage, there: BucketSnapshotStorage, wanted: Sequence[SnapshotToCopy]
    ) -> AsyncGenerator[CopyResult, None]:
        """Copy each snapshot, or find its copy, and give the results as they come.

        Raises:
            SnapshotStorageError: One of the storages does not answer.
        """
        ...


async def find_or_copy(
    here: BucketSnapshotStorage,
    there: BucketSnapshotStorage,
    wanted: Sequence[SnapshotToCopy],
    write: Callable[[BucketSnapshotInfo, bytes], Awaitable[int | None]],
) -> AsyncGenerator[CopyResult, None]:
    """Find the copy of each snapshot, or make it, one after the other; no two get the same copy.

    Args:
        here: The storage of the index.
        there: The target.
        wanted: The snapshots, with the candidates for their copies.
        write: Makes a copy from an info and entry 0, and returns its id; None if it gets one only later.

    Raises:
        SnapshotStorageError: One of the storages does not answer.
    """
    taken: set[int] = set()
    for info, candidates in wanted:
        try:
            metadata = await here.get_bucket_snapshot_metadata(info.bucket_id)
            free = [bucket_id for bucket_id in candidates if bucket_id not in taken]
            found_id = await found_copy(here, there, info, metadata, free)
            new_id = await write(info, metadata) if found_id is None else found_id
        except (SnapshotUnreadableError, BucketNotFoundError) as error:
            yield CopyResult(info.bucket_id, error=str(error))
        else:
            taken.update(() if new_id is None else (new_id,))
            yield CopyResult(info.bucket_id, new_id, is_new=found_id is None)


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
    workers: CopyWorkers,
    *,
    chosen: Selection,
    updates_cursors: bool,
    deletes_source: bool,
    advance: OnCopied,
) -> Copied:
    """Copy the snapshots that the chosen cursors name.

    Args:
        here: The storage of the index.
        there: The target.
        cursors: The properties of all cursors; open to write if they are to be updated.
        workers: Copies the snapshots.
        chosen: Only cursors of this selection.
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
    async with aclosing(workers.copies(here, there, wanted)) as results:
        await _copy(results, copied, advance)
    if workers.may_repeat:
        await _delete_leftovers(there, wanted, properties, copied)
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
    chosen: Selection,
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
        elif chosen == Selection():
            # The owner of an unreadable snapshot is unknown, so a selection leaves it out.
            copied.unnamed_damaged[bucket_id] = str(fault)
    found = {info.bucket_id for info in infos} | moved
    for one in properties:
        if one.bucket_id is not None and one.bucket_id not in found:
            reason = f"{one.key} of {one.cursor_name}, {one.topic_name} names it: it is missing"
            copied.failed.setdefault(one.bucket_id, reason)
    candidates = matched(copied.infos, [info for info in in_target if info.bucket_id not in moved])
    return [SnapshotToCopy(info, tuple(candidates[info.bucket_id])) for info in copied.infos]


async def _copy(results: AsyncIterator[CopyResult], copied: Copied, advance: OnCopied) -> None:
    lengths = {info.bucket_id: info.length_bytes for info in copied.infos}
    done, total = 0, sum(lengths.values())
    advance(0, total)
    async for one in results:
        done += lengths[one.old_id]
        if one.new_id is None:
            copied.failed[one.old_id] = one.error
        else:
            copied.new_ids[one.old_id] = one.new_id
            copied.written += one.is_new
            copied.written_bytes += one.is_new * lengths[one.old_id]
        advance(done, total)


async def _delete_leftovers(
    there: BucketSnapshotStorage,
    wanted: Sequence[SnapshotToCopy],
    properties: Sequence[BucketProperty],
    copied: Copied,
) -> None:
    """Delete further copies, of this run or of one that was interrupted; snapshots that any property names stay."""
    copies = matched([snapshot.info for snapshot in wanted], await there.list_bucket_snapshots())
    used = {*copied.new_ids.values(), *(one.bucket_id for one in properties)}
    for bucket_id in {one for ids in copies.values() for one in ids} - used:
        await there.delete_bucket_snapshot(bucket_id)


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
