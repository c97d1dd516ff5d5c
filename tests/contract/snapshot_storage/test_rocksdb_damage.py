"""The three rules for a folder in use, a damaged one, and one that cannot be opened for any other reason.

A damaged entry costs its bucket. A folder that is damaged as a whole is renamed, an empty one takes its place, and one
line of the log names it; no damage is ever data. That all messages are delivered after it is in
`tests/integration/snapshot_storage/test_service_on_a_damaged_folder.py`.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import mkfifo
from pathlib import Path
from typing import NamedTuple

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
from snapshot_storage.rocksdb.lock import LOCK_FILE
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.damaged_logs import flip_type
from tests.helpers.storages.rocksdict_edge import replace_rocksdict

pytestmark = pytest.mark.slow

MEMORY = RocksDBMemory()
Entries = dict[int, list[bytes]]

NOTHING, SOME, FOLDER = "nothing", "the buckets that are in it", "the folder"

_IN_TABLES = {"flip": SOME, "flip the end": FOLDER, "cut": FOLDER, "empty": FOLDER, "remove": FOLDER}
_IN_LOG = {"flip": FOLDER, "flip the end": FOLDER, "cut": SOME, "empty": SOME, "remove": SOME}
_FOLDER, _NOTHING = dict.fromkeys(_IN_TABLES, FOLDER), dict.fromkeys(_IN_TABLES, NOTHING)

COSTS = {
    "*.sst": _IN_TABLES,
    "*.log": _IN_LOG,
    "CURRENT": _FOLDER,
    "MANIFEST-*": _FOLDER,
    "OPTIONS-*": _NOTHING,
    "IDENTITY": _NOTHING,
    "LOCK": _NOTHING,
    "LOG": _NOTHING,
    "LOG.old.*": _NOTHING,
    "rocksdict-config.json": _NOTHING,
}
"""The cost of each damage, for every kind of file that there is in a folder.

RocksDB replays its newest log up to the first record that is cut off, and calls a wrong checksum in it damage.
"""

FILES = tuple(COSTS)


def _opened(path: Path, *, is_read_only: bool = False) -> RocksDBFolder:
    return RocksDBFolder.open(path, memory=MEMORY, is_read_only=is_read_only, pause=lambda _: None)


def _fill(folder: RocksDBFolder, count: int) -> Entries:
    written: Entries = {}
    for number in range(count):
        metadata, *segments = entries = [os.urandom(2_000) for _ in range(4)]
        bucket_id = folder.create(metadata, segments, bucket_key=f"k{number}", topic_name="t", cursor_name="c")
        written[bucket_id] = entries
    return written


class Crashed(NamedTuple):
    """A folder after a kill: entries written since the last start are in the log alone, the others in tables."""

    path: Path
    written: Entries

    def copied(self, path: Path) -> Entries:
        shutil.copytree(self.path, path)
        return self.written


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    path = tmp_path_factory.mktemp("crashed") / "crashed"
    running = path.with_name("running")
    folder = _opened(running)
    written = _fill(folder, 6)
    folder.close()
    folder = _opened(running)
    written |= _fill(folder, 6)
    shutil.copytree(running, path)
    folder.close()
    return Crashed(path, written)


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


def _state(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in [path, *path.rglob("*")]
    }


def _flip(file: Path, at: float = 0.5) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[int(at * (len(data) - 1))] ^= 0x10
    file.write_bytes(data)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _flip_the_end(file: Path) -> None:
    _flip(file, 0.995)


def _aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}-put-aside-*"))


HARMS = {"flip": _flip, "flip the end": _flip_the_end, "cut": _cut, "empty": _empty, "remove": Path.unlink}


def test_every_file_of_a_folder_is_of_one_kind(tmp_path: Path, crashed: Crashed) -> None:
    """A kind that RocksDB or rocksdict begins to write has to be named in the table."""
    path = tmp_path / "copied"
    crashed.copied(path)
    folder = _opened(path)
    folder.checkpoint(tmp_path / "checkpoint")
    kinds = {
        file.name: [pattern for pattern in FILES if file.match(pattern)]
        for place in (crashed.path, path, tmp_path / "checkpoint")
        for file in place.rglob("*")
        if file.name != LOCK_FILE
    }
    folder.close()

    assert {name: found for name, found in kinds.items() if len(found) != 1} == {}
    assert {found[0] for found in kinds.values()} == set(FILES)
    assert all(costs.keys() == HARMS.keys() for costs in COSTS.values())


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("pattern", FILES)
def test_a_damaged_file_costs_time_and_is_never_data(
    tmp_path: Path, crashed: Crashed, pattern: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder goes on with what is whole, or is kept under a name that one line of the log says."""
    path = tmp_path / "crashed"
    written = crashed.copied(path)
    HARMS[how](max(path.glob(pattern), key=lambda file: (file.stat().st_size > 0, file.name)))
    before = _state(path)

    try:
        reader = _opened(path, is_read_only=True)
    except SnapshotStorageError:
        pass
    else:
        _read_all(reader, written)
        reader.close()
    assert _state(path) == before

    with caplog.at_level(logging.ERROR):
        folder = _opened(path)
    lost = _read_all(folder, written)
    listed = {info.bucket_id for info in folder.list("t", "c")}
    new = _fill(folder, 2)
    folder.close()

    aside = _aside(path)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == len(aside) == (COSTS[pattern][how] is FOLDER)
    assert bool(lost) == (COSTS[pattern][how] is not NOTHING)
    if aside:
        assert f"put aside as {aside[0]}" in errors[0]
        assert len(errors[0].splitlines()) == 1
        assert lost == written.keys()
        assert not listed
        assert {file.name for file in aside[0].iterdir()} >= before.keys() - {"."} - {"CURRENT", "LOG", "OPTIONS"}
    assert written.keys() - lost <= listed
    assert min(new) > max(written)
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


@pytest.mark.parametrize("record", [0, 1, -1])
@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*"])
def test_a_flipped_type_of_a_record_is_damage_and_no_hang(
    tmp_path: Path, crashed: Crashed, pattern: str, record: int
) -> None:
    """RocksDB itself would read it for ever, or leave out the log without an error.

    It keeps the interpreter's lock meanwhile, so that nothing but another process can give up.
    """
    path = tmp_path / "crashed"
    written = crashed.copied(path)
    file = max(path.glob(pattern), key=lambda file: file.stat().st_size)
    flip_type(file, record)
    damaged = file.read_bytes()

    run = subprocess.run(
        [sys.executable, "-c", _OPEN, str(path)], capture_output=True, text=True, check=True, timeout=60
    )

    (aside,) = _aside(path)
    assert (aside / file.name).read_bytes() == damaged
    assert run.stdout.startswith("True ")
    assert len(run.stdout.splitlines()) == len(run.stderr.splitlines()) == 1
    for text in (run.stdout, run.stderr):
        assert f"{file.name} has at byte" in text
        assert "only a recycled log has" in text
    assert f"put aside as {aside}" in run.stderr
    folder = _opened(path)
    assert _read_all(folder, written) == written.keys()
    assert not _read_all(folder, _fill(folder, 1))
    folder.close()


@pytest.mark.parametrize("where", ["within", "end"])
def test_a_flipped_bit_in_a_table_costs_the_bucket_that_it_is_in_or_the_folder(tmp_path: Path, where: str) -> None:
    """A block of entries costs its buckets; the blocks that every start reads, and the end of a table, the folder."""
    folder = _opened(tmp_path / "whole")
    written = _fill(folder, 15)
    folder.close()
    (table,) = (tmp_path / "whole").glob("*.sst")
    size = table.stat().st_size
    # 15 buckets of 8,000 bytes that do not compress; the rest is behind them.
    offsets = range(100, 110_000, 9_000) if where == "within" else range(size - 60, size, 20)
    for offset in offsets:
        damaged = tmp_path / f"damaged-{offset}"
        shutil.copytree(tmp_path / "whole", damaged)
        data = bytearray(table.read_bytes())
        data[offset] ^= 1
        (damaged / table.name).write_bytes(data)

        folder = _opened(damaged)
        lost = _read_all(folder, written)
        if where == "within":
            # 16 KiB have entries of 4 buckets at most.
            assert 1 <= len(lost) <= 4
            assert not _aside(damaged)
            for bucket_id in lost:
                folder.delete(bucket_id)
            assert {info.bucket_id for info in folder.list(None, None)} == written.keys() - lost
        else:
            assert lost == written.keys()
            assert len(_aside(damaged)) == 1
        assert not _read_all(folder, _fill(folder, 1))
        folder.close()


def test_a_value_under_the_key_of_another_costs_its_bucket_alone(tmp_path: Path) -> None:
    """No checksum of RocksDB's finds that out."""
    folder = _opened(tmp_path)
    written = _fill(folder, 3)
    folder.close()
    first, other, headless = written
    database = Rdict(str(tmp_path), Options(raw_mode=True))
    database[b"e" + first.to_bytes(8) + bytes(4)] = database[b"e" + other.to_bytes(8) + bytes(4)]
    database[b"h" + headless.to_bytes(8)] = database[b"h" + other.to_bytes(8)]
    database.close()

    folder = _opened(tmp_path)
    assert _read_all(folder, written) == {first, headless}
    for names in ((None, None), ("t", None), ("t", "c")):
        assert [info.bucket_id for info in folder.list(*names)] == [first, other]
    assert [str(error) for error in folder.header_damage()] == [
        f"snapshot of bucket {headless} is corrupt: the checksum of its header is wrong"
    ]
    folder.delete(headless)
    assert folder.header_damage() == []
    assert [info.bucket_id for info in folder.list("t", "c")] == [first, other]
    folder.close()
    assert not _aside(tmp_path)


@pytest.mark.slow
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
            for bucket_id in old:
                with pytest.raises(BucketNotFoundError):
                    await storage.get_bucket_snapshot_metadata(bucket_id)

    asyncio.run(scenario())
    (aside,) = _aside(path)
    assert [str(aside) in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [True]


def _remove_folder(path: Path) -> None:
    shutil.rmtree(path)


def _remove_its_files(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def _rename_folder(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def _replace_folder(path: Path) -> None:
    _rename_folder(path)
    path.mkdir()


@pytest.mark.parametrize("harm", [_remove_folder, _remove_its_files, _rename_folder, _replace_folder])
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
            whole = await storage.get_bucket_snapshot_head(old)
            harm(path)
            outcomes = await asyncio.gather(*(create(storage) for _ in range(5)), return_exceptions=True)
            assert any(isinstance(one, StorageUnavailableError) for one in outcomes)
            assert not [one for one in outcomes if not isinstance(one, int | StorageUnavailableError)]
            new = await create(storage)
            assert new > old
            # RocksDB puts its memory back into a folder that is there when it is closed.
            with suppress(BucketNotFoundError):
                assert await storage.get_bucket_snapshot_head(old) == whole
        return new

    new = asyncio.run(scenario())
    folder = _opened(path)
    assert folder.read_head(new).metadata == b"m"
    folder.close()
    assert not _aside(path)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert error.startswith(f"the snapshots in {path} were removed or replaced while they were in use")


class _DamagedScans:
    """A database whose rows cannot be read one after the other."""

    def __init__(self, database: object) -> None:
        self._database = database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def iter(self, *_: object) -> object:
        raise Exception("Corruption: block checksum mismatch")


def test_a_list_that_meets_damage_puts_the_folder_aside(tmp_path: Path) -> None:
    """Without a list no one can say what there is; the trackers build the index again."""
    path = tmp_path / "snapshots"

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(path) as storage:
            replace_rocksdict(storage, _DamagedScans)
            with pytest.raises(StorageUnavailableError, match="was opened again; try again"):
                await storage.list_bucket_snapshots("t", "c")
            assert await storage.list_bucket_snapshots("t", "c") == []

    asyncio.run(scenario())
    assert len(_aside(path)) == 1


class _DamagedFlush:
    """Rocksdict whose last flush meets a damaged block, as RocksDB tells it: in two lines."""

    def __init__(self, database: Rdict) -> None:
        self._database = database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def flush(self, *_: object, **__: object) -> None:
        raise Exception("Corruption: block checksum mismatch\nin 000012.sst")


def test_damage_that_a_close_meets_is_one_line_without_advice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next start puts the folder aside by itself, where that is needed."""
    path = tmp_path / "snapshots"
    folder = _opened(path)
    written = _fill(folder, 1)
    replace_rocksdict(folder, _DamagedFlush)

    folder.close()

    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert record.getMessage().startswith(f"the snapshots in {path} were closed without a last flush")
    assert record.getMessage().endswith("Corruption: block checksum mismatch in 000012.sst")
    assert "move it away" not in record.getMessage()
    again = _opened(path)
    assert not _read_all(again, written)
    again.close()


@pytest.mark.parametrize("version", [3, 5])
def test_a_folder_of_another_layout_is_put_aside(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is derived as well: the index is built again in this program's layout, and the way back is open."""
    path = tmp_path / "snapshots"
    database = Rdict(str(path), Options(raw_mode=True))
    database[b"format"] = b"postdate snapshots %d" % version
    database.close()
    (path / "WRITER").touch()

    with pytest.raises(SnapshotStorageError, match="layout"):
        _opened(path, is_read_only=True)
    folder = _opened(path)
    assert not _read_all(folder, _fill(folder, 1))
    folder.close()
    (aside,) = _aside(path)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "layout" in error
    assert str(aside) in error


def _with_rows(path: Path) -> Rdict:
    return Rdict(str(path), Options(raw_mode=True))


def _with_families(path: Path) -> Rdict:
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    return Rdict(str(path), options, column_families={"other": Options(raw_mode=True)})


def _with_pickles(path: Path) -> Rdict:
    return Rdict(str(path))


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize(("opened", "key"), [(_with_rows, b"format"), (_with_families, b"a"), (_with_pickles, "a")])
def test_the_database_of_another_program_is_refused_and_not_touched(
    tmp_path: Path, opened: Callable[[Path], Rdict], key: str | bytes, is_damaged: bool
) -> None:
    """It is not derived: it may be a log of messages that a wrong link leads to."""
    path = tmp_path / "snapshots"
    database = opened(path)
    database[key] = b"of the other program"
    database.close()
    if is_damaged:
        (path / "CURRENT").unlink()
    before = _state(path)

    with pytest.raises(StorageAccessError, match="not known as Postdate's snapshots"):
        asyncio.run(RocksDBBucketSnapshotStorage(path).start())

    assert _state(path) == before


def test_a_checkpoint_is_known_to_be_ours_and_a_copy_without_its_empty_file_by_the_advice(tmp_path: Path) -> None:
    folder = _opened(tmp_path / "snapshots")
    written = _fill(folder, 3)
    folder.checkpoint(tmp_path / "backup")
    folder.close()
    (tmp_path / "snapshots" / "WRITER").unlink()
    with pytest.raises(StorageAccessError, match="left out the empty file WRITER, make it again"):
        asyncio.run(RocksDBBucketSnapshotStorage(tmp_path / "snapshots").start())
    (tmp_path / "snapshots" / "WRITER").touch()
    for path in (tmp_path / "backup", tmp_path / "snapshots"):
        again = _opened(path)
        assert not _read_all(again, written)
        again.close()
        assert not _aside(path)


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


@pytest.mark.parametrize("damage", [None, "it is damaged"])
def test_of_many_writers_that_find_damage_at_once_one_puts_the_folder_aside(tmp_path: Path, damage: str | None) -> None:
    """The others find it in use, or open the new one: none takes that one for the damaged one."""
    for number in range(10):
        path = tmp_path / str(number)
        folder = _opened(path)
        _fill(folder, 1)
        folder.close()
        (path / "CURRENT").write_bytes(b"nonsense")
        together = threading.Barrier(4)

        def open_it(path: Path = path, together: threading.Barrier = together) -> int:
            together.wait()
            try:
                RocksDBFolder.open(path, memory=MEMORY, is_read_only=False).close()
            except StorageLockedError:
                return 0
            return 1

        with ThreadPoolExecutor(4) as threads:
            opened = sum(one.result() for one in [threads.submit(open_it) for _ in range(4)])

        assert opened >= 1
        assert len(_aside(path)) == 1


def _make_folder(place: Path) -> None:
    place.mkdir()
    (place / "file").touch()


@pytest.mark.parametrize("make", [_make_folder, mkfifo])
@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_what_is_no_file_in_the_place_of_one_is_damage(
    tmp_path: Path, crashed: Crashed, pattern: str, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """No further try makes a file of it, and a pipe would be waited for: readers refuse, and a writer begins anew."""
    path = tmp_path / "crashed"
    written = crashed.copied(path)
    place = max(path.glob(pattern))
    place.unlink()
    make(place)

    with pytest.raises(SnapshotStorageError):
        _opened(path, is_read_only=True)
    folder = _opened(path)
    lost = _read_all(folder, written)
    folder.close()

    (aside,) = _aside(path)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"({place.name} is no file): the folder was put aside as {aside}" in error
    assert lost == written.keys()


def _make_dangling_link(place: Path) -> None:
    place.symlink_to(place.with_name("nowhere") / "there")


def _make_text(place: Path) -> None:
    place.write_text("not ours")


@pytest.mark.parametrize("make", [_make_dangling_link, _make_text, mkfifo])
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
        folder = _opened(path)
        assert not _read_all(folder, _fill(folder, 1))
        folder.close()
        assert (path.readlink() / "CURRENT").is_file()


def test_rights_that_are_missing_put_nothing_aside(tmp_path: Path) -> None:
    """As in a folder that is mounted with other owners: the rights are mended, and all snapshots are there."""
    path = tmp_path / "snapshots"
    folder = _opened(path)
    written = _fill(folder, 3)
    folder.close()
    program = """
import os, sys
from pathlib import Path
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    RocksDBFolder.open(Path(sys.argv[1]), memory=RocksDBMemory(), is_read_only=False)
except StorageAccessError as error:
    print(error)
"""
    (path / "CURRENT").chmod(0)
    path.chmod(0o000)
    for parent in (tmp_path, *list(tmp_path.parents)[:3]):
        if parent.is_relative_to(Path(tempfile.gettempdir())) and parent != Path(tempfile.gettempdir()):
            parent.chmod(0o777)

    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)

    path.chmod(0o755)
    (path / "CURRENT").chmod(0o644)
    assert (run.returncode, "ermission denied" in run.stdout) == (0, True), run.stdout + run.stderr
    assert not _aside(path)
    folder = _opened(path)
    assert not _read_all(folder, written)
    folder.close()


def _fill_the_disk(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4_096))


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts disks")
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_disk_that_refuses_puts_nothing_aside(tmp_path: Path, kind: str) -> None:
    """A full one is an outage, one without rights a refusal; when it is mended all snapshots are there."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    path = tmp_path / "snapshots"
    try:
        folder = _opened(path)
        written = _fill(folder, 3)
        folder.close()
        if kind == "full":
            _fill_the_disk(tmp_path / "ballast")
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(StorageUnavailableError if kind == "full" else StorageAccessError):
            _opened(path)
        assert not _aside(path)
        if kind == "full":
            (tmp_path / "ballast").unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw", str(tmp_path)], check=True)
        folder = _opened(path)
        assert not _read_all(folder, written)
        folder.close()
        assert not _aside(path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_view_that_has_no_room_is_an_error_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader needs a temporary folder."""
    folder = _opened(tmp_path / "folder")
    folder.close()
    monkeypatch.setattr("tempfile.tempdir", os.devnull)
    with pytest.raises(SnapshotStorageError, match=f"cannot make a view .* in {tmp_path / 'folder'}"):
        _opened(tmp_path / "folder", is_read_only=True)
