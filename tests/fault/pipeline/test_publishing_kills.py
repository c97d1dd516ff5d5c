"""The process that publishes what a job has built is killed with SIGKILL before each of its steps.

The jobs rebuild, merge, cancel, ingest and a DataFrame's writer all end in `publishing.publish`.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.publication import each_of, publish
from postdate.pipeline.publishing.staging import StagedSnapshot, StagingFolder, StagingWriter, staging_root
from postdate.pipeline.tasks.bucket_rows import build_bucket
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.live_index import NOW_MS, StoredEntries
from tests.helpers.spark.bulk_data import stored, write_log

CURSORS = CursorName("a", "sub"), CursorName("b", "sub")
OLD, NEW = (1, 2), (2, 3, 4)
"""Ledgers that have a bucket before, and after."""


def publish_all(data: Path, ledger_ids: tuple[int, ...], kill_before: str = "") -> None:
    """Make a bucket of each ledger the index of both cursors; die before a step, named by its kind and number."""
    steps: list[str] = []

    def step(kind: str) -> None:
        steps.append(kind)
        if f"{kind} {steps.count(kind)}" == kill_before:
            os.kill(os.getpid(), signal.SIGKILL)

    class KilledStorage(RocksDBBucketSnapshotStorage):
        async def create_bucket_snapshot(self, *entries: object, **names: object) -> int:
            step("create")
            return await super().create_bucket_snapshot(*entries, **names)  # type: ignore[arg-type]

        async def delete_bucket_snapshot(self, bucket_id: int) -> None:
            step("delete")
            await super().delete_bucket_snapshot(bucket_id)

    class OwnersLog(CursorLog):
        def put_properties(self, *arguments: object) -> None:
            step("name")
            super().put_properties(*arguments)  # type: ignore[arg-type]

    async def main() -> None:
        async with KilledStorage(data / "snapshots") as storage:
            await publish(each_of(staged), storage, cursors, replaced=CURSORS)
        step("end")

    with (
        StagingFolder(staging_root(data / "snapshots"), uuid4().hex) as folder,
        OwnersLog(data / "ledgers") as cursors,
    ):
        with StagingWriter(folder.path, "0") as writer:
            staged = [_stage(writer, cursor, ledger_id) for cursor in CURSORS for ledger_id in ledger_ids]
        asyncio.run(main())


def _stage(writer: StagingWriter, cursor: CursorName, ledger_id: int) -> StagedSnapshot:
    made = build_bucket(DelayedIndexes.of([NOW_MS + ledger_id] * 2, [ledger_id] * 2, [0, 1]), step_ms=1, rows_max=-1)
    names = {"topic": cursor.topic, "cursor": cursor.cursor, "bucket_key": bucket_key(ledger_id, ledger_id)}
    return writer.put(made.metadata, made.segments, row_count=2, **names)


def _index(data: Path) -> list[list[StoredEntries]]:
    return [stored(data, cursor, orphans_max=100) for cursor in CURSORS]


@pytest.mark.parametrize(
    ("moment", "is_new"),
    [("create 4", False), ("name 1", False), ("delete 1", True), ("delete 2", True)],
)
def test_the_index_of_all_cursors_is_the_old_one_or_the_new_one(tmp_path: Path, moment: str, is_new: bool) -> None:
    """Whole, with any leftovers beside it. The next run makes the new index from those of the killed one."""
    write_log(tmp_path, {"a": [1], "b": [1]})
    publish_all(tmp_path, NEW)
    new = _index(tmp_path)
    publish_all(tmp_path, OLD)
    old = _index(tmp_path)
    program = "import sys; from pathlib import Path; from tests.fault.pipeline import test_publishing_kills as kills\n"
    program += "kills.publish_all(Path(sys.argv[1]), kills.NEW, sys.argv[2])"

    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), moment],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        check=False,
    )

    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    assert old != new
    assert _index(tmp_path) == (new if is_new else old)
    publish_all(tmp_path, NEW)
    assert _index(tmp_path) == new
    assert list(tmp_path.glob("*.staging")) == []
