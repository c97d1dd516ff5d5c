"""`postdate snapshots` over a MinIO whose disk has rotted: every command names what is lost, and does the rest."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from postdate.command_line.program import postdate as main
from postdate.testing import FakeCursor
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import build_snapshot
from snapshot_storage.errors import StorageUnavailableError
from snapshot_storage.objects.keys import object_key
from snapshot_storage.s3.folder_id import FOLDER_ID_FILE
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, MinioServer
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.config import TrackerConfig
from tracker.delayed_delivery_tracker import TrackerContext

pytestmark = pytest.mark.s3_server

TOPIC = "persistent://public/default/orders"
ROWS = 600
START_MS = 1_800_000_000_000
_HOUR_MS = 3_600_000


@dataclass
class StoppedService:
    """A stopped service with four snapshots and an orphan."""

    server: MinioServer
    prefix: str
    data: Path
    ids: list[int]
    orphan: int

    def run(self, *words: str) -> Result:
        settings = {
            "dataDirectory": self.data,
            "bucketSnapshotStorage": "s3",
            "bucketSnapshotS3Endpoint": self.server.endpoint,
            "bucketSnapshotS3PathStyle": "true",
            "bucketSnapshotS3Region": "us-east-1",
            "bucketSnapshotS3Bucket": BUCKET,
            "bucketSnapshotS3Prefix": self.prefix,
            "delayedDeliveryRetryBackoffMinMillis": 1,
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        group = [] if words[0] == "check" else ["snapshots"]
        return CliRunner().invoke(main, [*group, *words, *sets], catch_exceptions=False)

    def key(self, bucket_id: int) -> str:
        folder_id = (self.data / FOLDER_ID_FILE).read_text().strip()
        return object_key(f"{self.prefix}/{folder_id}", bucket_id)


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    server = MinioServer(tmp_path_factory.mktemp("minio"))
    yield server
    server.stop()


@pytest.fixture
def service(minio: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoppedService:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    return asyncio.run(_filled(minio, f"service/{uuid.uuid4().hex}", tmp_path / "data"))


async def _filled(server: MinioServer, prefix: str, data: Path) -> StoppedService:
    store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
    cursor = await (await store.open_managed_ledger(TOPIC)).open_cursor("billing")
    config = server.config(prefix)
    async with S3BucketSnapshotStorage(config, folder=data) as storage:
        *ids, orphan = [await _create(storage, first) for first in range(5)]
    await cursor.update_properties(put={_key(first): str(bucket_id) for first, bucket_id in enumerate(ids)})
    await store.close()
    return StoppedService(server, prefix, data, ids, orphan)


async def _create(storage: S3BucketSnapshotStorage, ledger_id: int) -> int:
    numbers = np.arange(ROWS)
    rows = DelayedIndexes.of(START_MS + numbers * 1_000, np.full(ROWS, ledger_id), numbers)
    snapshot = build_snapshot(rows, step_ms=60_000, rows_max=-1)
    return await storage.create_bucket_snapshot(
        snapshot.metadata, snapshot.segments, bucket_key=_key(ledger_id), topic_name=TOPIC, cursor_name="billing"
    )


def _key(ledger_id: int) -> str:
    return f"{BUCKET_KEY_PREFIX}_{ledger_id}_{ledger_id}"


def test_every_command_names_what_rotted_and_does_the_rest(service: StoppedService, tmp_path: Path) -> None:
    """One's bytes, one's name, all of one, and the bytes of an orphan; exit code 1, as of any damage."""
    sound, rotten, nameless, gone = service.ids
    service.server.rot(service.key(rotten))
    service.server.rot(service.key(service.orphan))
    service.server.files_of(service.key(nameless))[0].write_bytes(b"garbage")
    for file in service.server.files_of(service.key(gone)):
        file.unlink()

    verified = service.run("check", "--second-look", "0")
    listed = service.run("list", "--json")
    shown = service.run("show", str(rotten))
    dry = service.run("drop", "--dry-run")
    exported = service.run("export", str(tmp_path / "index.parquet"))
    copied = service.run("copy", "--to", str(tmp_path / "copy"))
    collected = service.run("drop", "--yes")

    results = [verified, listed, shown, dry, exported, copied, collected]
    assert [result.exit_code for result in results] == [1] * len(results), [result.output for result in results]
    problems = [line.split()[:2] for line in verified.stdout.splitlines()]
    for bucket_id in (rotten, nameless, service.orphan):
        assert ["unavailable", str(bucket_id)] in problems, verified.stdout
    assert ["missing", str(gone)] in problems, verified.stdout
    assert "checked 1 snapshot, " in verified.stdout
    assert "4 problems." in verified.stdout
    assert [one["bucket_id"] for one in json.loads(listed.stdout)] == [sound]
    for unreadable in (rotten, nameless, service.orphan):
        assert f"snapshot of bucket {unreadable} cannot be read now" in listed.stderr
    assert f"snapshot of bucket {rotten} cannot be read now" in shown.stderr
    assert parquet.read_table(tmp_path / "index.parquet").num_rows == ROWS
    assert f"Not whole: {nameless}" in exported.stdout
    assert "Copied 1 snapshot (" in copied.stdout
    assert "Would delete 1 snapshot that no cursor names" in dry.stdout
    assert f"Unreadable: {service.orphan}" in collected.stdout
    # Only the service may give up a snapshot that a cursor names.
    assert [f"snapshot of bucket {one} cannot be read now" in collected.stderr for one in (rotten, nameless)] == [
        True
    ] * 2
    assert str(service.orphan) not in service.run("list").stderr


def test_what_the_storage_lost_without_a_trace_is_missed_by_its_property_alone(service: StoppedService) -> None:
    """And where there are none, that is said."""
    gone = service.ids[1]
    for file in service.server.files_of(service.key(gone)):
        file.unlink()

    verified = service.run("check", "--second-look", "0")
    assert ["missing", str(gone)] in [line.split()[:2] for line in verified.stdout.splitlines()]
    assert "not missed here" not in verified.stdout

    asyncio.run(_forget_properties(service.data))
    forgotten = service.run("check", "--second-look", "0")
    assert "missing" not in forgotten.stdout
    assert "a snapshot that the storage has lost without a trace is not missed here" in forgotten.stdout


def test_drop_gives_up_what_can_be_deleted_and_what_cannot(service: StoppedService) -> None:
    """Beside a running service by deleting it; where none runs, also what the server cannot even delete."""
    _, rotten, nameless, _ = service.ids
    service.server.rot(service.key(rotten))
    service.server.files_of(service.key(nameless))[0].write_bytes(b"garbage")

    async def beside_a_service() -> list[Result]:
        store = await LedgerStore.open(service.data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
        try:
            return [await asyncio.to_thread(service.run, "drop", str(one), "--yes") for one in (rotten, nameless)]
        finally:
            await store.close()

    asked = service.run("drop", str(rotten))
    assert asked.exit_code == 2
    assert "It may only be an outage" in asked.stderr

    deleted, refused = asyncio.run(beside_a_service())
    assert (deleted.exit_code, refused.exit_code) == (0, 2), deleted.output + refused.output
    assert "deleted: the service finds out at its next try" in deleted.stdout
    assert not service.server.files_of(service.key(rotten))

    forgotten, again = service.run("drop", str(nameless), "--yes"), service.run("drop", "12345")
    assert forgotten.exit_code == 0, forgotten.output
    assert "no cursor names it any more" in forgotten.stdout
    assert "stay in the storage, as they cannot be deleted" in forgotten.stdout
    assert again.exit_code == 2
    assert "no snapshot has the bucket id 12345" in again.stderr
    assert str(nameless) not in service.run("check", "--second-look", "0").stdout


async def _forget_properties(data: Path) -> None:
    store = await LedgerStore.open(data / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
    cursor = await (await store.open_managed_ledger(TOPIC)).open_cursor("billing")
    await cursor.update_properties(remove=list(cursor.properties))
    await store.close()


def test_a_tracker_reads_from_the_log_what_rotted_and_the_rest_from_its_snapshots(minio: MinioServer) -> None:
    """Once an operator has dropped them; in the end no property names anything."""
    asyncio.run(_recover_on_rotten_disk(minio))


async def _recover_on_rotten_disk(server: MinioServer) -> None:
    cursor, log = FakeCursor(), [(ledger_id, entry_id) for ledger_id in range(6) for entry_id in range(10)]
    passed_ms = 0

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 + passed_ms

    deliver_at_ms = now_ms() + _HOUR_MS
    config = TrackerConfig(
        index_count_per_bucket_min=10, index_count_at_close_min=1, retry_backoff_ms_min=10, retry_backoff_ms_max=100
    )
    async with S3BucketSnapshotStorage(server.config("tracker")) as storage:
        factory = BucketDelayedDeliveryTrackerFactory(config, storage, now_ms=now_ms)
        context = TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=lambda: None)
        first = factory.new_tracker(context)
        for position in log:
            assert first.add_message(*position, deliver_at_ms)
        await _until(lambda: len(cursor.properties) >= 5)
        await first.close()
        rotten, nameless, *_ = map(int, cursor.properties.values())
        server.rot(object_key("tracker", rotten))
        server.files_of(object_key("tracker", nameless))[0].write_bytes(b"garbage")

        passed_ms = _HOUR_MS
        tracker = factory.new_tracker(context)
        handed_out: list[tuple[int, int]] = []

        def look() -> None:
            """Do what a dispatcher does."""
            tracker.pop_to_read_again()
            for position in set(log) - set(handed_out):
                is_known = tracker.is_recovering(position[0]) or tracker.contains_message(*position)
                if not is_known and not tracker.add_message(*position, deliver_at_ms):
                    handed_out.append(position)
            for _, ledger_id, entry_id in tracker.get_scheduled_messages(100).to_rows():
                handed_out.append((ledger_id, entry_id))
                cursor.acknowledge(ledger_id, entry_id)

        async def handed(count: int, unreadable: set[int]) -> None:
            def is_met() -> bool:
                look()
                return len(handed_out) >= count and tracker.stats().unreadable == unreadable

            await _until(is_met)
            assert len(handed_out) == count

        # 1. All but the snapshots that cannot be read, which are named.
        await handed(len(log) - 20, {rotten, nameless})
        # 2. The steps of `postdate snapshots drop` beside a service; the server cannot delete the other snapshot.
        await storage.delete_bucket_snapshot(rotten)
        await handed(len(log) - 10, {nameless})
        with pytest.raises(StorageUnavailableError):
            await storage.delete_bucket_snapshot(nameless)
        await tracker.close()
        # 3. The steps of that command without a running service.
        gone = [key for key, value in cursor.properties.items() if value == str(nameless)]
        await cursor.update_properties(remove=gone)
        tracker = factory.new_tracker(context)
        await handed(len(log), set())
        await _until(lambda: not cursor.properties)
        assert sorted(handed_out) == log
        await tracker.close()
        assert await storage.list_bucket_snapshots() == []


async def _until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_met():  # noqa: ASYNC110 - a state without an event is polled
            await asyncio.sleep(0.01)
