"""Snapshots that no tracker looks after, and their deletion.

A tracker deletes its own snapshots when no row of them is left. But a cursor whose properties name snapshots need not
have a tracker, a cursor that is deleted leaves snapshots without an owner, and a crash, or a create whose answer is
lost, leaves one that no property names. So the owner of the storage runs this module, which knows no kind of tracker.

The order is a tracker's: a snapshot is deleted before its property is removed. A deletion may be repeated, so a crash
at any point is harmless. Left out: which cursors have a tracker, and when to look; the broker knows both.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from snapshot_storage.bucket_key import parse_bucket_id
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from tracker.bucket_properties import SnapshotProperty, read_properties
from tracker.delayed_delivery_tracker import TrackedCursor

T = TypeVar("T")


def is_named(properties: Mapping[str, str], info: BucketSnapshotInfo) -> bool:
    """Return whether a cursor's properties name a snapshot, malformed ones included.

    Runtime complexity: O(1) for a snapshot that is named by its own key, else O(properties).
    """
    if parse_bucket_id(properties.get(info.bucket_key, "")) == info.bucket_id:
        return True
    named = read_properties(properties)
    return info.bucket_id in {*(bucket.bucket_id for bucket in named.buckets), *named.malformed_ids}


async def remove_index_properties(cursor: TrackedCursor) -> int:
    """Let a cursor name no snapshot any more, in one write, and return how many it has named."""
    keys = [bucket.key for bucket in read_properties(cursor.properties).buckets]
    if keys:
        await cursor.update_properties(remove=keys)
    return len(keys)


class ResidualSnapshots:
    """Deletes from a storage what no tracker will.

    Each method raises `SnapshotStorageError` or `TimeoutError` where the storage fails or does not answer. The
    rest of its work can be done later.

    Args:
        storage: Where the snapshots are; started and closed by others.
        timeout_ms: A call of the storage that takes longer has failed.
    """

    def __init__(self, storage: BucketSnapshotStorage, *, timeout_ms: int) -> None:
        self._storage = storage
        self._timeout_ms = timeout_ms

    async def trim(
        self,
        topic_name: str,
        cursor_name: str,
        cursor: TrackedCursor,
        *,
        first_ledger_id: int,
        is_unattended: Callable[[], bool],
    ) -> None:
        """Delete the snapshots that a cursor names and has passed: their ledgers are all before `first_ledger_id`.

        Nothing more is changed when `is_unattended` says that the cursor has a tracker meanwhile.
        """
        for bucket in read_properties(cursor.properties).buckets:
            if bucket.ledgers.last_ledger_id >= first_ledger_id:
                continue
            if not is_unattended():
                return
            if await self._may_be_of(topic_name, cursor_name, bucket.bucket_id):
                await self._in_time(self._storage.delete_bucket_snapshot(bucket.bucket_id))
            await _remove_names(cursor, [bucket], is_unattended)

    async def clean_ownerless(self, topic_name: str, is_owned: Callable[[BucketSnapshotInfo], bool]) -> set[int]:
        """Delete a topic's snapshots without an owner, as a crash or an outage may leave them.

        `is_owned` is asked just before one would be deleted: a cursor that is made meanwhile keeps what is its own.
        Returns the ids of the others.
        """
        kept = set()
        for info in await self._in_time(self._storage.list_bucket_snapshots(topic_name)):
            if is_owned(info):
                kept.add(info.bucket_id)
            else:
                await self._in_time(self._storage.delete_bucket_snapshot(info.bucket_id))
        return kept

    async def remove_missing(
        self, cursor: TrackedCursor, present_ids: Collection[int], *, is_unattended: Callable[[], bool]
    ) -> int:
        """Remove the properties that name snapshots which are gone; of those in `present_ids` that is not asked.

        Returns how many were removed; 0 if a tracker has come meanwhile, which finds the same. See `trim`.
        """
        missing = [
            bucket
            for bucket in read_properties(cursor.properties).buckets
            if bucket.bucket_id not in present_ids and await self._is_gone(bucket.bucket_id)
        ]
        return await _remove_names(cursor, missing, is_unattended)

    async def _may_be_of(self, topic_name: str, cursor_name: str, bucket_id: int) -> bool:
        """Whether no other cursor can miss this snapshot: the property may name another cursor's."""
        try:
            head = await self._in_time(self._storage.get_bucket_snapshot_head(bucket_id))
        except (BucketNotFoundError, SnapshotCorruptedError):
            return True
        return head.info.belongs_to(topic_name, cursor_name)

    async def _is_gone(self, bucket_id: int) -> bool:
        try:
            await self._in_time(self._storage.get_bucket_snapshot_head(bucket_id))
        except BucketNotFoundError:
            return True
        except SnapshotCorruptedError:
            # A list leaves damaged ones out. They are a tracker's to give up, or go with their messages.
            pass
        return False

    async def _in_time(self, answer: Awaitable[T]) -> T:
        async with asyncio.timeout(self._timeout_ms / 1_000):
            return await answer


async def _remove_names(
    cursor: TrackedCursor, buckets: Sequence[SnapshotProperty], is_unattended: Callable[[], bool]
) -> int:
    """Remove the properties whose snapshots are gone, in one write; return how many there were without a tracker.

    A tracker that has come meanwhile finds that out by itself, and may have named other snapshots by the same keys.
    """
    if not is_unattended():
        return 0
    keys = [one.key for one in buckets if parse_bucket_id(cursor.properties.get(one.key, "")) == one.bucket_id]
    if keys:
        await cursor.update_properties(remove=keys)
    return len(keys) if is_unattended() else 0
