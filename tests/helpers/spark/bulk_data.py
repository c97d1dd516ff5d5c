"""A service's data directory as a bulk job finds it: a log with cursors, and its live index to compare with."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.ledger_store import LedgerStore
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.cursor_log import CursorLog
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.live_index import NOW_MS, StoredEntries, live_index
from tracker.bucket_properties import read_properties

ENTRIES_PER_LEDGER = 100

RULES = RebuildRules(now_ms=NOW_MS, step_ms=60_000, rows_max=40, rows_per_bucket_min=150)


class Header(NamedTuple):
    """The header of a written entry."""

    ledger_id: int
    entry_id: int
    deliver_at_ms: int


Headers = dict[str, list[Header]]
Acknowledgements = Mapping[CursorName, Sequence[tuple[int, int]]]


def some_times(seed: int, count: int) -> list[int]:
    """Delivery times of a topic: a sixth is due, a sixth has no delay, the others are within an hour."""
    random = Random(seed)
    kinds = [-1, NOW_MS - 5, *[None] * 4]
    return [
        NOW_MS + random.randrange(1, 3_600_000) if (kind := random.choice(kinds)) is None else kind
        for _ in range(count)
    ]


def write_log(data: Path, topics: Mapping[str, Sequence[int]], acknowledged: Acknowledgements | None = None) -> Headers:
    """Append entries with these delivery times, and acknowledge positions, given as (nth ledger of the topic, entry).

    Every topic gets the cursor `sub`, and those that acknowledge something.
    """
    return asyncio.run(_write(data, topics, acknowledged or {}))


async def _write(data: Path, topics: Mapping[str, Sequence[int]], acknowledged: Acknowledgements) -> Headers:
    config = ManagedLedgerConfig(entries_per_ledger_max=ENTRIES_PER_LEDGER)
    store = await LedgerStore.open(data / "ledgers", config, now_ms=lambda: NOW_MS)
    headers: Headers = {}
    for topic, times in topics.items():
        ledger = await store.open_managed_ledger(topic)
        await ledger.open_cursor("sub")
        positions = [
            ledger.append_nowait(b"x" * 10, publish_time_ms=NOW_MS - 10, deliver_at_ms=time, sticky_hash=7)
            for time in times
        ]
        await ledger.committed()
        headers[topic] = [Header(*position, time) for position, time in zip(positions, times, strict=True)]
        ids = sorted({header.ledger_id for header in headers[topic]})
        for cursor_topic, name in acknowledged:
            if cursor_topic == topic:
                cursor = await ledger.open_cursor(name)
                gone = [(ids[nth], entry) for nth, entry in acknowledged[CursorName(topic, name)]]
                cursor.acknowledge([ledger_id for ledger_id, _ in gone], [entry for _, entry in gone])
                await cursor.flush()
    await store.close()
    return headers


def live(headers: Sequence[Header], rules: RebuildRules = RULES) -> list[StoredEntries]:
    """The entries that the live tracker would store for these headers."""
    return live_index(
        [tuple(header) for header in headers],
        step_ms=rules.step_ms,
        rows_max=rules.rows_max,
        rows_per_bucket_min=rules.rows_per_bucket_min,
        rows_per_bucket_max=rules.rows_per_bucket_max,
        last_bucket_rows_min=rules.last_bucket_rows_min,
    )


def without(headers: Sequence[Header], gone: Sequence[tuple[int, int]]) -> list[Header]:
    """Headers that are left when these, given as (nth ledger, entry), are acknowledged."""
    ids = sorted({header.ledger_id for header in headers})
    positions = {(ids[nth], entry) for nth, entry in gone}
    return [header for header in headers if header[:2] not in positions]


def stored(data: Path, cursor: CursorName, *, orphans_max: int = 0) -> list[StoredEntries]:
    """The index of a cursor: the snapshots that its properties name, all of them there, and no more orphans."""
    return asyncio.run(_stored(data, cursor, orphans_max))


async def _stored(data: Path, cursor: CursorName, orphans_max: int) -> list[StoredEntries]:
    with CursorLog(data / "ledgers") as cursors:
        named = read_properties(cursors.properties(cursor)).buckets
    async with RocksDBBucketSnapshotStorage(data / "snapshots", is_read_only=True) as storage:
        infos = await storage.list_bucket_snapshots(*cursor)
        ids = {info.bucket_id for info in infos}
        assert ids >= {bucket.bucket_id for bucket in named}
        assert len(ids) <= len(named) + orphans_max
        return sorted(
            [
                StoredEntries(
                    bucket.key,
                    await storage.get_bucket_snapshot_metadata(bucket.bucket_id),
                    tuple(await storage.get_bucket_snapshot_segment(bucket.bucket_id, 1, 2**31)),
                )
                for bucket in named
            ]
        )


def bucket_ids(data: Path, cursor: CursorName) -> list[int]:
    """The snapshots that a cursor's properties name."""
    with CursorLog(data / "ledgers") as cursors:
        return sorted(bucket.bucket_id for bucket in read_properties(cursors.properties(cursor)).buckets)
