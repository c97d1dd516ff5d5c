"""The three rules for a folder of snapshots: in use it is refused, damaged it is renamed, for all else it stays.

A damaged entry costs its bucket alone, and no damage is ever data. That all messages are delivered after it is in
`tests/integration/snapshot_storage/test_service_on_a_damaged_folder.py`.
"""

import asyncio
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from tests.helpers.damaged_logs import flip_type
from tests.helpers.small_disk import fill_up, small_disk
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


def _flip_the_end(file: Path) -> None:
    _flip(file, 0.995)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


NOTHING, SOME, FOLDER = "nothing", "the buckets that are in it", "the folder"
HARMS = _flip, _flip_the_end, _cut, Path.unlink, _make_folder, _make_pipe
COSTS = {
    "*.sst": (SOME, FOLDER, FOLDER, FOLDER, FOLDER, FOLDER),
    # RocksDB replays its newest log up to the first record that is cut off, and calls a wrong checksum in it damage.
    "*.log": (FOLDER, FOLDER, SOME, SOME, FOLDER, FOLDER),
    "CURRENT": (FOLDER,) * 6,
    "MANIFEST-*": (FOLDER,) * 6,
    "OPTIONS-*": (NOTHING, NOTHING, NOTHING, NOTHING, FOLDER, FOLDER),
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


_OPEN = """
import logging, sys
from pathlib import Path
from snapshot_storage.errors import StorageCorruptedError
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder

logging.basicConfig(level=logging.ERROR, format="%(message)s")
for is_read_only in (True, False):
    try:
        RocksDBFolder.open(
            Path(sys.argv[1]), memory=RocksDBMemory(), is_read_only=is_read_only, pause=lambda _: None
        ).close()
    except StorageCorruptedError as error:
        print(is_read_only, error)
"""


@pytest.mark.parametrize("record", [0, -1])
@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*"])
def test_a_flipped_type_of_a_record_is_damage_and_no_hang(
    tmp_path: Path, crashed: tuple[Path, Entries], pattern: str, record: int
) -> None:
    """RocksDB itself would read it for ever, or leave out the log without an error.

    It keeps the interpreter's lock meanwhile, so that nothing but another process can give up.
    """
    path = tmp_path / "snapshots"
    shutil.copytree(crashed[0], path)
    file = max(path.glob(pattern), key=lambda file: file.stat().st_size)
    flip_type(file, record)

    run = subprocess.run(
        [sys.executable, "-c", _OPEN, str(path)], capture_output=True, text=True, check=True, timeout=60
    )

    (aside,) = _aside(path)
    assert run.stdout.startswith("True ")
    assert f"put aside as {aside}" in run.stderr
    for text in (run.stdout, run.stderr):
        assert len(text.splitlines()) == 1
        assert f"{file.name} has at byte" in text
        assert "only a recycled log has" in text


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


def _remove_its_files(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def _replace(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.mkdir()


@pytest.mark.parametrize("harm", [shutil.rmtree, _remove_its_files, _replace])
def test_a_folder_that_is_removed_under_its_writer_is_opened_again_at_the_next_write(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """One error names it. RocksDB itself would go on to write to files that no start finds."""
    path = tmp_path / "snapshots"

    async def create(storage: RocksDBBucketSnapshotStorage) -> int:
        return await storage.create_bucket_snapshot(b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c")

    async def scenario() -> int:
        async with RocksDBBucketSnapshotStorage(path) as storage:
            old = await create(storage)
            harm(path)
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


def test_of_many_writers_that_find_damage_at_once_one_puts_the_folder_aside(tmp_path: Path) -> None:
    """The others find it in use, or open the new one: none takes that one for the damaged one."""
    for number in range(10):
        path = tmp_path / str(number)
        _filled(path, 1)
        (path / "CURRENT").write_bytes(b"nonsense")
        together = threading.Barrier(4)

        def open_it(path: Path = path, together: threading.Barrier = together) -> int:
            together.wait()
            try:
                _opened(path).close()
            except StorageLockedError:
                return 0
            return 1

        with ThreadPoolExecutor(4) as threads:
            opened = sum(one.result() for one in [threads.submit(open_it) for _ in range(4)])

        assert opened >= 1
        assert len(_aside(path)) == 1


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


def _make_database(path: Path) -> None:
    database = Rdict(str(path))
    database["a"] = "of the other program"
    database.close()


def _make_damaged_database(path: Path) -> None:
    _make_database(path)
    (path / "CURRENT").unlink()


def _link_to_a_log(path: Path) -> None:
    write_log(path.parent / "other", {"a": [1, 2]})
    path.symlink_to(path.parent / "other" / "ledgers")


@pytest.mark.parametrize("make", [_make_database, _make_damaged_database, _link_to_a_log])
def test_the_database_of_another_program_is_refused_and_not_touched(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """It is not derived: it may be a log of messages that a wrong link leads to."""
    path = tmp_path / "snapshots"
    make(path)
    before = _state(path)

    with pytest.raises(StorageAccessError, match="not known as Postdate's snapshots"):
        asyncio.run(RocksDBBucketSnapshotStorage(path).start())

    assert _state(path) == before
    assert not _aside(path)


def test_a_checkpoint_is_known_to_be_ours_and_a_copy_without_its_empty_file_by_the_advice(tmp_path: Path) -> None:
    folder = _opened(tmp_path / "snapshots")
    written = _fill(folder, 3)
    folder.checkpoint(tmp_path / "backup")
    folder.close()

    async def list_backup() -> list[int]:
        async with RocksDBBucketSnapshotStorage(tmp_path / "backup") as storage:
            return [info.bucket_id for info in await storage.list_bucket_snapshots()]

    assert asyncio.run(list_backup()) == list(written)
    (tmp_path / "snapshots" / "WRITER").unlink()
    with pytest.raises(StorageAccessError, match="left out the empty file WRITER, make it again"):
        asyncio.run(RocksDBBucketSnapshotStorage(tmp_path / "snapshots").start())
    (tmp_path / "snapshots" / "WRITER").touch()
    _check_whole(tmp_path / "snapshots", written)


def _make_dangling_link(place: Path) -> None:
    place.symlink_to(place.with_name("nowhere") / "there")


@pytest.mark.parametrize("make", [_make_dangling_link, Path.touch, os.mkfifo])
def test_what_is_no_folder_in_the_place_of_the_folder_is_refused_and_kept(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """The target of a link may be a disk that is not mounted yet, with snapshots that are whole."""
    path = tmp_path / "snapshots"
    make(path)
    before = path.lstat()

    with pytest.raises(StorageAccessError) as refused:
        _opened(path)

    text = f"{path} is no folder: mount the disk that it is on, or move away what is there"
    assert str(refused.value) == text
    assert [one.name for one in tmp_path.iterdir()] == ["snapshots"]
    assert os.path.samestat(path.lstat(), before)
    if make is _make_dangling_link:
        path.readlink().mkdir(parents=True)
        _filled(path)
        assert (path.readlink() / "CURRENT").is_file()


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


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_disk_that_refuses_puts_nothing_aside(tmp_path: Path, kind: str) -> None:
    """A full one is an outage, one without rights a refusal; when it is mended all snapshots are there."""
    with small_disk(tmp_path / "disk", mib=4) as disk:
        path = disk / "snapshots"
        written = _filled(path)
        ballast = fill_up(disk) if kind == "full" else None
        if ballast is None:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            reader = _opened(path, is_read_only=True)
            assert not _read_all(reader, written)
            reader.close()
        with pytest.raises(StorageAccessError if ballast is None else StorageUnavailableError, match=str(path)):
            _opened(path)
        assert not _aside(path)
        if ballast is None:
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        else:
            ballast.unlink()
        _check_whole(path, written)


def test_a_mount_point_that_is_damaged_is_an_error_with_advice_and_works_when_it_is_emptied(tmp_path: Path) -> None:
    """The system does not rename it."""
    with small_disk(tmp_path / "disk", mib=8) as disk:
        _filled(disk)
        (disk / "CURRENT").write_bytes(b"nonsense\n")
        names = {file.name for file in disk.iterdir()}
        for _ in range(2):
            with pytest.raises(StorageUnavailableError) as refused:
                _opened(disk)
            assert f"the snapshots in {disk} cannot be used (Corruption: CURRENT" in str(refused.value)
            assert "stop the service and delete the files in it" in str(refused.value)
            assert {file.name for file in disk.iterdir()} >= names

        _remove_its_files(disk)
        _check_whole(disk, _filled(disk))


def test_a_view_that_has_no_room_is_an_error_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader needs a temporary folder."""
    _filled(tmp_path / "folder")
    monkeypatch.setattr("tempfile.tempdir", os.devnull)
    with pytest.raises(SnapshotStorageError, match=f"cannot make a view .* in {tmp_path / 'folder'}"):
        _opened(tmp_path / "folder", is_read_only=True)
