"""The store on a real RocksDB folder: it comes back as it was, or it refuses and says what to do."""

import asyncio
import itertools
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import (
    CURSOR_BASE,
    CURSOR_JOURNAL,
    CURSOR_MARK_DELETE,
    CURSOR_PROPERTIES,
    FORMAT_KEY,
    Family,
    cursor_state_key,
    ledger_range,
)
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.entries.headers import ROW_BYTES
from managed_ledger.errors import (
    LedgerWriteError,
    StoreCorruptedError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
)
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.position import Position
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
from managed_ledger.rocksdb_store.store import StoreBatch
from managed_ledger.writing import committer
from tests.helpers.fakes.managed_ledger_fakes import (
    CountingDatabase,
    LedgerClock,
    MemoryDatabase,
    append_all,
    open_store,
)
from tests.helpers.log_reading import read_entries
from tests.helpers.storages.rocksdict_edge import replace_rocksdict
from tests.helpers.until import until


async def _open(path: Path, **limits: int) -> LedgerStore:
    return await LedgerStore.open(path, ManagedLedgerConfig(**limits), now_ms=LedgerClock())


async def _fill(path: Path, entries: int = 2000) -> None:
    """A log with entries, some of them in the write-ahead log alone."""
    store = await _open(path, entries_per_ledger_max=500)
    ledger = await store.open_managed_ledger("orders")
    cursor = await ledger.open_cursor("subscription", properties={"a": "1"})
    for start in range(0, entries, 100):
        await append_all(ledger, [b"payload %06d" % index for index in range(start, start + 100)])
    cursor.acknowledge([1] * 10, range(10, 20))
    await store.close()


def _file_names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        await _fill(tmp_path)

        store = await _open(tmp_path)
        assert store.managed_ledger_names() == ["orders"]
        ledger = await store.open_managed_ledger("orders")
        assert await store.open_managed_ledger("orders") is ledger
        read = await read_entries(ledger, ledger.first_position, entries_max=5000)
        cursor = ledger.cursors["subscription"]

        assert read.payloads == [b"payload %06d" % index for index in range(2000)]
        assert read.next_position == Position(5, 0)
        assert [info.entries for info in ledger.ledgers()] == [500, 500, 500, 500, 0]
        assert cursor.backlog == 1990
        assert dict(cursor.properties) == {"a": "1"}
        assert await ledger.read_payloads([4, 1, 3], [499, 0, 250]) == [
            b"payload 001999",
            b"payload 000000",
            b"payload 001250",
        ]
        await store.close()

    asyncio.run(scenario())


def test_what_was_trimmed_is_given_back_to_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = CountingDatabase(tmp_path)
        store = await open_store(database, entries_per_ledger_max=10, compact_bytes_min=4 * 10**6)
        ledger = await store.open_managed_ledger("orders")
        for _ in range(5):
            await append_all(ledger, [random.Random(index).randbytes(100_000) for index in range(10)])
        await append_all(ledger, [b"kept"])

        assert await ledger.trim() == 5
        await asyncio.to_thread(database.compacted.wait)
        await store.close()

        store = await _open(tmp_path)
        ledger = await store.open_managed_ledger("orders")
        assert await ledger.read_payloads([5, 6], [0, 0]) == [None, b"kept"]
        await store.close()

    asyncio.run(scenario())

    assert sum(file.stat().st_size for file in tmp_path.rglob("*.sst")) < 100_000


def test_ids_are_unique_over_topics_and_never_used_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        seen: list[int] = []
        for _ in range(3):
            store = await _open(tmp_path, entries_per_ledger_max=2)
            for name in ("a", "b"):
                ledger = await store.open_managed_ledger(name)
                positions = await append_all(ledger, [b"x"] * 4)
                seen += {position.ledger_id for position in positions}
                await ledger.trim()
            await store.delete_managed_ledger("a")
            await store.close()

        assert len(set(seen)) == len(seen) == 12

    asyncio.run(scenario())


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """By this process and by another one."""

    async def scenario() -> None:
        store = await _open(tmp_path)
        with pytest.raises(StoreLockedError, match="Stop that one, or choose another folder"):
            await _open(tmp_path)
        program = (
            "import sys; from pathlib import Path; from managed_ledger.disk.database import RocksDatabase\n"
            "try: RocksDatabase.open(Path(sys.argv[1]), write_buffer_bytes=1 << 20)\n"
            "except Exception as error: print(type(error).__name__)"
        )
        other = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
        )
        assert other.stdout.strip() == "StoreLockedError", other.stderr
        await store.close()
        await (await _open(tmp_path)).close()

    asyncio.run(scenario())


class _FailingFolder:
    """Opens a folder to write; a test lets the open database refuse a write, and openings fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.openings_that_fail = 0
        self._opened: RocksDatabase | None = None
        clock = itertools.count(step=10)
        self.database = ReopeningDatabase(path, self._open, monotonic=lambda: float(next(clock)))

    def _open(self) -> RocksDatabase:
        if self.openings_that_fail:
            self.openings_that_fail -= 1
            raise StoreUnavailableError("Too many open files")
        self._opened = RocksDatabase.open(self.path, write_buffer_bytes=2**20)
        return self._opened

    def refuse_writes(self) -> None:
        """Until it is opened again."""

        def write(batch: StoreBatch, *, sync: bool) -> None:
            raise StoreUnavailableError("the disk says no")

        assert self._opened is not None
        self._opened.write = write  # type: ignore[method-assign]


def test_a_log_that_could_not_be_opened_again_is_tried_once_more_by_the_next_commit(tmp_path: Path) -> None:
    """As while clients take all files that the process may open: each commit fails meanwhile, none waits for ever."""

    async def scenario() -> None:
        folder = _FailingFolder(tmp_path)
        store = await open_store(folder.database)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"kept"])
        folder.refuse_writes()
        folder.openings_that_fail = 2

        for reason in ("the disk says no", "closed until it can be opened", "closed until it can be opened"):
            with pytest.raises(LedgerWriteError, match=reason):
                await asyncio.wait_for(append_all(ledger, [b"lost"]), 10)
        await append_all(ledger, [b"after"])

        read = await read_entries(ledger, ledger.first_position, entries_max=10)
        assert read.payloads == [b"kept", b"after"]
        await asyncio.wait_for(store.close(), 10)

    asyncio.run(scenario())


def test_a_log_that_could_not_be_opened_again_is_tried_once_more_without_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else consumers of delayed messages would wait until a producer sends a message."""
    monkeypatch.setattr(committer, "PROBE_SECONDS", 0.01)

    async def scenario() -> None:
        folder = _FailingFolder(tmp_path)
        store = await open_store(folder.database)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"kept"])
        folder.refuse_writes()
        folder.openings_that_fail = 2
        with pytest.raises(LedgerWriteError):
            await append_all(ledger, [b"lost"])

        await until(lambda: not store.committer.watch.is_failing)

        read = await read_entries(ledger, ledger.first_position, entries_max=10)
        assert read.payloads == [b"kept"]
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_log_whose_folder_is_removed_or_replaced_takes_no_writes_until_it_is_back(
    tmp_path: Path, is_replaced: bool
) -> None:
    """RocksDB would write on to files that no start finds. The other folder may be a backup, and is not touched."""
    path, aside = tmp_path / "ledgers", tmp_path / "aside"

    async def scenario() -> None:
        folder = _FailingFolder(path)
        store = await open_store(folder.database)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"kept"])
        path.rename(aside)
        if is_replaced:
            path.mkdir()
        for _ in range(2):
            with pytest.raises(LedgerWriteError, match="was removed or replaced while the log is open"):
                await append_all(ledger, [b"lost"])
        assert path.exists() == is_replaced
        if is_replaced:
            assert not list(path.iterdir())
            path.rmdir()
        aside.rename(path)
        await append_all(ledger, [b"after"])
        path.rename(aside)

        with pytest.raises(StoreUnavailableError, match="was removed or replaced"):
            await store.close()

        assert not path.exists()
        aside.rename(path)
        store = await _open(path)
        ledger = await store.open_managed_ledger("orders")
        read = await read_entries(ledger, ledger.first_position, entries_max=10)
        assert read.payloads == [b"kept", b"after"]
        await store.close()

    asyncio.run(scenario())


def _newest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern), key=lambda file: file.stat().st_size)


def _flip(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 0xFF
    file.write_bytes(content)


def _crashed(path: Path) -> Path:
    """A folder as a crash leaves it, with everything in the write-ahead log; returns that log."""

    async def scenario() -> None:
        folder = path / "running"
        opens = partial(RocksDatabase.open, folder, write_buffer_bytes=2**20)
        database = ReopeningDatabase(folder, opens)
        # The marker file stays as old as a crash can leave it.
        database.mark_synced = lambda: None  # type: ignore[method-assign]
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        for index in range(100):
            await append_all(ledger, [b"payload %d" % index])
        await asyncio.to_thread(shutil.copytree, path / "running", path / "crashed")
        await store.close()

    asyncio.run(scenario())
    return _newest(path / "crashed", "*.log")


def test_a_damaged_write_ahead_log_is_refused(tmp_path: Path) -> None:
    """In the middle; RocksDB's default would silently drop everything behind it."""
    log = _crashed(tmp_path)

    _flip(log, log.stat().st_size // 2)

    with pytest.raises(StoreCorruptedError, match=r"Restore the folder from a copy, or keep what is whole"):
        asyncio.run(_open(tmp_path / "crashed"))


def test_a_cut_write_ahead_log_loses_its_last_commit_only(tmp_path: Path) -> None:
    """That is how a crash in the middle of a write looks."""
    log = _crashed(tmp_path)

    log.write_bytes(log.read_bytes()[:-10])

    async def scenario() -> None:
        store = await _open(tmp_path / "crashed")
        ledger = await store.open_managed_ledger("orders")
        assert ledger.last_confirmed_position == Position(1, 98)
        read = await read_entries(ledger, ledger.first_position, entries_max=200)
        assert read.payloads == [b"payload %d" % index for index in range(99)]
        assert await append_all(ledger, [b"more"]) == [Position(1, 99)]
        await store.close()

    asyncio.run(scenario())


def test_a_missing_write_ahead_log_is_refused(tmp_path: Path) -> None:
    """RocksDB alone would start with fewer entries, without a word."""
    _crashed(tmp_path).unlink()

    with pytest.raises(StoreCorruptedError, match="its write-ahead log"):
        asyncio.run(_open(tmp_path / "crashed"))


def test_a_write_ahead_log_that_ends_before_the_marker_is_refused(tmp_path: Path) -> None:
    """The marker follows the synced writes, so that only the latest can be cut off unseen."""
    database = RocksDatabase.open(tmp_path / "running", write_buffer_bytes=2**20)
    for index in range(100):
        batch = database.new_batch()
        batch.put(Family.META, b"x%d" % index, b"value")
        database.write(batch, sync=True)
    database.mark_synced()
    shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    database.close()
    log = _newest(tmp_path / "crashed", "*.log")

    log.write_bytes(log.read_bytes()[:1000])

    with pytest.raises(StoreCorruptedError, match=r"it ends at write \d+, but had reached 104"):
        asyncio.run(_open(tmp_path / "crashed"))


def test_an_empty_database_in_place_of_a_full_one_is_refused(tmp_path: Path) -> None:
    """A damaged MANIFEST can look like this: RocksDB opens without an error and holds nothing."""
    asyncio.run(_fill(tmp_path / "full"))
    RocksDatabase.open(tmp_path / "empty", write_buffer_bytes=2**20).close()
    marker = (tmp_path / "full" / LOG_MARKER_FILE).read_text()

    (tmp_path / "empty" / LOG_MARKER_FILE).write_text(marker)

    with pytest.raises(StoreCorruptedError, match="it ends at write 4, but had reached"):
        asyncio.run(_open(tmp_path / "empty"))


def test_a_database_without_its_marker_key_is_refused(tmp_path: Path) -> None:
    database = RocksDatabase.open(tmp_path, write_buffer_bytes=2**20)
    batch = database.new_batch()
    batch.delete(Family.META, FORMAT_KEY)
    database.write(batch, sync=True)
    database.close()

    with pytest.raises(StoreCorruptedError, match="its marker key is missing"):
        asyncio.run(_open(tmp_path))


def test_another_format_is_refused(tmp_path: Path) -> None:
    database = RocksDatabase.open(tmp_path, write_buffer_bytes=2**20)
    batch = database.new_batch()
    batch.put(Family.META, FORMAT_KEY, b"postdate log 99")
    database.write(batch, sync=True)
    database.close()

    with pytest.raises(StoreVersionError, match="use the version that wrote it"):
        asyncio.run(_open(tmp_path))


def test_an_unreadable_marker_file_is_refused(tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path, 100))
    (tmp_path / LOG_MARKER_FILE).write_text("{")

    with pytest.raises(StoreCorruptedError, match=LOG_MARKER_FILE):
        asyncio.run(_open(tmp_path))


def test_a_crash_while_a_folder_is_created_is_no_damage(tmp_path: Path) -> None:
    """The marker file comes last; without it and without entries the folder is created anew."""
    RocksDatabase.open(tmp_path, write_buffer_bytes=2**20).close()
    (tmp_path / LOG_MARKER_FILE).unlink()

    asyncio.run(_fill(tmp_path, 100))

    async def payloads() -> list[bytes]:
        store = await _open(tmp_path)
        ledger = await store.open_managed_ledger("orders")
        read = await read_entries(ledger, ledger.first_position, entries_max=200)
        await store.close()
        return list(read.payloads)

    assert asyncio.run(payloads()) == [b"payload %06d" % index for index in range(100)]
    assert (tmp_path / LOG_MARKER_FILE).exists()


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(StoreUnavailableError, match=r"Cannot open the log.*choose another folder"):
            asyncio.run(_open(path))


@pytest.mark.parametrize("kind", [CURSOR_MARK_DELETE, CURSOR_PROPERTIES, CURSOR_BASE, CURSOR_JOURNAL])
@pytest.mark.parametrize("value", [b"", b"nonsense"])
def test_a_cursor_that_makes_no_sense_is_refused(kind: int, value: bytes) -> None:
    """Checksums make it unlikely; if it happens all the same, it is one of the log's errors."""

    async def scenario() -> None:
        database = MemoryDatabase()
        store = await open_store(database)
        ledger = await store.open_managed_ledger("orders")
        cursor = await ledger.open_cursor("subscription")
        number = None if kind in (CURSOR_MARK_DELETE, CURSOR_PROPERTIES) else 1
        await ledger.close()

        database.tables[Family.CURSORS][cursor_state_key(cursor.cursor_id or 0, kind, number)] = value

        with pytest.raises(StoreCorruptedError, match="The record of orders makes no sense"):
            await store.open_managed_ledger("orders")
        await store.close()

    asyncio.run(scenario())


def test_a_log_in_use_can_be_read_beside(tmp_path: Path) -> None:
    """By any number of readers, each as of its opening, and no file comes or goes."""

    async def scenario() -> None:
        store = await _open(tmp_path)
        ledger = await store.open_managed_ledger("orders")
        await append_all(ledger, [b"payload"] * 3)
        files = _file_names(tmp_path)

        readers = [RocksDatabase.open_read_only(tmp_path) for _ in range(2)]
        await append_all(ledger, [b"payload"])
        blocks = [len(value) for reader in readers for _, value in reader.scan(Family.HEADERS, *ledger_range(1))]
        for reader in readers:
            reader.release()

        assert sum(blocks) == 2 * 3 * ROW_BYTES
        assert _file_names(tmp_path) == files
        await store.close()

    asyncio.run(scenario())


def test_a_reader_that_meets_a_change_of_files_looks_again(tmp_path: Path) -> None:
    """A file that went between two looks is there the next time; one that stays away is a reason to ask again."""

    async def fill() -> None:
        store = await _open(tmp_path / "log")
        await append_all(await store.open_managed_ledger("orders"), [b"payload"] * 3)
        await store.close()

    asyncio.run(fill())
    (manifest,) = (tmp_path / "log").glob("MANIFEST-*")
    elsewhere = tmp_path / manifest.name
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            elsewhere.rename(manifest)

    manifest.rename(elsewhere)
    reader = RocksDatabase.open_read_only(tmp_path / "log", pause=pause)
    assert len(list(reader.scan(Family.HEADERS, *ledger_range(1)))) == 1
    reader.release()
    assert len(pauses) == 2

    manifest.rename(elsewhere)
    with pytest.raises(StoreUnavailableError, match="changed it meanwhile, so read it again"):
        RocksDatabase.open_read_only(tmp_path / "log", pause=lambda _: None)


def test_a_folder_without_a_log_is_not_read(tmp_path: Path) -> None:
    """A read-only open creates no file."""
    with pytest.raises(StoreUnavailableError, match="There is no log in"):
        RocksDatabase.open_read_only(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_records_are_there_after_a_restart(tmp_path: Path) -> None:
    """Small values of the users of the store, beside all other keys; a value that was removed is gone."""

    async def main() -> None:
        store = await _open(tmp_path)
        await store.put_record("one", b"1")
        await store.put_record("two", b"2")
        await store.put_record("two", None)
        await store.put_record("missing", None)
        await store.open_managed_ledger("one")
        await store.close()

        again = await _open(tmp_path)
        assert dict(again.records) == {"one": b"1"}
        assert again.managed_ledger_names() == ["one"]
        await again.close()

    asyncio.run(main())


class _Recorded:
    """A database that tells the order of its calls, and may fail to sync."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.calls: list[str] = []
        self.refusal: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, *args: object) -> None:
        # Options would have it sync inside of the call, with every other thread at a stop.
        self.calls.append("write" if len(args) == 1 else "write with options")
        self._database.write(*args)

    def flush_wal(self, *, sync: bool) -> None:
        self.calls.append("sync" if sync else "flush")
        if self.refusal is not None:
            raise Exception(self.refusal)
        self._database.flush_wal(sync=sync)


def test_a_synced_write_is_synced_before_it_returns_and_by_a_call_of_its_own(tmp_path: Path) -> None:
    """The event loop stood still while the disk synced; and no marker may promise what is not synced."""
    database = RocksDatabase.open(tmp_path, write_buffer_bytes=2**20)
    recorded = replace_rocksdict(database, _Recorded)
    marker = (tmp_path / LOG_MARKER_FILE).read_text()

    def write(*, sync: bool) -> list[str]:
        batch = database.new_batch()
        batch.put(Family.META, b"x", b"value")
        recorded.calls.clear()
        database.write(batch, sync=sync)
        return recorded.calls

    recorded.refusal = "IO error: No space left on device"
    with pytest.raises(StoreUnavailableError, match="No space left"):
        write(sync=True)
    database.mark_synced()
    assert (tmp_path / LOG_MARKER_FILE).read_text() == marker
    recorded.refusal = None
    assert write(sync=True) == ["write", "sync"]
    database.mark_synced()
    marker_of_synced = (tmp_path / LOG_MARKER_FILE).read_text()
    assert marker_of_synced != marker
    assert write(sync=False) == ["write"]
    database.mark_synced()
    assert (tmp_path / LOG_MARKER_FILE).read_text() == marker_of_synced
    database.close()
