"""Damage that a server hides behind answers that sound like an outage: told from an outage by what else it answers."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, StorageUnavailableError
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from snapshot_storage.s3.unreadable import Patience
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.storages.canned_s3 import Answer, canned_s3, refusal
from tests.helpers.storages.s3_servers import BUCKET, MinioServer
from tests.helpers.storages.snapshot_backends import S3Backend

AT_ONCE = Patience(failures_min=3, failing_s_min=0)
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
        with pytest.raises((SnapshotCorruptedError, StorageUnavailableError)) as raised:
            await call()
        errors.append(raised.type)
    return errors


@pytest.mark.s3_server
@pytest.mark.parametrize("segments", [[b"one", b"two"], LARGE], ids=["small", "large"])
def test_a_flipped_bit_on_the_disk_of_minio_is_corruption_after_some_tries(
    minio: MinioServer, segments: list[bytes]
) -> None:
    """With the bucket and, where one was asked for, the entry; the others are listed, and it can be deleted."""
    backend = S3Backend(minio)

    async def scenario() -> None:
        async with backend.storage(patience=AT_ONCE) as storage:
            sound, rotten = await _create(storage, segments), await _create(storage, segments)
            minio.rot(backend.keys()[rotten], from_end=1)
            last = len(segments)
            asked = await _errors(lambda: storage.get_bucket_snapshot_segment(rotten, last, last), 4)
            assert asked == [StorageUnavailableError] * 2 + [SnapshotCorruptedError] * 2
            with pytest.raises(SnapshotCorruptedError) as raised:
                await storage.get_bucket_snapshot_segment(rotten, last, last)
            assert (raised.value.bucket_id, raised.value.entry) == (rotten, last)
            if segments is LARGE:
                # What is sound of it can still be read.
                assert await storage.get_bucket_snapshot_segment(rotten, 1, 2) == segments[:2]
            assert await storage.get_bucket_snapshot_segment(sound, last, last) == segments[-1:]
            minio.rot(backend.keys()[rotten], from_end=len(b"".join(segments)))
        async with backend.storage(patience=AT_ONCE) as storage:
            assert await _errors(storage.list_bucket_snapshots, 2) == [StorageUnavailableError] * 2
            assert [info.bucket_id for info in await storage.list_bucket_snapshots("t", "c")] == [sound]
            (damage,) = await storage.find_damage()
            assert isinstance(damage, SnapshotCorruptedError)
            assert damage.bucket_id == rotten
            await storage.delete_bucket_snapshot(rotten)
            assert await storage.find_damage() == []

    asyncio.run(scenario())


@pytest.mark.s3_server
def test_an_object_whose_name_is_damaged_on_the_disk_of_minio_is_corrupt_and_given_up(minio: MinioServer) -> None:
    """It is not listed, not read and not deleted; then only a property knows of it, and it must be able to go."""
    backend = S3Backend(minio)

    async def scenario() -> None:
        async with backend.storage(patience=AT_ONCE) as storage:
            sound, rotten = await _create(storage, [b"one"]), await _create(storage, [b"two"])
            minio.files_of(backend.keys()[rotten])[0].write_bytes(b"garbage" * 100)
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [sound]
            asked = await _errors(lambda: storage.read_bucket_snapshot_head(rotten), 3)
            assert asked == [StorageUnavailableError] * 2 + [SnapshotCorruptedError]
            for _ in range(2):
                with pytest.raises(StorageUnavailableError):
                    await storage.delete_bucket_snapshot(rotten)
            await storage.delete_bucket_snapshot(rotten)
            assert backend.uploads() == []

    asyncio.run(scenario())


@pytest.mark.s3_server
def test_an_outage_is_never_taken_for_damage(tmp_path: Path) -> None:
    """However often it is asked for; and what was read after it is read as ever."""
    server = MinioServer(tmp_path)
    backend = S3Backend(server)

    async def scenario() -> None:
        async with backend.storage(patience=AT_ONCE) as storage:
            ids = [await _create(storage, [b"one"]) for _ in range(2)]
            server.kill()
            for call in (
                lambda: storage.read_bucket_snapshot_head(ids[0]),
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


@pytest.mark.s3_server
def test_the_only_snapshot_of_a_prefix_is_decided_by_a_probe(minio: MinioServer) -> None:
    """Which is written, read and deleted; who may not write has nothing to compare with, and waits."""
    backend = S3Backend(minio)

    async def scenario() -> None:
        async with backend.storage(patience=AT_ONCE) as storage:
            rotten = await _create(storage, [b"one"])
            minio.rot(backend.keys()[rotten])
            asked = await _errors(lambda: storage.read_bucket_snapshot_head(rotten), 3)
            assert asked == [StorageUnavailableError] * 2 + [SnapshotCorruptedError]
            with pytest.raises(BucketNotFoundError):
                await storage.read_bucket_snapshot_head(rotten + 1)
        assert set(backend.ids()) == {rotten}
        config = minio.config(backend.prefix)
        async with S3BucketSnapshotStorage(config, is_read_only=True, patience=AT_ONCE) as storage:
            asked = await _errors(lambda: storage.read_bucket_snapshot_head(rotten), 6)
            assert asked == [StorageUnavailableError] * 6

    asyncio.run(scenario())
    assert minio.client.list_objects_v2(Bucket=BUCKET, Prefix=backend.prefix)["KeyCount"] == 1


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_for_all_objects_is_unavailable_though_it_lists(status: int) -> None:
    """Or refuses for now, however often."""
    page = b"<ListBucketResult><Contents><Key>p/owner</Key><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"

    def answer(request: str) -> Answer:
        if "list-type=2" in request:
            return Answer(200, page + b"</ListBucketResult>")
        return refusal(status, "InternalError" if status == 500 else "SlowDown")

    async def scenario() -> None:
        with canned_s3(answer) as server:
            async with S3BucketSnapshotStorage(server.config(), patience=AT_ONCE) as storage:
                for _ in range(8):
                    with pytest.raises(StorageUnavailableError):
                        await storage.read_bucket_snapshot_head(1)

    asyncio.run(scenario())
