"""The interface between the makers and readers of snapshots and the storages that keep them.

A storage moves encoded entries and does not know their content: encoding and decoding are pure functions (`codec`,
`snapshot`) that the caller runs where it likes. It has Pulsar's seven methods in snake case, and three more: one that
reads in one call all that recovery needs, one that lists the snapshots, and one that names the damaged ones.

Every backend promises, and the contract suite checks:

- A snapshot is whole or absent, for readers, for a crash at any point and for other processes.
- A snapshot never changes. Its id is never given to another one, also not after it was deleted and the
  process has started again.
- Once `create_bucket_snapshot` has returned, the snapshot survives the loss of power.
- Methods may be called concurrently from one event loop. None of them blocks it.
- Only `SnapshotStorageError` comes out, besides `ValueError` for arguments that no caller may pass. Callers
  branch on its `retriable`. A storage does not retry by itself: how often and how patiently is the caller's
  business.
- A call that is cancelled may or may not take effect, as one that fails with `StorageUnavailableError`.
"""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from snapshot_storage.errors import SnapshotStorageError
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


class BucketSnapshotStorage(Opening):
    """Keeps the snapshots of buckets, each whole or not at all.

    Every method but `start` and `close` raises `StorageClosedError` before `start` and after `close`, and
    `StorageUnavailableError` when the storage does not answer.
    """

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
    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        """Return what recovery needs of a snapshot, in as few calls to the storage as there can be.

        A read changes nothing, so a retry is always safe.

        Raises:
            BucketNotFoundError: There is no such snapshot.
            SnapshotCorruptedError: The header or entry 0 is damaged.
        """

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
