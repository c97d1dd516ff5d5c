"""When a snapshot counts as unreadable for good, though its server says only that it cannot be read now.

A server that finds damage on its disk may hide it: MinIO cuts the answer, or says 500, for ever. Asked again and again,
such an object would hold up its bucket; taken for damaged at once, every outage would cost an index. So a call about
one snapshot that fails again and again is decided by asking about something else:

1. it has failed a number of times in a row, and for some time;
2. the storage answers for other objects;
3. the call fails once more;
4. the storage still answers for others: the snapshot is lost, and the bucket is to be rebuilt from the log.

A success begins the count anew, and while the storage answers nobody nothing is decided. A refusal for now
(`StorageBusyError`) is no failure. How a storage is asked about others is its own business. Left out: a call that hangs
until its caller cancels it, as a storage has time limits of its own. Nothing is remembered over a restart.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from snapshot_storage.errors import SnapshotCorruptedError, StorageBusyError, StorageUnavailableError

_Result = TypeVar("_Result")

# In an outage all reads fail: what is forgotten then is only counted again.
_REMEMBERED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """What must have gone before a snapshot can count as unreadable."""

    failures_min: int = 5
    """So many failures of one call in a row. Default 5."""

    failing_s_min: float = 30.0
    """For so long. A tool that asks a few times in seconds, and only reports, needs none. Default 30 s."""


PATIENT: Final = Patience()


class _Failures(NamedTuple):
    times: int
    since_s: float


class UnreadableSnapshots:
    """Decides about the snapshots of one storage; for one event loop."""

    def __init__(self, patience: Patience, answers_besides: Callable[[int], Awaitable[bool]]) -> None:
        """Begin with nothing suspected.

        Args:
            patience: How much has to go wrong first.
            answers_besides: Whether the storage answers for something else than this snapshot; raises nothing.
        """
        self._patience = patience
        self._answers_besides = answers_besides
        self._failures: OrderedDict[Hashable, _Failures] = OrderedDict()
        # Of these one failure more is enough: a large snapshot has many places to read.
        self._lost: OrderedDict[int, None] = OrderedDict()

    async def call(
        self, bucket_id: int, place: Hashable, call: Callable[[], Awaitable[_Result]], *, entry: int | None = None
    ) -> _Result:
        """Return what a call about a snapshot returns, which may be made twice.

        Args:
            bucket_id: Of which snapshot.
            place: What is asked of it: failures of different questions are counted apart.
            call: Asks.
            entry: The entry that is read, where it is one.

        Raises:
            SnapshotCorruptedError: The call fails for ever, and nothing else does.
            SnapshotStorageError: What the call raised.
        """
        try:
            result = await call()
        except StorageBusyError:
            raise
        except StorageUnavailableError:
            if not self._is_suspect(bucket_id, place) or not await self._answers_besides(bucket_id):
                raise
            result = await self._last_call(bucket_id, call, entry)
        self._failures.pop((bucket_id, place), None)
        return result

    async def _last_call(self, bucket_id: int, call: Callable[[], Awaitable[_Result]], entry: int | None) -> _Result:
        try:
            return await call()
        except StorageBusyError:
            raise
        except StorageUnavailableError as error:
            if not await self._answers_besides(bucket_id):
                raise
            self._lost[bucket_id] = None
            _forget_oldest(self._lost)
            reason = f"the storage answers for others, and never for it: {error}"
            raise SnapshotCorruptedError(reason, bucket_id=bucket_id, entry=entry) from error

    def _is_suspect(self, bucket_id: int, place: Hashable) -> bool:
        """Count a failure, and say whether there were enough."""
        now_s = asyncio.get_running_loop().time()
        before = self._failures.pop((bucket_id, place), _Failures(0, now_s))
        failures = self._failures[bucket_id, place] = _Failures(before.times + 1, before.since_s)
        _forget_oldest(self._failures)
        is_enough = failures.times >= self._patience.failures_min
        return bucket_id in self._lost or (is_enough and now_s - failures.since_s >= self._patience.failing_s_min)


def _forget_oldest(remembered: OrderedDict[Hashable, _Failures] | OrderedDict[int, None]) -> None:
    while len(remembered) > _REMEMBERED_MAX:
        remembered.popitem(last=False)
