"""Checkpoints of several bundles in one place, restored and copied: the whole folder or nothing, and gone on with."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

import managed_ledger.objects.place_checkpoints as module
from managed_ledger.bundle_settings import BUNDLES, RESTORING, SETTINGS, encode_settings, ranges_in
from managed_ledger.bundles import even_ranges
from managed_ledger.dividing import OLD, divide
from managed_ledger.errors import BackupError, StoreCorruptedError, StoreLockedError, StoreUnavailableError
from managed_ledger.objects.manifest import MANIFEST, TABLES
from managed_ledger.objects.object_store import FolderObjects, ObjectStore
from managed_ledger.objects.place_checkpoints import (
    checkpoints_of,
    complete_place,
    fetch_bundles,
    objects_of,
    store_bundles,
)
from managed_ledger.objects.shared_records import SHARED_RECORDS, decode_records
from postdate.broker.service.record_homes import home_of_record
from postdate.index.log_copy import copy_log
from snapshot_storage.s3.objects import S3Objects
from tests.helpers.divided_logs import SHARED, contents, fill_data
from tests.helpers.storages.s3_servers import MotoServer, S3Server

TWO: Final = even_ranges(2)


def ignored(_done: int, _of_all: int) -> None:
    pass


def stored(objects: ObjectStore, data: Path, *, replaces_other: bool = False) -> int:
    made = store_bundles(objects, data, made_at_ms=1_000, on_bytes=ignored, replaces_other=replaces_other)
    return sum(one.new_bytes for one in made)


def restored(objects: ObjectStore, data: Path) -> Path:
    fetch_bundles(objects, data, on_bytes=ignored)
    return data


def copied(source: Path, target: Path | str) -> Any:
    return copy_log(str(source), str(target), now_ms=1_000, on_bytes=ignored)


def shared_of(data: Path) -> dict[str, bytes]:
    return decode_records((data / SHARED_RECORDS).read_bytes(), "here")


@pytest.fixture(scope="module")
def undivided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("undivided") / "data"
    fill_data(data, range(6))
    return data


@pytest.fixture(scope="module")
def divided(undivided: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("divided") / "data"
    shutil.copytree(undivided, data)
    divide(data, 2, home_of=home_of_record)
    shutil.rmtree(data / OLD)
    return data


@pytest.fixture
def data(divided: Path, tmp_path: Path) -> Path:
    shutil.copytree(divided, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    made = MotoServer()
    yield made
    made.stop()


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderObjects(tmp_path / "backup")
    return S3Objects(request.getfixturevalue("server").config(f"backup/{uuid4().hex}"), lambda _: False)


def test_a_restored_folder_has_the_bundles_and_the_next_backup_stores_what_is_new(
    objects: ObjectStore, data: Path, tmp_path: Path
) -> None:
    before = contents(data)

    first = stored(objects, data)

    assert {name.partition("/")[0] for name in objects.names("")} == {SETTINGS, SHARED_RECORDS, "bundle"}
    assert ranges_in(restored(objects, tmp_path / "one")) == TWO
    assert contents(tmp_path / "one") == before
    assert shared_of(tmp_path / "one") == SHARED
    assert sorted(one.name for one in (tmp_path / "one" / BUNDLES).rglob("*") if one.name == MANIFEST) == []
    fill_data(data / BUNDLES / str(TWO[0]), [], seed=5)
    assert 0 < stored(objects, data) < first / 2


def test_a_backup_of_other_bundles_is_replaced_where_that_is_meant_alone(
    objects: ObjectStore, data: Path, undivided: Path, tmp_path: Path
) -> None:
    shutil.copytree(undivided, tmp_path / "undivided")
    stored(objects, tmp_path / "undivided")
    strange = [MANIFEST + ".old", "notes/of/mine", "bundle/other/file"]
    for name in strange:
        assert objects.replace(name, b"kept", None)
    with pytest.raises(BackupError, match=r"has the backup of a log with one bundle.*--replace"):
        stored(objects, data)
    stored(objects, data, replaces_other=True)
    assert list(objects.names(TABLES)) == []
    assert objects.read(MANIFEST) is None
    with pytest.raises(BackupError, match=r"a log with 2 bundles"):
        stored(objects, tmp_path / "undivided")
    divide(data, 4, home_of=home_of_record)
    with pytest.raises(BackupError, match=r"a log with 2 other bundles.*--replace"):
        stored(objects, data)
    stored(objects, data, replaces_other=True)
    assert list(objects.names(f"bundle/{TWO[0]}/")) == []
    assert all(objects.read(name) for name in strange)
    assert ranges_in(restored(objects, tmp_path / "restored")) == even_ranges(4)
    assert contents(tmp_path / "restored") == contents(data)


def test_a_place_is_no_backup_before_all_bundles_are_there(data: Path, tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path / "backup")
    stored(objects, data)
    (tmp_path / "backup" / SETTINGS).unlink()
    manifest = tmp_path / "backup" / "bundle" / str(TWO[1]) / MANIFEST
    content = manifest.read_bytes()
    manifest.unlink()

    assert not complete_place(objects, TWO, None)
    with pytest.raises(BackupError, match="There is no backup"):
        restored(objects, tmp_path / "restored")
    manifest.write_bytes(content)
    assert complete_place(objects, TWO, None)
    assert contents(restored(objects, tmp_path / "restored")) == contents(data)


def test_two_services_may_complete_a_place_at_once(data: Path, tmp_path: Path) -> None:
    """The one that is slower finds what it would have written."""

    class Slow(FolderObjects):
        def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
            FolderObjects(tmp_path / "backup").replace(name, data, tag)
            return super().replace(name, data, tag)

    objects = Slow(tmp_path / "backup")
    stored(FolderObjects(tmp_path / "backup"), data)
    (tmp_path / "backup" / SETTINGS).unlink()

    assert complete_place(objects, TWO, None)
    assert contents(restored(objects, tmp_path / "restored")) == contents(data)


def test_the_prefix_of_a_cluster_and_other_files_are_left_alone(data: Path, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    place.mkdir()
    (place / SETTINGS).write_bytes(encode_settings(TWO, "east"))
    with pytest.raises(BackupError, match="has the log of the cluster east, which is no backup"):
        stored(FolderObjects(place), data)
    with pytest.raises(BackupError, match="has the log of the cluster east"):
        restored(FolderObjects(place), tmp_path / "restored")
    (place / SETTINGS).unlink()
    (place / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(BackupError, match="has other files"):
        stored(FolderObjects(place), data)
    assert [one.name for one in place.iterdir()] == ["cat.jpg"]


def test_a_damaged_bundle_restores_nothing_and_a_service_does_not_start_on_it(data: Path, tmp_path: Path) -> None:
    objects, target = FolderObjects(tmp_path / "backup"), tmp_path / "restored"
    stored(objects, data)
    table = max((tmp_path / "backup" / "bundle" / str(TWO[1]) / "table").iterdir(), key=lambda one: one.stat().st_size)
    whole = table.read_bytes()
    table.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])

    with pytest.raises(BackupError, match="is not what was"):
        restored(objects, target)
    with pytest.raises(StoreUnavailableError, match=r"restoring it was cut off: `postdate restore` again"):
        ranges_in(target)
    table.write_bytes(whole)
    assert contents(restored(objects, target)) == contents(data)
    (target / SETTINGS).unlink()
    with pytest.raises(StoreCorruptedError, match=r"bundles\.json is missing"):
        ranges_in(target)


@pytest.mark.parametrize("kind", ["undivided", "divided"])
def test_a_log_is_copied_to_a_folder_and_to_a_backup_and_back(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(request.getfixturevalue(kind), data)
    before = contents(data)

    done = copied(data, tmp_path / "copy")

    assert done.bundles == len(ranges_in(data))
    assert contents(tmp_path / "copy") == before
    assert not list(data.rglob("*.checkpoint"))
    (tmp_path / "place").mkdir()
    stored(FolderObjects(tmp_path / "place"), data)
    fill_data(tmp_path / "more", [50])
    assert copied(data, tmp_path / "place").new_bytes < done.bytes
    copied(tmp_path / "place", tmp_path / "back")
    assert contents(tmp_path / "back") == before
    with pytest.raises(BackupError, match="is not empty"):
        copied(data, tmp_path / "back")
    with pytest.raises(BackupError, match="One of both must be a data folder"):
        copied(tmp_path / "place", "s3://bucket/other")
    with pytest.raises(BackupError, match="There is no log"):
        copied(tmp_path / "none", tmp_path / "new")


def test_a_log_in_use_is_not_copied(undivided: Path, tmp_path: Path) -> None:
    shutil.copytree(undivided, tmp_path / "data")
    with checkpoints_of(tmp_path / "data"), pytest.raises(StoreLockedError):
        copied(tmp_path / "data", tmp_path / "copy")


def _watched(call: Callable[..., Any], on_step: Callable[[], None]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        on_step()
        return call(*arguments, **named)

    return run


def _killed_at(step: int, place: Path, target: Path) -> None:
    left = step

    def on_step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner, name in (
        (FolderObjects, "fetch_file"),
        (FolderObjects, "replace"),
        (Path, "rename"),
        (Path, "mkdir"),
        (Path, "unlink"),
        (module, "sync_folder"),
    ):
        setattr(owner, name, _watched(getattr(owner, name), on_step))
    restored(FolderObjects(place), target)


def test_a_restore_that_is_killed_anywhere_is_whole_or_refused_and_gone_on_with(data: Path, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    stored(FolderObjects(place), data)
    whole = contents(data)
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    step, has_ended = 0, set()
    while True:
        target = tmp_path / f"restored-{step}"
        child = context.Process(target=_killed_at, args=(step, place, target))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        is_there = (target / BUNDLES).exists()
        has_ended.add(is_there)
        if is_there:
            assert contents(target) == whole
        else:
            if (target / RESTORING).exists():
                with pytest.raises(StoreUnavailableError, match="cut off"):
                    ranges_in(target)
            restored(FolderObjects(place), target)
            if step % 5 == 0:
                assert contents(target) == whole
            assert shared_of(target) == SHARED
        shutil.rmtree(target)
        step += 3
    assert step > 20
    assert False in has_ended


def test_what_was_fetched_is_not_fetched_again(data: Path, tmp_path: Path) -> None:
    place, target = tmp_path / "backup", tmp_path / "restored"
    stored(FolderObjects(place), data)
    fetched: list[str] = []
    left = 12

    class CountedFetches(FolderObjects):
        def fetch_file(self, name: str, path: Path) -> bool:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("the network is gone")
            fetched.append(name)
            return super().fetch_file(name, path)

    with pytest.raises(OSError, match="the network is gone"):
        restored(CountedFetches(place), target)
    left = 1_000
    restored(CountedFetches(place), target)

    assert contents(target) == contents(data)
    # Four are fetched at a time, so some files may have been on their way.
    assert len(fetched) <= len(set(fetched)) + 4
    assert objects_of(FolderObjects(place), TWO[0]).read(MANIFEST) is not None
