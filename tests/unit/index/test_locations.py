"""Each location stands for a storage: folders, objects on S3, and other places of snapshots."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from postdate.index.location import RocksDBLocation, S3FolderLocation, location_at
from postdate.pipeline.spark.open_index import cursor_folder
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.s3.config import S3Config
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

    own = location_at("python://somebodys_storage:make").storage(is_read_only=True)

    assert isinstance(own, MemoryBucketSnapshotStorage)
    assert opened == [True]
    assert isinstance(location_at(str(tmp_path)).storage(), RocksDBBucketSnapshotStorage)
    for name, said in (
        ("somebodys_storage:number", "gives a int and no BucketSnapshotStorage"),
        ("somebodys_storage:none", "cannot be found"),
        ("no_such_module_at_all:make", "cannot be found"),
    ):
        with pytest.raises(StorageAccessError, match=said):
            location_at(f"python://{name}").storage()
    for text in ("file:///folder", "hdfs://folder", ""):
        with pytest.raises(ValueError, match="must be a folder, s3://BUCKET/PREFIX"):
            location_at(text)


def test_a_folder_is_a_services_unless_a_database_is_in_it(tmp_path: Path) -> None:
    """So a checkpoint is named as it is, and a new data folder too."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "CURRENT").touch()

    assert location_at(str(tmp_path / "new")) == RocksDBLocation(tmp_path / "new" / "snapshots")
    assert location_at(str(tmp_path / "checkpoint")) == RocksDBLocation(tmp_path / "checkpoint")


def test_a_place_on_s3_takes_from_the_configuration_what_its_text_leaves_out(tmp_path: Path) -> None:
    own = S3Config(bucket="ours", endpoint="http://ours", region="here", access_key_id="id", secret_access_key="hush")
    there = "s3://theirs/a/b?endpoint=http://127.0.0.1:9000&region=there&path_style=true"

    theirs, near = location_at(there, s3=own, data=tmp_path), location_at("s3://ours/c", s3=own, data=tmp_path)

    changed = replace(
        own, bucket="theirs", prefix="a/b", endpoint="http://127.0.0.1:9000", region="there", is_path_style=True
    )
    assert theirs == S3FolderLocation(changed, tmp_path)
    assert near == S3FolderLocation(replace(own, prefix="c"), tmp_path)
    assert "hush" not in repr(near)


def test_a_place_on_s3_is_resolved_to_the_prefix_of_its_data_folder(tmp_path: Path) -> None:
    """A machine without the folder finds it then; a job that only reads gives the folder no id."""
    (tmp_path / "new").mkdir()
    unresolved = location_at("s3://bucket/a", data=tmp_path / "new")

    with pytest.raises(StorageAccessError, match="there is no id in its file"):
        unresolved.resolved(is_read_only=True)
    found = unresolved.resolved(is_read_only=False)

    assert isinstance(found, S3FolderLocation)
    folder_id = (tmp_path / "new" / "snapshots-id").read_text().strip()
    assert (found.config.prefix, found.data) == (f"a/{folder_id}", None)
    assert pickle.loads(pickle.dumps(found)) == found


def test_two_names_of_a_place_are_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    real, link = (location_at(str(tmp_path / name)) for name in ("real", "link"))

    assert real.identity == link.identity != location_at(str(tmp_path)).identity


def test_a_uri_has_no_log_beside_it(tmp_path: Path) -> None:
    """The folder of the log must be named then."""
    write_log(tmp_path, {"a": [1]})

    assert cursor_folder("s3://bucket/x", str(tmp_path)) == tmp_path / "ledgers"
    assert cursor_folder(str(tmp_path), None) == tmp_path / "ledgers"
    with pytest.raises(Exception, match="An index at a URI has no log beside it"):
        cursor_folder("s3://bucket/x", None)
