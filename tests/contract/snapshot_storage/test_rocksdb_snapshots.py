"""Troubles of a folder alone: locks, crashes, damage, another version."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    StorageAccessError,
    StorageCorruptedError,
    StorageLockedError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import DELETED_ONE_BY_ONE_MAX, RocksDBFolder
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.storages.snapshot_backends import RocksDBBackend

# Writes snapshots one after the other for ever, each of 3 segments that say its number, and prints each id.
_WRITER = """
import asyncio, sys
from pathlib import Path
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage

async def main():
    async with RocksDBBucketSnapshotStorage(Path(sys.argv[1])) as storage:
        number = 0
        while True:
            number += 1
            entry = str(number).encode() * 2000
            names = {"bucket_key": str(number), "topic_name": "t", "cursor_name": "c"}
            print(await storage.create_bucket_snapshot(entry, [entry] * 3, **names), flush=True)

asyncio.run(main())
"""


def _start_writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


async def _create(storage: RocksDBBucketSnapshotStorage, segments: list[bytes]) -> int:
    return await storage.create_bucket_snapshot(b"metadata", segments, bucket_key="k", topic_name="t", cursor_name="c")


def _opened(path: Path) -> Rdict:
    return Rdict(str(path), Options(raw_mode=True))


def _rows(path: Path) -> dict[bytes, bytes]:
    """Return all that a folder has, read without the storage."""
    database = _opened(path)
    rows = dict(database.items())
    database.close()
    return rows


def _damage_headers(path: Path, *, but: set[int]) -> None:
    database = _opened(path)
    for key, value in list(database.items()):
        if key[:1] == b"h" and int.from_bytes(key[1:9]) not in but:
            database[key] = value[:-1] + bytes([value[-1] ^ 1])
    database.close()


def _write(path: Path, segments: list[bytes]) -> int:
    async def write() -> int:
        async with RocksDBBucketSnapshotStorage(path) as storage:
            return await _create(storage, segments)

    return asyncio.run(write())


def _open(path: Path) -> None:
    async def open_and_close() -> None:
        async with RocksDBBucketSnapshotStorage(path):
            pass

    asyncio.run(open_and_close())


def test_a_folder_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """By another storage of this process; the first one goes on, and after it the folder is free."""

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
            with pytest.raises(StorageLockedError, match=r"in use .* stop the other one, or set `dataDirectory`"):
                await RocksDBBucketSnapshotStorage(tmp_path).start()
            await _create(storage, [b"goes on"])
        async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
            assert len(await storage.list_bucket_snapshots()) == 1

    asyncio.run(scenario())


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """While it lives the folder is locked; afterwards every snapshot is whole, and ids go on."""
    acknowledged: list[int] = []
    for _ in range(3):
        writer = _start_writer(tmp_path)
        assert writer.stdout is not None
        acknowledged += [int(writer.stdout.readline()) for _ in range(40)]
        with pytest.raises(StorageLockedError):
            _open(tmp_path)
        os.kill(writer.pid, signal.SIGKILL)
        # Those that were printed before the signal came count as well.
        acknowledged += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line[-1] == "\n"]
        writer.stdout.close()
        writer.wait()

    async def check() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
            listed = await storage.list_bucket_snapshots()
            assert set(acknowledged) <= {info.bucket_id for info in listed}
            assert len(listed) <= len(acknowledged) + 3
            for info in listed:
                entry = info.bucket_key.encode() * 2000
                assert await storage.get_bucket_snapshot_metadata(info.bucket_id) == entry
                assert await storage.get_bucket_snapshot_segment(info.bucket_id, 1, 9) == [entry] * 3

    assert len(set(acknowledged)) == len(acknowledged)
    asyncio.run(check())


@pytest.mark.parametrize("segment_count", [0, 1, DELETED_ONE_BY_ONE_MAX - 1, DELETED_ONE_BY_ONE_MAX, 300])
def test_a_deleted_snapshot_leaves_no_key_and_its_neighbours_whole(tmp_path: Path, segment_count: int) -> None:
    """However many entries it has, also where a table holds it already."""
    folder = RocksDBFolder.open(tmp_path, memory=RocksDBMemory(), is_read_only=False)
    segments = [b"%d" % number for number in range(segment_count)]
    names = {"bucket_key": "k", "topic_name": "t", "cursor_name": "c"}
    before, deleted, after = (folder.create(b"metadata", segments, **names) for _ in range(3))
    # Closing writes what is in memory to a table.
    folder.close()
    folder = RocksDBFolder.open(tmp_path, memory=RocksDBMemory(), is_read_only=False)

    folder.delete(deleted)

    folder.close()
    assert not [key for key in _rows(tmp_path) if deleted.to_bytes(8) in key]
    folder = RocksDBFolder.open(tmp_path, memory=RocksDBMemory(), is_read_only=True)
    for bucket_id in (before, after):
        assert folder.read_metadata(bucket_id) == b"metadata"
        if segment_count:
            assert folder.read_segments(bucket_id, 1, segment_count) == segments
    folder.close()


def test_small_snapshots_that_come_and_go_leave_no_deleted_ranges_in_tables(tmp_path: Path) -> None:
    """RocksDB keeps those of all open tables in memory, beside the buffers and caches that have a limit."""
    folder = RocksDBFolder.open(tmp_path, memory=RocksDBMemory(), is_read_only=False)
    names = {"bucket_key": "k", "topic_name": "t", "cursor_name": "c"}

    for _ in range(50):
        folder.delete(folder.create(b"metadata", [b"segment"] * 3, **names))
    folder.close()

    database = _opened(tmp_path)
    properties = database.property_value("rocksdb.aggregated-table-properties")
    database.close()
    assert properties is not None
    assert "# deletions=" in properties
    assert "# range deletions=0;" in properties


def test_a_reader_that_meets_a_change_of_files_looks_again(tmp_path: Path) -> None:
    """A table that went between two looks is there the next time. One that stays away is a reason to ask again."""
    bucket_id = _write(tmp_path / "s", [b"segment"])
    tables = list((tmp_path / "s").glob("*.sst"))
    pauses: list[float] = []

    def move(away: bool) -> None:
        for table in tables:
            here, there = table, tmp_path / table.name
            (here if away else there).rename(there if away else here)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            move(away=False)

    move(away=True)
    folder = RocksDBFolder.open(tmp_path / "s", memory=RocksDBMemory(), is_read_only=True, pause=pause)
    assert folder.read_segments(bucket_id, 1, 9) == [b"segment"]
    folder.close()
    assert len(pauses) == 2

    move(away=True)
    with pytest.raises(
        StorageUnavailableError,
        match=r"so read it again\. If none has, it is damaged: the next start",
    ):
        RocksDBFolder.open(tmp_path / "s", memory=RocksDBMemory(), is_read_only=True, pause=lambda _: None)


@pytest.mark.parametrize("bytes_", [0, 65_535])
def test_rocksdb_without_room_is_refused(bytes_: int) -> None:
    """It would write a table for every snapshot."""
    with pytest.raises(ValueError, match="bytes must be 65536 or more"):
        RocksDBMemory(write_buffer_bytes=bytes_)
    with pytest.raises(ValueError, match="bytes must be 65536 or more"):
        RocksDBMemory(block_cache_bytes=bytes_)


def test_a_list_of_one_topic_reads_no_other_header(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor one of another cursor, nor after the folder was opened again: all others are damaged, and none is met."""

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
            for topic in range(20):
                for cursor in range(5):
                    await storage.create_bucket_snapshot(
                        b"", [], bucket_key="k", topic_name=f"t{topic}", cursor_name=f"c{cursor}"
                    )
            of_topic = {info.bucket_id for info in await storage.list_bucket_snapshots("t7")}
            of_cursor = {info.bucket_id for info in await storage.list_bucket_snapshots("t7", "c3")}
        for topic_name, cursor_name, expected in (("t7", None, of_topic), ("t7", "c3", of_cursor)):
            _damage_headers(tmp_path, but=expected)
            caplog.clear()
            async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
                infos = await storage.list_bucket_snapshots(topic_name, cursor_name)
                assert {info.bucket_id for info in infos} == expected
                assert caplog.messages == []
                await storage.list_bucket_snapshots()
                assert "left out of a list of snapshots" in caplog.text
        assert (len(of_topic), len(of_cursor)) == (5, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["h", "e0", "e1", "e3"])
@pytest.mark.parametrize("bit", [3])
def test_a_bit_that_changed_before_the_database_saw_it_is_corruption(tmp_path: Path, place: str, bit: int) -> None:
    """In memory, say: RocksDB's own checksum is right then, and ours is not. Named by bucket and entry."""
    bucket_id = _write(tmp_path, [b"segment one", b"segment two", b"segment three"])
    database = Rdict(str(tmp_path), Options(raw_mode=True))
    entry = int(place[1:]) if place[0] == "e" else None
    key = place[:1].encode() + bucket_id.to_bytes(8) + (b"" if entry is None else entry.to_bytes(4))
    value = bytearray(database[key])
    value[bit % len(value)] ^= 1 << bit
    database[key] = bytes(value)
    database.close()

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
            for read in (
                storage.get_bucket_snapshot_segment(bucket_id, 1, 3),
                storage.get_bucket_snapshot_metadata(bucket_id),
                storage.get_bucket_snapshot_head(bucket_id),
            ):
                try:
                    await read
                except SnapshotCorruptedError as error:
                    found.append((error.bucket_id, error.entry))
            assert len(await storage.find_damage()) == (place == "h")
            await storage.delete_bucket_snapshot(bucket_id)
            assert await storage.list_bucket_snapshots() == await storage.list_bucket_snapshots("t", "c") == []

    found: list[tuple[int | None, int | None]] = []
    asyncio.run(scenario())
    # A head ends before a damaged segment, and not with an error. Entries are judged by their own checksums alone.
    times = {"h": 1, "e0": 2, "e1": 1, "e3": 1}[place]
    assert found == [(bucket_id, entry)] * times


def test_a_second_process_reads_beside_the_writer(tmp_path: Path) -> None:
    """The reader sees the snapshots that exist when it opens, and has no effect on the writer."""
    writer = _start_writer(tmp_path)
    assert writer.stdout is not None
    printed = [int(writer.stdout.readline()) for _ in range(20)]

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path, is_read_only=True) as storage:
            listed = await storage.list_bucket_snapshots()
            assert set(printed) <= {info.bucket_id for info in listed}
            for info in listed:
                entry = info.bucket_key.encode() * 2000
                assert (await storage.get_bucket_snapshot_head(info.bucket_id)).metadata == entry
                assert await storage.get_bucket_snapshot_segment(info.bucket_id, 1, 9) == [entry] * 3

    try:
        asyncio.run(scenario())
        assert int(writer.stdout.readline()) > printed[-1]
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.stdout.close()
        writer.wait()


def test_a_read_only_storage_changes_nothing(tmp_path: Path) -> None:
    """Every call that would write says so; there need be no folder, and none is made."""

    async def scenario() -> None:
        kept = await _written(tmp_path / "snapshots")
        before = _files(tmp_path / "snapshots")
        async with RocksDBBucketSnapshotStorage(tmp_path / "snapshots", is_read_only=True) as storage:
            with pytest.raises(
                StorageReadOnlyError, match="cannot create a snapshot: the storage was opened read-only"
            ):
                await _create(storage, [])
            with pytest.raises(StorageReadOnlyError, match="cannot delete"):
                await storage.delete_bucket_snapshot(kept)
            with pytest.raises(StorageReadOnlyError, match="checkpoint"):
                await storage.checkpoint(tmp_path / "backup")
            assert await storage.get_bucket_snapshot_segment(kept, 1, 1) == [b"kept"]
        assert _files(tmp_path / "snapshots") == before
        with pytest.raises(StorageAccessError, match=r"there are no snapshots in .*nowhere"):
            await RocksDBBucketSnapshotStorage(tmp_path / "nowhere", is_read_only=True).start()
        assert not (tmp_path / "nowhere").exists()
        (tmp_path / "snapshots" / "CURRENT").unlink()
        with pytest.raises(StorageCorruptedError, match="its file CURRENT is missing"):
            await RocksDBBucketSnapshotStorage(tmp_path / "snapshots", is_read_only=True).start()

    asyncio.run(scenario())


async def _written(path: Path) -> int:
    async with RocksDBBucketSnapshotStorage(path) as storage:
        return await _create(storage, [b"kept"])


def _files(path: Path) -> dict[str, tuple[int, bytes]]:
    # The folder too: its time tells of a file that came and went.
    files = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}
    return files | {".": (path.stat().st_mtime_ns, b"")}


def test_a_checkpoint_is_a_folder_of_its_own(tmp_path: Path) -> None:
    """It has what there was, lives on when its source goes, and takes the place of nothing."""

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path / "snapshots") as storage:
            kept = await _create(storage, [b"kept"])
            await storage.checkpoint(tmp_path / "backups" / "one")
            await storage.delete_bucket_snapshot(kept)
            with pytest.raises(StorageAccessError, match="exists already"):
                await storage.checkpoint(tmp_path / "backups" / "one")
        # The checkpoint held nothing open: the folder can be used again.
        async with (
            RocksDBBucketSnapshotStorage(tmp_path / "snapshots") as storage,
            RocksDBBucketSnapshotStorage(tmp_path / "backups" / "one") as backup,
        ):
            assert await storage.list_bucket_snapshots() == []
            assert await backup.get_bucket_snapshot_segment(kept, 1, 9) == [b"kept"]
            assert await _create(backup, []) > kept

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageUnavailableError, match="cannot use the folder"):
        _open(tmp_path / "file" / "folder")


def test_what_a_crash_left_of_a_large_snapshot_is_removed(tmp_path: Path) -> None:
    """It was never visible, and the next start leaves no trace of it."""
    backend = RocksDBBackend(tmp_path)
    kept = _write(tmp_path / "snapshots", [b"kept"])
    unfinished = kept + 1
    database = Rdict(str(tmp_path / "snapshots"), Options(raw_mode=True))
    database[b"w" + unfinished.to_bytes(8)] = b""
    for entry in range(3):
        database[b"e" + unfinished.to_bytes(8) + entry.to_bytes(4)] = b"x" * 100
    database[b"next"] = (unfinished + 1).to_bytes(8)
    database.close()

    async def scenario() -> None:
        async with backend.storage() as storage:
            with pytest.raises(BucketNotFoundError):
                await storage.get_bucket_snapshot_metadata(unfinished)
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [kept]
            assert backend.entries(unfinished) is None
            assert await storage.get_bucket_snapshot_segment(kept, 1, 9) == [b"kept"]

    asyncio.run(scenario())


def test_a_missing_entry_is_corruption(tmp_path: Path) -> None:
    """The header says how many there must be."""
    bucket_id = _write(tmp_path, [b"a", b"b", b"c"])
    database = Rdict(str(tmp_path), Options(raw_mode=True))
    del database[b"e" + bucket_id.to_bytes(8) + (2).to_bytes(4)]
    database.close()

    async def scenario() -> None:
        async with RocksDBBucketSnapshotStorage(tmp_path) as storage:
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 1) == [b"a"]
            with pytest.raises(SnapshotCorruptedError, match=r"entry 2 of snapshot of bucket .* it is missing"):
                await storage.get_bucket_snapshot_segment(bucket_id, 2, 2)
            with pytest.raises(SnapshotCorruptedError, match=r"entry 2 of .* it is missing"):
                await storage.get_bucket_snapshot_segment(bucket_id, 1, 3)

    asyncio.run(scenario())
