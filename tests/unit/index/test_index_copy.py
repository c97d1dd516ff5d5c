"""A copy of an index: several snapshots at a time, and no more than memory is meant for."""

import asyncio
from pathlib import Path

from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from postdate.index.index_copy import COPIES_IN_FLIGHT_MAX, Copied, copy_index
from postdate.index.opening import Filter
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.tasks.bucket_rows import build_bucket
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.retrying import Retries
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import write_log

SUB = CursorName("a", "sub")
SNAPSHOTS = 3 * COPIES_IN_FLIGHT_MAX


class ReadCountingStorage(MemoryBucketSnapshotStorage):
    """Counts the snapshots that are read at the same time."""

    reading = 0
    most = 0

    async def get_bucket_snapshot_segment(self, bucket_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        self.reading += 1
        self.most = max(self.most, self.reading)
        # The others go on as far as they can.
        for _ in range(100):
            await asyncio.sleep(0)
        self.reading -= 1
        return await super().get_bucket_snapshot_segment(bucket_id, first_entry, last_entry)


def test_snapshots_are_copied_side_by_side_within_a_limit(tmp_path: Path) -> None:
    write_log(tmp_path, {"a": [NOW_MS + 9]})
    told: list[tuple[int, int]] = []

    async def main() -> tuple[Copied, int]:
        async with ReadCountingStorage() as here, MemoryBucketSnapshotStorage() as there:
            properties = {}
            for ledger_id in range(1, SNAPSHOTS + 1):
                rows = DelayedIndexes.of([NOW_MS + 9], [ledger_id], [0])
                made, key = build_bucket(rows, step_ms=1, rows_max=-1), bucket_key(ledger_id, ledger_id)
                bucket_id = await here.create_bucket_snapshot(
                    made.metadata, made.segments, bucket_key=key, topic_name=SUB.topic, cursor_name=SUB.cursor
                )
                properties[key] = str(bucket_id)
            with CursorLog(tmp_path / "ledgers") as owners:
                owners.put_properties({SUB: properties})
            with CursorPropertiesFolder(tmp_path / "ledgers", is_read_only=False) as cursors:
                copied = await copy_index(
                    here, there, cursors, retries=Retries(), chosen=Filter(), updates_cursors=False,
                    deletes_source=False, advance=lambda done, total: told.append((done, total)),
                )  # fmt: skip
            assert len(await there.list_bucket_snapshots()) == SNAPSHOTS
            return copied, here.most

    copied, most = asyncio.run(main())

    assert (copied.written, copied.failed) == (SNAPSHOTS, {})
    assert most == COPIES_IN_FLIGHT_MAX
    assert len(told) == SNAPSHOTS + 1
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1]
