"""`postdate snapshots verify` reads every snapshot and reports faults; `gc` deletes snapshots without a property.

Beside a running service, snapshots come and go during the check. So each fault is checked a second time, on newly
opened folders, and counts only if it is still there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from postdate.broker.configuration.config import BrokerConfig
from postdate.command_line.progress import Advance
from postdate.snapshot_tools.place import Filter, SnapshotPlace, Summary, open_place, readable_segments
from snapshot_storage.encoding.codec import decode_segment
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotUnavailableError,
    SnapshotUnreadableError,
)
from snapshot_storage.inspection import (
    ProblemKind,
    SnapshotProblem,
    metadata_problems,
    orphans,
    ownership_problems,
    segment_problems,
)
from snapshot_storage.storage import BucketSnapshotInfo

SECOND_LOOK_AFTER_S = 2.0
"""Longer than the time between storing a snapshot and its property, or between deleting the two."""


def _no_progress(done: int, total: int) -> None:
    del done, total


@dataclass(slots=True)
class CheckVerdict:
    """The number of checked snapshots, and the faults."""

    snapshots: int = 0
    segments: int = 0
    rows: int = 0
    properties: int = 0
    problems: list[SnapshotProblem] = field(default_factory=list)


async def verify(config: BrokerConfig, which: Filter, advance: Advance, *, second_look_after_s: float) -> CheckVerdict:
    """Check every snapshot against itself and against the cursors' properties.

    Raises:
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened or does not answer.
    """
    async with open_place(config) as place:
        which = await place.resolve(which)
        verdict = await _look(place, which, advance)
    if verdict.problems:
        await asyncio.sleep(second_look_after_s)
        suspects = {problem.bucket_id for problem in verdict.problems}
        async with open_place(config) as place:
            again = await _look(place, which, _no_progress, only=suspects)
        seen_again = {(problem.kind, problem.bucket_id) for problem in again.problems}
        verdict.problems = [problem for problem in verdict.problems if (problem.kind, problem.bucket_id) in seen_again]
    return verdict


async def _look(
    place: SnapshotPlace, which: Filter, advance: Advance, *, only: set[int | None] | None = None
) -> CheckVerdict:
    properties = await place.properties(which)
    infos, faults = await place.readable_infos(which)
    # A header that cannot be read does not tell whose the snapshot is; the property that names it does.
    owners = {one.bucket_id: (one.topic_name, one.cursor_name) for one in properties}
    problems = [
        SnapshotProblem(_kind(fault), bucket_id, *owners.get(bucket_id, ("", "")), str(fault))
        for bucket_id, fault in faults.items()
    ]
    verdict = CheckVerdict(properties=len(properties), problems=problems)
    wanted = [info for info in infos if only is None or info.bucket_id in only]
    total = sum(info.length_bytes for info in wanted)
    done = 0
    advance(0, total)
    async for summary in place.summaries(wanted):
        verdict.snapshots += 1
        try:
            await _check_snapshot(place, summary, verdict)
        except BucketNotFoundError:
            # The service deleted the snapshot meanwhile.
            verdict.snapshots -= 1
        done += summary.info.length_bytes
        advance(done, total)
    # All properties, as one of another topic may name a snapshot of this one by mistake.
    all_properties = await place.properties(Filter())
    orphan_ids = {info.bucket_id for info in orphans(infos, all_properties)}
    verdict.problems += [
        problem
        for problem in ownership_problems(infos, properties)
        if (problem.kind is not ProblemKind.ORPHANED or problem.bucket_id in orphan_ids)
        # Snapshots that exist and cannot be read are reported already.
        and (problem.kind is not ProblemKind.MISSING or problem.bucket_id not in faults)
    ]
    return verdict


def _kind(fault: SnapshotStorageError) -> ProblemKind:
    return ProblemKind.UNAVAILABLE if isinstance(fault, SnapshotUnavailableError) else ProblemKind.DAMAGED


async def _check_snapshot(place: SnapshotPlace, summary: Summary, verdict: CheckVerdict) -> None:
    info = summary.info

    def report(kind: ProblemKind, what: str) -> None:
        verdict.problems.append(SnapshotProblem(kind, info.bucket_id, info.topic_name, info.cursor_name, what))

    if summary.problem is not None:
        report(_kind(summary.problem), str(summary.problem))
        return
    for what in metadata_problems(info, summary.segments):
        report(ProblemKind.INCONSISTENT, what)
    async for number, data in readable_segments(place.storage, info):
        if isinstance(data, SnapshotUnreadableError):
            report(_kind(data), str(data))
        else:
            _check_segment(summary, number, data, verdict, report)


def _check_segment(
    summary: Summary, number: int, data: bytes, verdict: CheckVerdict, report: Callable[[ProblemKind, str], None]
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


@dataclass(frozen=True, slots=True)
class Garbage:
    """Snapshots without a property."""

    which: Filter
    """The topic and the cursor of each."""
    seen: int
    """The number of checked snapshots, damaged ones included."""
    infos: list[BucketSnapshotInfo]
    unreadable: dict[int, str]
    """Snapshots of an unknown owner and the reason, by id; filled only without a filter."""
    damaged: dict[int | None, str]
    """Faults of snapshots that are no garbage, as far as their ids are known."""


async def collect_garbage(
    config: BrokerConfig,
    which: Filter,
    *,
    is_dry_run: bool,
    on_begin: Callable[[str, int], None] = lambda _name, _steps: None,
    on_step: Callable[[int], None] = lambda _steps: None,
) -> Garbage:
    """Delete the snapshots that no property names, and return them.

    Args:
        config: The configuration of the service.
        which: The topic and cursor.
        is_dry_run: Only look; possible beside a service, where a snapshot that is just being made counts as well.
        on_begin: Called with the number of snapshots when the deletion begins.
        on_step: Called with the number of deleted snapshots since the last call.

    Raises:
        StoreLockedError: A service is running, and this is no dry run.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened or does not answer.
    """
    async with open_place(config, is_read_only=is_dry_run) as place:
        which = await place.resolve(which)
        infos, faults = await place.readable_infos(which)
        seen = len(infos) + len(faults)
        properties = await place.properties(Filter())
        named = {one.bucket_id for one in properties}
        unreadable = {one: str(fault) for one, fault in faults.items() if one is not None and one not in named}
        damaged = {one: str(fault) for one, fault in faults.items() if one not in unreadable}
        garbage = Garbage(which, seen, orphans(infos, properties), unreadable, damaged)
        if not is_dry_run:
            ids = [*(info.bucket_id for info in garbage.infos), *unreadable]
            on_begin("delete", len(ids))
            for bucket_id in ids:
                await place.storage.delete_bucket_snapshot(bucket_id)
                on_step(1)
        return garbage
