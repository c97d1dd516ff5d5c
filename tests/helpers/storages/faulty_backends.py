"""Storages that go wrong by a seed, under a caller that tries again: they too keep every promise of the interface.

Calls that are not idempotent are left alone: a create that is repeated after a failure may leave a second snapshot, as
its docstring says.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.faults import Fault, FaultPlan, Operation
from snapshot_storage.storage import (
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
)
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.storages.snapshot_backends import MemoryBackend

_Result = TypeVar("_Result")

_FAULTS = (Fault.LATENCY, Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER, Fault.TIMEOUT_AFTER)
_ATTEMPTS_MAX = 50


class PatientStorage(BucketSnapshotStorage):
    """Repeats every call of another storage that may be repeated."""

    def __init__(self, storage: BucketSnapshotStorage) -> None:
        self._storage = storage

    async def start(self) -> None:
        await self._storage.start()

    async def close(self) -> None:
        await self._storage.close()

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        return await self._storage.create_bucket_snapshot(
            metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
        )

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        return await _patiently(lambda: self._storage.get_bucket_snapshot_head(bucket_id))

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        return await _patiently(lambda: self._storage.get_bucket_snapshot_metadata(bucket_id))

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        return await _patiently(lambda: self._storage.get_bucket_snapshot_segment(bucket_id, first_entry, last_entry))

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        return await _patiently(lambda: self._storage.get_bucket_snapshot_length(bucket_id))

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        await _patiently(lambda: self._storage.delete_bucket_snapshot(bucket_id))

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        return await _patiently(lambda: self._storage.list_bucket_snapshots(topic_name, cursor_name))


async def _patiently(call: Callable[[], Awaitable[_Result]]) -> _Result:
    for _ in range(_ATTEMPTS_MAX):
        try:
            return await call()
        except SnapshotStorageError as error:
            if not error.retriable:
                raise
    raise AssertionError(f"failed {_ATTEMPTS_MAX} times in a row")


class FaultyBackend(MemoryBackend):
    """Memory that can be read and deleted from only with patience."""

    seed = 1

    def storage(self) -> BucketSnapshotStorage:
        plan = FaultPlan(
            seed=self.seed,
            rate=0.4,
            faults=_FAULTS,
            operations=frozenset(Operation) - {Operation.CREATE},
            latency_ms_max=1,
            timeout_ms=1,
        )
        return PatientStorage(FaultInjectingBucketSnapshotStorage(super().storage(), plan))


class OtherFaultyBackend(FaultyBackend):
    """The same with other faults."""

    seed = 2
