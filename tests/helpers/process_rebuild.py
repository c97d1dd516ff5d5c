"""The rebuild of a small log in this process, without Spark: count, plan and build, as the driver and its tasks do."""

import asyncio
from pathlib import Path

import numpy as np

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.index.acknowledged import Acknowledged
from postdate.index.ledger_ranges import HeaderRange, LedgerExtent
from postdate.pipeline.planning.log_plan import plan_counts, plan_tasks
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.staging import StagingFolder, StagingWriter
from postdate.pipeline.tasks.log_tasks import build_task, count_rows
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.live_index import NOW_MS, StoredEntries

CURSOR = CursorName("t", "c")


class TimesLog:
    """A log of one topic in memory; no method but `read_times` is needed."""

    def __init__(self, times: dict[int, list[int]]) -> None:
        self.times = times

    def topics(self) -> list[str]:
        return ["t"]

    def ledgers(self) -> list[LedgerExtent]:
        return [
            LedgerExtent("t", ledger_id, len(times), False, NOW_MS, max(times))
            for ledger_id, times in self.times.items()
            if times
        ]

    def read_times(self, part: HeaderRange) -> DelayedIndexes:
        times = self.times[part.ledger_id][part.first : part.end]
        return DelayedIndexes.of(times, np.full(len(times), part.ledger_id), part.first + np.arange(len(times)))


def rebuilt(log: TimesLog, acknowledged: Acknowledged, rules: RebuildRules, folder: Path) -> list[StoredEntries]:
    """Count, plan and build, as the driver and its tasks do."""
    of_cursor = {CURSOR: acknowledged}
    counts = [
        count
        for task in plan_counts(log.ledgers(), of_cursor, now_ms=rules.now_ms, cores=2)
        for count in count_rows(log, task, rules).counts
    ]
    with StagingFolder(folder, "job") as staging, StagingWriter(staging.path, "0") as writer:
        staged = [
            build_task(log, bucket, rules, writer)
            for task in plan_tasks(counts, of_cursor, rules, cores=2)
            for bucket in task
        ]
        writer.flush()
        objects = [asyncio.run(snapshot.read(MemoryBucketSnapshotStorage())) for snapshot in staged]
    return sorted(StoredEntries(read.names.bucket_key, read.metadata, tuple(read.segments)) for read in objects)
