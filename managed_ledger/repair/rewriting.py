"""The log that is left, written to a new folder, which then takes the place of the damaged one.

The damaged folder is moved aside and kept. A folder that is open is left alone: nothing is done while a service runs.
"""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from managed_ledger.cursors.cursor_records import encode_base
from managed_ledger.disk import keys, meta_copies
from managed_ledger.disk.bulk_writing import BulkWriting
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.entries.blocks import HEADER_BLOCK_ROWS, encode_payloads, payload_at
from managed_ledger.entries.headers import LOST, NOT_DELAYED, PACK_ROW, ROW, ROW_BYTES
from managed_ledger.errors import StoreCorruptedError, StoreLockedError, StoreUnavailableError
from managed_ledger.repair.findings import Findings, LedgerFinding, covered
from managed_ledger.repair.log_check import check_is_log
from managed_ledger.repair.survey import EntryFormat, Survey, value_of
from managed_ledger.rocksdb_store.files import sync_folder

_WRITE_BUFFER_BYTES = 32 * 2**20
LOST_ROW = PACK_ROW(NOT_DELAYED, 0, 0, 0, 0, LOST)
"""The header of an entry that is lost, so that a bulk read of headers finds one for each entry."""


@contextmanager
def locked(folder: Path, *, creates: bool) -> Iterator[None]:
    """Keep other processes from opening a log meanwhile, by RocksDB's own lock.

    Args:
        folder: The log.
        creates: Whether a lock file that is missing is made; without one no process has the log open. If not, the right
            to read the folder is enough, as of a snapshot of a file system.

    Raises:
        StoreLockedError: A service has it open.
        StoreUnavailableError: There is no log, or the lock cannot be taken.
        OSError: The folder cannot be read.
    """
    check_is_log(folder)
    # RocksDB takes the whole lock, so a part of it keeps writers out as well.
    flags, kind = (os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) if creates else (os.O_RDONLY | os.O_NONBLOCK, fcntl.LOCK_SH)
    try:
        descriptor = os.open(folder / "LOCK", flags | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        descriptor = None
    except OSError as error:
        raise StoreUnavailableError(f"Cannot lock the log in {folder}: {error}") from error
    try:
        if descriptor is not None:
            _lock(folder, descriptor, kind)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(folder: Path, descriptor: int, kind: int) -> None:
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreLockedError(f"The log in {folder} is in use by another process: stop that one") from error


def rewrite(
    survey: Survey,
    findings: Findings,
    target: Path,
    *,
    entry_format: EntryFormat | None,
    on_ledger: Callable[[], None] = lambda: None,
) -> None:
    """Write the remaining log to a new folder.

    Args:
        survey: The contents of the folder.
        findings: The log in it; entries whose header cannot be made are added to the lost ones.
        target: A folder that does not exist.
        entry_format: Makes headers from entries.
        on_ledger: Called after each ledger.

    Raises:
        LedgerError: It cannot be written.
        OSError: The same.
    """
    database = RocksDatabase.open(target, write_buffer_bytes=_WRITE_BUFFER_BYTES)
    try:
        writing = BulkWriting(database)
        for one in findings.ledgers:
            _write_ledger(writing, survey, one, entry_format)
            on_ledger()
        _write_rows(writing, findings)
        writing.flush()
    except BaseException:
        database.release()
        raise
    database.close()


def exchange(folder: Path, repaired: Path, kept: Path) -> None:
    """Put the repaired folder in the place of the damaged one, which is kept under another name.

    Raises:
        OSError: The system refuses.
    """
    # A crash between the two renames leaves both logs beside the place, and none in it.
    folder.rename(kept)
    repaired.rename(folder)
    sync_folder(folder.parent)


def _write_ledger(writing: BulkWriting, survey: Survey, one: LedgerFinding, entry_format: EntryFormat | None) -> None:
    ledger_id = one.ledger.ledger_id
    rows = _stored_rows(one)
    for block in one.payloads:
        if block.first >= one.ledger.entries:
            continue
        value = value_of(Family.PAYLOADS, ledger_id, block)
        writing.put(Family.PAYLOADS, keys.block_key(ledger_id, block.first), value)
        for entry_id in one.without_header & covered([block]):
            entry = payload_at(value, entry_id - block.first)
            row = None if entry_format is None else entry_format.header_row(entry)
            if row is None:
                one.lost.add(entry_id)
            else:
                _set_row(rows, entry_id, row)
    for entry_id in one.proven:
        proven = survey.proven[ledger_id, entry_id]
        stored = _row_at(rows, entry_id)
        # The checksum of an entry does not cover its place, so the header in this place must be the entry's.
        if stored is not None and stored != proven.row:
            one.lost.add(entry_id)
            continue
        _set_row(rows, entry_id, proven.row)
        writing.put(Family.PAYLOADS, keys.block_key(ledger_id, entry_id), encode_payloads([proven.entry]))
    for entry_id in one.lost | one.lost_before:
        _set_row(rows, entry_id, LOST_ROW)
    for start in range(0, one.ledger.entries, HEADER_BLOCK_ROWS):
        end = min(start + HEADER_BLOCK_ROWS, one.ledger.entries)
        value = bytes(rows[start * ROW_BYTES : end * ROW_BYTES])
        writing.put(Family.HEADERS, keys.block_key(ledger_id, start), value)
    _count(one, rows)


def _stored_rows(one: LedgerFinding) -> bytearray:
    """Header rows of a ledger by entry; zeros where there is none."""
    rows = bytearray(one.ledger.entries * ROW_BYTES)
    for block in one.headers:
        start = block.first * ROW_BYTES
        value = value_of(Family.HEADERS, one.ledger.ledger_id, block)[: max(0, len(rows) - start)]
        rows[start : start + len(value)] = value
    return rows


def _row_at(rows: bytearray, entry_id: int) -> bytes | None:
    row = bytes(rows[entry_id * ROW_BYTES : (entry_id + 1) * ROW_BYTES])
    return row if any(row) else None


def _set_row(rows: bytearray, entry_id: int, row: bytes) -> None:
    assert len(row) == ROW_BYTES
    rows[entry_id * ROW_BYTES : (entry_id + 1) * ROW_BYTES] = row


def _count(one: LedgerFinding, rows: bytearray) -> None:
    """Let the totals of the ledger's record be those of its headers."""
    if not one.ledger.entries:
        return
    headers = np.frombuffer(bytes(rows), ROW)
    published = int(headers["publish_time_ms"].max())
    one.ledger.written = one.ledger.written._replace(
        entries=one.ledger.entries,
        bytes=int(headers["size"].sum(dtype=np.int64)),
        publish_time_ms_max=published,
        due_ms_max=max(published, int(headers["deliver_at_ms"].max())),
    )


def _write_rows(writing: BulkWriting, findings: Findings) -> None:
    """Small rows, and their copies."""
    meta = {key: value for key, value in findings.meta.items() if key[:1] not in (b"l", b"h")}
    meta[keys.COUNTERS_KEY] = struct.pack("<QQ", *findings.next_ids)
    meta.pop(keys.FORMAT_KEY, None)
    for one in findings.ledgers:
        meta[keys.ledger_record_key(one.owner_id, one.ledger.ledger_id)] = one.ledger.record()
        if lost := one.lost | one.lost_before:
            meta[keys.lost_entries_key(one.owner_id, one.ledger.ledger_id)] = encode_base(lost)
    for key, value in meta.items():
        writing.put(Family.META, key, value)
        if meta_copies.has_copy(key):
            writing.put(Family.CURSORS, meta_copies.copy_key(key), value)
    for key, value in findings.cursor_rows.items():
        writing.put(Family.CURSORS, key, value)


def check_rewritten(folder: Path) -> None:
    """Open the new folder as a service would, to read.

    Raises:
        LedgerError: A service could not.
    """
    database = RocksDatabase.open_read_only(folder)
    try:
        for family in Family:
            for _ in database.scan(family, b"", b"\xff" * 32):
                pass
    except StoreCorruptedError as error:
        raise StoreUnavailableError(f"The repaired log is damaged again, so the disk fails: {error}") from error
    finally:
        database.release()
