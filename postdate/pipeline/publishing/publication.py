"""Make snapshots that tasks have built the index of their cursors: the one step of a job that changes anything.

1. Each snapshot is stored and durable, without a property, unless its task has done it. One that the index has already
   is left alone.
2. The properties of all cursors are written, in one synced write: from here on the new index is the valid one.
3. The replaced snapshots, which no property names any more, are deleted.

A crash before 2 leaves the old index and snapshots without an owner; one after 2 leaves the new index and the same.
Recovery finds them by listing and deletes them, as it does after any crash of a service.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.storing import BuiltSnapshot, StoredSnapshot, is_same
from snapshot_storage.bucket_key import parse_bucket_id
from snapshot_storage.inspection import is_bucket_property
from snapshot_storage.objects.format import SnapshotNames
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_properties import read_properties

WRITES_IN_FLIGHT = 4


class PublishedBucket(NamedTuple):
    """A bucket of the index as it is now."""

    topic: str
    cursor: str
    bucket_key: str
    bucket_id: int
    row_count: int
    is_new: bool


@dataclass(slots=True)
class Published:
    """The changes of a publication; none where the index was like this already."""

    buckets: list[PublishedBucket] = field(default_factory=list)
    removed_ids: list[int] = field(default_factory=list)
    """Snapshots that no property names any more; they are deleted."""

    @property
    def created_count(self) -> int:
        """How many snapshots are new."""
        return sum(bucket.is_new for bucket in self.buckets)


async def publish(
    built: AsyncIterable[BuiltSnapshot],
    storage: BucketSnapshotStorage,
    cursors: CursorLog,
    *,
    replaced: Iterable[CursorName] = (),
    gone: Iterable[tuple[CursorName, str]] = (),
    marks: Mapping[str, str] | None = None,
    on_stored: Callable[[BuiltSnapshot], None] = lambda _built: None,
) -> Published:
    """Store snapshots as they come, and then make them the buckets of their cursors.

    Args:
        built: The buckets to publish; a bucket key at most once for each cursor. An error in it ends the publication.
        storage: Where to, open.
        cursors: The cursors, for their properties.
        replaced: Cursors whose other properties about buckets go: their index becomes the new one. Other cursors
            keep theirs, but for those of the same bucket key.
        gone: Buckets that go, by subscription and bucket key.
        marks: Other properties that every cursor with a new bucket gets, in the same write.
        on_stored: Told of each snapshot when it is stored.

    Raises:
        SnapshotStorageError: The storage failed. Nothing was published, and stored snapshots are deleted again.
        LedgerError: The properties were not written, or there is no such cursor; the same.
    """
    gone_keys: defaultdict[CursorName, set[str]] = defaultdict(set)
    for cursor, key in gone:
        gone_keys[cursor].add(key)
    old = {cursor: dict(cursors.properties(cursor)) for cursor in (*replaced, *gone_keys)}
    for cursor in replaced:
        gone_keys[cursor].update(filter(is_bucket_property, old[cursor]))
    published = Published()
    store = _Store(storage, on_stored)
    try:
        # 1. Store the snapshots.
        tasks = []
        async with asyncio.TaskGroup() as group:
            async for snapshot in built:
                cursor = CursorName(snapshot.topic, snapshot.cursor)
                if cursor not in old:
                    old[cursor] = dict(cursors.properties(cursor))
                tasks.append(group.create_task(store.put(snapshot, old[cursor])))
        published.buckets = sorted(task.result() for task in tasks)
        # 2. Name them by properties of all cursors, in one synced write.
        new = _new_properties(published.buckets, old, gone_keys)
        for bucket in published.buckets:
            new[CursorName(bucket.topic, bucket.cursor)].update(marks or {})
        changed = {cursor: properties for cursor, properties in new.items() if properties != old[cursor]}
        if changed:
            await asyncio.to_thread(cursors.put_properties, changed)
    except BaseException as error:
        await _delete(storage, store.created)
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from error
        raise
    # 3. Delete the old snapshots that no cursor names now: a wrong property of one must not cost another its snapshot.
    published.removed_ids = sorted(_ids(old.values()) - cursors.named_ids())
    await _delete(storage, published.removed_ids)
    return published


async def each_of(built: Iterable[BuiltSnapshot]) -> AsyncIterator[BuiltSnapshot]:
    """Give the snapshots."""
    for snapshot in built:
        yield snapshot


@dataclass(frozen=True, slots=True)
class _Store:
    storage: BucketSnapshotStorage
    on_stored: Callable[[BuiltSnapshot], None]
    created: list[int] = field(default_factory=list)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WRITES_IN_FLIGHT))

    async def put(self, built: BuiltSnapshot, properties: Mapping[str, str]) -> PublishedBucket:
        if isinstance(built, StoredSnapshot) and built.is_final:
            bucket_id, is_new = built.bucket_id, built.is_new
        else:
            async with self.gate:
                bucket_id, is_new = await self._stored(built, parse_bucket_id(properties.get(built.bucket_key, "")))
        self.on_stored(built)
        return PublishedBucket(built.topic, built.cursor, built.bucket_key, bucket_id, built.row_count, is_new=is_new)

    async def _stored(self, built: BuiltSnapshot, named_id: int | None) -> tuple[int, bool]:
        """The id of the snapshot, and whether it is new."""
        read = await built.read(self.storage)
        snapshot = read._replace(names=SnapshotNames(built.bucket_key, built.topic, built.cursor))
        if named_id is not None and await is_same(self.storage, named_id, snapshot):
            return named_id, False
        names, metadata, segments = snapshot
        bucket_id = await self.storage.create_bucket_snapshot(metadata, segments, **names._asdict())
        self.created.append(bucket_id)
        return bucket_id, True


def _new_properties(
    buckets: Sequence[PublishedBucket], old: Mapping[CursorName, dict[str, str]], gone: Mapping[CursorName, set[str]]
) -> dict[CursorName, dict[str, str]]:
    """The new properties of each cursor; those that name no bucket stay."""
    named: defaultdict[CursorName, dict[str, str]] = defaultdict(dict)
    for bucket in buckets:
        properties = named[CursorName(bucket.topic, bucket.cursor)]
        assert bucket.bucket_key not in properties, f"{bucket.bucket_key} comes twice"
        properties[bucket.bucket_key] = str(bucket.bucket_id)
    new = {}
    for cursor, properties in old.items():
        kept = {key: value for key, value in properties.items() if key not in gone.get(cursor, ())}
        new[cursor] = kept | named[cursor]
    return new


def _ids(properties: Iterable[Mapping[str, str]]) -> set[int]:
    return {bucket.bucket_id for of_cursor in properties for bucket in read_properties(of_cursor).buckets}


async def _delete(storage: BucketSnapshotStorage, bucket_ids: Iterable[int]) -> None:
    deletions = (storage.delete_bucket_snapshot(bucket_id) for bucket_id in bucket_ids)
    # A storage that fails here as well keeps snapshots without an owner, as after a crash: recovery finds them by
    # listing.
    await asyncio.gather(*deletions, return_exceptions=True)
