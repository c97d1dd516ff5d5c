"""A storage around any other that fails on purpose, for tests of this package and of programs that embed a tracker.

    storage = FaultInjectingBucketSnapshotStorage(MemoryBucketSnapshotStorage(), FaultPlan(seed=7, rate=0.2))

It keeps the interface's promises: it raises the errors that a real storage raises when its network, its disk or its
machine fails. That includes that each entry is under a checksum, so a flipped bit is reported and never handed out;
`are_reads_checked=False` is a storage without one. A snapshot that alone can never be read fails like in an outage,
until an operator has dropped it (`dropped_after_failures`). `faults` decides which calls fail, and `fault_counts`
counts them. Faults end when `plan` is set to `NO_FAULTS`; unreadable snapshots stay so.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol, TypeVar

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, StorageUnavailableError
from snapshot_storage.faults import DAMAGES, NO_FAULTS, Fault, FaultPlan, Operation, damaged
from snapshot_storage.storage import (
    FIRST_SEGMENT_ENTRY,
    METADATA_ENTRY,
    BucketSnapshotHead,
    BucketSnapshotInfo,
    BucketSnapshotStorage,
    check_segment_range,
)

Sleep = Callable[[float], Awaitable[None]]

_Result = TypeVar("_Result")


class _Call(Protocol):
    """Runs a call, or lets it go wrong."""

    def __call__(self, operation: Operation, call: Callable[[], Awaitable[_Result]], /) -> Awaitable[_Result]:
        """Return what the call returns."""


class FaultInjectingBucketSnapshotStorage(BucketSnapshotStorage):
    """Passes every call on to another storage, or lets it go wrong as a plan says.

    Args:
        storage: Keeps the snapshots. It may be shared with another wrapper, as a service that starts again does.
        plan: The faults; `plan` may be set at any time.
        sleep: Waits for so many seconds; the running loop's clock unless told otherwise.
        are_reads_checked: Whether the storage finds damaged entries out by their checksums.
        dropped_after_failures: How often such a snapshot is asked for before an operator drops it; None never does.
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        plan: FaultPlan = NO_FAULTS,
        *,
        sleep: Sleep = asyncio.sleep,
        are_reads_checked: bool = True,
        dropped_after_failures: int | None = 5,
    ) -> None:
        self.plan = plan
        self.is_down = False
        """While set, every call fails before its effect."""
        self.is_hanging = False
        """While set, every call hangs."""
        self.calls: Counter[Operation] = Counter()
        self.fault_counts: Counter[Fault] = Counter()
        self.damaged_ids: set[int] = set()
        """Of which snapshots something damaged was read."""
        self.unreadable_ids: set[int] = set()
        """Which snapshots can never be read."""
        self.reads_in_vain = 0
        """How often they were asked for."""
        self._dropped_after_failures = dropped_after_failures
        self._failures: Counter[int] = Counter()
        self._storage = storage
        self._sleep = sleep
        self._are_reads_checked = are_reads_checked
        self._damage_at_rest: dict[tuple[int, int], tuple[Fault, int]] = {}

    def damage(self, bucket_id: int, entry: int, fault: Fault) -> None:
        """Damage an entry for good: from now on, every read of it lacks the same end, or has the same flipped bit."""
        assert fault in DAMAGES
        self._damage_at_rest[bucket_id, entry] = fault, len(self._damage_at_rest)

    async def start(self) -> None:
        await self._storage.start()

    async def close(self) -> None:
        await self._storage.close()

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        segments = tuple(segments)
        return await self._create(
            lambda: self._storage.create_bucket_snapshot(
                metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
            )
        )

    async def get_bucket_snapshot_head(self, bucket_id: int) -> BucketSnapshotHead:
        infos: list[BucketSnapshotInfo] = []

        async def read() -> list[bytes]:
            head = await self._storage.get_bucket_snapshot_head(bucket_id)
            infos.append(head.info)
            return [head.metadata]

        (metadata,) = await self._read(Operation.HEAD, read, bucket_id, METADATA_ENTRY)
        return BucketSnapshotHead(infos[0], metadata)

    async def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:

        async def read() -> list[bytes]:
            return [await self._storage.get_bucket_snapshot_metadata(bucket_id)]

        return (await self._read(Operation.METADATA, read, bucket_id, METADATA_ENTRY))[0]

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        check_segment_range(first_entry, last_entry)
        assert first_entry >= FIRST_SEGMENT_ENTRY
        return await self._read(
            Operation.SEGMENT,
            lambda: self._storage.get_bucket_snapshot_segment(bucket_id, first_entry, last_entry),
            bucket_id,
            first_entry,
        )

    async def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        return await self._call(Operation.LENGTH, lambda: self._storage.get_bucket_snapshot_length(bucket_id))

    async def delete_bucket_snapshot(self, bucket_id: int) -> None:
        await self._call(Operation.DELETE, lambda: self._storage.delete_bucket_snapshot(bucket_id))

    async def list_bucket_snapshots(
        self, topic_name: str | None = None, cursor_name: str | None = None
    ) -> list[BucketSnapshotInfo]:
        return await self._call(Operation.LIST, lambda: self._storage.list_bucket_snapshots(topic_name, cursor_name))

    async def _create(self, create: Callable[[], Awaitable[int]]) -> int:
        number, fault = self._begin(Operation.CREATE)
        bucket_id = await self._with(fault, Operation.CREATE, number, create)
        if fault is Fault.UNREADABLE:
            self.unreadable_ids.add(bucket_id)
        return bucket_id

    def _begin(self, operation: Operation) -> tuple[int, Fault | None]:
        """Count a call, and say which one it is and what happens to it."""
        number = self.calls[operation]
        self.calls[operation] += 1
        if self.is_hanging:
            fault: Fault | None = Fault.HANG
        elif self.is_down:
            fault = Fault.FAILURE_BEFORE
        else:
            fault = self.plan.fault(operation, number)
        if fault is not None:
            self.fault_counts[fault] += 1
        return number, fault

    async def _call(self, operation: Operation, call: Callable[[], Awaitable[_Result]]) -> _Result:
        number, fault = self._begin(operation)
        return await self._with(fault, operation, number, call)

    async def _read(
        self, operation: Operation, read: Callable[[], Awaitable[list[bytes]]], bucket_id: int, first_entry: int
    ) -> list[bytes]:
        number, fault = self._begin(operation)
        if bucket_id in self.unreadable_ids and fault is not Fault.HANG:
            await self._fail_for_ever(operation, bucket_id)
        payloads = await self._with(fault, operation, number, read)
        damages = {
            entry: self._damage_at_rest[bucket_id, entry]
            for entry in range(first_entry, first_entry + len(payloads))
            if (bucket_id, entry) in self._damage_at_rest
        }
        if fault in DAMAGES and payloads:
            place = self.plan.chance(operation, number, "place").randrange(len(payloads))
            damages[first_entry + place] = fault, number
        for entry, damage in damages.items():
            place = entry - first_entry
            payloads[place] = self._damaged(payloads[place], *damage, bucket_id, entry)
        return payloads

    async def _fail_for_ever(self, operation: Operation, bucket_id: int) -> None:
        self.reads_in_vain += 1
        self._failures[bucket_id] += 1
        most = self._dropped_after_failures
        if most is not None and self._failures[bucket_id] >= most and not self.is_down:
            await self._storage.delete_bucket_snapshot(bucket_id)
            raise BucketNotFoundError(bucket_id)
        raise StorageUnavailableError(f"the snapshot of {bucket_id} can never be read: '{operation}' fails")

    def _damaged(self, payload: bytes, fault: Fault, number: int, bucket_id: int, entry: int) -> bytes:
        """Return what a medium gives instead of an entry, if the checksum that was stored with it lets it pass."""
        read = damaged(payload, fault, Random(f"{self.plan.seed} {fault} {number}"))
        if read == payload:
            return payload
        self.damaged_ids.add(bucket_id)
        if self._are_reads_checked and zlib.crc32(read) != zlib.crc32(payload):
            raise SnapshotCorruptedError("its checksum is another", bucket_id=bucket_id, entry=entry)
        return read

    async def _with(
        self, fault: Fault | None, operation: Operation, number: int, call: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        """Run a call, or let it fail, before it takes effect or after."""
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        if fault is Fault.FAILURE_BEFORE:
            raise StorageUnavailableError(f"injected failure {number} of '{operation}', before its effect")
        if fault is Fault.LATENCY:
            await self._sleep(self.plan.chance(operation, number, "latency").random() * self.plan.latency_ms_max / 1e3)
        if fault is Fault.LOST_DELETE:
            # A delete without an effect returns the same as one with an effect.
            return None  # type: ignore[return-value]
        result = await call()
        if fault is Fault.TIMEOUT_AFTER:
            await self._sleep(self.plan.timeout_ms / 1_000)
        if fault in (Fault.TIMEOUT_AFTER, Fault.FAILURE_AFTER):
            raise StorageUnavailableError(f"injected {fault} {number} of '{operation}'")
        return result
