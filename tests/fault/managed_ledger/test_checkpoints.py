"""Checkpoints as objects, in a folder and on S3: incremental, whole or not at all, valid through every kill.

`golden/backup` was made of `append(log, "golden", 20, acknowledged=5)`, by `stored` of a `checkpoint` of that.
"""

import asyncio
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.log_marker import FORMAT_VERSION
from managed_ledger.errors import BackupError, BackupTakenError, StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.checkpoints import StoredCheckpoint, fetch_checkpoint, store_checkpoint
from managed_ledger.objects.manifest import FORMAT, MANIFEST, TABLES, Manifest
from managed_ledger.objects.object_store import FolderObjects, ObjectStore
from managed_ledger.positions.position import Position
from snapshot_storage.objects.format import VERSION as OBJECT_VERSION
from snapshot_storage.rocksdb.layout import FORMAT as SNAPSHOTS
from snapshot_storage.s3.objects import S3Objects
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock
from tests.helpers.log_reading import read_entries
from tests.helpers.small_disk import small_disk
from tests.helpers.storages.s3_servers import MotoServer, S3Server

SIZE = 500
"""Bytes of a payload that no compression makes less: tables of as many have one size."""


def payload_of(name: str, number: int) -> bytes:
    return (f"{name} {number} ".encode() + os.urandom(SIZE))[:SIZE]


async def _opened(folder: Path) -> LedgerStore:
    return await LedgerStore.open(folder, ManagedLedgerConfig(), now_ms=LedgerClock())


def append(folder: Path, name: str, count: int, acknowledged: int = 0) -> None:
    """Open a log, append, acknowledge the first ones for the subscription `s`, and close it."""

    async def run() -> None:
        store = await _opened(folder)
        ledger = await store.open_managed_ledger("orders")
        cursor = ledger.cursors.get("s") or await ledger.open_cursor("s")
        positions = [ledger.append_nowait(payload_of(name, at), publish_time_ms=1) for at in range(count)]
        await ledger.committed()
        if acknowledged:
            cursor.acknowledge([at[0] for at in positions[:acknowledged]], [at[1] for at in positions[:acknowledged]])
            await cursor.flush()
        await store.put_record("policy", name.encode())
        await store.close()

    asyncio.run(run())


def checkpoint(folder: Path, target: Path) -> Path:
    """Make a checkpoint of a log in a folder of its own."""

    async def run() -> None:
        store = await _opened(folder)
        (await store.checkpoint()).rename(target)
        await store.close()

    asyncio.run(run())
    return target


def contents(folder: Path) -> tuple[list[bytes], int, dict[str, bytes]]:
    """The beginnings of payloads, how many of them the subscription has not acknowledged, and the records."""

    async def run() -> tuple[list[bytes], int, dict[str, bytes]]:
        store = await _opened(folder)
        ledger = await store.open_managed_ledger("orders")
        read = await read_entries(ledger, Position(0, 0), entries_max=10_000)
        at = zip(read.headers.ledger_ids.tolist(), read.headers.entry_ids.tolist(), strict=True)
        left = sum(not ledger.cursors["s"].is_acknowledged(*one) for one in at)
        records = dict(store.records)
        await store.close()
        return [b" ".join(one.split(b" ")[:2]) for one in read.payloads], left, records

    return asyncio.run(run())


def stored(
    objects: ObjectStore,
    folder: Path,
    on_bytes: Callable[[int, int], None] = lambda *_: None,
    *,
    replaces_other: bool = False,
) -> StoredCheckpoint:
    return store_checkpoint(
        objects,
        folder,
        made_at_ms=1_000,
        on_bytes=on_bytes,
        is_stopping=lambda: False,
        replaces_other=replaces_other,
    )


def restored(objects: ObjectStore, folder: Path) -> Path:
    fetch_checkpoint(objects, folder, on_bytes=lambda *_: None)
    return folder


def manifest_of(objects: ObjectStore) -> Manifest:
    found = objects.read(MANIFEST)
    assert found is not None
    return Manifest.decode(found[0], "here")


def assert_no_table_is_left_over(objects: ObjectStore) -> None:
    assert set(objects.names(TABLES)) == {one.name for one in manifest_of(objects).tables.values()}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    made = MotoServer()
    yield made
    made.stop()


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderObjects(tmp_path / "backup")
    # The folder of a test that passed is removed, and its name given again.
    config = request.getfixturevalue("server").config(f"backup/{uuid4().hex}")
    return S3Objects(config, lambda _: False)


def test_a_restored_checkpoint_is_the_log_and_the_next_one_stores_what_is_new(
    objects: ObjectStore, tmp_path: Path
) -> None:
    log = tmp_path / "ledgers"
    append(log, "first", 300, acknowledged=100)
    first = stored(objects, checkpoint(log, tmp_path / "one"))
    append(log, "second", 50)
    steps: list[tuple[int, int]] = []
    second = stored(objects, checkpoint(log, tmp_path / "two"), lambda *step: steps.append(step))

    assert steps[0] == (0, second.new_bytes)
    assert steps[-1] == (second.new_bytes, second.new_bytes)
    assert first.new_bytes == first.manifest.size_bytes
    assert second.new_bytes < second.manifest.size_bytes / 3
    assert (second.manifest.start, second.manifest.fences) == (1, ())
    assert_no_table_is_left_over(objects)
    expected = [f"first {at}".encode() for at in range(300)] + [f"second {at}".encode() for at in range(50)]
    assert contents(restored(objects, tmp_path / "restored")) == (expected, 250, {"policy": b"second"})
    # The restored log goes on. It replaces the backup of its original only where that is meant, and its own then.
    append(tmp_path / "restored", "third", 1)
    three = checkpoint(tmp_path / "restored", tmp_path / "three")
    with pytest.raises(BackupError, match=r"which would be lost: .*--replace"):
        stored(objects, three)
    third = stored(objects, three, replaces_other=True)
    assert third.new_bytes < third.manifest.size_bytes / 3
    stored(objects, checkpoint(tmp_path / "restored", tmp_path / "four"))
    assert contents(restored(objects, tmp_path / "again"))[0] == [*expected, b"third 0"]


def test_a_table_of_the_same_name_and_size_of_a_copied_log_is_stored(objects: ObjectStore, tmp_path: Path) -> None:
    """Two copies of a log have one id, and go on with the same numbers of tables."""
    log, copy = tmp_path / "ledgers", tmp_path / "copy"
    append(log, "both", 10)
    shutil.copytree(log, copy)
    append(log, "log", 200)
    append(copy, "own", 200)
    ours, theirs = checkpoint(log, tmp_path / "one"), checkpoint(copy, tmp_path / "two")
    same = [file.name for file in ours.glob("*.sst") if file.stat().st_size == (theirs / file.name).stat().st_size]
    assert any((ours / name).read_bytes() != (theirs / name).read_bytes() for name in same)

    stored(objects, ours)
    stored(objects, theirs)

    assert contents(restored(objects, tmp_path / "restored"))[0][10:] == [f"own {at}".encode() for at in range(200)]


class Watched:
    """Objects that call back before each change, and in the middle of a large one."""

    def __init__(self, objects: ObjectStore, on_change: Callable[[str], None]) -> None:
        self._objects, self._on_change = objects, on_change

    def __str__(self) -> str:
        return str(self._objects)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        self._on_change(f"before {name}")
        made = self._objects.replace(name, data, tag)
        self._on_change(f"after {name}")
        return made

    def put_file(self, name: str, path: Path) -> None:
        self._on_change(f"before {name}")
        part = path.with_suffix(".part")
        part.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        self._objects.put_file(name, part)
        part.unlink()
        self._on_change(f"within {name}")
        self._objects.put_file(name, path)

    def delete(self, name: str) -> None:
        self._on_change(f"before the deletion of {name}")
        self._objects.delete(name)


@pytest.mark.parametrize(
    ("moment", "nth", "is_refused"),
    [
        pytest.param(f"before {MANIFEST}", 1, True, id="at the claim"),
        pytest.param("within", 1, True, id="between the claim and the end"),
        pytest.param(f"before {MANIFEST}", 2, True, id="at the end"),
        pytest.param(f"after {MANIFEST}", 2, False, id="before the deletions"),
    ],
)
def test_of_two_at_once_one_is_refused_and_the_other_is_whole(
    objects: ObjectStore, tmp_path: Path, moment: str, nth: int, is_refused: bool
) -> None:
    log = tmp_path / "ledgers"
    append(log, "before", 30)
    stored(objects, checkpoint(log, tmp_path / "zero"))
    append(log, "slow", 30)
    slow = checkpoint(log, tmp_path / "slow")
    append(log, "fast", 30)
    fast = checkpoint(log, tmp_path / "fast")
    met = itertools.count(1)
    others: list[StoredCheckpoint] = []

    def on_change(what: str) -> None:
        if what.startswith(moment) and next(met) == nth:
            others.append(stored(objects, fast))

    with pytest.raises(BackupTakenError, match="Another backup") if is_refused else nullcontext():
        stored(Watched(objects, on_change), slow)

    assert len(others) == 1
    assert len(contents(restored(objects, tmp_path / "restored"))[0]) == 90
    stored(objects, slow)
    assert_no_table_is_left_over(objects)


def _killed_at(step: int, folder: Path, target: Path) -> None:
    left = step

    def on_change(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    stored(Watched(FolderObjects(target), on_change), folder)


def test_a_backup_that_is_killed_anywhere_leaves_the_one_before_valid(tmp_path: Path) -> None:
    """And the next one stores what is missing, and deletes what the killed ones have left."""
    target = tmp_path / "backup"
    objects = FolderObjects(target)
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "managed_ledger.objects.checkpoints"])
    log = tmp_path / "ledgers"
    append(log, "old", 20)
    old = checkpoint(log, tmp_path / "old")
    append(log, "new", 20)
    new = checkpoint(log, tmp_path / "new")
    stored(objects, old)
    before = [f"old {at}".encode() for at in range(20)]
    after = before + [f"new {at}".encode() for at in range(20)]

    has_ended: set[bool] = set()
    step = 0
    while True:
        child = context.Process(target=_killed_at, args=(step, new, target))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        found = contents(restored(objects, tmp_path / f"restored-{step}"))[0]
        assert found in (before, after)
        has_ended.add(found == after)
        if found == after:
            shutil.rmtree(target)
            stored(objects, old)
        step += 1
    assert step > 10
    # Those that were killed as they deleted had come to their end.
    assert has_ended == {False, True}
    assert_no_table_is_left_over(objects)
    assert contents(restored(objects, tmp_path / "restored"))[0] == after


def test_what_is_no_backup_of_this_log_is_left_alone(tmp_path: Path) -> None:
    log, other = tmp_path / "ledgers", tmp_path / "other"
    append(log, "ours", 1)
    append(other, "theirs", 1)
    ours, theirs = checkpoint(log, tmp_path / "one"), checkpoint(other, tmp_path / "two")
    objects = FolderObjects(tmp_path / "backup")
    stored(objects, ours)
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    content = (tmp_path / "backup" / MANIFEST).read_bytes()

    with pytest.raises(BackupError, match="has the backup of another log"):
        stored(objects, theirs)
    for changed, says in (
        (content[:-20], "is damaged"),
        (content.replace(b'"made_at_ms": 1000', b'"made_at_ms": 2000'), "is damaged, or not Postdate's: its checksum"),
        (content.replace(FORMAT.encode(), b"postdate objects 2"), "has the format 'postdate objects 2'"),
        (b"[]", "is damaged"),
    ):
        (tmp_path / "backup" / MANIFEST).write_bytes(changed)
        with pytest.raises(BackupError, match=says):
            stored(objects, ours)
        assert (tmp_path / "backup" / MANIFEST).read_bytes() == changed
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(BackupError, match="has other files"):
        stored(FolderObjects(tmp_path / "photos"), ours)
    assert [file.name for file in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_damaged_or_unfinished_backup_is_refused_and_restores_nothing(objects: ObjectStore, tmp_path: Path) -> None:
    log, target = tmp_path / "ledgers", tmp_path / "restored"
    append(log, "ours", 100)
    folder = checkpoint(log, tmp_path / "one")
    with pytest.raises(BackupError, match="There is no backup"):
        restored(objects, target)

    def fail(what: str) -> None:
        if what.startswith("within"):
            raise OSError("the disk fails")

    with pytest.raises(OSError, match="the disk fails"):
        stored(Watched(objects, fail), folder)
    with pytest.raises(BackupError, match=r"No backup in .* has come to its end"):
        restored(objects, target)
    stored(objects, folder)
    name, table = max(manifest_of(objects).tables.items(), key=lambda one: one[1].size_bytes)
    whole = (folder / name).read_bytes()
    bad = tmp_path / "bad"
    for content, says in ((whole[:-1], "bytes, and had"), (bytes([whole[0] ^ 1]) + whole[1:], "is not what was")):
        bad.write_bytes(content)
        objects.put_file(table.name, bad)
        with pytest.raises(BackupError, match=f"{name}.*{says}"):
            restored(objects, target)
    objects.delete(table.name)
    with pytest.raises(BackupError, match="is missing"):
        restored(objects, target)
    assert not target.exists()
    # A start does not make an empty log in the place of one that is not whole yet.
    with pytest.raises(StoreUnavailableError, match="restoring it was cut off"):
        append(target, "lost", 1)
    objects.put_file(table.name, folder / name)
    assert len(contents(restored(objects, target))[0]) == 100


def test_tries_that_fail_or_are_killed_do_not_fill_the_place(objects: ObjectStore, tmp_path: Path) -> None:
    """One that fails deletes what it stored, and the next one does so for one that could not."""
    log = tmp_path / "ledgers"
    append(log, "old", 10)
    before = stored(objects, checkpoint(log, tmp_path / "one")).manifest
    append(log, "new", 10)
    new = checkpoint(log, tmp_path / "two")
    is_killed = False

    def fail(what: str) -> None:
        if what.startswith("within") or (is_killed and "deletion" in what):
            raise OSError("the disk fails")

    named = {one.name for one in before.tables.values()}
    for is_killed in (False, True, True, False):
        with pytest.raises(OSError, match="the disk fails"):
            stored(Watched(objects, fail), new)
        assert (set(objects.names(TABLES)) == named) is not is_killed
    assert len(contents(restored(objects, tmp_path / "restored"))[0]) == 10


def test_a_folder_without_room_is_refused_before_it_is_filled(tmp_path: Path) -> None:
    log = tmp_path / "ledgers"
    append(log, "a", 20_500)
    folder = checkpoint(log, tmp_path / "one")
    # It fits, but for an eighth of the disk.
    mib = 11
    assert mib * 7 / 8 < sum(file.stat().st_size for file in folder.iterdir()) / 2**20 < mib - 0.5
    with small_disk(tmp_path / "disk", mib=mib) as disk:
        objects = FolderObjects(disk / "backup")
        with pytest.raises(BackupError, match=r"has no room: .* MiB are new"):
            stored(objects, folder)
        assert list(objects.names(TABLES)) == []


def test_a_backup_that_is_replaced_while_it_is_restored_is_not_called_damaged(tmp_path: Path) -> None:
    log, other, objects = tmp_path / "ledgers", tmp_path / "other", FolderObjects(tmp_path / "backup")
    append(log, "a", 10)
    append(other, "b", 10)
    stored(objects, checkpoint(log, tmp_path / "one"))
    two = checkpoint(other, tmp_path / "two")

    def replace(done: int, _: int) -> None:
        if done == 0:
            stored(objects, two, replaces_other=True)

    with pytest.raises(BackupError, match="was replaced meanwhile: repeat it"):
        fetch_checkpoint(objects, tmp_path / "restored", on_bytes=replace)


def test_a_start_removes_the_checkpoint_of_a_killed_process(tmp_path: Path) -> None:
    left_over = tmp_path / "ledgers.checkpoint"
    left_over.mkdir()
    (left_over / "000001.sst").write_bytes(b"x")

    append(tmp_path / "ledgers", "a", 1)

    assert not left_over.exists()


def test_a_failed_deletion_leaves_the_new_backup_valid(tmp_path: Path) -> None:
    log, objects = tmp_path / "ledgers", FolderObjects(tmp_path / "backup")
    append(log, "a", 10)
    stored(objects, checkpoint(log, tmp_path / "one"))
    append(log, "b", 10)

    def fail(what: str) -> None:
        if "deletion" in what:
            raise OSError("the disk fails")

    stored(Watched(objects, fail), checkpoint(log, tmp_path / "two"))
    assert len(contents(restored(objects, tmp_path / "restored"))[0]) == 20


def test_a_backup_of_the_first_format_is_restored(tmp_path: Path) -> None:
    """`tests/golden/backup` is what version 0.1.0 has written: 20 messages, of which 5 are acknowledged."""
    golden = FolderObjects(Path(__file__).parents[2] / "golden" / "backup")

    expected = [f"golden {at}".encode() for at in range(20)]
    assert contents(restored(golden, tmp_path / "restored")) == (expected, 15, {"policy": b"golden"})


def test_the_page_on_upgrading_names_each_format_that_is_written() -> None:
    page = (Path(__file__).parents[3] / "docs" / "upgrading.md").read_text()

    assert [
        one for one in (f"`postdate log {FORMAT_VERSION}`", f"`{FORMAT}`", f"`{SNAPSHOTS.decode()}`") if one not in page
    ] == []
    assert f"| snapshots on S3 | {OBJECT_VERSION}, in each object |" in page
