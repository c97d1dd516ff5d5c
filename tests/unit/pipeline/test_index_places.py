"""Each location stands for a storage: folders, objects on S3 and in files, and other places of snapshots."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import pytest

from postdate.pipeline.index.place import cursor_folder, open_index
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.objects.folder import ObjectFolderBucketSnapshotStorage
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.spark.bulk_data import write_log


def test_a_location_says_which_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in a module stands for any storage that there will ever be."""
    opened: list[bool] = []

    def make(*, is_read_only: bool) -> MemoryBucketSnapshotStorage:
        opened.append(is_read_only)
        return MemoryBucketSnapshotStorage()

    module = ModuleType("somebodys_storage")
    module.make = make  # type: ignore[attr-defined]
    module.number = lambda is_read_only: 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebodys_storage", module)

    assert isinstance(open_index("python://somebodys_storage:make", is_read_only=True), MemoryBucketSnapshotStorage)
    assert opened == [True]
    assert isinstance(open_index(f"file://{tmp_path}"), ObjectFolderBucketSnapshotStorage)
    assert isinstance(open_index(str(tmp_path)), RocksDBBucketSnapshotStorage)
    for location, said in (
        ("python://somebodys_storage:number", "gives a int and no BucketSnapshotStorage"),
        ("python://somebodys_storage:none", "cannot be found"),
        ("python://no_such_module_at_all:make", "cannot be found"),
        ("file://elsewhere/folder", "names no folder of this machine"),
        ("hdfs://folder", "name a folder, or s3://BUCKET/PREFIX"),
    ):
        with pytest.raises(ValueError, match=said):
            open_index(location)


def test_a_uri_has_no_log_beside_it(tmp_path: Path) -> None:
    """The folder of the log must be named then; a folder that is not there cannot be read."""
    write_log(tmp_path, {"a": [1]})

    assert cursor_folder(f"file://{tmp_path}/x", str(tmp_path)) == tmp_path / "ledgers"
    with pytest.raises(Exception, match="An index at a URI has no log beside it"):
        cursor_folder(f"file://{tmp_path}/x", None)
    with pytest.raises(StorageAccessError, match="there is no folder"):
        asyncio.run(open_index(f"file://{tmp_path}/x", is_read_only=True).start())
