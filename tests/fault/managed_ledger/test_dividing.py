"""A data folder is divided: all of each topic is in its bundle, and a kill at any moment leaves the old or the new."""

import os
import shutil
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import pytest

import managed_ledger.dividing as module
from managed_ledger.bundle_settings import BUNDLES, SETTINGS, bundle_folder, bundle_folders, ranges_in
from managed_ledger.bundles import WHOLE, even_ranges
from managed_ledger.disk.bulk_writing import BulkWriting
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family, block_key
from managed_ledger.dividing import NEW, OLD, Divided, divide
from managed_ledger.errors import (
    BundlesError,
    StoreCorruptedError,
    StoreFullError,
    StoreLockedError,
    StoreUnavailableError,
)
from managed_ledger.objects.object_store import FolderObjects
from managed_ledger.objects.shared_records import SHARED_RECORDS, decode_records
from managed_ledger.repair.rewriting import locked
from postdate.broker.service.record_homes import home_of_record
from tests.helpers.divided_logs import SHARED, contents, fill_data
from tests.helpers.small_disk import small_disk

TOPICS: Final = range(12)


def divided(data: Path, count: int) -> Divided:
    return divide(data, count, home_of=home_of_record)


def shared_of(data: Path) -> dict[str, bytes]:
    return decode_records((data / SHARED_RECORDS).read_bytes(), "here")


def of_topics(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in SHARED}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("filled") / "data"
    fill_data(data, TOPICS)
    return data


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "data")
    return tmp_path / "data"


def test_a_folder_is_divided_twice_and_the_log_of_before_is_kept(data: Path) -> None:
    before = contents(data)

    first = divided(data, 2)

    assert ranges_in(data) == even_ranges(2)
    assert sum(first.bundles.values()) == len(TOPICS)
    assert contents(data) == of_topics(before)
    assert shared_of(data) == SHARED
    assert sorted(one.name for one in data.iterdir()) == [BUNDLES, SETTINGS, OLD, "lock", SHARED_RECORDS]
    with pytest.raises(BundlesError, match=r"bundles\.old has the log of before the last division"):
        divided(data, 4)
    # What it has is no error, and changes nothing.
    assert divided(data, 2).old is None
    (data / OLD).rename(data / "kept")
    divided(data, 4)
    assert contents(data) == of_topics(before)
    assert shared_of(data) == SHARED
    assert sorted(one.name for one in (data / BUNDLES).iterdir()) == list(map(str, even_ranges(4)))
    shutil.copytree(data / "kept" / "ledgers", data / "again" / "ledgers")
    assert contents(data / "again") == before


def test_new_ledgers_and_cursors_get_ids_of_their_own(data: Path) -> None:
    used = {at[0] for found in contents(data).values() if isinstance(found, dict) for at, *_ in found["entries"]}
    divided(data, 2)
    folder = bundle_folder(data, even_ranges(2)[0])
    name = next(name for name in contents(data) if even_ranges(2)[0].has(name))
    (folder / "lone").mkdir()
    shutil.move(folder / "ledgers", folder / "lone" / "ledgers")
    fill_data(folder / "lone", [int(name.rpartition("-")[2])], seed=2)

    after = contents(folder / "lone")[name]["entries"]

    assert len(after) > 0
    assert {at[0] for at, *_ in after} - used
    assert len({at for at, *_ in after}) == len(after)


@pytest.mark.parametrize("count", [3, 5])
def test_what_is_no_multiple_is_refused(data: Path, count: int) -> None:
    divided(data, 2)
    (data / OLD).rename(data / "kept")

    with pytest.raises(BundlesError, match="name a multiple of 2"):
        divided(data, count)


def test_a_folder_that_is_in_use_damaged_or_none_is_left_alone(data: Path, tmp_path: Path) -> None:
    with locked(data / "ledgers", creates=True):
        child = get_context("forkserver").Process(target=_locked_out, args=(data,))
        child.start()
        child.join()
        assert child.exitcode == 0
    with pytest.raises(StoreUnavailableError, match="There is no log"):
        divided(tmp_path, 2)
    database = RocksDatabase.open(data / "ledgers", write_buffer_bytes=2**20)
    batch = database.new_batch()
    batch.put(Family.PAYLOADS, block_key(9_999, 0), b"x")
    database.write(batch, sync=True)
    database.close()
    with pytest.raises(StoreCorruptedError, match="ledger 9999 is of no topic"):
        divided(data, 2)
    assert [one.name for one in data.iterdir()] == ["ledgers"]


def _locked_out(data: Path) -> None:
    with pytest.raises(StoreLockedError):
        divided(data, 2)


def test_what_the_disk_has_lost_is_noticed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(data)
    put = BulkWriting.put

    def lossy(writing: BulkWriting, family: Family, key: bytes, value: bytes) -> None:
        if key != block_key(1, 0) or family is not Family.PAYLOADS:
            put(writing, family, key, value)

    monkeypatch.setattr(BulkWriting, "put", lossy)
    with pytest.raises(StoreUnavailableError, match=r"is not what was written: \d+ rows of payloads"):
        divided(data, 2)
    assert contents(data) == before
    assert [one.name for one in data.iterdir()] == ["ledgers"]


def test_a_disk_without_room_is_refused_before_it_is_filled(filled: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=3) as disk:
        shutil.copytree(filled, disk / "data")
        with pytest.raises(StoreFullError, match="has no room to be divided"):
            divided(disk / "data", 4)
        assert [one.name for one in (disk / "data").iterdir()] == ["ledgers"]


_EVERY: Final = {"put": 100, "sync_folder": 3}


def _watch(on_step: Callable[[], None]) -> None:
    """Call back before and after each step that changes names on the disk, or ends a log."""
    for owner, name in (
        (Path, "rename"),
        (Path, "rmdir"),
        (FolderObjects, "replace"),
        (module, "sync_folder"),
        (module.shutil, "rmtree"),
        (BulkWriting, "put"),
        (RocksDatabase, "close"),
    ):
        setattr(owner, name, _watched(getattr(owner, name), on_step, _EVERY.get(name, 1)))


def _watched(call: Callable[..., Any], on_step: Callable[[], None], every: int) -> Callable[..., Any]:
    calls = 0

    def run(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % every == 0:
            on_step()
        return call(*arguments, **named)

    return run


def _killed_at(step: int, data: Path, count: int) -> None:
    left = step

    def on_step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(on_step)
    divided(data, count)


@pytest.mark.parametrize("count", [2, 4])
def test_a_division_that_is_killed_anywhere_leaves_the_old_or_the_new(tmp_path: Path, count: int) -> None:
    """And the next call goes on; 4 are made of 2, which are made of one."""
    start = tmp_path / "start"
    fill_data(start, range(5))
    whole = contents(start)
    if count == 4:
        divided(start, 2)
        shutil.rmtree(start / OLD)
    old_ranges = ranges_in(start)
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    states: list[bool] = []
    step = 0
    while True:
        data = tmp_path / f"data-{step}"
        shutil.copytree(start, data)
        child = context.Process(target=_killed_at, args=(step, data, count))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        ranges = ranges_in(data)
        assert ranges in (old_ranges, even_ranges(count))
        states.append(ranges != old_ranges)
        expected = whole if ranges == (WHOLE,) else of_topics(whole)
        assert contents(data) == expected
        divided(data, count)
        assert contents(data) == of_topics(whole)
        assert shared_of(data) == SHARED
        assert set(bundle_folders(data)) == set(even_ranges(count))
        assert not (data / NEW).exists() or list((data / NEW).iterdir()) == []
        assert sorted(one.name for one in (data / BUNDLES).iterdir()) == list(map(str, even_ranges(count)))
        assert not (data / "ledgers").exists()
        assert (data / OLD).is_dir()
        shutil.rmtree(data)
        step += 1
    assert step > 10
    assert states == sorted(states)
    assert set(states) == {False, True}
