"""Everything that RocksDB can still read of a log, and the faults by file.

Small rows are kept in memory; of the blocks of headers and payloads only where they are. RocksDB alone knows which
row of a key is the newest. So where it reads nothing, copies of small rows come before the rows of older tables.
"""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from managed_ledger.disk import keys, meta_copies
from managed_ledger.disk.keys import Family
from managed_ledger.disk.log_marker import NEW_MARKER_FILE, read_marker
from managed_ledger.disk.rocksdb_edge import checked
from managed_ledger.entries.blocks import payload_at, payload_count
from managed_ledger.entries.headers import ROW_BYTES
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
from managed_ledger.rocksdb_store.folder_survey import DamagedFolder, Gap
from managed_ledger.rocksdb_store.opening import misplaced_in

_WRITE_AHEAD_LOG = re.compile(r"\d+\.log")
_BLOCK_KEY_BYTES = 16
_ALL = tuple(Family)


class EntryFormat(Protocol):
    """The service's format of entries, which the log does not know."""

    def header_row(self, entry: bytes) -> bytes | None:
        """The row of its header, made from the entry itself; None if its own checksum does not say that it is whole."""


class LogProblem(NamedTuple):
    """A fault of a file."""

    file: str
    what: str
    is_harmless: bool = False
    """Whether the file is one that can be made anew."""


class StoredBlock(NamedTuple):
    """Consecutive entries of one ledger, and where they are."""

    first: int
    entries: int
    source: int
    """Which of the survey's views has it."""

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

    sources: list[DamagedFolder] = field(default_factory=list)
    """The view of the folder, and the one without its bad tables."""
    rows: dict[Family, dict[bytes, bytes]] = field(default_factory=lambda: {Family.META: {}, Family.CURSORS: {}})
    """Of `meta` and `cursors`."""
    blocks: dict[Family, Blocks] = field(default_factory=lambda: {Family.HEADERS: {}, Family.PAYLOADS: {}})
    proven: dict[tuple[int, int], ProvenEntry] = field(default_factory=dict)
    """Entries of damaged blocks, by ledger and entry id."""
    problems: list[LogProblem] = field(default_factory=list)
    damaged: set[Family] = field(default_factory=set)
    """Families of which something may be missing."""
    missing_writes: int = 0
    """How many of the newest changes are gone without a trace."""
    is_end_missing: bool = False
    """Whether the newest changes are gone, so that nothing names what was in them."""

    @property
    def headers(self) -> Blocks:
        """Blocks of headers."""
        return self.blocks[Family.HEADERS]

    @property
    def payloads(self) -> Blocks:
        """Blocks of payloads."""
        return self.blocks[Family.PAYLOADS]

    def value(self, family: Family, ledger_id: int, block: StoredBlock) -> bytes:
        """Read a block again.

        Raises:
            StoreCorruptedError: It cannot be read any more.
        """
        source = self.sources[block.source]
        with checked(source.path, "read the log"):
            value = source.get(family, keys.block_key(ledger_id, block.first))
        assert value is not None
        return value


@contextmanager
def survey(
    folder: Path, *, entry_format: EntryFormat | None = None, on_family: Callable[[], None] = lambda: None
) -> Iterator[Survey]:
    """Read all of a log; its blocks can be read again until the context ends.

    Args:
        folder: Where it is.
        entry_format: Tells whole entries of a damaged block from others; without one they are lost with it.
        on_family: Called after each family.

    Raises:
        LedgerError: RocksDB cannot read it at all.
        OSError: The system refuses.
    """
    surveying = _Surveying(folder, entry_format)
    try:
        with checked(folder, "read the log"):
            surveying.read(on_family)
        yield surveying.survey
    finally:
        for source in surveying.survey.sources:
            source.close()


class _Surveying:
    def __init__(self, folder: Path, entry_format: EntryFormat | None) -> None:
        self.survey = Survey()
        self._folder = folder
        self._entry_format = entry_format
        self._gaps: list[Gap] = []

    def read(self, on_family: Callable[[], None]) -> None:
        for name in misplaced_in(self._folder, [NEW_MARKER_FILE]):
            is_data = name.endswith((".sst", ".log"))
            self._add_problem(name, "it is no file", is_harmless=not is_data)
            if is_data:
                self._lacks(_ALL)
        marker = self._marker()
        source = DamagedFolder.open(self._folder, _ALL, marker)
        self.survey.sources.append(source)
        for file, what in source.faults:
            self._add_problem(file, what, is_harmless=file.startswith(("CURRENT", "MANIFEST")))
            # RocksDB leaves out damaged records of the logs beside a damaged file, without an error.
            self._lacks(_ALL if file != "CURRENT" else ())
        if source.missing_families:
            self._add_problem("the tables", f"none is left of {', '.join(source.missing_families)}")
            self._lose_end()
        for family in Family:
            self._take(family, source.rows(family, self._on_gap), 0)
            on_family()
        if self._gaps:
            self._fill_gaps(source)
        self._check_end(source.sequence, marker)

    def _take(self, family: Family, rows: Iterator[tuple[bytes, bytes]], source: int) -> None:
        for key, value in rows:
            if family in self.survey.rows:
                self.survey.rows[family].setdefault(key, value)
            elif len(key) == _BLOCK_KEY_BYTES:
                ledger_id, first = keys.pair.unpack(key)
                count = payload_count(value) if family is Family.PAYLOADS else len(value) // ROW_BYTES
                block = StoredBlock(first, count, source)
                self.survey.blocks[family].setdefault(ledger_id, {}).setdefault(first, block)

    def _on_gap(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self._add_problem(gap.fault.file, f"{gap.fault.what} (family {gap.family})")
        self._lacks([Family(gap.family)])

    def _fill_gaps(self, source: DamagedFolder) -> None:
        """Look for the rows of gaps in the other tables, and for the entries of the damaged ones."""
        gaps = sorted(self._gaps, key=lambda gap: (gap.family, gap.start))
        of_payloads = [gap for gap in gaps if gap.family == Family.PAYLOADS]
        if of_payloads and self._entry_format is not None:
            self._prove(source.unchecked(of_payloads), self._entry_format)
        others = source.without({gap.fault.file for gap in gaps})
        self.survey.sources.append(others)
        # Cursors come before `meta`, with its copies.
        for gap in gaps:
            family = Family(gap.family)
            if family is Family.META:
                self._take(family, self._copies(gap), 1)
            self._take(family, others.rows(family, self._on_gap, gap.start, gap.end), 1)

    def _copies(self, gap: Gap) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self.survey.rows[Family.CURSORS].items():
            own = key.removeprefix(meta_copies.PREFIX)
            if own != key and own >= gap.start and (gap.end is None or own < gap.end):
                yield own, value

    def _prove(self, rows: Iterator[tuple[bytes, bytes]], entry_format: EntryFormat) -> None:
        """Keep the entries of damaged blocks that are whole by themselves."""
        for key, value in rows:
            if len(key) != _BLOCK_KEY_BYTES or not _is_payload_block(value):
                continue
            ledger_id, first = keys.pair.unpack(key)
            for index in range(payload_count(value)):
                entry = payload_at(value, index)
                header = entry_format.header_row(entry)
                if header is not None:
                    self.survey.proven[ledger_id, first + index] = ProvenEntry(entry, header)

    def _marker(self) -> int:
        """The write that the log must have reached."""
        try:
            marker = read_marker(self._folder)
        except (ValueError, OSError) as error:
            self._add_problem(LOG_MARKER_FILE, f"it is unreadable ({error})", is_harmless=True)
            return 0
        if marker is None:
            self._add_problem(LOG_MARKER_FILE, "it is missing", is_harmless=True)
        return marker or 0

    def _check_end(self, sequence: int, marker: int) -> None:
        if not any(_WRITE_AHEAD_LOG.fullmatch(place.name) for place in self._folder.iterdir()):
            self._add_problem("the write-ahead log", "it is missing, with the newest changes")
            self._lose_end()
        if marker > sequence:
            missing = self.survey.missing_writes = marker - sequence
            what = f"at least the newest {missing:,} changes are missing, which were on the disk"
            self._add_problem("the write-ahead log", what)
            self._lose_end()

    def _lose_end(self) -> None:
        self.survey.is_end_missing = True
        self._lacks(_ALL)

    def _lacks(self, families: Collection[Family]) -> None:
        self.survey.damaged.update(families)

    def _add_problem(self, file: str, what: str, *, is_harmless: bool = False) -> None:
        problem = LogProblem(file, what, is_harmless)
        if problem not in self.survey.problems:
            self.survey.problems.append(problem)


def _is_payload_block(value: bytes) -> bool:
    """Whether the offsets of a payload block fit each other."""
    if len(value) < 8:
        return False
    count = payload_count(value)
    if count < 1 or 4 * (count + 1) > len(value) or int.from_bytes(value[:4], "little") % 4:
        return False
    offsets = [int.from_bytes(value[at : at + 4], "little") for at in range(0, 4 * (count + 1), 4)]
    return offsets == sorted(offsets) and offsets[-1] <= len(value)
