"""Damage that a server hides behind answers that sound like an outage: an outage of that object alone, and named."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from snapshot_storage.errors import SnapshotUnavailableError, StorageAccessError, StorageUnavailableError
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.storages.canned_s3 import CannedAnswer, canned_s3, refusal
from tests.helpers.storages.s3_servers import BUCKET, MinioServer, MotoServer
from tests.helpers.storages.snapshot_backends import S3Backend

pytestmark = pytest.mark.slow

LARGE = [b"%d" % number * 400_000 for number in range(10)]
"""Some MB, of which MinIO checks each MiB by itself."""


@pytest.fixture
def minio(s3_servers: Callable[[type], MinioServer]) -> MinioServer:
    return s3_servers(MinioServer)


async def _create(storage: BucketSnapshotStorage, segments: list[bytes]) -> int:
    return await storage.create_bucket_snapshot(b"m", segments, bucket_key="k", topic_name="t", cursor_name="c")


async def _errors(call: Callable[[], Coroutine[object, object, object]], times: int) -> list[type]:
    """Return what the same call raises, again and again."""
    errors: list[type] = []
    for _ in range(times):
        with pytest.raises(StorageUnavailableError) as raised:
            await call()
        errors.append(raised.type)
    return errors


@pytest.mark.s3_server
@pytest.mark.parametrize("segments", [[b"one", b"two"], LARGE], ids=["small", "large"])
def test_a_flipped_bit_on_the_disk_of_minio_fails_its_own_reads(minio: MinioServer, segments: list[bytes]) -> None:
    """However often they are made; the others are read and listed, it is named, and it can be deleted."""
    backend = S3Backend(minio)

    async def scenario() -> None:
        async with backend.storage() as storage:
            sound, rotten = await _create(storage, segments), await _create(storage, segments)
            minio.rot(backend.keys()[rotten], from_end=1)
            last = len(segments)
            asked = await _errors(lambda: storage.get_bucket_snapshot_segment(rotten, last, last), 6)
            assert asked == [StorageUnavailableError] * 6
            if segments is LARGE:
                # Its sound segments can still be read.
                assert await storage.get_bucket_snapshot_segment(rotten, 1, 2) == segments[:2]
            assert await storage.get_bucket_snapshot_segment(sound, last, last) == segments[-1:]
            minio.rot(backend.keys()[rotten], from_end=len(b"".join(segments)))
        async with backend.storage() as storage:
            assert [info.bucket_id for info in await storage.list_bucket_snapshots("t", "c")] == [sound]
            (damage,) = await storage.find_damage()
            assert isinstance(damage, SnapshotUnavailableError)
            assert damage.bucket_id == rotten
            # A tool that asked as often as it may names the entry, and goes on.
            tool = RetryingBucketSnapshotStorage(storage, Retries(tries_max=3, min_ms=1, max_ms=32))
            with pytest.raises(SnapshotUnavailableError, match="cannot be read now") as raised:
                await tool.get_bucket_snapshot_segment(rotten, last, last)
            assert (raised.value.bucket_id, raised.value.entry) == (rotten, last)
            await storage.delete_bucket_snapshot(rotten)
            assert await storage.find_damage() == []

    asyncio.run(scenario())


def test_an_object_that_was_archived_fails_its_own_reads(s3_servers: Callable[[type], MotoServer]) -> None:
    """A lifecycle rule moves it to a class whose objects the server refuses to read, with 403."""
    server = s3_servers(MotoServer)
    backend = S3Backend(server)

    async def scenario() -> None:
        async with backend.storage() as storage:
            sound, archived = await _create(storage, [b"one"]), await _create(storage, [b"two"])
        key = backend.keys()[archived]
        body = server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        server.client.put_object(Bucket=BUCKET, Key=key, Body=body, StorageClass="GLACIER")
        async with backend.storage() as storage:
            assert [info.bucket_id for info in await storage.list_bucket_snapshots("t", "c")] == [sound]
            (damage,) = await storage.find_damage()
            assert isinstance(damage, SnapshotUnavailableError)
            assert damage.bucket_id == archived
            with pytest.raises(StorageAccessError):
                await storage.get_bucket_snapshot_segment(archived, 1, 1)
            tool = RetryingBucketSnapshotStorage(storage, Retries(tries_max=3, min_ms=1, max_ms=32))
            with pytest.raises(SnapshotUnavailableError, match="cannot be read now"):
                await tool.get_bucket_snapshot_length(archived)
            await storage.delete_bucket_snapshot(archived)
            assert await storage.find_damage() == []

    asyncio.run(scenario())


@pytest.mark.s3_server
def test_an_object_whose_name_is_damaged_on_the_disk_is_known_by_its_property_alone(
    minio: MinioServer,
) -> None:
    """It is not listed, not read and not deleted."""
    backend = S3Backend(minio)

    async def scenario() -> None:
        async with backend.storage() as storage:
            sound, rotten = await _create(storage, [b"one"]), await _create(storage, [b"two"])
            minio.files_of(backend.keys()[rotten])[0].write_bytes(b"garbage" * 100)
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [sound]
            for call in (
                lambda: storage.get_bucket_snapshot_head(rotten),
                lambda: storage.delete_bucket_snapshot(rotten),
            ):
                assert await _errors(call, 4) == [StorageUnavailableError] * 4

    asyncio.run(scenario())


@pytest.mark.s3_server
def test_an_outage_is_never_taken_for_damage(tmp_path: Path) -> None:
    """However often it is asked for. After the outage, snapshots are read as ever."""
    server = MinioServer(tmp_path)
    backend = S3Backend(server)

    async def scenario() -> None:
        async with backend.storage() as storage:
            ids = [await _create(storage, [b"one"]) for _ in range(2)]
            server.kill()
            for call in (
                lambda: storage.get_bucket_snapshot_head(ids[0]),
                lambda: storage.delete_bucket_snapshot(ids[0]),
                storage.find_damage,
            ):
                assert await _errors(call, 8) == [StorageUnavailableError] * 8
            server.start()
            # It listens before it is ready.
            patient = RetryingBucketSnapshotStorage(storage, Retries(tries_max=9))
            for bucket_id in ids:
                assert await patient.get_bucket_snapshot_segment(bucket_id, 1, 1) == [b"one"]

    try:
        asyncio.run(scenario())
    finally:
        server.stop()


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_for_all_objects_is_unavailable_though_it_lists(status: int) -> None:
    """Or refuses for now, however often."""
    key = b"<Key>p/1234/5/00000000abc</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
    page = b"<ListBucketResult><Contents>" + key + b"</Contents>"

    def answer(request: str) -> CannedAnswer:
        if "list-type=2" in request:
            return CannedAnswer(200, page + b"</ListBucketResult>")
        return refusal(status, "InternalError" if status == 500 else "SlowDown")

    async def scenario() -> None:
        with canned_s3(answer) as server:
            async with S3BucketSnapshotStorage(server.config()) as storage:
                for _ in range(8):
                    with pytest.raises(StorageUnavailableError):
                        await storage.get_bucket_snapshot_head(1)
                # A list of no readable snapshot is refused; it does not come back empty.
                with pytest.raises(StorageUnavailableError):
                    await storage.list_bucket_snapshots()

    asyncio.run(scenario())
