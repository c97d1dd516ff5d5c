"""Calls that are repeated when a storage does not answer, how often, and calls that never are."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from snapshot_storage.errors import (
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotUnavailableError,
    StorageUnavailableError,
)
from snapshot_storage.faults import Fault, FaultPlan, Operation
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage

READS: dict[Operation, Callable[[BucketSnapshotStorage, int], Awaitable[object]]] = {
    Operation.HEAD: lambda storage, bucket_id: storage.get_bucket_snapshot_head(bucket_id),
    Operation.METADATA: lambda storage, bucket_id: storage.get_bucket_snapshot_metadata(bucket_id),
    Operation.SEGMENT: lambda storage, bucket_id: storage.get_bucket_snapshot_segment(bucket_id, 1, 9),
    Operation.LENGTH: lambda storage, bucket_id: storage.get_bucket_snapshot_length(bucket_id),
    Operation.LIST: lambda storage, _: storage.list_bucket_snapshots("t", "c"),
    Operation.DELETE: lambda storage, bucket_id: storage.delete_bucket_snapshot(bucket_id),
}


class Pauses:
    """Takes no time, and remembers how long it was to be."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def retries(self, tries_max: int = 5) -> Retries:
        return Retries(tries_max=tries_max, min_ms=100, sleep=self, chance=Random(1))


async def _create(storage: BucketSnapshotStorage) -> int:
    return await storage.create_bucket_snapshot(b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c")


@pytest.mark.parametrize(
    "fault", [Fault.LATENCY, Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER, Fault.TIMEOUT_AFTER], ids=str
)
@pytest.mark.parametrize("operation", READS)
def test_what_changes_nothing_twice_is_asked_again(operation: Operation, fault: Fault) -> None:
    """Also a call that failed after it had its effect; the result is that of the call that got an answer."""

    async def scenario() -> None:
        pauses = Pauses()
        faulty = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage(), sleep=pauses)
        async with RetryingBucketSnapshotStorage(faulty, pauses.retries()) as storage:
            bucket_id = await _create(storage)
            right = await READS[operation](storage, bucket_id) if operation is not Operation.DELETE else None
            faulty.plan = FaultPlan(at={(operation, number): fault for number in range(1, 4)})
            faulty.calls.clear()
            faulty.calls[operation] = 1
            assert await READS[operation](storage, bucket_id) == right
            assert faulty.calls[operation] - 1 == (1 if fault is Fault.LATENCY else 4)

    asyncio.run(scenario())


def test_patience_ends_with_what_was_wrong_last() -> None:
    """After so many tries; each pause may be twice as long as the one before, and up to half of it is left out."""

    async def scenario() -> None:
        pauses = Pauses()
        faulty = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage())
        async with RetryingBucketSnapshotStorage(faulty, pauses.retries(tries_max=4)) as storage:
            faulty.is_down = True
            with pytest.raises(StorageUnavailableError, match="injected failure 3"):
                await storage.list_bucket_snapshots()
        assert len(pauses.seconds) == 3
        assert all(
            longest / 2 <= pause <= longest for pause, longest in zip(pauses.seconds, (0.1, 0.2, 0.4), strict=True)
        )
        assert pauses.seconds != [0.1, 0.2, 0.4]

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", [Operation.HEAD, Operation.METADATA, Operation.SEGMENT, Operation.LENGTH])
def test_an_outage_stays_one_however_long_it_lasts(operation: Operation) -> None:
    """A read that failed as often as it may names the snapshot, is no damage, and is not repeated by a caller."""

    async def scenario() -> None:
        pauses = Pauses()
        faulty = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage())
        retries = pauses.retries()
        async with RetryingBucketSnapshotStorage(faulty, retries) as storage:
            bucket_id = await _create(storage)
            faulty.is_down = True
            for _ in range(3):
                pauses.seconds.clear()
                with pytest.raises(StorageUnavailableError, match="cannot be read now") as raised:
                    await retries.run(lambda: READS[operation](storage, bucket_id))
                assert isinstance(raised.value, SnapshotUnavailableError)
                assert not isinstance(raised.value, SnapshotCorruptedError)
                assert (raised.value.bucket_id, raised.value.retriable) == (bucket_id, True)
                assert len(pauses.seconds) == 4
            faulty.is_down = False
            await READS[operation](storage, bucket_id)

    asyncio.run(scenario())


def test_what_makes_a_snapshot_is_asked_once() -> None:
    """A second call could make a second one."""

    async def scenario() -> None:
        pauses = Pauses()
        faulty = FaultInjectingBucketSnapshotStorage(
            MemoryBucketSnapshotStorage(), FaultPlan(at={(Operation.CREATE, k): Fault.FAILURE_AFTER for k in range(2)})
        )
        async with RetryingBucketSnapshotStorage(faulty, pauses.retries()) as storage:
            with pytest.raises(StorageUnavailableError):
                await _create(storage)
        assert pauses.seconds == []
        assert faulty.calls[Operation.CREATE] == 1

    asyncio.run(scenario())


def test_what_time_does_not_mend_is_asked_once() -> None:
    """A snapshot that is not there, say."""

    async def scenario() -> None:
        pauses = Pauses()
        async with RetryingBucketSnapshotStorage(MemoryBucketSnapshotStorage(), pauses.retries()) as storage:
            with pytest.raises(SnapshotStorageError):
                await storage.get_bucket_snapshot_metadata(5)
        assert pauses.seconds == []

    asyncio.run(scenario())
