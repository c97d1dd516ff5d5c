"""One flipped bit, or one file less: what it costs, who is told, and that it is never data and never the folder."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from snapshot_storage.errors import (
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageCorruptedError,
    StorageLockedError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.salvage import KeptLogs
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.rocksdb.wal import logged_snapshots

MEMORY = RocksDBMemory()
Entries = dict[int, list[bytes]]


def _opened(path: Path, *, is_read_only: bool = False) -> RocksDBFolder:
    return RocksDBFolder.open(path, memory=MEMORY, is_read_only=is_read_only, pause=lambda _: None)


def _entries(number: int, size: int) -> list[bytes]:
    return [b"%d,%d." % (number, entry) * (size // 4) for entry in range(4)]


def _fill(folder: RocksDBFolder, count: int, *, size: int = 2_000) -> Entries:
    written: Entries = {}
    for number in range(count):
        metadata, *segments = entries = _entries(number, size)
        bucket_id = folder.create(metadata, segments, bucket_key=f"k{number}", topic_name="t", cursor_name="c")
        written[bucket_id] = entries
    return written


def _crashed(path: Path, *, count: int = 8, size: int = 2_000, has_tables: bool = False) -> Entries:
    """Leave what a kill leaves: everything since the start is in the log alone."""
    written: Entries = {}
    if has_tables:
        folder = _opened(path)
        written |= _fill(folder, count, size=size)
        folder.close()
    folder = _opened(path.with_name("running") if not has_tables else path)
    written |= _fill(folder, count, size=size)
    shutil.copytree(folder._path, path.with_name("crashed"))
    folder.close()
    return written


def _newest_log(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda log: int(log.stem))


def _flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def _damage(folder: RocksDBFolder, written: Entries) -> list[tuple[int, int | None]]:
    """Read everything one by one: what is not as it was written must be told, by bucket and entry."""
    damaged: list[tuple[int, int | None]] = []
    assert folder._headers._index is not None
    assert [info.bucket_id for info in folder.list("t", "c")] == sorted(written)
    for bucket_id, entries in written.items():
        for entry, payload in enumerate(entries):
            try:
                read = folder.read_segments(bucket_id, entry, entry) if entry else [folder.read_metadata(bucket_id)]
            except SnapshotCorruptedError as error:
                damaged.append((bucket_id if error.bucket_id == bucket_id else -1, error.entry))
                is_named = damaged[-1] == (bucket_id, entry)
                assert is_named
            else:
                assert read == [payload]
    return damaged


def _state(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in [path, *path.rglob("*")]
    }


def _damage_to_all(path: Path, written: Entries) -> list[tuple[int, int | None]]:
    """To a reader, which changes nothing, to the writer after it, and to the one after that."""
    before = _state(path)
    reader = _opened(path, is_read_only=True)
    damaged = _damage(reader, written)
    reader.close()
    assert _state(path) == before
    for _ in range(2):
        folder = _opened(path)
        assert _damage(folder, written) == damaged
        folder.close()
    assert not (path / "KEPT-LOGS").exists()
    return damaged


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_flipped_bit_in_the_log_costs_one_entry_which_is_named(tmp_path: Path, has_tables: bool) -> None:
    """It cost the whole folder: RocksDB refuses its log, or drops every write of 32 KiB."""
    written = _crashed(tmp_path / "folder", has_tables=has_tables)
    log = _newest_log(tmp_path / "crashed")
    size = log.stat().st_size
    outcomes = []
    # All over it, and in its last write, which looks to RocksDB like one that a crash cut off.
    for offset in (*range(3, size, size // 6), size - 300, size - 30):
        damaged = tmp_path / f"damaged-{offset}"
        shutil.copytree(tmp_path / "crashed", damaged)
        _flip(damaged / log.name, 8 * offset + offset % 8)
        outcomes.append(_damage_to_all(damaged, written))
    assert all(len(damaged) <= 1 for damaged in outcomes)
    assert sum(map(len, outcomes)) >= 3


def test_any_flipped_bit_of_a_log_hides_at_most_one_entry(tmp_path: Path) -> None:
    """Every byte of a log that is small, and those at the ends of its blocks of one that is not."""
    for size, offsets in ((16, range(2_400)), (3_000, [32_768 * k + d for k in (1, 2) for d in range(-12, 12)])):
        shutil.rmtree(tmp_path, ignore_errors=True)
        written = _crashed(tmp_path / "folder", count=6 if size == 16 else 8, size=size)
        log = _newest_log(tmp_path / "crashed").read_bytes()
        assert len(log) > offsets[-1]
        for offset in offsets:
            flipped = bytearray(log)
            flipped[offset] ^= 1 << offset % 8
            found = logged_snapshots([bytes(flipped)])
            assert found.keys() == written.keys()
            assert all(one.header is not None for one in found.values())
            assert sum(len(one.entries) for one in found.values()) >= 4 * len(written) - 1


def test_a_salvage_that_a_crash_ends_is_done_at_the_next_start(tmp_path: Path) -> None:
    """When the folder was opened without what is damaged, its log is gone: only the links have it."""
    written = _crashed(tmp_path / "folder")
    path = tmp_path / "crashed"
    log = _newest_log(path)
    # The process ends after it kept the log, and RocksDB dropped all of it.
    (path / "KEPT-LOGS").mkdir()
    shutil.copyfile(log, path / "KEPT-LOGS" / log.name)
    log.write_bytes(b"")
    folder = _opened(path)
    assert _damage(folder, written) == []
    folder.close()
    assert not (path / "KEPT-LOGS").exists()


def test_what_a_log_deletes_does_not_come_back_with_it(tmp_path: Path) -> None:
    """Where another of its writes is damaged."""
    folder = _opened(tmp_path / "running")
    written = _fill(folder, 6)
    first, gone, *_ = written
    folder.delete(gone)
    del written[gone]
    shutil.copytree(folder._path, tmp_path / "crashed")
    folder.close()
    log = _newest_log(tmp_path / "crashed")
    _flip(log, 8 * log.read_bytes().index(written[first][2]))
    assert _damage_to_all(tmp_path / "crashed", written) == [(first, 2)]


def _cut(log: Path) -> None:
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


@pytest.mark.parametrize("lose", [Path.unlink, _cut])
def test_a_log_that_is_gone_is_missed(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """RocksDB starts without a word with what is left: here it is told what is gone, and no id comes twice."""
    written = _crashed(tmp_path / "folder", has_tables=True, count=4)
    path = tmp_path / "crashed"
    lose(_newest_log(path))

    reader = _opened(path, is_read_only=True)
    listed = {info.bucket_id for info in reader.list(None, None)}
    gone = written.keys() - listed
    assert gone
    told = reader.header_damage()
    reader.close()
    folder = _opened(path)
    assert [str(error) for error in folder.header_damage()] == [str(error) for error in told]
    assert any("end of the log" in record.getMessage() for record in caplog.records)
    assert {error.bucket_id for error in told if isinstance(error, SnapshotCorruptedError)} == gone
    assert min(_fill(folder, 1)) > max(written)
    folder.close()
    # It is told once: the tracker builds them again.
    folder = _opened(path)
    assert folder.header_damage() == []
    folder.close()


def test_a_start_after_a_kill_misses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without damage nobody is warned, also where the file that says how far it had come is torn, or older."""
    written = _crashed(tmp_path / "folder")
    for number, said in enumerate([None, b"", b"torn", bytes(28)]):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "crashed", path)
        if said is not None:
            (path / "REACHED").write_bytes(said)
        assert _damage_to_all(path, written) == []
    assert not caplog.records


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT", "OPTIONS-*"])
def test_a_flipped_bit_in_the_small_files_costs_nothing(tmp_path: Path, name: str) -> None:
    """The list of files is made anew of the files. Of a reader, in a folder of its own."""
    written = _crashed(tmp_path / "folder", has_tables=True, count=3)
    file = max((tmp_path / "crashed").glob(name))
    bits = 8 * file.stat().st_size
    for bit in range(5, bits, bits // 3):
        damaged = tmp_path / f"damaged-{bit}"
        shutil.copytree(tmp_path / "crashed", damaged)
        _flip(damaged / file.name, bit)
        assert _damage_to_all(damaged, written) == []
        assert not (damaged / "NOT-COMPACTED").exists()


def _empty_the_manifest_pointer(path: Path) -> None:
    (path / "CURRENT").write_bytes(b"")


def _remove_the_list_of_files(path: Path) -> None:
    # What a flipped byte in the manifest did to rocksdict: opened, empty, no error.
    for name in ("CURRENT", "MANIFEST-*"):
        for file in path.glob(name):
            file.unlink()


@pytest.mark.parametrize("damage", [_empty_the_manifest_pointer, _remove_the_list_of_files])
def test_a_list_of_files_that_is_gone_is_made_anew(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Never opened as if it were empty: the tracker would believe that there are no snapshots."""
    written = _crashed(tmp_path / "folder", has_tables=True, count=3)
    damage(tmp_path / "crashed")
    folder = _opened(tmp_path / "crashed")
    assert _damage(folder, written) == []
    folder.close()


def test_a_damaged_end_of_a_table_costs_what_is_read_through_it(tmp_path: Path) -> None:
    """It cost the folder. Headers are in two tables; what is written next is whole, and no id comes twice."""
    folder = _opened(tmp_path / "folder")
    written = _fill(folder, 4)
    folder.close()
    for kind in (max, min):
        damaged = tmp_path / kind.__name__
        shutil.copytree(tmp_path / "folder", damaged)
        table = kind(damaged.glob("*.sst"), key=lambda path: path.stat().st_size)
        _flip(table, 8 * (table.stat().st_size - 20))
        found = _damage_to_all(damaged, written)
        assert {bucket_id for bucket_id, _ in found} == (written.keys() if kind is max else set())
        folder = _opened(damaged)
        new = _fill(folder, 1)
        assert min(new) > max(written)
        assert [folder.read_metadata(bucket_id) for bucket_id in new] == [_entries(0, 2_000)[0]]
        folder.close()


def test_a_folder_without_any_header_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Its tables are gone: the tracker would believe that there are no snapshots."""
    folder = _opened(tmp_path)
    _fill(folder, 1)
    folder.close()
    for table in tmp_path.glob("*.sst"):
        table.unlink()

    async def start() -> None:
        await RocksDBBucketSnapshotStorage(tmp_path).start()

    with pytest.raises(StorageCorruptedError, match="move it away and start again, and the index is rebuilt"):
        asyncio.run(start())
    assert not (tmp_path / "KEPT-LOGS").exists()


def test_a_view_that_has_no_room_is_an_error_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader needs a temporary folder."""
    folder = _opened(tmp_path / "folder")
    folder.close()
    monkeypatch.setattr("tempfile.tempdir", os.devnull)
    with pytest.raises(SnapshotStorageError, match=f"cannot make a view .* in {tmp_path / 'folder'}"):
        _opened(tmp_path / "folder", is_read_only=True)


def test_a_writer_that_is_refused_leaves_nothing_that_a_later_start_takes_for_a_crash(tmp_path: Path) -> None:
    """Snapshots that are deleted while it tried stay deleted."""
    folder = _opened(tmp_path)
    written = _fill(folder, 3)
    try:
        with pytest.raises(StorageLockedError):
            _opened(tmp_path)
        assert not (tmp_path / "KEPT-LOGS").exists()
        for bucket_id in written:
            folder.delete(bucket_id)
    finally:
        folder.close()

    again = _opened(tmp_path)
    try:
        assert again.list(None, None) == []
    finally:
        again.close()


def test_logs_that_were_kept_for_an_opening_that_never_began_are_forgotten(tmp_path: Path) -> None:
    """As where a program that knows no lock of ours has the folder open."""
    _crashed(tmp_path / "folder")
    path = tmp_path / "crashed"
    files = sorted(path.iterdir())
    kept = KeptLogs.keep(path)
    assert sorted(path.iterdir()) != files

    kept.undo()

    assert sorted(path.iterdir()) == files
