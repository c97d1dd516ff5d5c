"""Audit an index: against the log, against its cursors' properties, and each snapshot against its checksums.

    ledgers, cursors, snapshots ──► stretches of about as many positions (driver) ──► `audit_rows` (tasks) ──► report

The audit locks nothing, so a service may run meanwhile. A bucket that it seals or merges just then may show up as a
finding that is gone the next time. A subscription with a snapshot that the storage does not answer for is not compared,
and the snapshot is named: an outage is no finding.

`repair` needs the service stopped. It rebuilds the index of every subscription that has a finding, drops properties
that name no bucket, and deletes snapshots that no property of any cursor names.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.position import Position
from managed_ledger.value_types import OnStage, OnStep
from postdate.pipeline.index.acknowledged import Acknowledged
from postdate.pipeline.index.cursor_log import CursorLog, acknowledged_of
from postdate.pipeline.index.cursor_snapshots import bucket_properties, is_own
from postdate.pipeline.index.place import cursor_folder, open_index, own_index, with_index
from postdate.pipeline.index.selection import Selection, select
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.logs.header_log import HeaderLog, LedgerExtent, split_ranges
from postdate.pipeline.logs.log_folder import LogFolder
from postdate.pipeline.logs.open_logs import with_log
from postdate.pipeline.logs.parquet_log import file_system
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.spark.tasks import SparkTasks
from postdate.pipeline.tasks.audit_rows import (
    FIRST_POSITION,
    LAST_POSITION,
    Audited,
    AuditTask,
    IndexFinding,
    audit_task,
)
from snapshot_storage.bucket_key import parse_bucket_key
from snapshot_storage.encoding.codec import decode_metadata
from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, SnapshotUnavailableError
from snapshot_storage.inspection import (
    BucketProperty,
    ProblemKind,
    ReadableInfos,
    SnapshotProblem,
    is_bucket_property,
    ownership_problems,
    readable_infos,
)
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from tracker.bucket_properties import read_properties

TASK_ENTRIES_MAX = 500_000


@dataclass(frozen=True, slots=True, eq=False)
class _Cursor:
    """A subscription as it was when the audit began."""

    name: CursorName
    acknowledged: Acknowledged
    properties: list[BucketProperty]


@dataclass(slots=True, eq=False)
class AuditReport:
    """The findings of an audit, and how much it looked at."""

    now_ms: int
    counts: dict[CursorName, Counter[IndexFinding]] = field(default_factory=dict)
    """By subscription; also harmless findings."""
    positions: list[Audited] = field(default_factory=list)
    corrupt: dict[int, tuple[CursorName, str]] = field(default_factory=dict)
    """Snapshots that are damaged or contradict themselves, their owners, and the reasons.

    The rows of a damaged snapshot count as missing.
    """
    unavailable: dict[int, tuple[CursorName | None, str]] = field(default_factory=dict)
    """Snapshots that the storage does not answer for, their owners where a property names one, and the reasons.

    The positions of these owners were not compared, or only a part of them.
    """
    ownership: list[SnapshotProblem] = field(default_factory=list)
    """Snapshots without a property, and properties without a snapshot or with a wrong one.

    One that cannot even be listed and that no property names is `DAMAGED`, and has no owner.
    """
    log_rows: int = 0
    index_rows: int = 0

    def total(self, finding: IndexFinding) -> int:
        """How many positions have a finding."""
        return sum(counts[finding] for counts in self.counts.values())

    @property
    def has_faults(self) -> bool:
        """Whether something is wrong that a repair mends; harmless findings do not count, nor does an outage."""
        return bool(self.positions or self.corrupt or self.ownership)

    @property
    def is_clean(self) -> bool:
        """Whether all was compared, and nothing is wrong."""
        return not (self.has_faults or self.unavailable)

    def affected(self) -> set[CursorName]:
        """The subscriptions whose index is to be rebuilt."""
        owners = {
            CursorName(problem.topic_name, problem.cursor_name)
            for problem in self.ownership
            if problem.kind is not ProblemKind.DAMAGED
        }
        of_rows = {CursorName(audited.topic, audited.cursor) for audited in self.positions}
        return owners | of_rows | {cursor for cursor, _ in self.corrupt.values()}


def audit(
    spark: SparkSession,
    data: str,
    index: str | None = None,
    *,
    now_ms: int,
    topics: Sequence[str] | None = None,
    cursors: Sequence[str] | None = None,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> AuditReport:
    """Compare the index of a data directory with its log and its cursors.

    Args:
        spark: The session; it needs no preparation.
        data: A service's data directory.
        index: Where the snapshots are (`index_place`); by default in the data directory.
        now_ms: Rows that are due at this time need not be in the index.
        topics: Only these; None for all.
        cursors: Only subscriptions of these names; None for all.
        on_stage: Told of the one stage.
        on_step: Told how many steps of it are done since it was told last.

    Raises:
        LedgerError: The log cannot be read.
        SnapshotStorageError: The index cannot be opened, or does not answer.
    """
    index = data if index is None else index
    job = uuid4().hex
    folder = str(cursor_folder(data, None))
    log = _read_log(folder)
    every, ledgers = log.cursors, log.ledgers
    selection = select([cursor.name for cursor in every], log.topics, topics, cursors)
    names = set(selection.of(cursor.name for cursor in every))
    # After the cursors: snapshots that were stored since then have no property among those that were read.
    index = own_index(index, Path(folder), is_read_only=True)
    readable, sealed = asyncio.run(_read_index(index, Path(folder), every, names))
    report = AuditReport(now_ms, {name: Counter() for name in sorted(names)})
    _add_ownership(report, readable, [one for cursor in every for one in cursor.properties])
    report.ownership = [problem for problem in report.ownership if _is_wanted(problem, selection)]
    _add_unavailable(report, readable, every, selection)
    tasks = []
    for cursor in every:
        if cursor.name in sealed:
            of_cursor = _named(readable.infos, cursor)
            extents = [ledger for ledger in ledgers if ledger.topic == cursor.name.topic]
            tasks += list(_plan(cursor, extents, of_cursor, sealed[cursor.name]))
    on_stage("compare", len(tasks))
    work = partial(_compare, log=folder, index=index, job=job, now_ms=now_ms)
    for audited in SparkTasks(spark).run("audit", tasks, work, lambda _audited: on_step(1)):
        _add(report, audited)
    return report


def _add_ownership(report: AuditReport, readable: ReadableInfos, properties: Sequence[BucketProperty]) -> None:
    """Say which snapshots and properties do not belong to each other, and which are damaged and cannot be listed."""
    named = _owners(properties)
    for bucket_id, fault in readable.faults.items():
        owner = None if bucket_id is None else named.get(bucket_id)
        if isinstance(fault, SnapshotUnavailableError):
            continue
        if bucket_id is None or owner is None:
            report.ownership.append(
                SnapshotProblem(ProblemKind.DAMAGED, bucket_id, "", "", f"no property names it; {fault}")
            )
        elif owner in report.counts:
            report.corrupt[bucket_id] = (owner, str(fault))
    report.ownership += [
        problem
        for problem in ownership_problems(readable.infos, properties)
        # Snapshots that are there and cannot be read are named already.
        if problem.kind is not ProblemKind.MISSING or problem.bucket_id not in readable.faults
    ]


def _owners(properties: Iterable[BucketProperty]) -> dict[int, CursorName]:
    return {one.bucket_id: CursorName(*one[:2]) for one in properties if one.bucket_id is not None}


def _add_unavailable(
    report: AuditReport, readable: ReadableInfos, every: Iterable[_Cursor], selection: Selection
) -> None:
    """Say which snapshots of the selected subscriptions, or of no known one, the storage does not answer for."""
    named = _owners(one for cursor in every for one in cursor.properties)
    for bucket_id in _unavailable_ids(readable):
        owner = named.get(bucket_id)
        if selection.has(owner or CursorName("", "")):
            report.unavailable[bucket_id] = owner, str(readable.faults[bucket_id])


def _unavailable_ids(readable: ReadableInfos) -> set[int]:
    return {
        bucket_id
        for bucket_id, fault in readable.faults.items()
        if bucket_id is not None and isinstance(fault, SnapshotUnavailableError)
    }


def _is_wanted(problem: SnapshotProblem, selection: Selection) -> bool:
    return selection.has(CursorName(problem.topic_name, problem.cursor_name))


class _ReadLog(NamedTuple):
    topics: list[str]
    cursors: list[_Cursor]
    ledgers: list[LedgerExtent]


def _read_log(folder: str) -> _ReadLog:
    log = LogFolder(cursor_folder(folder, folder))
    try:
        found, ledgers = [], log.ledgers()
        for topic in log.topics():
            cursors = log.cursors(topic)
            acknowledged = acknowledged_of(cursors, [ledger for ledger in ledgers if ledger.topic == topic])
            for name, (_, stored) in cursors.items():
                cursor = CursorName(topic, name)
                found.append(_Cursor(cursor, acknowledged[name], bucket_properties({cursor: stored.properties})))
        return _ReadLog(log.topics(), found, ledgers)
    finally:
        log.close()


async def _read_index(
    index: str, log: Path, every: Sequence[_Cursor], names: Collection[CursorName]
) -> tuple[ReadableInfos, dict[CursorName, Position]]:
    """Return all snapshots, and up to where each subscription is in buckets that can be compared."""
    async with open_index(index, log=log, is_read_only=True) as storage:
        readable = await readable_infos(storage, _ids([one for cursor in every for one in cursor.properties]))
        infos = {info.bucket_id: info for info in readable.infos}
        sealed = {}
        for cursor in every:
            if cursor.name not in names or _ids(cursor.properties) & _unavailable_ids(readable):
                continue
            counted = [one for one in cursor.properties if _may_count(one, infos, readable.faults)]
            try:
                sealed[cursor.name] = await _sealed_through(storage, counted)
            except SnapshotUnavailableError as error:
                readable.faults[error.bucket_id] = error
        return readable, sealed


def _ids(properties: Iterable[BucketProperty]) -> set[int]:
    return {one.bucket_id for one in properties if one.bucket_id is not None}


def _may_count(one: BucketProperty, infos: Mapping[int, BucketSnapshotInfo], faults: Collection[int | None]) -> bool:
    """Whether a property names a snapshot of its own cursor, or a damaged one whose owner is unknown."""
    if one.bucket_id in faults:
        return True
    info = None if one.bucket_id is None else infos.get(one.bucket_id)
    return info is not None and is_own(info, CursorName(one.topic_name, one.cursor_name), one.key)


def _named(infos: Sequence[BucketSnapshotInfo], cursor: _Cursor) -> list[BucketSnapshotInfo]:
    """Return the cursor's own buckets, without those of other cursors that its properties name by mistake."""
    keys = {(one.bucket_id, one.key) for one in cursor.properties}
    named = [info for info in infos if (info.bucket_id, info.bucket_key) in keys]
    return [info for info in named if is_own(info, cursor.name, info.bucket_key)]


async def _sealed_through(storage: BucketSnapshotStorage, buckets: Iterable[BucketProperty]) -> Position:
    """Return the last position that a bucket has; the end of its range where it is damaged."""
    by_end: defaultdict[int, set[int]] = defaultdict(set)
    for one in buckets:
        ledgers = parse_bucket_key(one.key)
        if ledgers is not None:
            by_end[ledgers.last_ledger_id] |= _ids([one])
    last = Position(-1, -1)
    for bucket_id in by_end[max(by_end)] if by_end else ():
        try:
            segments = decode_metadata(await storage.get_bucket_snapshot_metadata(bucket_id))
            for segment in segments:
                for ledger_id in segment.bitmaps:
                    # Positions of entry 0 outside of the key's ledgers do not count, as in the live tracker.
                    if last.ledger_id <= ledger_id <= max(by_end) and segment.bitmap(ledger_id):
                        last = max(last, Position(ledger_id, segment.bitmap(ledger_id).max()))
        except (SnapshotCorruptedError, BucketNotFoundError):
            last = max(last, Position(max(by_end), LAST_POSITION.entry_id))
    return last


def _plan(
    cursor: _Cursor, ledgers: Sequence[LedgerExtent], infos: Sequence[BucketSnapshotInfo], sealed_through: Position
) -> Iterator[AuditTask]:
    """Cut all positions into stretches without a gap, so that ledgers which are gone are looked at too."""
    wanted = [ledger for ledger in ledgers if not cursor.acknowledged.covers_ledger(ledger.ledger_id)]
    parts = list(split_ranges(wanted, entries_max=TASK_ENTRIES_MAX)) or [()]
    begins = [FIRST_POSITION, *(Position(ranges[0].ledger_id, ranges[0].first) for ranges in parts[1:])]
    for ranges, begin, end in zip(parts, begins, [*begins[1:], LAST_POSITION], strict=True):
        buckets = tuple(info for info in infos if _may_have(info, begin, end))
        acknowledged = cursor.acknowledged
        yield AuditTask(*cursor.name, ranges, begin, end, buckets, acknowledged, sealed_through)


def _may_have(info: BucketSnapshotInfo, begin: Position, end: Position) -> bool:
    ledgers = parse_bucket_key(info.bucket_key)
    return ledgers is None or (begin.ledger_id <= ledgers.last_ledger_id and ledgers.first_ledger_id <= end.ledger_id)


def _compare(task: AuditTask, *, log: str, index: str, job: str, now_ms: int) -> Audited:
    def with_both(headers: HeaderLog) -> Audited:
        return with_index(index, job, lambda storage: audit_task(headers, storage, task, now_ms=now_ms))

    return with_log(log, job, with_both)


def _add(report: AuditReport, audited: Audited) -> None:
    name = CursorName(audited.topic, audited.cursor)
    report.counts[name].update(audited.counts)
    report.corrupt.update((bucket_id, (name, why)) for bucket_id, why in audited.corrupt.items())
    report.unavailable.update((bucket_id, (name, why)) for bucket_id, why in audited.unavailable.items())
    report.log_rows += audited.log_rows
    report.index_rows += audited.index_rows
    if audited.positions:
        report.positions.append(audited)


def repair(
    spark: SparkSession,
    data: str,
    report: AuditReport,
    index: str | None = None,
    *,
    rules: RebuildRules,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> int:
    """Rebuild the index of every subscription that has a finding; drop bad properties and orphans.

    Properties that name no bucket go, and snapshots of the report that no property of any cursor names then. A
    subscription's own index, where its topic has a shared one, goes as well: it is not used.

    Returns:
        How many snapshots without a property were deleted.

    Raises:
        LedgerError: A service has the log open, or it cannot be written.
        SnapshotStorageError: The same of the index.
    """
    affected = report.affected()
    if affected:
        rebuild_log(
            spark,
            data,
            index,
            rules=rules,
            cursor_log=data,
            only=affected,
            on_stage=on_stage,
            on_step=on_step,
        )
    suspects = {problem.bucket_id for problem in report.ownership} | report.corrupt.keys()
    return asyncio.run(_sweep(data, index or data, affected, suspects))


async def _sweep(data: str, index: str, affected: Collection[CursorName], suspects: Iterable[int | None]) -> int:
    """Drop useless properties, and delete snapshots that no property names, while no other process can write any."""
    folder = cursor_folder(data, None)
    with CursorLog(folder) as owners:
        dropped = drop_useless(owners, affected)
        named = owners.named_ids()
        async with open_index(index, log=folder) as storage:
            infos, faults = await readable_infos(storage, named)
            there = {info.bucket_id for info in infos} | {bucket_id for bucket_id in faults if bucket_id is not None}
            gone = (there & (set(suspects) | dropped)) - named
            for bucket_id in gone:
                await storage.delete_bucket_snapshot(bucket_id)
    return len(gone)


def drop_useless(owners: CursorLog, affected: Collection[CursorName]) -> set[int]:
    """Drop properties of these subscriptions that name no bucket, or an unused index; return their ids."""
    own = set(owners.with_own_index(None, None))
    before = owners.named_ids()
    changed = {}
    for name in set(owners.names()) & set(affected):
        properties = dict(owners.properties(name))
        useful = {bucket.key for bucket in read_properties(properties).buckets} if name in own else set()
        kept = {key: value for key, value in properties.items() if key in useful or not is_bucket_property(key)}
        if kept != properties:
            changed[name] = kept
    if changed:
        owners.put_properties(changed)
    return before - owners.named_ids()


def write_positions(report: AuditReport, location: str) -> int:
    """Write the faults of positions to a Parquet file or a URI, and return their number."""
    schema = pa.schema(
        [("finding", pa.string()), ("topic", pa.string()), ("cursor", pa.string())]
        + [(name, pa.int64()) for name in ("ledger_id", "entry_id", "deliver_at_ms")]
    )
    system, path = file_system(location)
    written = 0
    with system.open_output_stream(path) as stream, pq.ParquetWriter(stream, schema) as writer:
        for audited in report.positions:
            for finding, rows in audited.positions.items():
                names = [pa.repeat(name, len(rows)) for name in (finding.value, audited.topic, audited.cursor)]
                columns = [pa.array(column) for column in (rows.ledger_ids, rows.entry_ids, rows.deliver_at_ms)]
                writer.write_batch(pa.record_batch([*names, *columns], schema=schema))
                written += len(rows)
    return written
