"""A damaged folder of snapshots behind a link, on a disk of its own, or where no rename is allowed."""

import asyncio
import logging
from pathlib import Path

import pytest

from snapshot_storage.errors import StorageAccessError, StorageUnavailableError
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.put_aside import put_aside_folders, remove_put_aside
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.small_disk import small_disk
from tests.helpers.spark.bulk_data import write_log


def _opened(path: Path) -> RocksDBFolder:
    return RocksDBFolder.open(path, memory=RocksDBMemory(), is_read_only=False)


def _add(folder: RocksDBFolder) -> int:
    return folder.create(b"metadata", [b"segment"], bucket_key="k", topic_name="t", cursor_name="c")


def _filled(path: Path) -> set[str]:
    """Fill a folder, damage it, and return the names of its files."""
    folder = _opened(path)
    _add(folder)
    folder.close()
    (path / "CURRENT").write_bytes(b"nonsense\n")
    return {file.name for file in path.iterdir()}


def test_behind_a_link_the_folder_is_renamed_and_the_link_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So the new folder is on the disk that an operator chose."""
    real, path = tmp_path / "disk" / "index", tmp_path / "data" / "snapshots"
    names = _filled(real)
    path.parent.mkdir()
    path.symlink_to(real)

    with caplog.at_level(logging.ERROR):
        folder = _opened(path)
    added = _add(folder)
    folder.close()

    assert path.readlink() == real
    again = _opened(path)
    assert again.read_segments(added, 1, 1) == [b"segment"]
    again.close()
    (aside,) = put_aside_folders(path)
    assert aside.path.parent == real.parent
    assert aside.size_bytes == sum(file.stat().st_size for file in aside.path.iterdir())
    assert {file.name for file in aside.path.iterdir()} >= names
    (record,) = caplog.records
    assert f"the folder was put aside as {aside.path}, and the index is read again" in record.getMessage()
    remove_put_aside(aside)
    assert [file.name for file in real.parent.iterdir()] == ["index"]
    assert [file.name for file in path.parent.iterdir()] == ["snapshots"]


def test_a_link_to_a_log_is_refused_and_the_log_stays(tmp_path: Path) -> None:
    """A log is not derived, so nothing renames it."""
    write_log(tmp_path / "other", {"a": [1, 2]})
    path = tmp_path / "snapshots"
    path.symlink_to(tmp_path / "other" / "ledgers")

    with pytest.raises(StorageAccessError, match="not known as Postdate's snapshots"):
        asyncio.run(RocksDBBucketSnapshotStorage(path).start())

    assert not put_aside_folders(path)
    assert path.readlink() == tmp_path / "other" / "ledgers"
    write_log(tmp_path / "other", {"a": [3]})


def test_a_mount_point_that_is_damaged_is_an_error_with_advice_and_works_when_it_is_emptied(tmp_path: Path) -> None:
    """The system does not rename it."""
    with small_disk(tmp_path / "disk", mib=8) as disk:
        names = _filled(disk)
        for _ in range(2):
            with pytest.raises(StorageUnavailableError) as refused:
                _opened(disk)
            assert f"the snapshots in {disk} cannot be used (Corruption: CURRENT" in str(refused.value)
            assert "stop the service and delete the files in it" in str(refused.value)
            assert {file.name for file in disk.iterdir()} >= names

        for file in disk.iterdir():
            file.unlink()
        folder = _opened(disk)
        _add(folder)
        folder.close()
