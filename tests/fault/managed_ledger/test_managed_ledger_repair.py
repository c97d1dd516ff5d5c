"""Damage to any file of a log: it is named, whole entries are kept, and the service goes on with them.

Each file kind is hit in many places. The checks are the promises to a user. No message comes back changed or in
another place. The missing entries are those that the verdict names, and no more than the damage can explain. The
entries behind the damage can be read.
"""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family, block_key
from managed_ledger.entries.blocks import encode_payloads
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.repair.repairing import LogVerdict, Repaired, repair, verify
from managed_ledger.repair.survey import survey
from postdate.index.entry_format import PulsarEntries
from tests.helpers.damaged_logs import (
    ACKNOWLEDGED,
    CONFIG,
    ENTRIES,
    ENTRIES_OF_A_RECORD,
    NOW_MS,
    content_of,
    fill,
    fill_in_a_burst,
    flip,
    harm_an_entry,
)
from tests.helpers.log_reading import read_entries


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that nothing is wrong with."""
    folder = tmp_path_factory.mktemp("whole") / "ledgers"
    asyncio.run(fill(folder))
    return folder.with_name("ledgers-killed")


def _repaired(folder: Path) -> Repaired | LogVerdict:
    return repair(
        folder,
        entry_format=PulsarEntries(),
        name_of_time="20261122T120000Z",
        on_stage=lambda *_: None,
        on_step=lambda _: None,
    )


def _verified(folder: Path) -> LogVerdict:
    return verify(folder, entry_format=PulsarEntries(), on_stage=lambda *_: None, on_step=lambda _: None)


def _cut(file: Path, source: random.Random) -> None:
    content = file.read_bytes()
    if content:
        file.write_bytes(content[: source.randrange(len(content))])


def _remove(file: Path, _: random.Random) -> None:
    file.unlink()


KINDS = {
    "table": "*.sst",
    "write-ahead log": "0*.log",
    "list of files": "MANIFEST-*",
    "current": "CURRENT",
    "options": "OPTIONS-*",
    "identity": "IDENTITY",
    "lock": "LOCK",
    "diary": "LOG",
    "config": "rocksdict-config.json",
    "marker": "POSTDATE-LOG",
    "spare list of files": "POSTDATE-MANIFEST",
}
TRIES = 24
"""Places of a table or a write-ahead log."""
ENTRIES_OF_A_BLOCK = 40
"""More than one block of a table has, of 4 KiB and the rest of a payload block of 16."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", [flip, _cut, _remove], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_costs_what_is_damaged(
    tmp_path: Path, whole: Path, kind: str, damage: Callable[[Path, random.Random], None]
) -> None:
    """In any file of RocksDB; and the damaged folder stays as it was."""
    source = random.Random(f"{kind} {damage.__name__}")
    expected, backlogs = asyncio.run(content_of(shutil.copytree(whole, tmp_path / "reference")))
    files = sorted(path.name for path in whole.glob(KINDS[kind]))
    tries = TRIES if kind in ("table", "write-ahead log") and damage is not _remove else len(files)
    for attempt in range(tries):
        folder = shutil.copytree(whole, tmp_path / f"{attempt}" / "ledgers")
        name = files[attempt % len(files)]
        damage(folder / name, source)
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}

        verdict = _verified(folder)
        outcome = _repaired(folder)

        if isinstance(outcome, Repaired):
            kept = {path.name: path.read_bytes() for path in outcome.kept_folder.iterdir() if path.name != "LOCK"}
            assert kept == before
            report = json.loads(outcome.report.read_text())
            assert report["lost_entries"] == verdict.findings.lost_entries
        else:
            assert verdict.is_whole
        # A damaged end of a write-ahead log looks like a crash.
        is_end_gone = kind == "write-ahead log"
        found, now = asyncio.run(content_of(folder))
        assert found.keys() == expected.keys()
        lost = 0
        for topic, entries in expected.items():
            missing = entries.keys() - found[topic].keys()
            assert found[topic].items() <= entries.items()
            named = {
                (one.ledger.ledger_id, entry_id)
                for one in verdict.findings.ledgers
                if one.topic == topic
                for entry_id in one.lost
            }
            if is_end_gone:
                # Entries at the end of a ledger left no trace, if its last record is lost: no verdict names them.
                assert missing >= named
                for ledger_id, entry_id in missing - named:
                    assert entry_id > max((there for its, there in found[topic] if its == ledger_id), default=-1)
            else:
                assert missing == named, (name, verdict.problems)
            lost += len(missing)
            # An acknowledgement may be lost, never a message: missing entries are not in the backlog either.
            assert now[topic] <= len(found[topic])
            assert now[topic] >= len(found[topic]) - len(ACKNOWLEDGED)
        if damage is flip:
            bound = {"table": ENTRIES_OF_A_BLOCK, "write-ahead log": ENTRIES_OF_A_RECORD}.get(kind, 0)
            assert lost <= bound, (name, verdict.problems)
            if not bound:
                assert now == backlogs, (name, verdict.problems)
        elif kind not in ("table", "write-ahead log"):
            assert (lost, now) == (0, backlogs)
        shutil.rmtree(folder.parent)


def test_a_damaged_block_of_a_table_costs_no_row_of_the_next_one(tmp_path: Path) -> None:
    """An iterator that has met a damaged block returns the same error for the block behind it as well."""
    folder, blocks = tmp_path / "ledgers", 60
    database = RocksDatabase.open(folder, write_buffer_bytes=2**20)
    source = random.Random(3)
    for number in range(blocks):
        # A row is larger than RocksDB's block of 4 KiB, so each has a block of its own.
        batch = database.new_batch()
        row = encode_payloads([source.randbytes(100) for _ in range(100)])
        batch.put(Family.PAYLOADS, block_key(1, 100 * number), row)
        database.write(batch, sync=False)
    database.flush()
    database.close()
    table = max(folder.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = table.read_bytes()

    for _ in range(10):
        harmed = bytearray(content)
        harmed[source.randrange(len(content) * 9 // 10)] ^= 1
        table.write_bytes(harmed)
        with survey(folder) as found:
            assert len(found.payloads[1]) == blocks - 1
            assert len(found.problems) == 1


def _rewrite_without_end(manifest: Path) -> None:
    manifest.write_bytes(manifest.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, _rewrite_without_end], ids=["missing", "cut"])
def test_a_damaged_list_of_files_and_a_damaged_block_cost_that_block_alone(
    tmp_path: Path, whole: Path, damage: Callable[[Path], None]
) -> None:
    """The spare list names the tables. RocksDB's own repair would set aside the whole table."""
    folder = shutil.copytree(whole, tmp_path / "ledgers")
    harm_an_entry(folder)
    (manifest,) = folder.glob("MANIFEST-*")
    damage(manifest)

    verdict = _verified(folder)

    assert verdict.findings.lost_entries == 1
    assert any(one.file.startswith(("CURRENT", "MANIFEST")) and one.is_harmless for one in verdict.problems)


@pytest.mark.parametrize("lost", [["MANIFEST-*"], ["MANIFEST-*", "POSTDATE-MANIFEST"]], ids=len)
def test_a_young_log_without_its_list_of_files_loses_nothing(tmp_path: Path, lost: list[str]) -> None:
    """All its entries are in the write-ahead log. A row of each family is in a table from the start."""
    folder = tmp_path / "ledgers"
    fill_in_a_burst(folder, entries=100, idle_s=0.5)
    expected = asyncio.run(content_of(shutil.copytree(folder, tmp_path / "reference")))
    for pattern in lost:
        for file in folder.glob(pattern):
            file.unlink()

    assert isinstance(_repaired(folder), Repaired)

    assert asyncio.run(content_of(folder)) == expected
    assert sum(map(len, expected[0].values())) == 100


def test_who_reads_goes_on_behind_what_is_lost(tmp_path: Path, whole: Path) -> None:
    """Cursors pass it, also those that begin or go back before it; counts leave it out; it stays so after a restart."""
    folder = shutil.copytree(whole, tmp_path / "ledgers")
    harm_an_entry(folder)
    lost = {one.topic: one.lost for one in _verified(folder).findings.ledgers if one.lost}
    (topic, entry_ids), *_ = lost.items()
    assert isinstance(_repaired(folder), Repaired)

    async def scenario() -> None:
        # The second time after a restart that knows of it only from the disk.
        for _ in range(2):
            store = await LedgerStore.open(folder, CONFIG, now_ms=lambda: NOW_MS)
            ledger = await store.open_managed_ledger(topic)
            first_ledger_id = ledger.first_position.ledger_id
            for name in ("sub", "new"):
                cursor = await ledger.open_cursor(name)
                await cursor.seek(ledger.first_position)
                assert cursor.backlog == ledger.entries_total - len(entry_ids)
                seen = 0
                position = cursor.next_unacknowledged_position
                while True:
                    read = await read_entries(ledger, position, entries_max=7, skip=cursor.acknowledged_in)
                    if not read.payloads:
                        break
                    seen += cursor.acknowledge(read.headers.ledger_ids, read.headers.entry_ids)
                    position = read.next_position
                assert seen == ENTRIES - len(entry_ids)
                assert cursor.backlog == 0
                assert cursor.mark_delete_position == ledger.last_confirmed_position
            assert await ledger.read_payloads([first_ledger_id] * len(entry_ids), list(entry_ids)) == [None] * len(
                entry_ids
            )
            headers = await ledger.read_headers_at([first_ledger_id] * len(entry_ids), list(entry_ids))
            assert len(headers) == 0
            await store.close()

    asyncio.run(scenario())
