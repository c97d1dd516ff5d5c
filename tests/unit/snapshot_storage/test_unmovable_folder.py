"""A damaged folder of snapshots that cannot be renamed: the error names the damage and what an operator does."""

import errno
import os
from pathlib import Path

import pytest

from snapshot_storage.errors import StorageAccessError, StorageUnavailableError
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.opening import open_to_write

MEMORY = RocksDBMemory()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a folder of snapshots whose CURRENT names no manifest."""
    path = tmp_path / "snapshots"
    open_to_write(path, memory=MEMORY).close()
    (path / "CURRENT").write_bytes(b"nonsense\n")
    return path


def _refuse_renames(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    monkeypatch.setattr(os, "rename", refuse)


def test_a_damaged_mount_point_is_named_with_its_damage_and_the_remedy(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each try: the damage is still there, and the service goes on without snapshots meanwhile."""
    _refuse_renames(monkeypatch, errno.EBUSY)

    for _ in range(2):
        with pytest.raises(StorageUnavailableError) as caught:
            open_to_write(damaged, memory=MEMORY)

        text = str(caught.value)
        assert f"the snapshots in {damaged} cannot be used (Corruption: CURRENT" in text
        assert "a mount point cannot be renamed" in text
        assert "stop the service and move away what is in the folder" in text
        assert "\n" not in text


def test_damage_that_is_found_while_a_mount_point_is_open_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_renames(monkeypatch, errno.EBUSY)

    with pytest.raises(StorageUnavailableError, match=r"cannot be used \(a block is rotten\).* mount point"):
        open_to_write(tmp_path / "snapshots", memory=MEMORY, damage="a block\nis rotten")


def test_the_remedy_for_a_damaged_mount_point_works(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder itself stays, and its content is moved away."""
    _refuse_renames(monkeypatch, errno.EBUSY)
    with pytest.raises(StorageUnavailableError):
        open_to_write(damaged, memory=MEMORY)
    for file in damaged.iterdir():
        file.unlink()

    open_to_write(damaged, memory=MEMORY).close()

    assert (damaged / "CURRENT").read_bytes().startswith(b"MANIFEST-")


def test_another_refusal_to_rename_names_the_damage_too(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_renames(monkeypatch, errno.EACCES)

    with pytest.raises(StorageAccessError, match=r"which cannot be used \(Corruption: CURRENT.*mend that first"):
        open_to_write(damaged, memory=MEMORY)
