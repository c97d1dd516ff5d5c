"""One flipped bit, or one file less: never data, never a refusal, and one line that names the folder put aside.

A snapshot is derived. So a damaged entry costs its bucket, and a folder that is damaged as a whole costs the time to
read the index again from the log: it is kept under another name, and an empty one takes its place. Files without damage
stay in their place. That all messages are delivered after it is in
`tests/integration/snapshot_storage/test_service_on_a_damaged_folder.py`.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import mkfifo, mknod
from pathlib import Path
from stat import S_IFSOCK
from typing import NamedTuple

import pytest
from rocksdict import Options, Rdict

from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
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
from snapshot_storage.rocksdb.put_aside import put_aside, put_aside_folders, remove_put_aside
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
    "WRITER": _NOTHING,
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


@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_a_folder_of_another_layout_is_put_aside(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is derived as well: the index is built again in this program's layout, and the way back is open."""
    path = tmp_path / "snapshots"
    families = {}
    if version == 3:
        families = {"index": Options(raw_mode=True)}
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    database = Rdict(str(path), options, column_families=families)
    database[b"format"] = b"postdate snapshots %d" % version
    database.close()

    with pytest.raises(SnapshotStorageError, match="layout"):
        _opened(path, is_read_only=True)
    folder = _opened(path)
    assert not _read_all(folder, _fill(folder, 1))
    folder.close()
    (aside,) = _aside(path)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "layout" in error
    assert str(aside) in error


def _make_database(path: Path, *, families: Mapping[str, Options] = {}) -> None:
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    Rdict(str(path), options, column_families=dict(families)).close()


def _make_database_with_a_row(path: Path) -> None:
    _make_database(path)
    database = Rdict(str(path), Options(raw_mode=True))
    database[b"format"] = b"of the other program"
    database.close()


def _make_database_of_pickles(path: Path) -> None:
    database = Rdict(str(path))
    database["key"] = 1
    database.close()


def _make_damaged_database(path: Path) -> None:
    _make_database_with_a_row(path)
    (path / "CURRENT").unlink()


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        _make_database,
        lambda path: _make_database(path, families={"other": Options(raw_mode=True)}),
        _make_database_with_a_row,
        _make_database_of_pickles,
        _make_damaged_database,
    ],
    ids=["empty", "families", "row", "pickles", "damaged"],
)
def test_the_database_of_another_program_is_refused_and_not_touched(
    tmp_path: Path, make: Callable[[Path], None], is_link: bool
) -> None:
    path, target = tmp_path / "snapshots", tmp_path / ("other" if is_link else "snapshots")
    make(target)
    if is_link:
        path.symlink_to(target)
    files = {file.name: file.read_bytes() for file in target.iterdir()}
    with pytest.raises(StorageAccessError, match="not known as Postdate's"):
        _opened(path)
    assert {file.name: file.read_bytes() for file in target.iterdir()} == files
    assert not _aside(path)


def _damage_format(path: Path) -> None:
    (table,) = path.glob("*.sst")
    whole = table.read_bytes()
    table.write_bytes(whole.replace(b"format", b"FORMAT", 1))
    assert table.read_bytes() != whole


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: (path / "CURRENT").unlink(),
        lambda path: next(path.glob("MANIFEST-*")).unlink(),
        _damage_format,
    ],
    ids=["CURRENT", "MANIFEST", "format"],
)
def test_a_damaged_copy_that_lacks_its_empty_files_is_known_by_the_log_beside_it(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "data" / "snapshots"
    folder = _opened(path)
    _fill(folder, 3)
    folder.close()
    (path / "WRITER").unlink()
    harm(path)
    with pytest.raises(StorageAccessError, match="not known as Postdate's"):
        _opened(path)
    (tmp_path / "data" / "ledgers").mkdir()
    (tmp_path / "data" / "ledgers" / LOG_MARKER_FILE).touch()
    _opened(path).close()
    assert len(_aside(path)) == 1


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_checkpoint_is_known_to_be_ours(tmp_path: Path, is_damaged: bool) -> None:
    folder = _opened(tmp_path / "snapshots")
    written = _fill(folder, 3)
    folder.checkpoint(tmp_path / "backup")
    folder.close()
    if is_damaged:
        (tmp_path / "backup" / "CURRENT").unlink()
    else:
        # As in a copy by a tool of files that leaves out what is empty.
        (tmp_path / "backup" / "WRITER").unlink()
    backup = _opened(tmp_path / "backup")
    assert len(_read_all(backup, written)) == (len(written) if is_damaged else 0)
    backup.close()
    assert len(_aside(tmp_path / "backup")) == is_damaged


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


def _make_folder(place: Path) -> None:
    place.mkdir()
    (place / "file").touch()


def _make_dangling_link(place: Path) -> None:
    place.symlink_to(place.with_name("nowhere") / "there")


def _make_looping_link(place: Path) -> None:
    place.symlink_to(place)


def _make_link_to_an_empty_file(place: Path) -> None:
    other = place.with_name("other")
    other.touch()
    place.symlink_to(other)


def _make_text(place: Path) -> None:
    place.write_text("not ours")


def _make_link_to_a_text(place: Path) -> None:
    _make_text(place.with_name("other"))
    place.symlink_to("other")


def _make_socket(place: Path) -> None:
    mknod(place, S_IFSOCK | 0o600)


def _make_link_to_a_device(place: Path) -> None:
    place.symlink_to("/dev/zero")


UNOPENED = ("LOG.old.*", "WRITER")
"""RocksDB and rocksdict open none of these; the lock of the folder's writer is made anew."""


@pytest.mark.parametrize(
    "make",
    [_make_folder, mkfifo, _make_socket, _make_link_to_a_device, _make_dangling_link, _make_looping_link],
)
@pytest.mark.parametrize("pattern", FILES)
def test_what_is_no_file_in_the_place_of_one_is_damage_for_good(
    tmp_path: Path,
    crashed: Crashed,
    pattern: str,
    make: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No further try makes a file of it, and a pipe would be waited for: readers refuse, and a writer begins anew."""
    path = tmp_path / "crashed"
    written = crashed.copied(path)
    place = max(path.glob(pattern))
    place.unlink()
    make(place)

    if pattern not in UNOPENED:
        with pytest.raises(SnapshotStorageError):
            _opened(path, is_read_only=True)
    with caplog.at_level(logging.ERROR):
        folder = _opened(path)
    lost = _read_all(folder, written)
    new = _fill(folder, 2)
    folder.close()

    aside = _aside(path)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == len(aside) == (pattern not in UNOPENED)
    if aside:
        assert f"({place.name} is no file): the folder was put aside as {aside[0]}" in errors[0]
        assert lost == written.keys()
        assert os.path.lexists(aside[0] / place.name)
    again = _opened(path)
    assert not _read_all(again, new)
    again.close()
    assert _aside(path) == aside


@pytest.mark.parametrize("make", [_make_dangling_link, _make_looping_link])
def test_a_link_to_nowhere_in_the_place_of_the_folder_is_refused_and_kept(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Its target may be a disk that is not mounted yet, with snapshots that are whole."""
    path = tmp_path / "snapshots"
    make(path)

    with pytest.raises(StorageAccessError) as refused:
        _opened(path)

    assert str(refused.value) == f"the target of the link {path} is not there: mount it, or remove the link"
    assert [one.name for one in tmp_path.iterdir()] == ["snapshots"]
    assert path.is_symlink()
    target = path.readlink()
    if make is _make_dangling_link:
        target.mkdir(parents=True)
        folder = _opened(path)
        assert not _read_all(folder, _fill(folder, 1))
        folder.close()
        assert (target / "CURRENT").is_file()


@pytest.mark.parametrize("make", [Path.touch, mkfifo, _make_link_to_an_empty_file])
def test_what_is_no_folder_in_the_place_of_the_folder_is_put_aside(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "snapshots"
    make(path)
    kind = path.lstat().st_mode

    with caplog.at_level(logging.ERROR):
        folder = _opened(path)
    written = _fill(folder, 2)
    folder.close()

    (aside,) = _aside(path)
    assert aside.lstat().st_mode == kind
    (error,) = caplog.records
    assert f"(it is no folder): the folder was put aside as {aside}" in error.getMessage()
    again = _opened(path)
    assert not _read_all(again, written)
    again.close()
    assert [one.path for one in put_aside_folders(path)] == [aside]
    remove_put_aside(*put_aside_folders(path))
    assert not os.path.lexists(aside)
    assert (
        sorted(one.name for one in tmp_path.iterdir())
        == ["other", "snapshots"][make is not _make_link_to_an_empty_file :]
    )


@pytest.mark.parametrize("is_link", [False, True])
def test_files_of_others_stay_where_the_snapshots_beside_them_are_put_aside(
    tmp_path: Path, is_link: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As the log of a program that embeds a tracker, which cannot be read again from anywhere."""
    path = place = tmp_path / "snapshots"
    if is_link:
        place = tmp_path / "other"
        place.mkdir()
        path.symlink_to(place)
    folder = _opened(path)
    written = _fill(folder, 2)
    folder.close()
    (place / "log.jsonl").write_text("accepted")
    (place / "archive").mkdir()
    (place / "CURRENT").write_bytes(b"damage")

    with caplog.at_level(logging.ERROR):
        folder = _opened(path)
    assert _read_all(folder, written) == set(written)
    folder.close()

    assert (place / "log.jsonl").read_text() == "accepted"
    assert (place / "archive").is_dir()
    assert not _aside(place)
    (aside,) = [one.path for one in put_aside_folders(path)]
    assert aside.parent == place
    assert (aside / "CURRENT").read_bytes() == b"damage"
    assert not [name for name in ("log.jsonl", "archive", "WRITER") if (aside / name).exists()]
    (error,) = caplog.records
    assert f"its files were put aside in {aside}" in error.getMessage()
    remove_put_aside(*put_aside_folders(path))
    assert (place / "log.jsonl").read_text() == "accepted"


@pytest.mark.parametrize("make", [_make_text, _make_link_to_a_text])
def test_a_file_with_bytes_in_the_place_of_the_folder_is_refused_and_kept(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It is no snapshots of ours; put aside, it would be offered for removal."""
    path = tmp_path / "snapshots"
    make(path)
    before = {one.name: one.is_symlink() for one in tmp_path.iterdir()}

    with pytest.raises(StorageAccessError) as refused:
        _opened(path)

    assert str(refused.value) == f"{path} is a file, not a folder of snapshots: name a folder, or move the file away"
    assert {one.name: one.is_symlink() for one in tmp_path.iterdir()} == before
    assert path.read_text() == "not ours"
    assert not put_aside_folders(path)
    assert not caplog.records


def test_a_folder_that_took_the_place_meanwhile_is_not_put_aside(tmp_path: Path) -> None:
    """Two programs start at once, and both have seen a file in the place of the folder."""
    path = tmp_path / "snapshots"
    path.touch()

    class Meanwhile(type(path)):  # type: ignore[misc]
        """The path as the second program sees it: the first one makes the folder right after its look."""

        def is_dir(self) -> bool:
            path.unlink(missing_ok=True)
            path.mkdir(exist_ok=True)
            return False

    with pytest.raises(NotADirectoryError):
        put_aside(Meanwhile(path))

    assert path.is_dir()
    assert not _aside(path)


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
