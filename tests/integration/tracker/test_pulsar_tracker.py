"""Pulsar's tracker recovers buckets that Postdate sealed, and Postdate's those that Pulsar sealed, from the same bytes.

Two things that Pulsar does are kept out of the way, since they are its own and not the format's:

- Its recovery skips segments that are due and its tracker refuses rows that are due. So all rows are due later than the
  recovery, and are asked for at two times after it: when half of them are due, and when all of them are.
- Its merge leaves out the segments that the sources have loaded, and each source has loaded its first one when it was
  sealed. So rows that Pulsar merged are compared with those that it stored, not with those that it was given. Rows that
  Postdate merged are compared with all that were added.
"""

import asyncio
import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from postdate.testing import FakeClock, FakeCursor, run_inline, run_virtually
from snapshot_storage.encoding.codec import decode_segments
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.services.kinds import require_tools
from tests.helpers.services.real_tracker import RealTracker, load_folder, read_entries, store_folder
from tests.helpers.services.services import REAL_PULSAR
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.config import UNLIMITED, TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext
from tracker.shell.tracker_calls import InThreads

pytestmark = pytest.mark.real_pulsar

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
ALL_DUE_MS = NOW_MS + 30 * 24 * HOUR_MS
ROW_COUNT = 12_000
MERGED_BUCKETS_MAX = 3
CONFIG = TrackerConfig(
    is_deliver_at_time_strict=True,
    index_count_per_bucket_min=1_000,
    index_count_at_close_min=1,
    segment_row_count_max=300,
)

Row = tuple[int, int, int]
"""Ledger id, entry id, time due in ms."""

Position = tuple[int, int]
"""Ledger id, entry id."""

HandedOut = tuple[int, int, int]
"""When it was asked for in ms, ledger id, entry id."""


class TrackerCase(NamedTuple):
    """Rows to add, and from how many buckets on to merge."""

    name: str
    rows: list[Row]
    bucket_count_max: int

    @property
    def is_merged(self) -> bool:
        return self.bucket_count_max != UNLIMITED

    @property
    def polls(self) -> list[int]:
        """When to ask for what is due: when half of it is, and when all of it is."""
        return [sorted(deliver_at_ms for _, _, deliver_at_ms in self.rows)[ROW_COUNT // 2], ALL_DUE_MS]

    def due(self, rows: Iterable[Row]) -> list[HandedOut]:
        """Return, in order, what each poll must give of these rows."""
        half_ms, all_ms = self.polls
        return sorted((half_ms if row[2] <= half_ms else all_ms, *row[:2]) for row in rows)


def _delays(law: str, rng: np.random.Generator) -> Sequence[int]:
    if law == "exponential":
        return (60_000 + rng.exponential(HOUR_MS, ROW_COUNT).astype(np.int64)).tolist()
    if law == "week":
        return (60_000 + rng.integers(0, 7 * 24 * HOUR_MS, ROW_COUNT)).tolist()
    if law == "instant":
        return (HOUR_MS - np.arange(ROW_COUNT) // 10).tolist()
    return [HOUR_MS] * ROW_COUNT


def _positions(*, is_sparse: bool, rng: np.random.Generator) -> Iterator[Position]:
    if not is_sparse:
        yield from ((7 + row // 500, row % 500) for row in range(ROW_COUNT))
        return
    ledger_id, entry_id = 10**12, 2**31 - 40_000
    for row in range(ROW_COUNT):
        if row % 40 == 0:
            ledger_id, entry_id = ledger_id + int(rng.integers(1, 90)), 2**31 - int(rng.integers(0, 20_000))
        entry_id += int(rng.integers(1, 900))
        yield ledger_id, entry_id


def _case(name: str, *, is_merged: bool) -> TrackerCase:
    rng = np.random.default_rng(195)
    law = "week" if name == "sparse" else name
    positions = _positions(is_sparse=name == "sparse", rng=rng)
    delays = _delays(law, rng)
    # Published ten a millisecond, as far as times go.
    rows = [
        (*position, NOW_MS + row // 10 + delay)
        for row, (position, delay) in enumerate(zip(positions, delays, strict=True))
    ]
    return TrackerCase(name, rows, MERGED_BUCKETS_MAX if is_merged else UNLIMITED)


CASES = [
    pytest.param(_case(name, is_merged=is_merged), id=f"{name}-{'merged' if is_merged else 'sealed'}")
    for name in ("fixed", "exponential", "week", "instant", "sparse")
    for is_merged in (False, True)
]


@pytest.fixture(scope="module")
def real_tracker() -> Iterator[RealTracker]:
    """A Java process that answers for Pulsar's tracker."""
    require_tools(REAL_PULSAR)
    with RealTracker() as tracker:
        yield tracker


def _settings(case: TrackerCase) -> dict[str, int]:
    """Return what Pulsar's tracker is to be made with: the same as ours."""
    return {
        "now": NOW_MS,
        "min": CONFIG.index_count_per_bucket_min,
        "step": CONFIG.segment_step_ms_max,
        "segment": CONFIG.segment_row_count_max,
        "buckets": case.bucket_count_max,
    }


def _tracker(
    case: TrackerCase, storage: BucketSnapshotStorage, cursor: FakeCursor, clock: FakeClock
) -> BucketDelayedDeliveryTracker:
    context = TrackerContext(topic_name="peer", cursor_name="sub", cursor=cursor, on_available=lambda: None)
    config = TrackerConfig(
        **{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"bucket_count_max": case.bucket_count_max}
    )
    tracker = BucketDelayedDeliveryTracker(context, config, storage, now_ms=clock, threads=InThreads(run_inline))
    tracker.start()
    return tracker


async def _rest() -> None:
    """Let all work that is under way end; in virtual time, where nothing takes any."""
    await asyncio.sleep(1)


async def _write_here(case: TrackerCase, folder: Path) -> int:
    """Add a case's rows to our tracker, store what it leaves, and return how many snapshots that is."""
    storage, cursor = MemoryBucketSnapshotStorage(), FakeCursor()
    await storage.start()
    tracker = _tracker(case, storage, cursor, FakeClock(NOW_MS))
    columns = np.array(case.rows).T
    for start in range(0, ROW_COUNT, 500):
        assert tracker.add_messages(*columns[:, start : start + 500]).all()
        await _rest()
    await tracker.close()
    await store_folder(storage, cursor.properties, folder)
    return len(cursor.properties)


async def _hand_out_here(case: TrackerCase, folder: Path) -> list[HandedOut]:
    """Recover from a folder with our tracker, and return what it hands out at each time, sorted."""
    storage, properties = await load_folder(folder)
    cursor, clock = FakeCursor(), FakeClock(NOW_MS)
    cursor.properties = properties
    tracker = _tracker(case, storage, cursor, clock)
    await _rest()
    handed_out: list[HandedOut] = []
    for clock.now_ms in case.polls:
        has_more = True
        while has_more:
            rows = tracker.get_scheduled_messages(1_000).to_rows()
            handed_out += [(clock.now_ms, ledger_id, entry_id) for _, ledger_id, entry_id in rows]
            # An empty poll may only mean that a segment is being loaded.
            await _rest()
            has_more = tracker.has_message_available()
    await tracker.close()
    return sorted(handed_out)


def _hand_out_there(real_tracker: RealTracker, case: TrackerCase, folder: Path) -> list[HandedOut]:
    """Recover from a folder with Pulsar's tracker, and return what it hands out at each time, sorted."""
    out = folder.with_suffix(".csv")
    # It must not merge now what it was given.
    settings = _settings(case) | {"buckets": UNLIMITED}
    real_tracker.ask("recover", folder=str(folder), out=str(out), polls=case.polls, **settings)
    with out.open() as file:
        return sorted((int(now_ms), int(ledger), int(entry)) for now_ms, ledger, entry in list(csv.reader(file))[1:])


def _write_there(real_tracker: RealTracker, case: TrackerCase, folder: Path) -> dict[str, Any]:
    """Add a case's rows to Pulsar's tracker and store what it leaves."""
    rows = folder.with_suffix(".csv")
    with rows.open("w") as file:
        csv.writer(file).writerows([("ledger_id", "entry_id", "deliver_at_ms"), *case.rows])
    return real_tracker.ask("write", folder=str(folder), rows=str(rows), **_settings(case))


def _stored_rows(folder: Path) -> list[Row]:
    """Return the rows of a folder's segments."""
    rows = [row for path in folder.glob("*.snapshot") for row in decode_segments(read_entries(path)[1:]).to_rows()]
    return [(ledger_id, entry_id, deliver_at_ms) for deliver_at_ms, ledger_id, entry_id in rows]


@pytest.mark.parametrize("case", CASES)
def test_pulsar_hands_out_exactly_what_was_sealed_here(
    real_tracker: RealTracker, case: TrackerCase, tmp_path: Path
) -> None:
    """Our snapshots and properties are Pulsar's: from them its tracker hands out every position once, in time."""
    folder = tmp_path / "ours"
    folder.mkdir()
    bucket_count = run_virtually(_write_here(case, folder))

    handed_out = _hand_out_there(real_tracker, case, folder)

    assert handed_out == case.due(case.rows)
    assert (bucket_count <= MERGED_BUCKETS_MAX) == case.is_merged


@pytest.mark.parametrize("case", CASES)
def test_what_pulsar_sealed_is_handed_out_here(real_tracker: RealTracker, case: TrackerCase, tmp_path: Path) -> None:
    """From Pulsar's snapshots and properties our tracker hands out every stored position once, as Pulsar's does."""
    folder = tmp_path / "theirs"
    told = _write_there(real_tracker, case, folder)

    handed_out = run_virtually(_hand_out_here(case, folder))

    stored = _stored_rows(folder)
    assert handed_out == case.due(stored)
    assert handed_out == _hand_out_there(real_tracker, case, folder)
    assert case.is_merged or sorted(stored) == sorted(case.rows[: ROW_COUNT - told["left_in_mutable_bucket"]])
    assert (told["created"] > told["buckets"] > 0) == case.is_merged
