"""The interface between the makers and readers of snapshots and the storages that keep them.

A storage moves encoded entries and does not know their content: encoding and decoding are pure functions (`codec`,
`snapshot`) that the caller runs where it likes. It has Pulsar's seven methods in snake case, and a few more: one to
list what is there, for repair; one to write a snapshot piece by piece, for merges that are larger than memory; one that
reads in one call all that recovery needs; and four that do for many snapshots, or topics, in one call what others do
for one.

Every backend promises, and the contract suite checks:

- A snapshot is whole or absent, for readers, for a crash at any point and for other processes.
- A snapshot never changes. Its id is never given to another one, also not after it was deleted and the
  process has started again.
- Once `create_bucket_snapshot` or a writer's `commit` has returned, the snapshot survives the loss of power.
- Methods may be called concurrently from one event loop. None of them blocks it.
- Only `SnapshotStorageError` comes out, besides `ValueError` for arguments that no caller may pass. Callers
  branch on its `retriable`. A storage does not retry by itself: how often and how patiently is the caller's
  business.
- A call that is cancelled may or may not take effect, as one that fails with `StorageUnavailableError`.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, NamedTuple, Self, TypeVar

from snapshot_storage.errors import SnapshotStorageError, StorageClosedError
from snapshot_storage.opening import Opening

T = TypeVar("T")

METADATA_ENTRY = 0
FIRST_SEGMENT_ENTRY = 1


def first_bucket_id() -> int:
    """Give the id of the first snapshot of an empty storage: the time in milliseconds.

    A property can outlive the storage that it points into (a folder that was moved away, memory after a restart). It
    must never name another snapshot then, and no storage makes snapshots faster than one a millisecond for long.
    """
    return time.time_ns() // 1_000_000


class BucketSnapshotInfo(NamedTuple):
    """One snapshot as a storage lists it, without reading its entries; in order of id.

    A tuple, as a start lists all that a topic has, and the list comes from another process.
    """

    bucket_id: int
    bucket_key: str
    topic_name: str
    cursor_name: str
    segment_count: int
    length_bytes: int
    """The bytes of all entries as they were given, before any compression."""

    def belongs_to(self, topic_name: str | None, cursor_name: str | None) -> bool:
        """Whether it is of this topic and this cursor, where None stands for any."""
        return topic_name in (None, self.topic_name) and cursor_name in (None, self.cursor_name)


@dataclass(frozen=True, slots=True)
class BucketSnapshotHead:
    """The part of a snapshot that one read gives at recovery."""

    info: BucketSnapshotInfo
    metadata: bytes
    """Entry 0."""
    first_segments: Sequence[bytes]
    """Entries 1 to k, as many as came with the same read and are before the first damaged one; may be none."""


class BucketSnapshotWriter(ABC):
    """Stores one snapshot whose segments come piece by piece; nothing is visible before `commit`.

    An async context manager, which aborts unless `commit` has returned. Its methods are called one after the
    other, by one task. After a method has failed or was cancelled, only `abort` is of use: the snapshot is
    written again with another writer.
    """

    @abstractmethod
    async def write_segments(self, segments: Sequence[bytes]) -> None:
        """Add the next segments; the first of all is entry 1.

        Holds a few MiB at most beside its arguments, however large the snapshot grows. Not idempotent, and
        not to be retried.

        Raises:
            StorageUnavailableError: The storage does not answer.
            StorageClosedError: The storage was closed meanwhile.
            ValueError: The writer has committed, aborted or failed.
        """

    @abstractmethod
    async def commit(self, metadata: bytes) -> int:
        """Make the snapshot visible, whole and durable, and return its new bucket id, which is 0 or larger.

        Atomic. Not idempotent and not to be retried, as `create_bucket_snapshot`: after
        `StorageUnavailableError` nothing was stored, or a snapshot whose id is unknown.

        Args:
            metadata: Entry 0; may be empty.

        Raises:
            StorageUnavailableError: The storage does not answer.
            StorageClosedError: The storage was closed meanwhile.
            ValueError: The writer has committed, aborted or failed.
        """

    @abstractmethod
    async def abort(self) -> None:
        """Remove the written segments, unless the snapshot is committed. Idempotent; never raises.

        Entries that cannot be removed now, because the storage does not answer or is closed, were never visible and are
        removed at a later `start`.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.abort()


class SegmentRange(NamedTuple):
    """Segments of one snapshot, both ends included."""

    bucket_id: int
    first_entry: int
    last_entry: int


async def _answer_of(call: Awaitable[T]) -> T | SnapshotStorageError:
    """Return what a call returns, or raises of one snapshot; a storage that is closed is so for all."""
    try:
        return await call
    except StorageClosedError:
        raise
    except SnapshotStorageError as error:
        return error


class BucketSnapshotStorage(Opening):
    """Keeps the snapshots of buckets, each whole or not at all.

    Every method but `start` and `close` raises `StorageClosedError` before `start` and after `close`, and
    `StorageUnavailableError` when the storage does not answer.
    """

    snapshots_at_once_max: ClassVar[int] = 1
    """How many snapshots to read or delete, or topics to list, in one call.

    1 where one that does not answer would hold up the others."""

    @abstractmethod
    async def start(self) -> None:
        """Open the storage. Idempotent; also opens it again after `close`.

        Raises:
            StorageLockedError: Another process or storage has it open.
            SnapshotVersionError: It was written in a layout that is not known here, and is only to be read.
            StorageCorruptedError: It is damaged as a whole, and only to be read.
            StorageUnavailableError: It does not answer.
        """

    @abstractmethod
    async def close(self) -> None:
        """Wait for the calls in flight, then let go of the storage. Idempotent; never raises."""

    @abstractmethod
    async def create_bucket_snapshot(
        self,
        metadata: bytes,
        segments: Sequence[bytes],
        *,
        bucket_key: str,
        topic_name: str,
        cursor_name: str,
    ) -> int:
        """Store a snapshot and return its new bucket id, which is 0 or larger.

        Atomic and durable on return. Not idempotent: a retry after `StorageUnavailableError` is safe, as no
        id was given out, but may leave an earlier snapshot without an owner; `list_bucket_snapshots` finds it. The
        bucket key need not be unique.

        Args:
            metadata: Entry 0; may be empty.
            segments: Entries 1 to n; may be none.
            bucket_key: The cursor property that will point to the snapshot.
            topic_name: The topic whose log the snapshot indexes.
            cursor_name: The subscription it belongs to.

        Raises:
            StorageUnavailableError: Nothing was stored, or a snapshot whose id is unknown.
        """

    @abstractmethod
    def new_bucket_snapshot(self, *, bucket_key: str, topic_name: str, cursor_name: str) -> BucketSnapshotWriter:
        """Return a writer of one snapshot, for segments that come piece by piece.

        Does nothing by itself: a writer that is not used leaves nothing. The rest that a crash leaves of an uncommitted
        snapshot is never visible and is removed at a later `start`.

        Args:
            bucket_key: The cursor property that will point to the snapshot; need not be unique.
            topic_name: The topic whose log the snapshot indexes.
            cursor_name: The subscription it belongs to.
        """

    @abstractmethod
    async def read_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        """Return what recovery needs of a snapshot, in as few calls to the storage as there can be.

        How many segments come along is the storage's choice, by their cost in the same read. A damaged one and
        those behind it do not: a read of it by itself raises the error. A read changes nothing, so a retry is always
        safe.

        Raises:
            BucketNotFoundError: There is no such snapshot.
            SnapshotCorruptedError: The header or entry 0 is damaged.
        """

    async def read_bucket_snapshot_heads(
        self, bucket_ids: Sequence[int]
    ) -> Sequence[BucketSnapshotHead | SnapshotStorageError]:
        """Return the head of each of several snapshots, or what `read_bucket_snapshot_head` raises of it, in order.

        A backend overrides this, and `snapshots_at_once_max`, if many heads cost it little more than one.
        """
        return [await _answer_of(self.read_bucket_snapshot_head(bucket_id)) for bucket_id in bucket_ids]

    async def read_bucket_snapshot_segments(
        self, ranges: Sequence[SegmentRange]
    ) -> Sequence[list[bytes] | SnapshotStorageError]:
        """Return segments of each of several snapshots, or what `get_bucket_snapshot_segment` raises, in order.

        A backend overrides this as `read_bucket_snapshot_heads`.
        """
        return [await _answer_of(self.get_bucket_snapshot_segment(*one)) for one in ranges]

    async def delete_bucket_snapshots(self, bucket_ids: Sequence[int]) -> Sequence[SnapshotStorageError | None]:
        """Delete several snapshots; return None for each, or what `delete_bucket_snapshot` raises, in order.

        A backend overrides this as `read_bucket_snapshot_heads`.
        """
        return [await _answer_of(self.delete_bucket_snapshot(bucket_id)) for bucket_id in bucket_ids]

    @abstractmethod
    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        """Return entry 0 of a snapshot, judged by its own checksum alone. A retry is always safe.

        Raises:
            BucketNotFoundError: There is no such snapshot.
            SnapshotCorruptedError: The entry is damaged, or the header where the storage needs it to find the entry.
        """

    @abstractmethod
    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        """Return the segments `first_entry` to `last_entry`, both included, counted from 1.

        Past the end there is nothing: asking 1 to 3 of two segments returns two, asking 4 to 4 returns none. All of
        the range comes or none of it. A retry is always safe.

        Raises:
            BucketNotFoundError: There is no such snapshot.
            SnapshotCorruptedError: One of the entries is damaged.
            ValueError: `first_entry` is below 1, or above `last_entry`.
        """

    @abstractmethod
    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        """Return the bytes of all entries of a snapshot as they were given. A retry is always safe.

        Raises:
            BucketNotFoundError: There is no such snapshot.
        """

    @abstractmethod
    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        """Delete a snapshot. Atomic, durable on return, and idempotent: an unknown id is no error.

        A retry is always safe. A read that runs meanwhile returns all it asked for or raises
        `BucketNotFoundError`. A snapshot that a server can neither read nor delete because of damage counts as deleted
        in the end, though it may be listed.
        """

    @abstractmethod
    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        """Return the snapshots in order of id, all or those of one topic, one cursor or both.

        A snapshot that is created or deleted meanwhile may or may not be in the list; any other is, unless its header
        cannot be read, so that no one can say whose it is: then it is left out, and `find_damage` names it. A retry is
        always safe.

        Raises:
            StorageCorruptedError: Damage hides which other snapshots there are, in a storage that is only read.
        """

    async def list_topics(self, topic_names: Sequence[str]) -> list[list[BucketSnapshotInfo]]:
        """Return what `list_bucket_snapshots` returns for each of several topics, or raise what it raises for one.

        A backend overrides this, and `snapshots_at_once_max`, if many topics cost it little more than one.
        """
        return [await self.list_bucket_snapshots(topic_name) for topic_name in topic_names]

    async def find_damage(self) -> list[SnapshotStorageError]:
        """Return the faults of the headers by which snapshots are found: all that a list leaves out or ends at.

        A header that is damaged is a `SnapshotCorruptedError`. One that the storage does not answer for, though it does
        for others, is a `SnapshotUnavailableError`, and need not be damaged. Entries are not read. A retry is always
        safe.
        """
        return []


def check_segment_range(first_entry: int, last_entry: int) -> None:
    """Refuse a range of segments that no caller may ask for; every backend calls it.

    Raises:
        ValueError: The range begins below 1 or ends before it begins.
    """
    if not FIRST_SEGMENT_ENTRY <= first_entry <= last_entry:
        raise ValueError(f"segments are counted from 1: cannot read {first_entry} to {last_entry}")


def writer_is_done() -> ValueError:
    """Make the error of a writer that is used after it committed, aborted or failed."""
    return ValueError("the writer of this snapshot has committed, aborted or failed: begin another one")
