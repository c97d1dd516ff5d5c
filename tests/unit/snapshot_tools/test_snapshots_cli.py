"""`postdate snapshots` on a folder that no service has open: what it prints, refuses, finds and changes."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet
from rocksdict import Options, Rdict

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from managed_ledger.ledger_store import LedgerStore
from postdate.broker.configuration.config import load_config
from postdate.broker.service import snapshot_storages as snapshots
from postdate.command_line.extras import install
from postdate.command_line.program import postdate as main
from postdate.index.location import RocksDBLocation
from postdate.index.opening import Filter
from postdate.snapshot_tools.options import opened
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import build_snapshot
from snapshot_storage.faults import Fault, FaultPlan
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tests.helpers.snapshot_contents import contents_of

ORDERS = "persistent://public/default/orders"
REMINDERS = "persistent://public/default/reminders"
START_MS = 1_800_000_000_000
ROWS = 600
ENTRIES_PER_LEDGER = 300
NAMES = [(ORDERS, "billing", 1), (ORDERS, "billing", 3), (REMINDERS, "me", 6)]
"""Topic, cursor and first ledger of the snapshots, which have two ledgers each."""


@dataclass
class Data:
    """A service's data folder, with snapshots of two topics."""

    path: Path
    ids: list[int]

    @property
    def properties(self) -> dict[CursorName, dict[str, str]]:
        with CursorPropertiesFolder(self.path / "ledgers", is_read_only=True) as folder:
            return folder.read()

    def put(self, topic: str, cursor: str, properties: Mapping[str, str]) -> None:
        with CursorPropertiesFolder(self.path / "ledgers", is_read_only=False) as folder:
            folder.put({CursorName(topic, cursor): properties})

    def run(self, *words: str, typed: str | None = None) -> Result:
        group = [] if words[0] == "check" else ["snapshots"]
        line = [*group, *words, "--data", str(self.path)]
        return CliRunner().invoke(main, line, input=typed, catch_exceptions=False)

    def listed(self, *words: str) -> list[int]:
        return [one["bucket_id"] for one in json.loads(self.run("list", "--json", *words).stdout)]

    def damage(self, bucket_id: int, entry: int) -> None:
        """Flip a bit of an entry in the database itself, without the storage."""
        key = b"e" + bucket_id.to_bytes(8) + entry.to_bytes(4)
        database = Rdict(str(self.path / "snapshots"), Options(raw_mode=True))
        data = bytearray(database[key])
        data[len(data) // 2] ^= 4
        database[key] = bytes(data)
        database.close()


def rows_of(first_ledger_id: int) -> DelayedIndexes:
    numbers = np.arange(ROWS)
    ledger_ids = first_ledger_id + numbers // ENTRIES_PER_LEDGER
    return DelayedIndexes.of(START_MS + numbers * 1_000, ledger_ids, numbers % ENTRIES_PER_LEDGER)


async def _create(storage: RocksDBBucketSnapshotStorage, topic: str, cursor: str, first_ledger_id: int) -> int:
    snapshot = build_snapshot(rows_of(first_ledger_id), step_ms=60_000, rows_max=-1)
    return await storage.create_bucket_snapshot(
        snapshot.metadata, snapshot.segments, bucket_key=_key(first_ledger_id), topic_name=topic, cursor_name=cursor
    )


def _key(first_ledger_id: int) -> str:
    return f"{BUCKET_KEY_PREFIX}_{first_ledger_id}_{first_ledger_id + 1}"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """The folder as the service has left it; each test gets a copy."""
    path = tmp_path_factory.mktemp("stopped") / "data"

    async def fill() -> list[int]:
        config = ManagedLedgerConfig(entries_per_ledger_max=ENTRIES_PER_LEDGER)
        store = await LedgerStore.open(path / "ledgers", config, now_ms=lambda: START_MS - 1)
        async with RocksDBBucketSnapshotStorage(path / "snapshots") as storage:
            ids = [await _create(storage, *name) for name in NAMES]
        for bucket_id, (topic, cursor_name, first) in zip(ids, NAMES, strict=True):
            ledger = await store.open_managed_ledger(topic)
            cursor = await ledger.open_cursor(cursor_name)
            for deliver_at_ms in rows_of(first).deliver_at_ms.tolist():
                ledger.append_nowait(b"x", publish_time_ms=0, deliver_at_ms=deliver_at_ms, sticky_hash=7)
            await ledger.committed()
            await cursor.update_properties(put={_key(first): str(bucket_id), "owner": "me"})
        await store.close()
        return ids

    return Data(path, asyncio.run(fill()))


@pytest.fixture
def data(stopped: Data, tmp_path: Path) -> Data:
    shutil.copytree(stopped.path, tmp_path / "data")
    return Data(tmp_path / "data", stopped.ids)


def add_orphan(data: Data) -> int:
    async def add() -> int:
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots") as storage:
            return await _create(storage, ORDERS, "billing", 9)

    return asyncio.run(add())


def test_list_shows_each_cursors_snapshots_within_100_columns(data: Data) -> None:
    result = data.run("list")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert f"{ORDERS}  cursor billing" in lines
    (row,) = [line.split() for line in lines if str(data.ids[0]) in line]
    assert row[:6] == [str(data.ids[0]), "1", "to", "2", "10", "600"]
    assert row[8:] == ["2027-01-15T08:00:00Z", "2027-01-15T08:09:59Z"]
    assert lines[-1].startswith("3 snapshots, 30 segments, 1,800 rows, ")


def test_list_can_be_narrowed_and_read_by_programs(data: Data) -> None:
    (one,) = json.loads(data.run("list", "--json", "--topic", "reminders", "--subscription", "me").stdout)

    assert one["bucket_key"] == _key(6)
    assert (one["first_ledger_id"], one["last_ledger_id"], one["segments"], one["rows"]) == (6, 7, 10, ROWS)
    assert (one["first_deliver_at_ms"], one["last_deliver_at_ms"]) == (START_MS, START_MS + 599_000)
    assert data.listed("--topic", "public/default/orders") == data.ids[:2]
    assert (one["first_deliver_at"], one["last_deliver_at"]) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:09:59.000Z")
    assert data.listed("--topic", ORDERS, "--subscription", "billing") == data.ids[:2]


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["check"],
        ["drop", "--yes"],
        ["drop", "--dry-run"],
        ["copy", "--to", "new"],
        ["export", "rows.parquet"],
    ],
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--topic", "order"), f"There is no topic order; near to it is {ORDERS}"),
        (("--subscription", "biling"), "There is no subscription biling; near to it is billing"),
        (("--topic", "orders", "--subscription", "me"), f"There is no subscription me of {ORDERS}; there is billing"),
    ],
)
def test_a_name_that_matches_nothing_is_refused_with_the_nearest(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = data.run(*command, *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"postdate: {said}\n"
    assert not (tmp_path / "rows.parquet").exists()


def test_show_tells_all_of_one_snapshot(data: Data) -> None:
    result = data.run("show", str(data.ids[0]))

    assert result.exit_code == 0
    assert f"  named by   billing of {ORDERS}\n" in result.stdout
    assert f"  first due  2027-01-15T08:00:00.000Z  {START_MS} ms\n" in result.stdout
    assert "  rows       600 in 10 segments\n" in result.stdout
    bars = [line for line in result.stdout.splitlines() if "█" in line]
    assert len(bars) == 16
    assert sum(int(bar.split()[-1]) for bar in bars) == ROWS
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.slow
def test_show_leaves_the_middle_of_many_segments_out(data: Data) -> None:
    async def add() -> int:
        snapshot = build_snapshot(rows_of(1), step_ms=1_000, rows_max=-1)
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots") as storage:
            return await storage.create_bucket_snapshot(
                snapshot.metadata, snapshot.segments, bucket_key=_key(1), topic_name=ORDERS, cursor_name="billing"
            )

    bucket_id = str(asyncio.run(add()))
    short, long = (data.run("show", bucket_id, *words).stdout for words in ((), ("--all",)))

    assert "580 more: --all" in short
    assert len(long.splitlines()) - len(short.splitlines()) == 579


def test_a_check_finds_nothing_where_nothing_is_wrong(data: Data) -> None:
    result = data.run("check")

    assert result.exit_code == 0
    assert result.stdout == (
        "Log:\nnothing is damaged\n"
        "Index: checked 3 snapshots, 30 segments, 1,800 rows, 3 cursor properties; compared with 1,800 delayed "
        "messages.\nNothing is wrong.\n"
    )


def test_a_check_names_everything_that_is_wrong(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped bit in a segment and in entry 0; a property too many, one missing, one of another's snapshot."""
    monkeypatch.setenv("COLUMNS", "100")
    orphan = add_orphan(data)
    data.damage(data.ids[0], 4)
    data.damage(data.ids[1], 0)
    mine = {_key(1): str(data.ids[0]), _key(3): str(data.ids[1]), _key(7): "12345", f"{BUCKET_KEY_PREFIX}_x": "1"}
    data.put(ORDERS, "billing", mine)
    data.put(REMINDERS, "me", {_key(6): str(data.ids[2]), _key(8): str(data.ids[0])})

    result = data.run("check", "--second-look", "0")

    assert result.exit_code == 1
    assert max(len(line) for line in result.stdout.splitlines() if line.startswith(" ")) <= 100
    table = [line.split()[:2] for line in result.stdout.splitlines()]
    for kind, bucket_id in (
        ("damaged", data.ids[0]),
        ("damaged", data.ids[1]),
        ("missing", 12_345),
        ("alien", data.ids[0]),
        ("orphaned", orphan),
        ("malformed", 1),
    ):
        assert [kind, str(bucket_id)] in table
    text = " ".join(result.stdout.split())
    assert "7 problems." in text
    # One damaged segment does not hide the others.
    assert "checked 4 snapshots, 29 segments" in text


def test_a_check_goes_on_where_headers_are_damaged(data: Data) -> None:
    """All of them: the snapshots are found by the properties of the cursors."""
    for bucket_id in data.ids:
        damage_header(data, bucket_id)

    result = data.run("check", "--second-look", "0")

    assert result.exit_code == 1
    for bucket_id in data.ids:
        assert f"damaged  {bucket_id}" in result.stdout
    assert " missing  " not in result.stdout
    assert "1,200  missing: to come, and in no snapshot that can be read" in result.stdout
    assert "checked 0 snapshots" in result.stdout
    listed, exported = data.run("list"), data.run("export", str(data.path / "rows.parquet"))
    copied = data.run("copy", "--to", str(data.path / "new"), "--update-cursors")
    for one in (listed, exported, copied):
        assert one.exit_code == 1
        assert all(str(bucket_id) in one.output for bucket_id in data.ids) or one is exported


def test_a_check_of_one_topic_minds_its_own_business(data: Data) -> None:
    data.damage(data.ids[2], 1)

    assert data.run("check", "--topic", "orders").exit_code == 0
    assert data.run("check", "--topic", "reminders", "--second-look", "0").exit_code == 1


def _tear(data: Data) -> None:
    """Let a snapshot lack two messages, have one that the log has not, and one with another time."""
    rows = rows_of(6)
    times, ledger_ids, entry_ids = rows.deliver_at_ms[2:].copy(), rows.ledger_ids[2:], rows.entry_ids[2:].copy()
    times[-1], entry_ids[-2] = START_MS + ROWS * 1_000, 299 + ROWS
    torn = build_snapshot(DelayedIndexes(times, ledger_ids, entry_ids).sorted(), step_ms=60_000, rows_max=-1)

    async def replace() -> int:
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots") as storage:
            await storage.delete_bucket_snapshot(data.ids[2])
            return await storage.create_bucket_snapshot(
                torn.metadata, torn.segments, bucket_key=_key(6), topic_name=REMINDERS, cursor_name="me"
            )

    data.put(REMINDERS, "me", {_key(6): str(asyncio.run(replace()))})


def test_a_check_compares_the_index_with_the_log(data: Data, tmp_path: Path) -> None:
    """Every checksum is right, and messages are missing, strange or have another time; a file names each of them."""
    path = tmp_path / "faults.parquet"
    _tear(data)

    result = data.run("check", "--second-look", "0", "--positions", str(path), "--json")
    told = data.run("check", "--second-look", "0").stdout
    again = data.run("check", "--positions", str(path))

    found = json.loads(result.stdout)
    assert (result.exit_code, found["is_whole"], found["log"]["is_whole"]) == (1, False, True)
    index = found["index"]
    assert (index["is_whole"], index["problems"], index["log_rows"]) == (False, [], 3 * ROWS)
    (torn,) = [one for one in index["subscriptions"] if one["topic"] == REMINDERS]
    assert torn["findings"] == {"missing": 3, "stray": 1, "mistimed": 1}
    rows = parquet.read_table(path).to_pylist()
    assert sorted((row["finding"], row["ledger_id"], row["entry_id"]) for row in rows) == [
        ("missing", 6, 0), ("missing", 6, 1), ("missing", 7, 298), ("mistimed", 7, 299), ("stray", 7, 899),
    ]  # fmt: skip
    assert {(row["topic"], row["cursor"]) for row in rows} == {(REMINDERS, "me")}
    assert "3  missing: to come, and in no snapshot that can be read" in told
    assert f"`postdate pipeline rebuild {data.path}` makes the index anew" in told
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)


@pytest.mark.slow
def test_a_check_beside_a_service_looks_at_the_index_alone(data: Data) -> None:
    """The service has the files of its log to itself; this is said, and is no fault."""

    def checked(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "postdate", "check", "--data", str(data.path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    async def beside() -> "list[subprocess.CompletedProcess[str]]":
        store = await LedgerStore.open(data.path / "ledgers", ManagedLedgerConfig(), now_ms=lambda: START_MS)
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots"):
            results = [await asyncio.to_thread(checked, *words) for words in ((), ("--json",))]
        await store.close()
        return results

    told, for_programs = asyncio.run(beside())

    assert (told.returncode, for_programs.returncode) == (0, 0)
    assert told.stdout.startswith("Log: a service has it open, so its files were not read.")
    assert "compared with 1,800 delayed messages" in told.stdout
    found = json.loads(for_programs.stdout)
    assert (found["log"], found["index"]["is_whole"], found["is_whole"]) == (None, True, True)


def test_a_check_names_the_damage_of_the_log(data: Data) -> None:
    """And says what repairs it."""
    for file in (data.path / "ledgers").glob("*.sst"):
        content = bytearray(file.read_bytes())
        content[10] ^= 4
        file.write_bytes(content)

    result = data.run("check", "--second-look", "0")

    assert result.exit_code == 1
    assert result.stdout.startswith("Log:\n")
    assert ".sst: " in result.stdout
    assert f"`postdate ledger repair {data.path} --yes` keeps what is whole" in result.stdout


def test_what_a_service_deletes_meanwhile_ends_no_list(data: Data) -> None:
    """On S3 that is seen at once: a snapshot is listed, and gone when it is to be read."""

    async def scenario() -> list[int]:
        async with opened(load_config(None, environment={}, overrides=[f"dataDirectory={data.path}"])) as index:
            infos, _ = await index.readable_infos(Filter())
            gone = infos[1]._replace(bucket_id=5)
            return [one.info.bucket_id async for one in index.summaries([infos[0], gone, infos[2]])]

    assert asyncio.run(scenario()) == [data.ids[0], data.ids[2]]


def test_drop_deletes_what_no_cursor_names(data: Data) -> None:
    orphan = add_orphan(data)

    dry = data.run("drop", "--dry-run")
    still_there = data.listed()
    elsewhere = data.run("drop", "--yes", "--topic", "reminders")
    done = data.run("drop", "--yes")

    assert "Would delete 1 snapshot that no cursor names" in dry.stdout
    assert sorted(still_there) == [*data.ids, orphan]
    assert "Nothing to delete" in elsewhere.stdout
    assert "Deleted 1 snapshot that no cursor names" in done.stdout
    assert str(orphan) in done.stdout
    assert sorted(data.listed()) == data.ids


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "There are no snapshots.\nNothing to delete.\n"),
        (("--topic", "reminders"), f"There are no snapshots of topic {REMINDERS}.\nNothing to delete.\n"),
        (
            ("--topic", "orders", "--subscription", "billing"),
            f"There are no snapshots of cursor billing of topic {ORDERS}.\nNothing to delete.\n",
        ),
    ],
)
def test_drop_says_whether_there_are_snapshots(data: Data, words: tuple[str, ...], expected: str) -> None:
    lose(data, *data.ids)

    assert data.run("drop", "--yes", *words).stdout == expected


def test_drop_calls_no_lost_snapshot_one_that_is_named(data: Data) -> None:
    lose(data, *data.ids)

    assert data.run("drop", "--yes").stdout == "There are no snapshots.\nNothing to delete.\n"


def test_a_copy_has_every_row_and_a_second_one_copies_nothing(data: Data, tmp_path: Path) -> None:
    add_orphan(data)
    target = tmp_path / "new"

    first = data.run("copy", "--to", str(target))
    second = data.run("copy", "--to", str(target))

    assert first.exit_code == second.exit_code == 0
    assert "Copied 3 snapshots" in first.stdout
    assert "Left out 1 snapshot that no cursor names here." in first.stdout
    assert "Copied 0 snapshots" in second.stdout
    assert "3 had been there before." in second.stdout
    assert all(str(bucket_id) in first.stdout for bucket_id in data.ids)
    assert contents_of(target) == contents_of(data.path, only=data.ids)
    assert data.properties[CursorName(REMINDERS, "me")][_key(6)] == str(data.ids[2])


@pytest.mark.slow
@pytest.mark.parametrize("words", [("list",), ("check",), ("copy", "--to", "{new}"), ("export", "{new}.parquet")])
def test_a_storage_that_fails_now_and_then_is_asked_again(
    data: Data, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fourth call fails, before its effect or after."""

    def faulty(location: RocksDBLocation, **options: Any) -> FaultInjectingBucketSnapshotStorage:
        storage = FaultInjectingBucketSnapshotStorage(made(location, **options), plan)
        storages.append(storage)
        return storage

    made = RocksDBLocation.storage
    plan = FaultPlan(seed=5, rate=0.25, faults=(Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER))
    storages: list[FaultInjectingBucketSnapshotStorage] = []
    monkeypatch.setattr(RocksDBLocation, "storage", faulty)

    result = data.run(
        *(word.format(new=tmp_path / "new") for word in words), "--set", "delayedDeliveryRetryBackoffMaxMillis=1",
        "--set", "delayedDeliveryRetryBackoffMinMillis=1",
    )  # fmt: skip

    assert result.exit_code == 0
    assert "postdate:" not in result.stderr
    assert sum(storage.fault_counts.total() for storage in storages) > 0
    if words[0] == "copy":
        # A commit that failed after its effect left a second one there.
        assert set(contents_of(tmp_path / "new")) == set(contents_of(data.path))


def test_an_interrupted_copy_goes_on(data: Data, tmp_path: Path) -> None:
    """Snapshots that were copied already are recognised by their contents."""
    target = tmp_path / "new"
    data.run("copy", "--to", str(target), "--topic", "orders")

    assert "Copied 1 snapshot (" in data.run("copy", "--to", str(target)).stdout
    assert contents_of(target) == contents_of(data.path)


@pytest.mark.slow
def test_what_an_earlier_run_left_wrong_is_not_taken_for_a_copy(data: Data, tmp_path: Path) -> None:
    """Names, sizes and entry 0 are right, and a segment is another's: it is copied anew before its source goes."""
    target = tmp_path / "new"

    async def leave() -> int:
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots", is_read_only=True) as storage:
            metadata = await storage.get_bucket_snapshot_metadata(data.ids[0])
            segments = await storage.get_bucket_snapshot_segment(data.ids[0], 1, 10)
        last = bytes(byte ^ 1 for byte in segments[-1])
        async with RocksDBBucketSnapshotStorage(target / "snapshots") as storage:
            return await storage.create_bucket_snapshot(
                metadata, [*segments[:-1], last], bucket_key=_key(1), topic_name=ORDERS, cursor_name="billing"
            )

    wrong = asyncio.run(leave())
    before = contents_of(data.path)

    result = data.run("copy", "--to", str(target), "--update-cursors", "--delete-source")

    assert "Copied 3 snapshots" in result.stdout
    assert data.properties[CursorName(ORDERS, "billing")][_key(1)] != str(wrong)
    assert [one for one in contents_of(target) if one in before] == before


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 200])
def test_nothing_is_cut_off_on_a_narrow_screen(
    data: Data, tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every id, time and count is there whole; also ids of S3, which have 19 digits."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with_long_ids(data)
    ids = data.listed()
    orphan = add_orphan(data)

    said = {
        words[0]: data.run(*words).stdout
        for words in (
            ("list",), ("show", str(ids[0])), ("drop", "--dry-run"), ("copy", "--to", str(tmp_path / "new")),
            ("check", "--second-look", "0"),
        )
    }  # fmt: skip

    # A heading is a topic's name, however long it is; a sentence may be longer than the screen.
    tables = [line for text in said.values() for line in text.splitlines() if "…" in line or line.startswith("  ")]
    assert max(map(len, tables)) <= columns
    assert not [line for line in tables if "…" in line]
    for bucket_id in (*ids, orphan):
        assert str(bucket_id) in said["list"]
    for time in ("2027-01-15T08:00:00Z", "2027-01-15T08:09:59Z"):
        assert time in said["list"]
    assert "2027-01-15T08:09:00.000Z" in said["show"]
    assert str(orphan) in said["drop"]
    assert str(orphan) in said["check"]
    assert all(str(bucket_id) in said["copy"] for bucket_id in ids)


def with_long_ids(data: Data) -> None:
    """Let snapshots from now on, and one that is named, have ids as on S3."""
    database = Rdict(str(data.path / "snapshots"), Options(raw_mode=True))
    database[b"next"] = (2**63 - 10).to_bytes(8)
    database.close()

    async def add() -> int:
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots") as storage:
            return await _create(storage, REMINDERS, "me", 123_456)

    bucket_id = asyncio.run(add())
    data.put(REMINDERS, "me", {_key(6): str(data.ids[2]), _key(123_456): str(bucket_id)})


def test_drop_asks_before_it_gives_up_what_can_be_read(data: Data) -> None:
    """And gives up without a question what is damaged, as it always did."""
    healthy, damaged = data.ids[0], data.ids[1]
    before = data.properties
    data.damage(damaged, 3)

    refused = data.run("drop", str(healthy))
    unanswered = data.run("drop", str(healthy), typed="n\n")

    for result in (refused, unanswered):
        assert result.exit_code == 2
        assert f"All of the snapshot {healthy} can be read. Give it up?" in result.stderr
        assert "nothing was changed" in result.stderr
    assert data.properties == before
    assert healthy in data.listed()

    assert data.run("drop", str(damaged)).exit_code == 0
    assert data.run("drop", str(healthy), typed="y\n").exit_code == 0
    assert data.listed() == data.ids[2:]


@pytest.mark.parametrize("words", [("drop", "{bucket_id}"), ("check", "--second-look", "0"), ("list",)])
def test_an_outage_is_named_and_is_no_damage(
    data: Data, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """However long it lasts: a drop asks first, and a check says that the snapshot is unavailable."""
    bucket_id = data.ids[0]
    made = RocksDBLocation.storage

    def in_part_away(location: RocksDBLocation, **options: Any) -> FaultInjectingBucketSnapshotStorage:
        storage = FaultInjectingBucketSnapshotStorage(made(location, **options), dropped_after_failures=None)
        storage.unreadable_ids.add(bucket_id)
        return storage

    before = data.properties
    with monkeypatch.context() as patched:
        patched.setattr(RocksDBLocation, "storage", in_part_away)
        result = data.run(
            *(word.format(bucket_id=bucket_id) for word in words), "--set", "delayedDeliveryRetryBackoffMaxMillis=1",
            "--set", "delayedDeliveryRetryBackoffMinMillis=1",
        )  # fmt: skip

    assert (
        f"snapshot of bucket {bucket_id} cannot be read now: the snapshot of {bucket_id} can never be read"
        in " ".join(result.output.split())
    )
    assert "corrupt" not in result.output
    assert result.exit_code == (2 if words[0] == "drop" else 1)
    if words[0] == "drop":
        assert "It may only be an outage: " in result.stderr
        assert "Give it up?" in result.stderr
        assert "nothing was changed" in result.stderr
    if words[0] == "check":
        assert f"unavailable  {bucket_id}" in result.stdout
        assert "1 problem." in result.stdout
        assert "checked 3 snapshots, 20 segments" in result.stdout
    assert data.properties == before
    assert data.listed() == data.ids


def test_drop_gives_a_snapshot_up(data: Data) -> None:
    """The cursors forget it in one write, and then it goes; an id that nothing has is an error."""
    dropped = data.run("drop", str(data.ids[0]), "--yes", "--json")

    assert dropped.exit_code == 0, dropped.output
    given_up = {"bucket_id": data.ids[0], "cursors_updated": 1, "is_beside_service": False, "left": None}
    assert json.loads(dropped.stdout) == {"is_dry_run": False, "given_up": [given_up]}
    assert data.listed() == sorted(data.ids[1:])
    assert all(str(data.ids[0]) not in of_cursor.values() for of_cursor in data.properties.values())
    assert "no snapshot has the bucket id" in data.run("drop", str(data.ids[0])).stderr


def test_drop_shows_damaged_folders_and_removes_them_once_an_operator_says_so(data: Data) -> None:
    """Nothing else beside the data is touched."""
    aside = [data.path / f"snapshots-put-aside-2026112{day}T120000.000000Z" for day in (1, 2)]
    for folder in aside:
        (folder / "lost").mkdir(parents=True)
        (folder / "CURRENT").write_bytes(b"x" * 1_000)
        (folder / "lost" / "000001.sst").write_bytes(b"x" * 1_000_000)
    (data.path / "snapshots-of-others").mkdir()

    before = data.listed()
    shown = data.run("drop", "--dry-run", "--json")
    refused = data.run("drop")

    folders = [{"path": str(folder), "bytes": 1_001_000} for folder in aside]
    assert json.loads(shown.stdout)["put_aside"] == folders
    assert refused.exit_code == 2
    assert "2 folders that were put aside, 1.9 MiB: deleted for good. Go on?" in refused.stderr
    assert all((folder / "CURRENT").exists() for folder in aside)

    removed = data.run("drop", typed="y\n")

    assert removed.exit_code == 0
    assert "Deleted 2 folders that were put aside, 1.9 MiB." in removed.stdout
    assert not any(folder.exists() for folder in aside)
    assert (data.path / "snapshots-of-others").exists()
    assert data.listed() == before
    assert "Nothing to delete." in data.run("drop").stdout


def test_a_checkpoint_takes_the_place_of_the_folder(data: Data, tmp_path: Path) -> None:
    result = data.run("checkpoint", str(tmp_path / "backups" / "monday"))

    assert result.exit_code == 0
    assert f"{tmp_path / 'backups' / 'monday'} has 3 snapshots, " in result.stdout
    (data.path / "snapshots").rename(tmp_path / "lost")
    (tmp_path / "backups" / "monday").rename(data.path / "snapshots")
    assert data.run("check").exit_code == 0


def test_an_index_is_copied_out_of_a_checkpoint_and_into_a_storage_of_anothers(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is RocksDB's own folder; `python://` names what makes a storage."""

    def own(*, is_read_only: bool) -> RocksDBBucketSnapshotStorage:
        return RocksDBBucketSnapshotStorage(tmp_path / "own", is_read_only=is_read_only)

    monkeypatch.setattr(snapshots, "own_storage", own, raising=False)
    data.run("checkpoint", str(tmp_path / "monday"))
    before = contents_of(data.path)
    shutil.rmtree(data.path / "snapshots")

    own_place = f"python://{snapshots.__name__}:own_storage"
    out = data.run("copy", "--index", str(tmp_path / "monday"), "--to", own_place, "--update-cursors")
    into = data.run("copy", "--index", own_place, "--to", str(tmp_path / "new"))

    assert (out.exit_code, into.exit_code) == (0, 0), out.output + into.output
    assert contents_of(tmp_path / "new") == before


@pytest.mark.slow
def test_a_move_lets_the_cursors_name_the_copies_and_deletes_the_old(data: Data, tmp_path: Path) -> None:
    target = Data(tmp_path / "new", [])
    before = contents_of(data.path)

    result = data.run("copy", "--to", str(target.path), "--update-cursors", "--delete-source")

    assert result.exit_code == 0
    assert "2 cursors now name the new ids." in result.stdout
    assert "Deleted the 3 old snapshots." in result.stdout
    assert data.listed() == []
    assert contents_of(target.path) == before
    named = [
        int(properties[_key(first)])
        for topic, cursor, first in NAMES
        if (properties := data.properties[CursorName(topic, cursor)])
    ]
    assert data.properties[CursorName(REMINDERS, "me")]["owner"] == "me"
    # With the snapshots in their place, everything fits together.
    (data.path / "snapshots").rename(tmp_path / "old")
    (target.path / "snapshots").rename(data.path / "snapshots")
    assert sorted(data.listed()) == sorted(named)
    assert data.run("check").exit_code == 0


def test_a_move_that_is_begun_again_after_its_cursors_finds_nothing_lost(data: Data, tmp_path: Path) -> None:
    """Killed before it deleted the old ones, say: the cursors name what is in the target alone."""
    words = ("copy", "--to", str(tmp_path / "new"), "--update-cursors")
    data.run(*words)
    before = data.properties

    again = data.run(*words, "--delete-source")

    assert again.exit_code == 0
    assert "The cursors name 3 snapshots there already" in again.stdout
    assert data.properties == before
    assert "Deleted 3 snapshots that no cursor names" in data.run("drop", "--yes").stdout


def test_a_damaged_snapshot_is_not_copied_and_no_cursor_changes(data: Data, tmp_path: Path) -> None:
    data.damage(data.ids[1], 5)
    before = data.properties

    result = data.run("copy", "--to", str(tmp_path / "new"), "--update-cursors", "--delete-source")

    assert result.exit_code == 1
    assert "Copied 2 snapshots" in result.stdout
    assert f"Not copied: {data.ids[1]}: entry 5" in result.stdout
    assert data.properties == before
    assert sorted(data.listed()) == data.ids


def lose(data: Data, *bucket_ids: int) -> None:
    """Take snapshots away without a word to the cursors."""

    async def delete() -> None:
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots") as storage:
            for bucket_id in bucket_ids:
                await storage.delete_bucket_snapshot(bucket_id)

    asyncio.run(delete())


def test_a_damaged_snapshot_that_no_cursor_names_holds_up_no_move(data: Data, tmp_path: Path) -> None:
    """It is reported, and stays where it is: no cursor names it."""
    orphan = add_orphan(data)
    damage_header(data, orphan)

    result = data.run("copy", "--to", str(tmp_path / "new"), "--update-cursors", "--delete-source")

    assert result.exit_code == 0
    assert f"Left out, named by no cursor: {orphan}: snapshot of bucket {orphan} is corrupt" in result.stdout
    assert "2 cursors now name the new ids." in result.stdout
    assert "Deleted the 3 old snapshots." in result.stdout
    assert len(contents_of(tmp_path / "new")) == 3


def damage_header(data: Data, bucket_id: int) -> None:
    """Flip bits of a header in the database itself, without the storage."""
    key = b"h" + bucket_id.to_bytes(8)
    database = Rdict(str(data.path / "snapshots"), Options(raw_mode=True))
    database[key] = b"\x02" + database[key][1:]
    database.close()


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("words", [(), ("--update-cursors",), ("--update-cursors", "--delete-source")])
def test_a_copy_names_what_the_storage_has_lost_and_moves_nothing(
    data: Data, tmp_path: Path, words: tuple[str, ...], lost: int
) -> None:
    """One of three, or all of them."""
    lose(data, *data.ids[:lost])
    before = data.properties

    result = data.run("copy", "--to", str(tmp_path / "new"), *words)

    assert result.exit_code == 1
    assert f"Copied {3 - lost} snapshots" in result.stdout
    for bucket_id, (topic, cursor, first) in list(zip(data.ids, NAMES, strict=True))[:lost]:
        assert f"Not copied: {bucket_id}: {_key(first)} of {cursor}, {topic} names it: it is missing" in result.stdout
    assert ("The cursors were left alone" in result.stdout) == bool(words)
    assert data.properties == before
    assert sorted(data.listed()) == data.ids[lost:]


@pytest.mark.parametrize(
    "words",
    [
        ("drop", "--yes"),
        ("drop", "--dry-run"),
        ("copy", "--to", "{new}", "--update-cursors", "--delete-source"),
        ("copy", "--to", "{new}"),
        ("checkpoint", "{new}"),
        ("list",),
        ("export", "{new}"),
    ],
)
def test_a_folder_that_is_missing_is_no_empty_one_and_is_not_made(
    data: Data, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Else the next command would find nothing wrong with an empty folder."""
    (data.path / "snapshots").rename(tmp_path / "moved away")
    before = data.properties

    result = data.run(*(word.format(new=tmp_path / "new") for word in words))

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"there are no snapshots in {data.path / 'snapshots'}" in result.stderr
    assert not (data.path / "snapshots").exists()
    assert not (tmp_path / "new").exists()
    assert data.properties == before


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--set", "bucketSnapshotS3Endpoint=https://user:hush@host"),
        ("list", "--set", "bucketSnapshotS3Endpoint=https://user:h/hush@host"),
        ("list", "--set", "bucketSnapshotS3Endpoint=user:hush@host"),
        ("list", "--set", "bucketSnapshotS3Bucket=s3://user:hush@bucket"),
        ("list", "--set", "bucketSnapshotS3EndPoint=https://user:hush@host"),
        ("list", "--set", "bucketSnapshotS3SecretAccesKey=hush"),
        ("copy", "--to", "s3://user:hush@bucket/prefix"),
        ("copy", "--to", "https://user:hush@bucket/prefix"),
        ("copy", "--to", "s3://bucket/prefix?secret=hush"),
        ("copy", "--to", "s3://bucket/prefix#hush"),
        ("copy", "--to", "s3://bucket/prefix?endpoint=https://user:hush@host"),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(data: Data, words: tuple[str, ...]) -> None:
    result = data.run(*words)

    assert result.exit_code == 2
    assert "hush" not in result.output
    assert len(result.stderr.splitlines()) == 1
    assert "without" in result.stderr or "did you mean" in result.stderr


def test_export_has_every_row_in_columns(data: Data, tmp_path: Path) -> None:
    path = tmp_path / "index.parquet"

    result = data.run("export", str(path))
    again = data.run("export", str(path))

    assert (result.exit_code, again.exit_code) == (0, 2)
    assert "Wrote 1,800 rows of 3 snapshots" in result.stdout
    assert "is there already" in again.stderr
    table = parquet.read_table(path)
    assert table.column_names == [
        "topic", "cursor", "bucket_id", "segment", "ledger_id", "entry_id", "deliver_at_ms",
    ]  # fmt: skip
    assert table["topic"].to_pylist() == [topic for topic, _, _ in NAMES for _ in range(ROWS)]
    assert table["bucket_id"].to_pylist() == [bucket_id for bucket_id in data.ids for _ in range(ROWS)]
    assert table["segment"].to_pylist() == [1 + row // 60 for row in range(ROWS)] * 3
    for column, name in (("ledger_id", "ledger_ids"), ("entry_id", "entry_ids"), ("deliver_at_ms", "deliver_at_ms")):
        expected = np.concatenate([getattr(rows_of(first), name) for _, _, first in NAMES])
        assert table[column].to_numpy().tolist() == expected.tolist()
    assert list(tmp_path.glob("*.part")) == []


def test_export_leaves_out_the_damaged_segments_alone_and_names_them(data: Data, tmp_path: Path) -> None:
    data.damage(data.ids[0], 3)
    data.damage(data.ids[0], 10)

    result = data.run("export", str(tmp_path / "index.parquet"))

    assert result.exit_code == 1
    assert "Wrote 1,680 rows of 2 snapshots and what is readable of 1 more to " in result.stdout
    for entry in (3, 10):
        assert f"Not whole: {data.ids[0]}: entry {entry} of snapshot" in result.stdout
    table = parquet.read_table(tmp_path / "index.parquet").to_pandas()
    assert sorted(table[table.bucket_id == data.ids[0]].segment.unique()) == [1, 2, 4, 5, 6, 7, 8, 9]
    times = table[table.bucket_id == data.ids[0]].deliver_at_ms.tolist()
    assert times == [START_MS + row * 1_000 for row in range(ROWS) if row // 60 not in (2, 9)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x[bold]y", "[/red]", ":smile:", "back\\"])
def test_a_name_is_printed_as_it_is(data: Data, tmp_path: Path, name: str) -> None:
    """Brackets in paths, topics, cursors and keys are no markup."""
    path, target = tmp_path / name / "x.parquet", tmp_path / name / "new"
    path.parent.mkdir(parents=True)
    topic, cursor, key = f"{ORDERS}{name}", f"sub{name}", f"{BUCKET_KEY_PREFIX}{name}"

    async def add() -> int:
        snapshot = build_snapshot(rows_of(1), step_ms=60_000, rows_max=-1)
        async with RocksDBBucketSnapshotStorage(data.path / "snapshots") as storage:
            return await storage.create_bucket_snapshot(
                snapshot.metadata, snapshot.segments, bucket_key=key, topic_name=topic, cursor_name=cursor
            )

    bucket_id = str(asyncio.run(add()))
    data.put(REMINDERS, "me", {_key(6): str(data.ids[2]), key: bucket_id})

    exported, copied = data.run("export", str(path)), data.run("copy", "--to", str(target))
    listed, shown = data.run("list"), data.run("show", bucket_id)
    verified, saved = data.run("check", "--second-look", "0"), data.run("checkpoint", str(path.parent / "saved"))
    data.put(REMINDERS, "me", {_key(6): str(data.ids[2])})
    collected = data.run("drop", "--yes")

    results = [exported, copied, listed, shown, saved, verified, collected]
    assert [result.exit_code for result in results] == [0] * 5 + [1, 0]
    assert f"to {path}\n" in exported.stdout
    assert f"to {target}, each" in copied.stdout
    assert f"{path.parent / 'saved'} has 4 snapshots" in saved.stdout
    for result in (copied, listed, collected):
        assert f"{topic}  cursor {cursor}\n" in result.stdout
        assert key in result.stdout
    assert f"  property   {key}\n" in shown.stdout
    assert key in "".join(verified.stdout.split())


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_list_tells_why_entry_0_cannot_be_read(data: Data, words: tuple[str, ...]) -> None:
    data.damage(data.ids[1], 0)

    result = data.run("list", *words)

    assert result.exit_code == 1
    reason = f"entry 0 of snapshot of bucket {data.ids[1]} is corrupt: its checksum is wrong"
    assert result.stderr == f"postdate: {reason}\n"
    if words:
        assert [one["problem"] for one in json.loads(result.stdout)] == [None, reason, None]
    else:
        assert [line.split()[5] for line in result.stdout.splitlines() if str(data.ids[1]) in line] == ["unreadable"]


def test_export_without_pyarrow_is_one_line(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    result = data.run("export", str(tmp_path / "index.parquet"))

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"postdate: pyarrow is not installed: {install('export')}\n"
