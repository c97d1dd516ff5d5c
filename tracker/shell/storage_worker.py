"""The worker on a storage: the interface between a tracker, which decides, and the storage part of its actions.

`snapshot_work.StorageWork` does the work. An action carries all that it needs.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.opening import Opening
from snapshot_storage.storage import BucketSnapshotInfo
from tracker.config import TrackerConfig
from tracker.core.actions import Event, StorageAction

T = TypeVar("T")


def in_thread(function: Callable[[], T], /) -> Awaitable[T]:
    """Run a function in the event loop's default pool of threads."""
    return asyncio.to_thread(function)


@dataclass(frozen=True, slots=True)
class SnapshotOwner:
    """The owner of the snapshots that an action is about, and how they are made."""

    topic_name: str
    cursor_name: str
    config: TrackerConfig


class StorageWorker(Opening):
    """Does the work on a storage, for any number of trackers, and the little that must be done without one."""

    @abstractmethod
    async def start(self) -> None:
        """Open the storage: see `BucketSnapshotStorage.start`. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Close the storage, and let go of what is still done in the background. Idempotent; never raises."""

    @abstractmethod
    async def run_action(self, owner: SnapshotOwner, action: StorageAction) -> Event:
        """Run one action to its end, within the configured time; of a merge, which is many calls, each of them.

        Raises:
            SnapshotStorageError: As the storage's calls do.
            TimeoutError: It took too long; it may still take effect.
        """

    @abstractmethod
    async def list_snapshots(self, topic_name: str | None = None) -> Sequence[BucketSnapshotInfo]:
        """Return the snapshots of a topic, or all: see `BucketSnapshotStorage.list_bucket_snapshots`."""

    @abstractmethod
    async def delete_snapshot(self, bucket_id: int) -> None:
        """Delete a snapshot, whosever it is: see `BucketSnapshotStorage.delete_bucket_snapshot`."""


def is_lost(error: BaseException) -> bool:
    """Whether an error of a read means that the snapshot is gone or unreadable for good."""
    return isinstance(error, BucketNotFoundError | SnapshotCorruptedError)


def lost_bucket_id(error: BaseException) -> int | None:
    """Return which snapshot an error of a read is about, None where it does not say."""
    return error.bucket_id if isinstance(error, BucketNotFoundError | SnapshotCorruptedError) else None
