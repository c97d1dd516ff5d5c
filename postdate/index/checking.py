"""Check an index: each snapshot against itself, and all of them against the cursors' properties and the log.

Beside a running service, snapshots come and go during the check. So each fault is looked at a second time, on newly
opened folders, and counts only if it is still there. A subscription with a snapshot that the storage does not answer
for is not compared with the log: an outage is no finding about its messages.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.errors import StoreUnavailableError
from managed_ledger.positions.value_types import OnStage, OnStep
from postdate.index.acknowledged import acknowledged_of
from postdate.index.comparing import Compared, IndexFinding, compare_stretch, sealed_through, stretches
from postdate.index.cursor_snapshots import is_own
from postdate.index.log_folder import LogFolder
from postdate.index.opening import Filter, OpenIndex, Summary, readable_segments
from snapshot_storage.encoding.codec import decode_segment
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotUnavailableError,
    SnapshotUnreadableError,
)
from snapshot_storage.inspection import (
    BucketProperty,
    ProblemKind,
    ReadableInfos,
    SnapshotProblem,
    metadata_problems,
    orphans,
    ownership_problems,
    segment_problems,
)
from snapshot_storage.storage import BucketSnapshotInfo

SECOND_LOOK_AFTER_S = 2.0
"""Longer than the time between storing a snapshot and its property, or between deleting the two."""


@dataclass(slots=True)
class IndexVerdict:
    """How much was checked, and the faults."""

    snapshots: int = 0
    segments: int = 0
    rows: int = 0
    properties: int = 0
    log_rows: int = 0
    """Delayed messages of the log that the index was compared with, of every subscription."""
    problems: list[SnapshotProblem] = field(default_factory=list)
    counts: dict[CursorName, Counter[IndexFinding]] = field(default_factory=dict)
    """The findings about positions, also harmless ones."""
    compared: list[Compared] = field(default_factory=list)
    """The stretches with faults, and their positions."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong; harmless findings do not count."""
        return not self.problems and not self.compared

    @property
    def torn(self) -> set[CursorName]:
        """The subscriptions whose index has other messages than the log."""
        return {CursorName(one.topic, one.cursor) for one in self.compared}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCheck:
    """What is checked, and how its progress is told.

    Args:
        opened: Opens the index and the cursors to read.
        log: The folder of the log.
        which: The snapshots and subscriptions.
        now_ms: Messages that are due at this time need not be in the index.
        on_stage: Told of each stage, "snapshots" and "compare", of subscriptions.
        on_step: Told how much of the stage is done since it was told last.
    """

    opened: Callable[[], AbstractAsyncContextManager[OpenIndex]]
    log: Path
    which: Filter
    now_ms: int
    on_stage: OnStage = lambda _name, _steps: None
    on_step: OnStep = lambda _steps: None

    async def run(self, *, second_look_after_s: float = SECOND_LOOK_AFTER_S) -> IndexVerdict:
        """Check all, and what is at fault once more.

        Raises:
            NameNotFoundError: There is no such topic or subscription.
            LedgerError: The log cannot be read.
            SnapshotStorageError: The storage cannot be opened, or does not answer.
        """
        verdict = await self._look()
        if verdict.is_whole:
            return verdict
        await asyncio.sleep(second_look_after_s)
        again = await self._look(only={problem.bucket_id for problem in verdict.problems}, cursors=verdict.torn)
        seen_again = {(problem.kind, problem.bucket_id) for problem in again.problems}
        verdict.problems = [one for one in verdict.problems if (one.kind, one.bucket_id) in seen_again]
        verdict.counts |= again.counts
        verdict.compared = again.compared
        return verdict

    async def _look(
        self, *, only: Collection[int | None] | None = None, cursors: Collection[CursorName] | None = None
    ) -> IndexVerdict:
        async with self.opened() as index:
            which = await index.resolve(self.which)
            # The cursors first: snapshots that are stored later have no property among those that were read.
            every = await index.properties(Filter())
            properties = [one for one in every if which.has(CursorName(*one[:2]))]
            readable = await index.readable_infos(which)
            verdict = IndexVerdict(properties=len(properties))
            verdict.problems += _faults(readable, properties)
            await self._check_snapshots(index, readable.infos, verdict, only)
            verdict.problems += _ownership(readable, properties, every)
            unavailable = {one.bucket_id for one in verdict.problems if one.kind is ProblemKind.UNAVAILABLE}
            owned: dict[CursorName, list[BucketProperty]] = {}
            for one in properties:
                owned.setdefault(CursorName(*one[:2]), []).append(one)
            names = sorted(set(owned) if cursors is None else set(owned) & set(cursors))
            self.on_stage("compare", len(names))
            for name in names:
                if not unavailable & {one.bucket_id for one in owned[name]}:
                    _add(verdict, name, await self._compared(index, name, owned[name], readable))
                self.on_step(1)
        return verdict

    async def _check_snapshots(
        self,
        index: OpenIndex,
        infos: list[BucketSnapshotInfo],
        verdict: IndexVerdict,
        only: Collection[int | None] | None,
    ) -> None:
        wanted = [info for info in infos if only is None or info.bucket_id in only]
        self.on_stage("snapshots", len(wanted))
        async for summary in index.summaries(wanted):
            try:
                await _check_snapshot(index, summary, verdict)
                verdict.snapshots += 1
            except BucketNotFoundError:
                # The service deleted the snapshot meanwhile.
                pass
            self.on_step(1)

    async def _compared(
        self, index: OpenIndex, name: CursorName, properties: list[BucketProperty], readable: ReadableInfos
    ) -> list[Compared]:
        """Compare the index of a subscription with the log, stretch by stretch."""
        named = {(one.bucket_id, one.key) for one in properties}
        own = [
            info
            for info in readable.infos
            if (info.bucket_id, info.bucket_key) in named and is_own(info, name, info.bucket_key)
        ]
        buckets = {info.bucket_key: info.bucket_id for info in own}
        buckets |= {
            one.key: one.bucket_id
            for one in properties
            if one.bucket_id is not None and one.bucket_id in readable.faults
        }
        sealed = await sealed_through(index.storage, buckets)

        async def compared() -> list[Compared]:
            with closing(LogFolder(self.log)) as log:
                ledgers = log.ledgers({name.topic})
                acknowledged = acknowledged_of(log.cursors(name.topic), ledgers).get(name.cursor)
                if acknowledged is None:
                    # The subscription was deleted meanwhile.
                    return []
                found = stretches(name, ledgers, own, acknowledged, sealed)
                return [await compare_stretch(log, index.storage, one, now_ms=self.now_ms) for one in found]

        try:
            return await compared()
        except StoreUnavailableError:
            # A running service has compacted away the files that were open here: open the present ones.
            return await compared()


def _add(verdict: IndexVerdict, name: CursorName, compared: list[Compared]) -> None:
    verdict.log_rows += sum(one.log_rows for one in compared)
    verdict.counts[name] = Counter()
    for one in compared:
        verdict.counts[name].update(one.counts)
    verdict.compared += [one for one in compared if one.positions]


def _faults(readable: ReadableInfos, properties: list[BucketProperty]) -> list[SnapshotProblem]:
    # A header that cannot be read does not tell whose the snapshot is; the property that names it does.
    owners = {one.bucket_id: (one.topic_name, one.cursor_name) for one in properties}
    return [
        SnapshotProblem(_kind(fault), bucket_id, *owners.get(bucket_id, ("", "")), str(fault))
        for bucket_id, fault in readable.faults.items()
    ]


def _ownership(
    readable: ReadableInfos, properties: list[BucketProperty], every: list[BucketProperty]
) -> list[SnapshotProblem]:
    # All properties, as one of another topic may name a snapshot of this one by mistake.
    orphan_ids = {info.bucket_id for info in orphans(readable.infos, every)}
    return [
        problem
        for problem in ownership_problems(readable.infos, properties)
        if (problem.kind is not ProblemKind.ORPHANED or problem.bucket_id in orphan_ids)
        # Snapshots that exist and cannot be read are reported already.
        and (problem.kind is not ProblemKind.MISSING or problem.bucket_id not in readable.faults)
    ]


def _kind(fault: SnapshotStorageError) -> ProblemKind:
    return ProblemKind.UNAVAILABLE if isinstance(fault, SnapshotUnavailableError) else ProblemKind.DAMAGED


async def _check_snapshot(index: OpenIndex, summary: Summary, verdict: IndexVerdict) -> None:
    info = summary.info

    def report(kind: ProblemKind, what: str) -> None:
        verdict.problems.append(SnapshotProblem(kind, info.bucket_id, info.topic_name, info.cursor_name, what))

    if summary.problem is not None:
        report(_kind(summary.problem), str(summary.problem))
        return
    for what in metadata_problems(info, summary.segments):
        report(ProblemKind.INCONSISTENT, what)
    async for number, data in readable_segments(index.storage, info):
        if isinstance(data, SnapshotUnreadableError):
            report(_kind(data), str(data))
        else:
            _check_segment(summary, number, data, verdict, report)


def _check_segment(
    summary: Summary, number: int, data: bytes, verdict: IndexVerdict, report: Callable[[ProblemKind, str], None]
) -> None:
    try:
        rows = decode_segment(data, entry=number)
        verdict.segments += 1
        verdict.rows += len(rows)
        if number > len(summary.segments):
            return
        previous_end_ms = summary.segments[number - 2].deliver_at_ms_max if number > 1 else 0
        found = segment_problems(summary.segments[number - 1], rows, previous_end_ms=previous_end_ms)
    except SnapshotCorruptedError as error:
        report(ProblemKind.DAMAGED, str(error))
        return
    for what in found:
        report(ProblemKind.INCONSISTENT, f"segment {number}: {what}")
