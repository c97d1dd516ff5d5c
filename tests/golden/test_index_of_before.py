"""A folder of snapshots and properties that the tracker wrote before its core was made anew (at 0085ff22).

It opens, and the same program writes the same properties and the same bytes today, so it opens the other way round.
`index_of_before/` is the folder of RocksDB, and `properties.json` beside it the cursor's properties.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import postdate
from snapshot_storage.storage import BucketSnapshotStorage

_FOLDER: Final = Path(__file__).parent / "index_of_before"

_START_MS: Final = 1_700_000_000_000
_LEDGERS: Final = 14
_ENTRIES: Final = 120

_CONFIG: Final = postdate.TrackerConfig(
    index_count_per_bucket_min=200,
    segment_row_count_max=40,
    segment_step_ms_max=60_000,
    bucket_count_max=4,
    prefetch_ms=1_000,
)


def _context(cursor: postdate.MemoryCursor) -> postdate.TrackerContext:
    return postdate.TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)


def _times(ledger_id: int) -> np.ndarray:
    """Return times within an hour, some of them twice."""
    return _START_MS + 10_000 + np.random.default_rng(ledger_id).integers(0, 3_600, _ENTRIES) * 1_000


async def _write(storage: BucketSnapshotStorage) -> dict[str, str]:
    """Write an index; return the cursor's properties."""
    cursor = postdate.MemoryCursor()
    factory = postdate.tracker_factory(_CONFIG, storage, now_ms=lambda: _START_MS)
    tracker = factory.new_tracker(_context(cursor))
    for ledger_id in range(_LEDGERS):
        tracker.add_messages(np.full(_ENTRIES, ledger_id), np.arange(_ENTRIES), _times(ledger_id))
        # One bucket after the other, with the merges that it brings about: what is merged depends on what is stored.
        await _come_to_rest(tracker)
    await tracker.close()
    return cursor.properties


async def _come_to_rest(tracker: postdate.DelayedDeliveryTracker) -> None:
    """Wait until nothing is stored or deleted any more."""
    assert isinstance(tracker, postdate.BucketDelayedDeliveryTracker)
    quiet_turns = 0
    while quiet_turns < 20:
        before = [(one.state, one.first_ledger_id, one.size_bytes) for one in tracker.buckets()]
        await asyncio.sleep(0.005)
        after = [(one.state, one.first_ledger_id, one.size_bytes) for one in tracker.buckets()]
        quiet_turns = quiet_turns + 1 if before == after else 0


async def _contents(storage: BucketSnapshotStorage, properties: dict[str, str]) -> dict[str, tuple[bytes, ...]]:
    """Return the entries of each snapshot by the key of its property."""
    infos = {one.bucket_id: one for one in await storage.list_bucket_snapshots("t")}
    return {
        key: (
            await storage.get_bucket_snapshot_metadata(int(bucket_id)),
            *await storage.get_bucket_snapshot_segment(int(bucket_id), 1, infos[int(bucket_id)].segment_count),
        )
        for key, bucket_id in properties.items()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy, as opening writes to it."""
    return Path(shutil.copytree(_FOLDER / "snapshots", tmp_path / "snapshots"))


@pytest.fixture
def properties() -> dict[str, str]:
    found: dict[str, str] = json.loads((_FOLDER / "properties.json").read_text())
    return found


def test_an_index_of_before_brings_all_its_messages_in_order(folder: Path, properties: dict[str, str]) -> None:
    async def handed_out() -> list[tuple[int, int, int]]:
        async with postdate.RocksDBBucketSnapshotStorage(folder) as storage:
            now_ms = _START_MS + 4_000_000
            factory = postdate.tracker_factory(_CONFIG, storage, now_ms=lambda: now_ms)
            cursor = postdate.MemoryCursor(properties=properties)
            tracker = factory.new_tracker(_context(cursor))
            rows: list[tuple[int, int, int]] = []
            async with asyncio.timeout(30):
                while len(rows) < stored_count:
                    rows += tracker.get_scheduled_messages(1_000).to_rows()
                    await asyncio.sleep(0.001)
            await tracker.close()
            return rows

    stored = [
        (int(time_ms), ledger_id, entry_id)
        for ledger_id in range(_LEDGERS)
        for entry_id, time_ms in enumerate(_times(ledger_id))
    ]
    named = [key.rsplit("_", 2)[1:] for key in properties]
    stored = [row for row in stored if any(int(first) <= row[1] <= int(last) for first, last in named)]
    stored_count = len(stored)
    assert stored_count >= (_LEDGERS - 2) * _ENTRIES

    assert asyncio.run(handed_out()) == sorted(stored)


def test_the_same_program_writes_today_what_it_wrote_before(
    folder: Path, properties: dict[str, str], tmp_path: Path
) -> None:
    async def contents() -> tuple[dict[str, tuple[bytes, ...]], dict[str, tuple[bytes, ...]]]:
        async with postdate.RocksDBBucketSnapshotStorage(folder, is_read_only=True) as storage:
            before = await _contents(storage, properties)
        async with postdate.RocksDBBucketSnapshotStorage(tmp_path / "today") as storage:
            return before, await _contents(storage, await _write(storage))

    before, today = asyncio.run(contents())

    assert len(before) > 1
    assert today == before
