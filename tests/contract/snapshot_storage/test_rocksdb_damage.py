"""The three rules for a folder of snapshots: in use it is refused, damaged it is renamed, for all else it stays.

A damaged entry costs its bucket alone, and no damage is ever data. That all messages are delivered after it is in
`tests/integration/snapshot_storage/test_service_on_a_damaged_folder.py`.
"""

import asyncio
import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageAccessError,
    StorageLockedError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.lock import WriterLock
from snapshot_storage.rocksdb.put_aside import put_aside, put_aside_folders, remove_put_aside
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.spark.bulk_data import write_log
from tests.helpers.storages.rocksdict_edge import replace_rocksdict

pytestmark = pytest.mark.slow

MEMORY = RocksDBMemory()
Entries = dict[int, list[bytes]]


def _opened(path: Path, *, is_read_only: bool = False) -> RocksDBFolder:
    return RocksDBFolder.open(path, memory=MEMORY, is_read_only=is_read_only, pause=lambda _: None)


def _fill(folder: RocksDBFolder, count: int) -> Entries:
    written: Entries = {}
    for number in range(count):
        metadata, *segments = entries = [os.urandom(2_000) for _ in range(4)]
        bucket_id = folder.create(metadata, segments, bucket_key=f"k{number}", topic_name="t", cursor_name="c")
        written[bucket_id] = entries
    return written


def _filled(path: Path, count: int = 3) -> Entries:
    folder = _opened(path)
    written = _fill(folder, count)
    folder.close()
    return written


def _read_all(folder: RocksDBFolder, written: Entries) -> set[int]:
    """Return the buckets that are lost, by any error. Entries that are read must equal the written ones."""
    lost: set[int] = set()
    for bucket_id, entries in written.items():
        try:
            read = [folder.read_head(bucket_id).metadata, *folder.read_segments(bucket_id, 1, 9)]
        except (BucketNotFoundError, SnapshotCorruptedError) as error:
            lost.add(bucket_id if error.bucket_id == bucket_id else -1)
        else:
            assert read == entries
    return lost


def _check_whole(path: Path, written: Entries) -> None:
    """Check that a folder has these snapshots, takes others, and was never put aside."""
    folder = _opened(path)
    assert not _read_all(folder, written | _fill(folder, 1))
    folder.close()
    assert not put_aside_folders(path)


def _state(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in [path, *path.rglob("*")]
    }


def _aside(path: Path) -> list[Path]:
    return [one.path for one in put_aside_folders(path)]


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def _flip(file: Path, at: float = 0.5) -> None:
    data = bytearray(file.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x10
    file.write_bytes(data)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


NOTHING, SOME, FOLDER = "nothing", "the buckets that are in it", "the folder"
HARMS = _flip, _cut, Path.unlink
COSTS = {
    "*.sst": (SOME, FOLDER, FOLDER),
    # RocksDB replays its newest log up to the first record that is cut off, and calls a wrong checksum in it damage.
    "*.log": (FOLDER, SOME, SOME),
    "CURRENT": (FOLDER,) * 3,
    "MANIFEST-*": (FOLDER,) * 3,
    "OPTIONS-*": (NOTHING,) * 3,
}
"""The cost of each harm, for every kind of file that says what is in a folder."""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Entries]:
    """A folder after a kill: entries written since the last start are in the log alone, the others in tables."""
    path = tmp_path_factory.mktemp("crashed") / "crashed"
    running = path.with_name("running")
    written = _filled(running, 6)
    folder = _opened(running)
    written |= _fill(folder, 6)
    shutil.copytree(running, path)
    folder.close()
    return path, written


@pytest.mark.parametrize(
    ("pattern", "harm", "cost"),
    [
        pytest.param(pattern, harm, cost, id=f"{pattern} {harm.__name__}")
        for pattern, costs in COSTS.items()
        for harm, cost in zip(HARMS, costs, strict=True)
    ],
)
def test_a_damaged_file_costs_time_and_is_never_data(
    tmp_path: Path,
    crashed: tuple[Path, Entries],
    pattern: str,
    harm: Callable[[Path], None],
    cost: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The folder goes on with what is whole, or is kept under a name that one line of the log says."""
    path, written = tmp_path / "snapshots", crashed[1]
    shutil.copytree(crashed[0], path)
    harm(max(path.glob(pattern), key=lambda file: file.stat().st_size))
    before = _state(path)
    try:
        reader = _opened(path, is_read_only=True)
    except SnapshotStorageError:
        pass
    else:
        _read_all(reader, written)
        reader.close()
    assert _state(path) == before

    folder = _opened(path)
    lost = _read_all(folder, written)
    listed = {info.bucket_id for info in folder.list("t", "c")}
    new = _fill(folder, 2)
    folder.close()

    assert {NOTHING: not lost, SOME: set() < lost < written.keys(), FOLDER: lost == written.keys()}[cost]
    assert written.keys() - lost <= listed
    assert min(new) > max(written)
    aside, errors = _aside(path), _errors(caplog)
    assert len(aside) == len(errors) == (cost == FOLDER)
    if aside:
        assert f"the folder was put aside as {aside[0]}, and the index is read again" in errors[0]
        assert len(errors[0].splitlines()) == 1
        assert not listed
        assert {file.name for file in aside[0].iterdir()} >= before.keys() - {".", "CURRENT", "LOG"}
    again = _opened(path)
    assert not _read_all(again, new)
    again.close()
    assert _aside(path) == aside


def test_a_value_under_the_key_of_another_costs_its_bucket_alone(tmp_path: Path) -> None:
    """No checksum of RocksDB's finds that out."""
    first, other, headless = written = _filled(tmp_path / "snapshots")
    database = Rdict(str(tmp_path / "snapshots"), Options(raw_mode=True))
    database[b"e" + first.to_bytes(8) + bytes(4)] = database[b"e" + other.to_bytes(8) + bytes(4)]
    database[b"h" + headless.to_bytes(8)] = database[b"h" + other.to_bytes(8)]
    database.close()

    folder = _opened(tmp_path / "snapshots")
    assert _read_all(folder, written) == {first, headless}
    for names in ((None, None), ("t", None), ("t", "c")):
        assert [info.bucket_id for info in folder.list(*names)] == [first, other]
    assert [str(error) for error in folder.header_damage()] == [
        f"snapshot of bucket {headless} is corrupt: the checksum of its header is wrong"
    ]
    folder.delete(headless)
    assert folder.header_damage() == []
    folder.close()
    assert not _aside(tmp_path / "snapshots")


def test_damage_that_a_compaction_meets_puts_the_folder_aside_and_writes_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RocksDB ends all writes then, and does so again at the next compaction."""
    path = tmp_path / "snapshots"
    memory = RocksDBMemory(write_buffer_bytes=2**16)

    async def create(storage: RocksDBBucketSnapshotStorage) -> int:
        names = {"bucket_key": "k", "topic_name": "t", "cursor_name": "c"}
        return await storage.create_bucket_snapshot(b"metadata", [os.urandom(5_000)] * 3, **names)

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(path, memory=memory) as storage:
            old = [await create(storage) for _ in range(5)]
        _flip(max(path.glob("*.sst"), key=lambda table: table.stat().st_size), 0.3)

        async with RocksDBBucketSnapshotStorage(path, memory=memory) as storage:
            failures, created = 0, []
            for _ in range(60):
                try:
                    created = [*created, *await asyncio.gather(*(create(storage) for _ in range(2)))]
                except StorageUnavailableError as error:
                    assert "was opened again; try again" in str(error)  # noqa: PT017
                    failures, created = failures + 1, []
            assert 1 <= failures <= 2
            assert len(created) > 20
            listed = {info.bucket_id for info in await storage.list_bucket_snapshots("t", "c")}
            assert listed >= set(created)
            assert not listed & set(old)

    asyncio.run(scenario())
    (aside,) = _aside(path)
    assert [str(aside) in error for error in _errors(caplog)] == [True]


class _Damaged:
    """A database whose rows cannot be read one after the other, or flushed; RocksDB says so in two lines."""

    def __init__(self, database: object) -> None:
        self._database = database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def iter(self, *_: object) -> object:
        raise Exception("Corruption: block checksum mismatch\nin 000012.sst")

    def flush(self, *_: object, **__: object) -> None:
        self.iter()


def test_a_list_that_meets_damage_puts_the_folder_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a list no one can say what there is; the close before it is one warning, and gives no advice."""
    path = tmp_path / "snapshots"

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(path) as storage:
            replace_rocksdict(storage, _Damaged)
            with pytest.raises(StorageUnavailableError, match="was opened again; try again"):
                await storage.list_bucket_snapshots("t", "c")
            assert await storage.list_bucket_snapshots("t", "c") == []

    asyncio.run(scenario())
    assert len(_aside(path)) == len(_errors(caplog)) == 1
    (closed,) = [record.getMessage() for record in caplog.records if "without a last flush" in record.getMessage()]
    assert closed.endswith("the next start sees to it: Corruption: block checksum mismatch in 000012.sst")


def test_a_folder_of_another_layout_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is derived as well: the index is built again in this program's layout, and the way back is open."""
    path = tmp_path / "snapshots"
    database = Rdict(str(path), Options(raw_mode=True))
    database[b"format"] = b"postdate snapshots 5"
    database.close()

    with pytest.raises(SnapshotStorageError, match="layout"):
        _opened(path, is_read_only=True)
    _filled(path)

    (aside,) = _aside(path)
    (error,) = _errors(caplog)
    assert "it has the layout postdate snapshots 5" in error
    assert str(aside) in error


def test_behind_a_link_the_folder_is_renamed_with_its_other_files_and_the_link_stays(tmp_path: Path) -> None:
    """So the new folder is on the disk that an operator chose; what was put aside goes when it is removed."""
    real, path = tmp_path / "disk" / "index", tmp_path / "data" / "snapshots"
    _filled(real)
    (real / "CURRENT").write_bytes(b"nonsense\n")
    (real / "of others").touch()
    path.parent.mkdir()
    path.symlink_to(real)

    written = _filled(path)

    assert path.readlink() == real
    (aside,) = put_aside_folders(path)
    assert aside.path.parent == real.parent
    assert aside.size_bytes == sum(file.stat().st_size for file in aside.path.iterdir())
    assert (aside.path / "of others").exists()
    remove_put_aside(aside)
    assert [file.name for file in real.parent.iterdir()] == ["index"]
    _check_whole(path, written)


def test_a_folder_that_is_removed_under_its_writer_is_opened_again_at_the_next_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One error names it. RocksDB itself would go on to write to files that no start finds."""
    path = tmp_path / "snapshots"

    async def create(storage: RocksDBBucketSnapshotStorage) -> int:
        return await storage.create_bucket_snapshot(b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c")

    async def scenario() -> int:
        async with RocksDBBucketSnapshotStorage(path) as storage:
            old = await create(storage)
            shutil.rmtree(path)
            outcomes = await asyncio.gather(*(create(storage) for _ in range(5)), return_exceptions=True)
            assert any(isinstance(one, StorageUnavailableError) for one in outcomes)
            assert not [one for one in outcomes if not isinstance(one, int | StorageUnavailableError)]
            new = await create(storage)
            assert new > old
        return new

    new = asyncio.run(scenario())
    folder = _opened(path)
    assert folder.read_head(new).metadata == b"m"
    folder.close()
    assert not _aside(path)
    (error,) = _errors(caplog)
    assert error.startswith(f"the snapshots in {path} were removed or replaced while they were in use")


def test_a_folder_in_use_is_not_put_aside(tmp_path: Path) -> None:
    """Also where it is damaged: the one that has it finds out."""
    path = tmp_path / "snapshots"
    folder = _opened(path)
    written = _fill(folder, 3)
    (path / "CURRENT").unlink()
    with pytest.raises(StorageLockedError):
        _opened(path)
    assert not _read_all(folder, written)
    folder.close()
    assert not _aside(path)


def test_the_lock_of_a_folder_that_is_put_aside_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that opened the lock file before would rename the new folder, which another one has."""
    (tmp_path / "snapshots").mkdir()
    flock = fcntl.flock

    def put_aside_and_lock(descriptor: int, how: int) -> None:
        put_aside(tmp_path / "snapshots")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", put_aside_and_lock)
    with pytest.raises(StorageLockedError):
        WriterLock.take(tmp_path / "snapshots")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_database_of_another_program_is_refused_and_not_touched(tmp_path: Path, is_damaged: bool) -> None:
    """It is not derived: it may be a log of messages, damaged or not, that a wrong link leads to."""
    path = tmp_path / "snapshots"
    write_log(tmp_path / "other", {"a": [1, 2]})
    path.symlink_to(tmp_path / "other" / "ledgers")
    if is_damaged:
        (path / "CURRENT").unlink()
    before = _state(path)

    with pytest.raises(StorageAccessError, match="not known as Postdate's snapshots"):
        asyncio.run(RocksDBBucketSnapshotStorage(path).start())

    assert _state(path) == before
    assert not _aside(path)


def test_a_link_to_a_disk_that_is_not_mounted_yet_is_refused_and_kept(tmp_path: Path) -> None:
    """There may be snapshots on it that are whole."""
    path = tmp_path / "snapshots"
    path.symlink_to(tmp_path / "nowhere")

    with pytest.raises(StorageAccessError, match=f"{path} is no folder: mount the disk that it is on, or move away"):
        _opened(path)

    path.readlink().mkdir()
    _check_whole(path, _filled(path))


def test_rights_that_are_missing_put_nothing_aside(tmp_path: Path) -> None:
    """As in a folder that is mounted with other owners: the rights are mended, and all snapshots are there."""
    path = tmp_path / "snapshots"
    written = _filled(path)
    is_root = os.geteuid() == 0
    path.chmod(0)
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(StorageAccessError, match="ermission denied"):
            _opened(path)
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(0o755)
    _check_whole(path, written)
