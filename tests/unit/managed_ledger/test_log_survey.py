"""A verdict about the end of a log: compactions are no loss, and a cut write-ahead log is one also behind them."""

import os
import shutil
from pathlib import Path

import pytest

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family, record_key
from managed_ledger.repair.repairing import LogVerdict, verify

CHANGES = 5


@pytest.fixture
def compacted(tmp_path: Path) -> RocksDatabase:
    """A log whose newest changes a compaction into the last level has dropped; its write-ahead log is empty."""
    database = RocksDatabase.open(tmp_path / "ledgers", write_buffer_bytes=2**20)
    _change(database)
    batch = database.new_batch()
    batch.delete(Family.META, record_key("0"))
    database.write(batch, sync=True)
    # Two tables become one: a single table would only be moved.
    database.flush()
    _change(database)
    database.flush()
    database.compact(Family.META, b"", b"\xff")
    database.mark_synced()
    return database


def _change(database: RocksDatabase) -> None:
    for number in range(CHANGES):
        batch = database.new_batch()
        batch.put(Family.META, record_key(f"{number}"), b"{}")
        database.write(batch, sync=True)


def _verified(folder: Path) -> LogVerdict:
    return verify(folder, entry_format=None, on_stage=lambda *_: None, on_step=lambda _: None)


def test_a_log_is_whole_whose_newest_changes_were_compacted(tmp_path: Path, compacted: RocksDatabase) -> None:
    """RocksDB gives rows of the last level the sequence number 0."""
    compacted.close()

    assert _verified(tmp_path / "ledgers").problems == []


def test_a_compacted_log_is_whole_after_the_next_start(tmp_path: Path, compacted: RocksDatabase) -> None:
    """A start writes the list of files anew, without the tables that are gone."""
    compacted.close()
    RocksDatabase.open(tmp_path / "ledgers", write_buffer_bytes=2**20).close()

    assert _verified(tmp_path / "ledgers").problems == []


def test_changes_that_a_cut_log_lost_after_a_compaction_are_missed(tmp_path: Path, compacted: RocksDatabase) -> None:
    _change(compacted)
    # Tables come as far as this change, by the list of files: the changes after it are in the write-ahead log alone.
    batch = compacted.new_batch()
    batch.put(Family.CURSORS, b"cursor", b"")
    compacted.write(batch, sync=True)
    compacted.flush()
    _change(compacted)
    compacted.mark_synced()
    killed = shutil.copytree(tmp_path / "ledgers", tmp_path / "killed")
    compacted.close()
    os.truncate(max(killed.glob("*.log")), 0)

    verdict = _verified(killed)

    assert verdict.survey.missing_writes == CHANGES
    assert verdict.survey.is_end_missing
