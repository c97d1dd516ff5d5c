"""`postdate check` and `ledger repair` on a log, as an operator types them: what they say and change, how they end."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from postdate.command_line.program import postdate
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from tests.helpers.damaged_logs import ENTRIES_OF_A_RECORD, content_of, fill, fill_in_a_burst, flip_type, harm_an_entry

_NOTHING: Final = "Log:\nnothing is damaged\nIndex: not checked: it is in the service's memory alone\n"

_HOLD = """
import sys
from pathlib import Path
from managed_ledger.disk.database import RocksDatabase
database = RocksDatabase.open(Path(sys.argv[1]), write_buffer_bytes=2**20)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory."""
    folder = tmp_path_factory.mktemp("data") / "ledgers"
    asyncio.run(fill(folder))
    shutil.rmtree(folder)
    folder.with_name("ledgers-killed").rename(folder)
    return folder.parent


@pytest.fixture
def damaged(tmp_path: Path, data: Path) -> Path:
    """A data directory with a table that has lost an entry."""
    copy = shutil.copytree(data, tmp_path / "damaged")
    harm_an_entry(copy / "ledgers")
    return copy


_CHECK = ("check", "--set", "bucketSnapshotStorage=memory", "--data")
"""The words of a check of the log alone."""


def _checked(data: Path, *words: str) -> Result:
    return CliRunner().invoke(postdate, [*_CHECK, str(data), *words])


def _lost(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_checked(data, "--json").stdout)["log"]
    return found


def _run(*words: str) -> Result:
    return CliRunner().invoke(postdate, ["ledger", *words])


@contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    words = [sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        yield
        holder.kill()


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_whole_log_is_verified_and_not_repaired(tmp_path: Path, data: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "data")
    before = _files(copy)

    verified = _checked(copy)
    as_json = _checked(copy, "--json")
    repaired = _run("repair", str(copy), "--yes")

    assert (verified.exit_code, verified.stdout) == (0, _NOTHING)
    assert json.loads(as_json.stdout)["is_whole"]
    assert json.loads(as_json.stdout)["log"]["is_whole"]
    assert as_json.exit_code == 0
    assert (repaired.exit_code, repaired.stdout) == (0, "nothing is damaged\n")
    assert _files(copy) == before


def test_damage_is_named_and_what_is_whole_kept(damaged: Path) -> None:
    before = _files(damaged / "ledgers")

    verified = _checked(damaged)
    named = _lost(damaged)
    assert _files(damaged / "ledgers") == before
    repaired = _run("repair", str(damaged), "--yes", "--json")
    again = _checked(damaged)

    (lost, *_) = named["lost"]
    first, last = lost["entries"][0]
    assert verified.exit_code == 1
    assert f"{lost['topic']}: ledger {lost['ledger']}: entries {first}" in verified.stdout
    assert ".sst: the block of" in verified.stdout
    assert 1 <= lost["count"] < lost["of"]
    assert last >= first
    assert repaired.exit_code == 0
    told = json.loads(repaired.stdout)
    assert told["lost"] == named["lost"]
    assert _files(Path(told["kept_folder"])) == before
    report = json.loads(Path(told["report"]).read_text())
    assert report["lost"] == named["lost"]
    assert again.exit_code == 0
    content, _ = asyncio.run(content_of(damaged / "ledgers"))
    assert sum(map(len, content.values())) == told["kept_entries"]
    assert len(list(damaged.iterdir())) == 3, "the log, the damaged one, and the report"


def test_a_log_without_its_only_write_ahead_file_is_named_and_repaired(tmp_path: Path) -> None:
    """Killed before a table was written: the files name no entry, and yet the service has to start again."""
    log = tmp_path / "data" / "ledgers"
    fill_in_a_burst(log, entries=100, idle_s=2.0)
    (write_ahead_log,) = log.glob("*.log")
    write_ahead_log.unlink()
    before = _files(log)

    verified = _checked(log.parent)
    assert _files(log) == before
    repaired = _run("repair", str(log.parent), "--yes")
    again = _checked(log.parent)

    assert verified.exit_code == 1
    assert "the write-ahead log: it is missing, with the newest changes" in verified.stdout
    assert repaired.exit_code == 0, repaired.output
    assert "0 entries are kept, 0 lost\nbeside those, the newest changes are lost" in repaired.stdout
    (report,) = log.parent.glob("ledgers.damaged-*.json")
    assert json.loads(report.read_text())["newest_changes_missing"] > 100
    assert (again.exit_code, again.stdout) == (0, _NOTHING)
    assert asyncio.run(content_of(log)) == ({}, {})


_START = """
import asyncio, sys
from pathlib import Path
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.errors import StoreCorruptedError
from managed_ledger.ledger_store import LedgerStore

folder = Path(sys.argv[1])
for open_it in (
    lambda: asyncio.run(LedgerStore.open(folder, ManagedLedgerConfig(), now_ms=lambda: 0)),
    lambda: RocksDatabase.open_read_only(folder, pause=lambda _: None),
):
    try:
        open_it()
    except StoreCorruptedError as error:
        print(error)
"""


@pytest.mark.parametrize(("pattern", "record"), [("*.log", 0), ("*.log", -1), ("MANIFEST-*", 1)])
def test_a_flipped_type_of_a_record_refuses_and_is_repaired(
    tmp_path: Path, data: Path, pattern: str, record: int
) -> None:
    """RocksDB itself would read it for ever, with the interpreter's lock, so other processes look."""
    copy = shutil.copytree(data, tmp_path / "data")
    file = max((copy / "ledgers").glob(pattern), key=lambda file: file.stat().st_size)
    expected = asyncio.run(content_of(shutil.copytree(data / "ledgers", tmp_path / "reference")))
    flip_type(file, record)
    before = _files(copy)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60)

    refused = run("-c", _START, str(copy / "ledgers"))
    verified = run("-m", "postdate", *_CHECK, str(copy))
    assert _files(copy) == before
    repaired = run("-m", "postdate", "ledger", "repair", str(copy), "--yes")

    assert refused.returncode == 0, refused.stderr
    lines = refused.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert f"is damaged: {file.name} has at byte" in line
        assert "`postdate ledger repair --yes` does it" in line
    assert (verified.returncode, f"{file.name}: it has at byte" in verified.stdout) == (1, True), verified.stdout
    assert repaired.returncode == 0, repaired.stderr
    assert _checked(copy).exit_code == 0
    found, backlogs = asyncio.run(content_of(copy / "ledgers"))
    if pattern == "MANIFEST-*":
        assert (found, backlogs) == expected
        return
    assert found.keys() == expected[0].keys()
    lost = 0
    for topic, entries in expected[0].items():
        assert found[topic].items() <= entries.items()
        lost += len(entries) - len(found[topic])
    assert lost <= ENTRIES_OF_A_RECORD


@pytest.mark.parametrize("left", ["POSTDATE-LOG", "MANIFEST-*", "OPTIONS-*"])
def test_a_log_is_known_by_any_file_that_says_so(tmp_path: Path, data: Path, left: str) -> None:
    for file in sorted((data / "ledgers").glob(left)):
        (tmp_path / "ledgers").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / "ledgers")
    before = _files(tmp_path)

    assert _checked(tmp_path).exit_code == 1
    assert _files(tmp_path) == before
    assert _run("repair", str(tmp_path), "--yes").exit_code == 0
    assert _checked(tmp_path).exit_code == 0


def _photos(folder: Path, _: Path) -> None:
    for name in ("000012.log", "app.log", "photo.jpg"):
        (folder / name).write_bytes(b"not of a log")


def _a_numbered_file(folder: Path, _: Path) -> None:
    (folder / "000012.log").write_bytes(b"2026-11-23 begins\n" * 1_000)


def _one_file_that_says_nothing(folder: Path, log: Path) -> None:
    shutil.copy(log / "CURRENT", folder)


def _a_log_among_photos(folder: Path, log: Path) -> None:
    shutil.copytree(log, folder, dirs_exist_ok=True)
    (folder / "POSTDATE-LOG").unlink()
    _photos(folder, log)


def _snapshots(folder: Path, _: Path) -> None:
    async def fill_it() -> None:
        async with RocksDBBucketSnapshotStorage(folder) as storage:
            await storage.create_bucket_snapshot(b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c")

    asyncio.run(fill_it())


@pytest.mark.parametrize("words", [_CHECK, ("ledger", "repair", "--yes")], ids=["check", "repair"])
@pytest.mark.parametrize(
    "fill_with", [_photos, _a_numbered_file, _one_file_that_says_nothing, _a_log_among_photos, _snapshots]
)
def test_a_folder_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, data: Path, fill_with: Callable[[Path, Path], None], words: tuple[str, ...]
) -> None:
    """A repair renames what it takes for a log, and puts an empty one in its place."""
    folder = tmp_path / "foo" / "ledgers"
    folder.mkdir(parents=True)
    fill_with(folder, data / "ledgers")
    before = _files(tmp_path)

    refused = CliRunner().invoke(postdate, [*words, str(folder.parent)])

    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"postdate: There is no log in {folder}: its file POSTDATE-LOG is missing, and ")
    assert refused.stderr.count("\n") == 1
    assert _files(tmp_path) == before


def test_nothing_is_repaired_without_being_told_to(damaged: Path) -> None:
    before = _files(damaged)

    refused = _run("repair", str(damaged))

    assert refused.exit_code == 2
    assert "say --yes" in refused.stderr
    assert _files(damaged) == before


def test_a_log_in_use_is_not_repaired(damaged: Path) -> None:
    with _in_use(damaged / "ledgers"):
        refused = _run("repair", "--yes", str(damaged))
        checked = _checked(damaged)

    assert checked.stdout.startswith("Log: a service has it open, so its files were not read.")

    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "is in use by another process: stop that one" in refused.stderr
    assert [path.name for path in damaged.iterdir()] == ["ledgers"]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts disks")
def test_a_log_that_cannot_be_written_is_verified(damaged: Path, data: Path, tmp_path: Path) -> None:
    """As in a snapshot of a file system. A service that writes to it by another way is noticed all the same."""
    whole = Path(shutil.copytree(data, tmp_path / "whole"))
    read_only = tmp_path / "read-only"
    read_only.mkdir()
    for folder, exit_code in ((whole, 0), (damaged, 1)):
        if subprocess.run(["mount", "--bind", str(folder), str(read_only)], check=False).returncode:
            pytest.skip("mounting is not allowed here")
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(read_only)], check=True)
            verified = _checked(read_only)
            assert verified.exit_code == exit_code, verified.stderr
            refused = _run("repair", "--yes", str(read_only))
            assert "Read-only file system" in refused.stderr
            with _in_use(folder / "ledgers"):
                beside = _checked(read_only)
            assert "a service has it open" in beside.stdout
        finally:
            subprocess.run(["umount", str(read_only)], check=True)


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        refused = _run("repair", "--yes", str(folder))

        assert refused.exit_code == 2
        assert refused.stderr == f"postdate: There is no log in {folder}: name the data directory of a service\n"


def test_a_repair_that_was_interrupted_leaves_the_log_and_begins_again(damaged: Path) -> None:
    before = _files(damaged / "ledgers")
    left_over = damaged / "ledgers.repairing"
    left_over.mkdir()
    (left_over / "000001.sst").write_bytes(b"half")

    assert _run("repair", str(damaged), "--yes").exit_code == 0

    assert not left_over.exists()
    (kept,) = damaged.glob("ledgers.damaged-*/")
    assert _files(kept) == before
