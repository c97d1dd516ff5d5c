"""Promises of plain files beyond the contract: they equal the objects in S3; damage and leftovers are found."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from snapshot_storage.errors import SnapshotCorruptedError, StorageAccessError, StorageReadOnlyError
from snapshot_storage.objects.folder import ObjectFolderBucketSnapshotStorage
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.folder_id import config_of_folder
from tests.helpers.storages.s3_servers import BUCKET, MotoServer
from tests.helpers.storages.snapshot_backends import S3Backend

pytestmark = pytest.mark.slow

_NAMES = {"bucket_key": "#pulsar.internal.delayed.bucket_1_5", "topic_name": "t", "cursor_name": "c"}
_SEGMENTS = [b"one", b"", b"three" * 9]


@pytest.mark.parametrize("s3_server", [MotoServer], indirect=True)
def test_a_prefix_of_s3_that_is_copied_to_a_folder_is_the_same_storage(s3_server: MotoServer, tmp_path: Path) -> None:
    """Ids included, as the properties of cursors name them."""

    async def main() -> None:
        backend = S3Backend(s3_server)
        async with backend.storage() as on_s3:
            ids = [await on_s3.create_bucket_snapshot(b"m", _SEGMENTS, **_NAMES) for _ in range(3)]
            infos = await on_s3.list_bucket_snapshots()
        for key in backend.keys().values():
            file = tmp_path / key.removeprefix(f"{backend.prefix}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            s3_server.client.download_file(BUCKET, key, str(file))
        async with ObjectFolderBucketSnapshotStorage(tmp_path, is_read_only=True) as storage:
            assert await storage.list_bucket_snapshots() == infos
            assert await storage.list_bucket_snapshots("t", "c") == infos
            assert await storage.get_bucket_snapshot_segment(ids[1], 2, 9) == _SEGMENTS[1:]
            with pytest.raises(StorageReadOnlyError):
                await storage.delete_bucket_snapshot(ids[1])

    asyncio.run(main())


def test_a_list_goes_on_where_headers_are_damaged_and_each_is_logged_and_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on S3."""

    def tear() -> None:
        for file in sorted(tmp_path.glob("*/*/*"))[:2]:
            file.write_bytes(file.read_bytes()[:-1])

    async def main() -> None:
        async with ObjectFolderBucketSnapshotStorage(tmp_path) as storage:
            ids = [await storage.create_bucket_snapshot(b"m", _SEGMENTS, **_NAMES) for _ in range(3)]
        tear()
        async with ObjectFolderBucketSnapshotStorage(tmp_path) as storage:
            for whose in ((None, None), ("t", "c")):
                caplog.clear()
                assert [info.bucket_id for info in await storage.list_bucket_snapshots(*whose)] == ids[2:]
                for bucket_id in ids[:2]:
                    assert f"left out of a list of snapshots: snapshot of bucket {bucket_id} is corrupt" in caplog.text
            assert [getattr(error, "bucket_id", None) for error in await storage.find_damage()] == ids[:2]

    asyncio.run(main())


def _link_to_a_device(place: Path) -> None:
    place.symlink_to("/dev/zero")


NO_FILES = [os.mkfifo, Path.mkdir, _link_to_a_device]


@pytest.mark.parametrize("make", NO_FILES)
def test_a_snapshot_that_is_no_file_is_damaged(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Opening a pipe would wait for ever, and reading a device would not end; the others are read."""

    def replace_first() -> None:
        place = min(tmp_path.glob("[0-9a-f]*/*/*"))
        place.unlink()
        make(place)

    async def main() -> None:
        async with ObjectFolderBucketSnapshotStorage(tmp_path) as storage:
            ids = [await storage.create_bucket_snapshot(b"m", _SEGMENTS, **_NAMES) for _ in range(2)]
        replace_first()
        async with ObjectFolderBucketSnapshotStorage(tmp_path) as storage:
            for read in (
                storage.get_bucket_snapshot_head,
                storage.get_bucket_snapshot_metadata,
                storage.get_bucket_snapshot_length,
            ):
                with pytest.raises(SnapshotCorruptedError, match="it has 0 bytes, which is no header"):
                    await read(ids[0])
            with pytest.raises(SnapshotCorruptedError, match="it has 0 bytes, which is no header"):
                await storage.get_bucket_snapshot_segment(ids[0], 1, 1)
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == ids[1:]
            assert [getattr(error, "bucket_id", None) for error in await storage.find_damage()] == ids[:1]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["snapshots-id", "snapshots-id.new"])
@pytest.mark.parametrize("make", NO_FILES)
def test_an_id_of_a_folder_that_is_no_file_is_refused_and_named(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    """With a new id, all of the index would be read from the log again: an operator removes the thing first."""
    place = tmp_path / name
    make(place)

    for is_read_only in (True, False):
        with pytest.raises(StorageAccessError, match=f"{name} is no file: remove it"):
            config_of_folder(S3Config(bucket="bucket"), tmp_path, is_read_only=is_read_only)
    assert os.path.lexists(place)


def test_what_a_killed_writer_left_goes_after_a_day(tmp_path: Path) -> None:
    """And what another one is writing stays."""
    (tmp_path / "uploads").mkdir()
    for name, age_s in (("old.segments", 90_000), ("new.segments", 60)):
        file = tmp_path / "uploads" / name
        file.write_bytes(b"half")
        at_s = file.stat().st_mtime - age_s
        os.utime(file, (at_s, at_s))

    async def main() -> None:
        async with ObjectFolderBucketSnapshotStorage(tmp_path) as storage:
            assert await storage.list_bucket_snapshots() == []

    asyncio.run(main())
    assert [file.name for file in (tmp_path / "uploads").iterdir()] == ["new.segments"]
