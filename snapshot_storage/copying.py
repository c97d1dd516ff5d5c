"""Copy a snapshot from one storage to another, read it again there, and compare it entry by entry.

Both the command that copies on one machine and the job that does it on many use this. Memory holds one snapshot while
it is stored, and a few MiB of it while it is read again. Left out: which snapshots to copy, and their owners.
"""

import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import zip_longest

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotUnreadableError,
)
from snapshot_storage.inspection import segments_per_read
from snapshot_storage.storage import FIRST_SEGMENT_ENTRY, METADATA_ENTRY, BucketSnapshotInfo, BucketSnapshotStorage

READ_BYTES_MAX = 4 * 2**20
"""About how much of a snapshot is in memory at a time."""


async def segment_pieces(
    storage: BucketSnapshotStorage, info: BucketSnapshotInfo
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Read the segments of a snapshot piece by piece: the number of the first one, and their bytes."""
    for first, last in pieces_of(info):
        yield first, await storage.get_bucket_snapshot_segment(info.bucket_id, first, last)


def pieces_of(info: BucketSnapshotInfo) -> Iterator[tuple[int, int]]:
    """Give the first and the last segment of each piece in which a snapshot is read, so that memory is bounded."""
    step = segments_per_read(info, bytes_max=READ_BYTES_MAX)
    for first in range(1, info.segment_count + 1, step):
        yield first, min(info.segment_count, first + step - 1)


async def found_copy(
    here: BucketSnapshotStorage,
    there: BucketSnapshotStorage,
    info: BucketSnapshotInfo,
    metadata: bytes,
    candidates: Sequence[int],
) -> int | None:
    """Return the copy that an earlier run has stored, if every entry of it is the same."""
    if not candidates:
        return None
    checksums = await _checksums(here, info)
    for bucket_id in candidates:
        try:
            await check_copy(there, bucket_id, metadata, checksums)
        except (SnapshotUnreadableError, BucketNotFoundError):
            continue
        return bucket_id
    return None


async def copy_snapshot(
    here: BucketSnapshotStorage, there: BucketSnapshotStorage, info: BucketSnapshotInfo, metadata: bytes
) -> int:
    """Store a snapshot there, read it again, and return its id; a copy that differs is deleted.

    Raises:
        SnapshotCorruptedError: It is damaged here, or was read otherwise than written.
        SnapshotStorageError: One of the storages does not answer.
    """
    segments = [segment async for _, some in segment_pieces(here, info) for segment in some]
    checksums = list(map(zlib.crc32, segments))
    _check_count(info, checksums)
    new_id = await there.create_bucket_snapshot(
        metadata, segments, bucket_key=info.bucket_key, topic_name=info.topic_name, cursor_name=info.cursor_name
    )
    try:
        await check_copy(there, new_id, metadata, checksums)
    except SnapshotStorageError:
        await there.delete_bucket_snapshot(new_id)
        raise
    return new_id


async def check_copy(there: BucketSnapshotStorage, bucket_id: int, metadata: bytes, checksums: Sequence[int]) -> None:
    """Read a snapshot from end to end, and compare it with entry 0 and the CRC-32 of each segment.

    Raises:
        SnapshotCorruptedError: An entry is damaged, or is another.
        BucketNotFoundError: The copy was deleted meanwhile.
    """
    head = await there.get_bucket_snapshot_head(bucket_id)
    if head.metadata != metadata:
        raise SnapshotCorruptedError("it was read otherwise than written", bucket_id=bucket_id, entry=METADATA_ENTRY)
    found = await _checksums(there, head.info)
    if found != checksums:
        pairs = zip_longest(found, checksums)
        entry = next(entry for entry, (one, other) in enumerate(pairs, FIRST_SEGMENT_ENTRY) if one != other)
        raise SnapshotCorruptedError("it was read otherwise than written", bucket_id=bucket_id, entry=entry)


async def _checksums(storage: BucketSnapshotStorage, info: BucketSnapshotInfo) -> list[int]:
    checksums: list[int] = []
    async for _, segments in segment_pieces(storage, info):
        checksums += map(zlib.crc32, segments)
    _check_count(info, checksums)
    return checksums


def _check_count(info: BucketSnapshotInfo, checksums: Sequence[int]) -> None:
    if len(checksums) != info.segment_count:
        reason = f"{len(checksums)} of {info.segment_count} segments are there"
        raise SnapshotCorruptedError(reason, bucket_id=info.bucket_id)
