"""A damaged folder of snapshots behind a link, or on a disk of its own: put aside there, and the log says where."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snapshot_storage.errors import StorageAccessError
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.opening import open_to_write
from snapshot_storage.rocksdb.put_aside import put_aside_folders, remove_put_aside
from tests.helpers.small_disk import small_disk
from tests.helpers.spark.bulk_data import write_log


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", mib=8) as mount_point:
        yield mount_point


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
    return {file.name for file in path.iterdir()} - {"WRITER"}


def _holds(path: Path, bucket_id: int) -> None:
    again = _opened(path)
    assert again.read_segments(bucket_id, 1, 1) == [b"segment"]
    again.close()


def _goes_on(path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    """Open a damaged folder, use it, and return the place that one line of the log names."""
    with caplog.at_level(logging.ERROR):
        folder = _opened(path)
    added = _add(folder)
    folder.close()

    _holds(path, added)
    (record,) = caplog.records
    (aside,) = put_aside_folders(path)
    assert f" {aside.path}, and the index is read again from the log" in record.getMessage()
    return aside.path


def test_behind_a_link_the_folder_is_renamed_and_the_link_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So the new folder is on the disk that an operator chose."""
    real, path = tmp_path / "disk" / "index", tmp_path / "data" / "snapshots"
    names = _filled(real)
    path.parent.mkdir()
    path.symlink_to(real)

    aside = _goes_on(path, caplog)

    assert path.readlink() == real
    assert aside.parent == real.parent
    assert {file.name for file in aside.iterdir()} >= names
    assert "the folder was put aside as" in caplog.text
    assert [file.name for file in path.parent.iterdir()] == ["snapshots"]
    remove_put_aside(*put_aside_folders(path))
    assert [file.name for file in real.parent.iterdir()] == ["index"]


@pytest.mark.parametrize("target", ["other/ledgers", "other", "data", "."])
def test_a_link_to_a_folder_with_a_log_is_refused_and_the_log_stays(tmp_path: Path, target: str) -> None:
    """A log of another service, its data folder, and the link's own folder: damaged or not, none is put aside."""
    for name in ("other", "data"):
        write_log(tmp_path / name, {"a": [1]})
    path = tmp_path / "data" / "snapshots"
    path.symlink_to(tmp_path / target)
    before = sorted(tmp_path.rglob("*"))

    for damage in (None, "it is damaged"):
        with pytest.raises(StorageAccessError, match="is a folder with a log of messages: mend the link"):
            open_to_write(path, memory=RocksDBMemory(), damage=damage)

    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_to_a_folder_of_other_files_is_refused_and_an_empty_one_is_filled(tmp_path: Path) -> None:
    """A folder that is put aside is renamed with all that is in it."""
    other, path = tmp_path / "photographs", tmp_path / "snapshots"
    other.mkdir()
    (other / "summer.jpg").write_text("a picture")
    path.symlink_to(other)

    for damage in (None, "it is damaged"):
        with pytest.raises(StorageAccessError, match=r"a folder that holds summer\.jpg: let it lead to an"):
            open_to_write(path, memory=RocksDBMemory(), damage=damage)
    assert [file.name for file in other.iterdir()] == ["summer.jpg"]

    (other / "summer.jpg").unlink()
    (other / "lost+found").mkdir()
    folder = _opened(path)
    added = _add(folder)
    folder.close()
    _holds(path, added)


def test_a_link_to_a_checkpoint_is_followed(tmp_path: Path) -> None:
    """No writer has been in it, and its files are RocksDB's."""
    folder = _opened(tmp_path / "snapshots")
    added = _add(folder)
    folder.checkpoint(tmp_path / "backup")
    folder.close()
    path = tmp_path / "linked"
    path.symlink_to(tmp_path / "backup")

    _holds(path, added)


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_mount_point_gives_its_files_to_a_folder_in_it(
    disk: Path, tmp_path: Path, is_linked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The system does not rename it; files that the file system keeps at the top of a disk stay."""
    names = _filled(disk)
    (disk / "lost+found").mkdir(mode=0o700, exist_ok=True)
    path = tmp_path / "snapshots" if is_linked else disk
    if is_linked:
        path.symlink_to(disk)

    aside = _goes_on(path, caplog)

    assert path.is_symlink() == is_linked
    assert aside.parent == disk
    assert {file.name for file in aside.iterdir()} >= names
    assert (disk / "lost+found").is_dir()
    assert "its files were put aside in" in caplog.text
    remove_put_aside(*put_aside_folders(path))
    assert not aside.exists()
    _opened(path).close()


def _refuse_renames(monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[Path], bool]) -> None:
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if is_refused(Path(source)):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(source), None, str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)


def test_a_folder_that_is_left_half_way_is_put_aside_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "snapshots"
    names = _filled(path)
    with monkeypatch.context() as patched:
        _refuse_renames(patched, lambda source: source in (path, path / "CURRENT"))
        with pytest.raises(StorageAccessError, match=r"which cannot be used \(Corruption: CURRENT.*mend that first"):
            _opened(path)
    (half,) = put_aside_folders(path)
    assert {file.name for file in half.path.iterdir()} >= names - {"CURRENT"}

    _opened(path).close()

    (whole,) = put_aside_folders(path)
    assert (whole.path / half.path.name).is_dir()
    assert (whole.path / "CURRENT").read_bytes() == b"nonsense\n"


def test_a_refusal_to_move_anything_names_the_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each try: the damage is still there, and the service goes on without snapshots meanwhile."""
    path = tmp_path / "snapshots"
    _filled(path)
    _refuse_renames(monkeypatch, lambda _: True)

    for _ in range(2):
        with pytest.raises(StorageAccessError, match=r"which cannot be used \(Corruption: CURRENT.*mend that first"):
            open_to_write(path, memory=RocksDBMemory())
