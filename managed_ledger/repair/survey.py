"""Everything that the files of a log still have, newest change first, and the faults by file.

Tables and write-ahead logs are read by themselves, so that none needs another one: the list of files, where it can be
read, only says which tables are out of use. Small rows are kept in memory; of the blocks of headers and payloads only
where they are.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from managed_ledger.disk import keys
from managed_ledger.disk.keys import Family
from managed_ledger.disk.log_marker import NEW_MARKER_FILE, read_marker
from managed_ledger.entries.blocks import payload_at, payload_count
from managed_ledger.entries.headers import ROW_BYTES
from managed_ledger.repair.manifest import FileList
from managed_ledger.repair.tables import DELETION, RANGE_DELETION, SINGLE_DELETION, Block, TableRow, read_table
from managed_ledger.repair.wal import DELETE, DELETE_RANGE, WriteAheadLog, read_log, records
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
from managed_ledger.rocksdb_store.opening import misplaced_in

_NUMBERED = re.compile(r"(\d+)\.(sst|log)|MANIFEST-(\d+)")
_NOWHERE = -1
_CURSOR_KEY_BYTES = (9, 17)
_BLOCK_KEY_BYTES = 16


class EntryFormat(Protocol):
    """The service's format of entries, which the log does not know."""

    def header_row(self, entry: bytes) -> bytes | None:
        """The row of its header, made from the entry itself; None if its own checksum does not say that it is whole."""


class LogProblem(NamedTuple):
    """A fault of a file."""

    file: str
    what: str
    is_harmless: bool = False
    """Whether it was put right, or the file is one that can be made anew."""


class StoredBlock(NamedTuple):
    """Consecutive entries of one ledger, and where they are."""

    first: int
    entries: int
    sequence: int
    table: int
    """The number of the table that has it; -1 for one that is here."""
    offset: int
    row: int
    value: bytes | None

    @property
    def end(self) -> int:
        """The entry id after the last one."""
        return self.first + self.entries


class ProvenEntry(NamedTuple):
    """An entry of a damaged block that is whole by its own checksum."""

    entry: bytes
    row: bytes
    """Its header."""


Blocks = dict[int, dict[int, StoredBlock]]
"""By ledger and first entry."""


@dataclass(slots=True)
class Survey:
    """The contents of a folder; made by `survey`."""

    folder: Path
    tables: list[Path] = field(default_factory=list)
    rows: dict[Family, dict[bytes, bytes]] = field(default_factory=dict)
    """Of `meta` and `cursors`."""
    headers: Blocks = field(default_factory=dict)
    payloads: Blocks = field(default_factory=dict)
    proven: dict[tuple[int, int], ProvenEntry] = field(default_factory=dict)
    """Entries of damaged blocks, by ledger and entry id."""
    problems: list[LogProblem] = field(default_factory=list)
    damaged: set[Family] = field(default_factory=set)
    """Families of which something may be missing."""
    missing_writes: int = 0
    """How many of the newest changes are gone without a trace."""
    is_end_missing: bool = False
    """Whether the newest changes are gone, so that nothing names what was in them."""

    def values(self, wanted: dict[int, list[StoredBlock]]) -> Iterator[tuple[StoredBlock, bytes]]:
        """Blocks with their values, of those given by table."""
        for table, blocks in sorted(wanted.items()):
            if table == _NOWHERE:
                yield from ((block, block.value) for block in blocks if block.value is not None)
                continue
            content = read_table(self.tables[table].read_bytes())
            at: Block | None = None
            for block in sorted(blocks, key=lambda block: (block.offset, block.row)):
                if at is None or at.offset != block.offset:
                    at = content.block_at(block.offset)
                yield block, at.rows[block.row].value


def survey(
    folder: Path, *, entry_format: EntryFormat | None = None, on_file: Callable[[], None] = lambda: None
) -> Survey:
    """Read all files of a log.

    Args:
        folder: Where they are.
        entry_format: Tells whole entries of a damaged block from others; without one they are lost with it.
        on_file: Called after each file.

    Raises:
        OSError: The system refuses.
    """
    found = _Surveying(folder, entry_format)
    found.read_small_files()
    for path in found.survey.tables:
        found.read_table(path)
        on_file()
    for path in _numbered(folder, "log"):
        found.read_log(path)
        on_file()
    return found.result()


def files_of(folder: Path) -> list[Path]:
    """The files that `survey` reads one by one."""
    return [*_numbered(folder, "sst"), *_numbered(folder, "log")]


def _numbered(folder: Path, kind: str) -> list[Path]:
    files = (path for path in folder.iterdir() if path.is_file())
    found = ((match, path) for path in files if (match := _NUMBERED.fullmatch(path.name)))
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match[2] == kind)]


class _Surveying:
    def __init__(self, folder: Path, entry_format: EntryFormat | None) -> None:
        self.survey = Survey(folder, _numbered(folder, "sst"))
        self._entry_format = entry_format
        self._files: FileList | None = None
        self._family_ids: dict[int, Family] = {}
        self._newest: dict[Family, dict[bytes, tuple[int, bytes | None]]] = {Family.META: {}, Family.CURSORS: {}}
        self._blocks: dict[Family, Blocks] = {
            Family.HEADERS: self.survey.headers,
            Family.PAYLOADS: self.survey.payloads,
        }
        self._deleted: dict[tuple[Family, int], int] = {}
        self._unproven: list[tuple[int, Block]] = []
        self._sequence = 0
        """The newest change that is known to be there, or to have been in a table."""

    def read_small_files(self) -> None:
        """The list of files, and what names it."""
        folder = self.survey.folder
        misplaced = misplaced_in(folder, [NEW_MARKER_FILE])
        for name in misplaced:
            is_data = name.endswith((".sst", ".log"))
            self._note(name, "it is no file", is_harmless=not is_data)
            if is_data:
                self._lacks(None)
        lists = (path for path in folder.glob("MANIFEST-*") if _NUMBERED.fullmatch(path.name))
        manifests = sorted(path for path in lists if path.name not in misplaced)
        try:
            name = "" if "CURRENT" in misplaced else (folder / "CURRENT").read_bytes().decode().removesuffix("\n")
        except (OSError, ValueError):
            name = ""
        if not any(path.name == name for path in manifests):
            self._note("CURRENT", "it does not name a list of files that is there", is_harmless=True)
            name = manifests[-1].name if manifests else ""
        if not name:
            self._note("MANIFEST", "the list of files is missing", is_harmless=True)
            return
        log, files = WriteAheadLog(), FileList()
        try:
            for record in records((folder / name).read_bytes(), log):
                files.apply(record.data)
        except ValueError as error:
            log.damage.append(f"it makes no sense ({error})")
        for what in (*log.damage, *log.corrected, *(["it ends too early"] if log.is_cut else [])):
            self._note(name, what, is_harmless=True)
        # A compaction into the last level sets the sequence numbers of rows to 0 and drops deletions: the newest change
        # of a whole log may be one that no row tells of any more.
        self._sequence = max(self._sequence, files.last_sequence)
        if log.damage or log.is_cut:
            return
        self._files = files
        self._family_ids = {
            number: Family(family) for number, family in files.families.items() if family in tuple(Family)
        }
        there = {int(path.stem): path for path in self.survey.tables}
        self.survey.tables[:] = [path for number, path in there.items() if number in files.tables]
        for number in sorted(files.tables.keys() - there.keys()):
            family = self._family_ids.get(files.tables[number])
            self._note(f"{number:06}.sst", f"it is missing, with a part of the family {family}")
            self._lacks(family)

    def read_table(self, path: Path) -> None:
        """One table."""
        index = self.survey.tables.index(path)
        table = read_table(path.read_bytes())
        family = self._family_of_table(path, table.family, table.family_id)
        for block in table.blocks():
            if family is None:
                family = _family_of_rows(block.rows)
            if not block.is_proven:
                if family is Family.PAYLOADS:
                    self._unproven.append((index, block))
                continue
            for number, row in enumerate(block.rows):
                if family is not None:
                    self._take(family, row, StoredBlock(0, 0, row.sequence, index, block.offset, number, None))
        for what in table.damage:
            self._note(path.name, f"{what} (family {family})")
        if table.damage:
            self._lacks(family)

    def read_log(self, path: Path) -> None:
        """One write-ahead log."""
        log = read_log(path.read_bytes())
        for what in log.corrected:
            self._note(path.name, f"{what}, which was put right", is_harmless=True)
        for what in log.damage:
            self._note(path.name, what)
            self._lacks(None)
        family_ids = self._family_ids | _families_of_changes(log, self._family_ids)
        for change in log.changes:
            family = family_ids.get(change.family_id)
            if family is None:
                continue
            kind = {DELETE: DELETION, DELETE_RANGE: RANGE_DELETION}.get(change.kind, 1)
            row = TableRow(change.key, change.sequence, kind, change.value)
            self._take(family, row, StoredBlock(0, 0, change.sequence, _NOWHERE, 0, 0, change.value))

    def result(self) -> Survey:
        """All of it, without what was deleted."""
        survey = self.survey
        for family, newest in self._newest.items():
            survey.rows[family] = {
                key: value
                for key, (sequence, value) in newest.items()
                if value is not None and sequence >= self._deleted.get((family, _number(key)), 0)
            }
        for family, blocks in self._blocks.items():
            for ledger_id in list(blocks):
                deleted_at = self._deleted.get((family, ledger_id), 0)
                blocks[ledger_id] = {
                    first: block for first, block in blocks[ledger_id].items() if block.sequence >= deleted_at
                }
                if not blocks[ledger_id]:
                    del blocks[ledger_id]
        for _, block in self._unproven:
            self._prove(block)
        if not _numbered(survey.folder, "log"):
            self.survey.is_end_missing = True
            self._note("the write-ahead log", "it is missing, with the newest changes")
            self._lacks(None)
        self._compare_with_marker()
        return survey

    def _prove(self, block: Block) -> None:
        """Keep the entries of a damaged block that are whole, where nothing whole is in their place."""
        if self._entry_format is None:
            return
        for row in block.rows:
            if row.kind != 1 or len(row.key) != _BLOCK_KEY_BYTES or not _is_payload_block(row.value):
                continue
            ledger_id, first = keys.pair.unpack(row.key)
            if first in self.survey.payloads.get(ledger_id, {}):
                continue
            for index in range(payload_count(row.value)):
                entry = payload_at(row.value, index)
                header = self._entry_format.header_row(entry)
                if header is not None:
                    self.survey.proven[ledger_id, first + index] = ProvenEntry(entry, header)

    def _compare_with_marker(self) -> None:
        try:
            marker = read_marker(self.survey.folder)
        except (ValueError, OSError) as error:
            self._note(LOG_MARKER_FILE, f"it is unreadable ({error})", is_harmless=True)
            return
        if marker is None:
            self._note(LOG_MARKER_FILE, "it is missing", is_harmless=True)
        elif marker > self._sequence:
            self.survey.missing_writes = marker - self._sequence
            self.survey.is_end_missing = True
            what = f"at least the newest {self.survey.missing_writes:,} changes are missing, which were on the disk"
            self._note("the write-ahead log", what)
            self._lacks(None)

    def _family_of_table(self, path: Path, name: str | None, family_id: int | None) -> Family | None:
        if name in tuple(Family):
            family = Family(name)
            if family_id is not None:
                self._family_ids[family_id] = family
            return family
        if self._files is None:
            return None
        return self._family_ids.get(self._files.tables.get(int(path.stem), 0))

    def _take(self, family: Family, row: TableRow, block: StoredBlock) -> None:
        self._sequence = max(self._sequence, row.sequence)
        if row.kind == RANGE_DELETION:
            # The log deletes nothing but all of one ledger, or of one cursor.
            deleted = (family, _number(row.key))
            self._deleted[deleted] = max(self._deleted.get(deleted, 0), row.sequence)
            return
        is_deletion = row.kind in (DELETION, SINGLE_DELETION)
        if family in self._newest:
            newest = self._newest[family]
            known = newest.get(row.key)
            if known is None or known[0] <= row.sequence:
                newest[row.key] = (row.sequence, None if is_deletion else row.value)
            return
        if is_deletion or len(row.key) != _BLOCK_KEY_BYTES:
            return
        ledger_id, first = keys.pair.unpack(row.key)
        count = payload_count(row.value) if family is Family.PAYLOADS else len(row.value) // ROW_BYTES
        blocks = self._blocks[family].setdefault(ledger_id, {})
        if first not in blocks or blocks[first].sequence <= row.sequence:
            blocks[first] = block._replace(first=first, entries=count)

    def _lacks(self, family: Family | None) -> None:
        self.survey.damaged |= set(Family) if family is None else {family}

    def _note(self, file: str, what: str, *, is_harmless: bool = False) -> None:
        self.survey.problems.append(LogProblem(file, what, is_harmless))


def _number(key: bytes) -> int:
    return int.from_bytes(key[:8])


def _is_payload_block(value: bytes) -> bool:
    """Whether the offsets of a payload block fit each other."""
    if len(value) < 8:
        return False
    count = payload_count(value)
    if count < 1 or 4 * (count + 1) > len(value) or int.from_bytes(value[:4], "little") % 4:
        return False
    offsets = [int.from_bytes(value[at : at + 4], "little") for at in range(0, 4 * (count + 1), 4)]
    return offsets == sorted(offsets) and offsets[-1] <= len(value)


def _families_of_changes(log: WriteAheadLog, known: dict[int, Family]) -> dict[int, Family]:
    """Which number each family has, told by what is written to it, where nothing else tells."""
    by_id: dict[int, list[TableRow]] = {}
    for change in log.changes:
        if change.family_id not in known and change.kind not in (DELETE, DELETE_RANGE):
            by_id.setdefault(change.family_id, []).append(TableRow(change.key, change.sequence, 1, change.value))
    told = {family_id: _family_of_rows(rows) for family_id, rows in by_id.items()}
    return {family_id: family for family_id, family in told.items() if family is not None}


def _family_of_rows(rows: list[TableRow]) -> Family | None:
    rows = [row for row in rows if row.kind == 1]
    if not rows:
        return None
    if any(row.key in (keys.COUNTERS_KEY, keys.FORMAT_KEY) or row.key[:1] in (b"m", b"l", b"c", b"r") for row in rows):
        return Family.META
    if any(len(row.key) in _CURSOR_KEY_BYTES or row.key[:1] == b"\xff" for row in rows):
        return Family.CURSORS
    if all(_is_payload_block(row.value) for row in rows):
        return Family.PAYLOADS
    return Family.HEADERS


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the tables and logs of a folder."""
    return sum(os.path.getsize(path) for path in files_of(folder))  # noqa: PTH202 (a size is all that is wanted)
