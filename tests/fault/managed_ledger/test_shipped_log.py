"""The log on objects of a folder through kills in each step, a sleep beyond a takeover, and a storage that fails."""

import asyncio
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.errors import LedgerError, LedgerWriteError, LogFencedError, StoreCorruptedError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.objects.local_tables import warm
from managed_ledger.objects.manifest import MANIFEST, TABLES, Manifest
from managed_ledger.objects.object_store import FolderObjects
from managed_ledger.objects.reading_out import read_out
from managed_ledger.objects.shipped_database import ShippedDatabase, open_shipped
from managed_ledger.positions.position import Position
from managed_ledger.rocksdb_store.disk_room import Room
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock
from tests.helpers.fakes.memory_objects import MemoryObjects
from tests.helpers.log_reading import read_entries

pytestmark = pytest.mark.slow

CONFIG = ManagedLedgerConfig(entries_per_ledger_max=100, write_buffer_bytes=2**16)
CHECKPOINT_BYTES = 40_000
SIZE = 500


def payload_of(number: int) -> bytes:
    return f"{number} ".encode().ljust(SIZE, b"x")


class KillingObjects(FolderObjects):
    """Kills the process before or after the nth call of a kind."""

    def __init__(self, path: Path, step: str) -> None:
        super().__init__(path)
        self._step, self._counts = step, dict[str, int]()

    def _count(self, kind: str, call: Callable[[], object]) -> object:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        name = f"{kind} {self._counts[kind]}"
        if self._step == f"before {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        found = call()
        if self._step == f"after {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        if name != MANIFEST:
            return super().replace(name, data, tag)
        return self._count("manifest", lambda: super(KillingObjects, self).replace(name, data, tag))

    def create(self, name: str, data: bytes) -> bool:
        return self._count("create", lambda: super(KillingObjects, self).create(name, data))

    def put_file(self, name: str, path: Path) -> None:
        self._count("table", lambda: super(KillingObjects, self).put_file(name, path))

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self._count("deletion", lambda name=name: super(KillingObjects, self).delete(name))


STEPS = (
    *("before manifest 1", "after manifest 1"),
    *("before create 1", "after create 1", "after create 20"),
    *("before table 1", "after table 2", "before manifest 2", "after manifest 2"),
    *("before deletion 1", "after deletion 7", "after deletion 12"),
)


async def opened(objects: FolderObjects, cache: Path, **options: object) -> tuple[LedgerStore, ShippedDatabase]:
    kept: list[ShippedDatabase] = []

    def open_database(path: Path, config: ManagedLedgerConfig) -> ShippedDatabase:
        settings = {"objects": objects, "now_ms": LedgerClock(), "on_lost": lambda: None} | options
        kept.append(open_shipped(path, config, **settings))
        return kept[0]

    store = await LedgerStore.open(cache, CONFIG, now_ms=LedgerClock(), open_database=open_database)
    return store, kept[0]


async def numbers_in(store: LedgerStore) -> list[int]:
    ledger = await store.open_managed_ledger("orders")
    read = await read_entries(ledger, Position(0, 0), entries_max=100_000)
    numbers = [int(payload.split()[0]) for payload in read.payloads]
    assert read.payloads == [payload_of(number) for number in numbers]
    return numbers


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def child(place: Path, cache: Path, step: str) -> None:
    """Append until killed or fenced; say which numbers are durable."""
    objects = KillingObjects(place, step)
    store, _ = await opened(objects, cache, checkpoint_bytes=CHECKPOINT_BYTES, on_lost=lambda: say("lost"))
    say("open")
    ledger = await store.open_managed_ledger("orders")
    numbers = await numbers_in(store)
    for number in itertools.count(numbers[-1] + 1 if numbers else 0):
        ledger.append_nowait(payload_of(number), publish_time_ms=1)
        try:
            await ledger.committed()
        except LedgerWriteError as error:
            say("fenced", isinstance(error.__cause__, LogFencedError))
            break
        say("durable", number)
    with suppress(LedgerError):
        await store.close()


def started(place: Path, cache: Path, step: str) -> "subprocess.Popen[str]":
    arguments = [sys.executable, __file__, str(place), str(cache), step]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def durable(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("durable") and line.endswith("\n")]


def test_kills_in_each_step_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.objects.shipped_database.HAND_OVER_BYTES", 0)
    place, heard = tmp_path / "place", list[int]()
    for at, step in enumerate(STEPS):
        # Every other one on a warm cache.
        with started(place, tmp_path / f"cache{at % 2}", step) as process:
            assert process.stdout is not None
            heard += durable(process.stdout.readlines())
        assert process.returncode == -signal.SIGKILL, step

    async def check() -> None:
        store, _ = await opened(FolderObjects(place), tmp_path / "last")
        found = await numbers_in(store)
        assert found == list(range(len(found)))
        assert set(heard) <= set(found)
        await store.close()

    asyncio.run(check())
    assert len(heard) > 40
    decoded = Manifest.decode((place / MANIFEST).read_bytes(), "here")
    # The last owner has swept, and has stored a checkpoint as it closed.
    assert set(FolderObjects(place).names(TABLES)) == {table.name for table in decoded.tables.values()}
    logs = {int(name.rpartition("/")[2]) for name in FolderObjects(place).names("log/")}
    assert logs <= {*decoded.fences, *range(decoded.start, decoded.start + 3)}


def stopped_without_lock(process: "subprocess.Popen[str]", place: Path) -> None:
    """Stop a process while it does not hold the lock of the folder: another storage has none."""
    while True:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        with (place / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                process.send_signal(signal.SIGCONT)
                continue
            return


def heard_until(output: IO[str], count: int) -> list[str]:
    lines = list[str]()
    while len(durable(lines)) < count:
        lines.append(output.readline())
    return lines


def test_an_owner_that_wakes_up_acknowledges_nothing_new(tmp_path: Path) -> None:
    place = tmp_path / "place"

    async def take_over() -> list[int]:
        store, database = await opened(FolderObjects(place), tmp_path / "second")
        before = await numbers_in(store)
        ledger = await store.open_managed_ledger("orders")
        for number in range(len(before), len(before) + 40):
            ledger.append_nowait(payload_of(number), publish_time_ms=1)
            await ledger.committed()
        database.store_checkpoint()
        found = await numbers_in(store)
        await store.close()
        return found

    with started(place, tmp_path / "first", "") as process:
        assert process.stdout is not None
        lines = heard_until(process.stdout, 150)
        stopped_without_lock(process, place)
        try:
            found = asyncio.run(take_over())
        finally:
            process.send_signal(signal.SIGCONT)
        lines += process.stdout.readlines()
    assert set(durable(lines)) <= set(found)
    assert lines.count("lost\n") == 1
    assert "fenced True\n" in lines
    assert process.returncode == 0

    async def check() -> None:
        store, _ = await opened(FolderObjects(place), tmp_path / "third")
        assert await numbers_in(store) == found
        await store.close()

    asyncio.run(check())


class GoneObjects(MemoryObjects):
    """A storage that is away or slow for a while."""

    is_gone = False
    delay_s = 0.0

    def create(self, name: str, data: bytes) -> bool:
        time.sleep(self.delay_s)
        if self.is_gone:
            raise TimeoutError("nobody answers")
        return super().create(name, data)


async def append(ledger: ManagedLedger, numbers: range) -> None:
    for number in numbers:
        ledger.append_nowait(payload_of(number), publish_time_ms=1)
    await ledger.committed()


def test_writes_wait_for_a_storage_that_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        objects = GoneObjects()
        store, _ = await opened(objects, tmp_path)
        ledger = await store.open_managed_ledger("orders")
        objects.is_gone, objects.delay_s = True, 0.05
        appending = asyncio.create_task(append(ledger, range(10)))
        await asyncio.sleep(0.5)
        assert not appending.done()
        objects.is_gone = False
        await appending
        assert await numbers_in(store) == list(range(10))
        await store.close()

    asyncio.run(scenario())


def test_a_log_is_given_up_without_an_answer(tmp_path: Path) -> None:
    """The receipt is unknown then, and the call that waits for it is told so."""

    async def scenario() -> None:
        objects, given_up, told = GoneObjects(), threading.Event(), list[int]()
        store, _ = await opened(objects, tmp_path, given_up=given_up, on_lost=lambda: told.append(1))
        ledger = await store.open_managed_ledger("orders")
        objects.is_gone = True
        appending = asyncio.create_task(append(ledger, range(10)))
        await asyncio.sleep(0.2)
        given_up.set()
        with pytest.raises(LedgerWriteError) as caught:
            await appending
        assert isinstance(caught.value.__cause__, LogFencedError)
        with pytest.raises(LedgerWriteError):
            await store.put_record("a", b"b")
        assert told == [1]
        requests = objects.requests
        with pytest.raises(LedgerError):
            await store.close()
        assert objects.requests == requests

    asyncio.run(scenario())


def test_a_disk_that_refuses_what_is_stored_ends_the_service_not_the_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        objects, told = MemoryObjects(), list[int]()
        store, _ = await opened(objects, tmp_path / "first", on_lost=lambda: told.append(1))
        ledger = await store.open_managed_ledger("orders")
        await append(ledger, range(10))

        def refuse(*_: object, **__: object) -> None:
            raise LedgerError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr("managed_ledger.disk.database.RocksDatabase.write", refuse)
            with pytest.raises(LedgerWriteError) as caught:
                await append(ledger, range(10, 20))
        assert isinstance(caught.value.__cause__, LogFencedError)
        assert told == [1]
        with pytest.raises(LedgerError):
            await store.close()
        store, _ = await opened(objects, tmp_path / "second")
        assert await numbers_in(store) == list(range(20))
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_damage", [False, True])
def test_a_folder_that_failed_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_damage: bool
) -> None:
    """It was never synced, so its end may be gone without a sign."""

    async def scenario() -> None:
        objects, told = MemoryObjects(), list[int]()
        store, database = await opened(objects, tmp_path, on_lost=lambda: told.append(1))
        ledger = await store.open_managed_ledger("orders")
        await append(ledger, range(10))
        database.store_checkpoint()
        opening = RocksDatabase.open
        openings = list[Path]()

        def open_again(path: Path, **options: object) -> RocksDatabase:
            openings.append(path)
            return opening(path, **options)

        def refuse(*_: object, **__: object) -> None:
            raise StoreCorruptedError("a table is damaged")

        with monkeypatch.context() as patched:
            patched.setattr(database, "_open_folder", partial(open_again, tmp_path / "log"))
            patched.setattr(RocksDatabase, "has_failed_behind", True)
            if is_damage:
                patched.setattr(RocksDatabase, "write", refuse)
            with pytest.raises(LedgerWriteError):
                await append(ledger, range(10, 20))
        assert openings == []
        assert told == [1]
        with pytest.raises(LedgerError):
            await store.close()
        assert (tmp_path / "tables").exists() is not is_damage
        store, _ = await opened(objects, tmp_path)
        assert await numbers_in(store) == list(range(10))
        await store.close()

    asyncio.run(scenario())


def test_a_disk_without_room_refuses_and_the_log_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        told = list[int]()
        store, _ = await opened(MemoryObjects(), tmp_path, on_lost=lambda: told.append(1))
        ledger = await store.open_managed_ledger("orders")
        with monkeypatch.context() as patched:
            full = Room(free_bytes=0, disk_bytes=2**30, unflushed_bytes=0)
            patched.setattr(RocksDatabase, "measure_room", lambda *_, **__: full)
            ledger.append_nowait(bytes(2**17), publish_time_ms=1)
            with pytest.raises(LedgerWriteError):
                await ledger.committed()
        assert told == []
        await store.close()

    asyncio.run(scenario())


def test_what_an_owner_before_has_left_is_deleted_while_the_log_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        objects, answering = MemoryObjects(), threading.Event()
        names = objects.names

        def names_later(prefix: str) -> Iterator[str]:
            assert answering.wait(20)
            return names(prefix)

        objects.names = names_later  # type: ignore[method-assign]
        objects.create(stale := f"{TABLES}0-7", b"x")
        store, _ = await asyncio.wait_for(opened(objects, tmp_path), 10)
        await append(await store.open_managed_ledger("orders"), range(10))
        assert objects.read(stale) is not None
        answering.set()
        await store.close()
        assert objects.read(stale) is None

    asyncio.run(scenario())


def test_a_log_that_is_closed_leaves_its_tables_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, _ = await opened(MemoryObjects(), tmp_path)
        await append(await store.open_managed_ledger("orders"), range(10))
        await store.close()

    asyncio.run(scenario())
    assert [one.name for one in tmp_path.iterdir()] == ["tables"]


def test_a_log_of_many_objects_gets_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are: the next owner would read them one by one."""
    monkeypatch.setattr("managed_ledger.objects.shipped_database.CHECKPOINT_OBJECTS", 20)

    async def scenario() -> None:
        objects = MemoryObjects()
        store, _ = await opened(objects, tmp_path / "first")
        ledger = await store.open_managed_ledger("orders")
        for number in range(50):
            await ledger.append(payload_of(number), publish_time_ms=1)
        for _ in range(200):
            found = objects.read(MANIFEST)
            assert found is not None
            if Manifest.decode(found[0], "m").start >= 20:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("no checkpoint")
        second, _ = await opened(objects, tmp_path / "second")
        assert await numbers_in(second) == list(range(50))
        await second.close()

    asyncio.run(scenario())


def test_a_warm_copy_is_not_downloaded(tmp_path: Path) -> None:
    async def scenario() -> None:
        objects = MemoryObjects()
        store, database = await opened(objects, tmp_path / "first")
        await append(await store.open_managed_ledger("orders"), range(500))
        database.store_checkpoint()
        await append(await store.open_managed_ledger("orders"), range(500, 510))
        assert warm(objects, tmp_path / "second") > 0
        fetched = list[str]()
        objects.fetch_file = lambda name, path: fetched.append(name)  # type: ignore[method-assign]
        second, _ = await opened(objects, tmp_path / "second")
        assert fetched == []
        assert await numbers_in(second) == list(range(510))
        with pytest.raises(LedgerWriteError):
            await append(await store.open_managed_ledger("orders"), range(1))
        await second.close()
        with pytest.raises(LedgerError):
            await store.close()

    asyncio.run(scenario())


def test_a_log_is_read_out_while_it_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        objects = MemoryObjects()
        store, database = await opened(objects, tmp_path / "cache")
        ledger = await store.open_managed_ledger("orders")
        await append(ledger, range(300))
        database.store_checkpoint()
        await append(ledger, range(300, 350))
        read, is_first = objects.read, [True]

        def read_beside_a_checkpoint(name: str) -> tuple[bytes, str] | None:
            # After the manifest was read, and before the log is.
            if name.startswith("log/") and is_first.pop() if is_first else False:
                database.store_checkpoint()
            return read(name)

        objects.read = read_beside_a_checkpoint  # type: ignore[method-assign]
        await asyncio.get_running_loop().run_in_executor(None, partial(read_out, objects, tmp_path / "copy"))
        assert not is_first
        copy = await LedgerStore.open(tmp_path / "copy", CONFIG, now_ms=LedgerClock())
        assert await numbers_in(copy) == list(range(350))
        await copy.close()
        await append(ledger, range(350, 360))
        await store.close()

    asyncio.run(scenario())


if __name__ == "__main__":
    asyncio.run(child(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
