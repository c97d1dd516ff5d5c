"""Everything that RocksDB can still read of a log, and the faults by file.

Small rows are kept in memory; of the blocks of headers and payloads only where they are. RocksDB alone knows which
row of a key is the newest. So rows of the ranges where it reads nothing may be old ones, and those of `meta` are apart.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from managed_ledger.disk import keys
from managed_ledger.disk.keys import Family
from managed_ledger.disk.log_marker import OWN_FILES, read_marker
from managed_ledger.disk.rocksdb_edge import checked
from managed_ledger.entries.blocks import payload_at, payload_count
from managed_ledger.entries.headers import ROW_BYTES
from managed_ledger.rocksdb_store.damaged_folder import DamagedFolder, Gap
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
from managed_ledger.rocksdb_store.opening import misplaced_in

_WRITE_AHEAD_LOG = re.compile(r"\d+\.log")
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
    """Whether the file is one that can be made anew."""


class StoredBlock(NamedTuple):
    """Consecutive entries of one ledger, and where they are."""

    first: int
    entries: int
    source: DamagedFolder

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

    meta: dict[bytes, bytes] = field(default_factory=dict)
    older_meta: dict[bytes, bytes] = field(default_factory=dict)
    """Rows of ranges where the newest ones may be lost."""
    cursors: dict[bytes, bytes] = field(default_factory=dict)
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

    def add_problem(self, file: str, what: str, *, is_harmless: bool = False) -> None:
        """Name a fault, once."""
        problem = LogProblem(file, what, is_harmless)
        if problem not in self.problems:
            self.problems.append(problem)

    def add_gap(self, gap: Gap) -> None:
        """Name a range that cannot be read."""
        self.add_problem(gap.fault.file, f"{gap.fault.what} (family {gap.family})")
        self.damaged.add(Family(gap.family))

    def lose_end(self, file: str, what: str) -> None:
        """Say that the newest changes are gone."""
        self.add_problem(file, what)
        self.is_end_missing = True
        self.damaged.update(Family)


def value_of(family: Family, ledger_id: int, block: StoredBlock) -> bytes:
    """Read a block again.

    Raises:
        StoreCorruptedError: It cannot be read any more.
    """
    with checked(block.source.path, "read the log"):
        value = block.source.get(family, keys.block_key(ledger_id, block.first))
    assert value is not None
    return value


@contextmanager
def survey(
    path: Path, *, entry_format: EntryFormat | None = None, on_family: Callable[[], None] = lambda: None
) -> Iterator[Survey]:
    """Read all of a log; its blocks can be read again until the context ends.

    Args:
        path: Its folder.
        entry_format: Tells whole entries of a damaged block from others; without one they are lost with it.
        on_family: Called after each family.

    Raises:
        LedgerError: RocksDB cannot read it at all.
        OSError: The system refuses.
    """
    found = Survey()
    folders: list[DamagedFolder] = []
    try:
        with checked(path, "read the log"):
            for name in misplaced_in(path, OWN_FILES):
                is_data = name.endswith((".sst", ".log"))
                found.add_problem(name, "it is no file", is_harmless=not is_data)
                found.damaged.update(Family if is_data else ())
            folders.append(DamagedFolder.open(path))
            gaps = _read(found, folders[0], on_family)
            if gaps:
                folders.append(DamagedFolder.open(path, without={gap.fault.file for gap in gaps}))
                _fill_gaps(found, gaps, folders[0], folders[1], entry_format)
            _check_end(found, path, folders[0].sequence)
        yield found
    finally:
        for folder in folders:
            folder.close()


def _read(found: Survey, folder: DamagedFolder, on_family: Callable[[], None]) -> list[Gap]:
    """Keep what a folder has, and its faults; return the ranges that cannot be read."""
    for file, what in folder.faults:
        found.add_problem(file, what, is_harmless=file.startswith(("CURRENT", "MANIFEST")))
        # RocksDB leaves out damaged records of the logs beside a damaged file, without an error.
        found.damaged.update(Family if file != "CURRENT" else ())
    lost = [family.value for family in Family if family not in folder.families]
    if lost:
        found.lose_end("the tables", f"none is left of {', '.join(lost)}")
    gaps: list[Gap] = []
    for family in Family:
        _keep(found, found.meta, family, folder.rows(family, gaps.append), folder)
        on_family()
    for gap in gaps:
        found.add_gap(gap)
    return gaps


def _keep(
    found: Survey,
    meta: dict[bytes, bytes],
    family: Family,
    rows: Iterator[tuple[bytes, bytes]],
    source: DamagedFolder,
) -> None:
    for key, value in rows:
        match family:
            case Family.META:
                meta[key] = value
            case Family.CURSORS:
                found.cursors.setdefault(key, value)
            case _ if len(key) == _BLOCK_KEY_BYTES and key != keys.FIRST_KEY:
                ledger_id, first = keys.pair.unpack(key)
                is_payload = family is Family.PAYLOADS
                blocks = found.payloads if is_payload else found.headers
                count = payload_count(value) if is_payload else len(value) // ROW_BYTES
                blocks.setdefault(ledger_id, {}).setdefault(first, StoredBlock(first, count, source))


def _fill_gaps(
    found: Survey, gaps: list[Gap], folder: DamagedFolder, others: DamagedFolder, entry_format: EntryFormat | None
) -> None:
    """Keep the rows of gaps in the other tables, and the whole entries of the damaged ones."""
    of_payloads = [gap for gap in gaps if gap.family == Family.PAYLOADS]
    if of_payloads and entry_format is not None:
        for key, value in folder.unchecked(of_payloads):
            if len(key) == _BLOCK_KEY_BYTES and _is_payload_block(value):
                ledger_id, first = keys.pair.unpack(key)
                for index in range(payload_count(value)):
                    entry = payload_at(value, index)
                    if (row := entry_format.header_row(entry)) is not None:
                        found.proven[ledger_id, first + index] = ProvenEntry(entry, row)
    for gap in gaps:
        family = Family(gap.family)
        rows = others.rows(family, found.add_gap, gap.start, gap.end)
        _keep(found, found.older_meta, family, rows, others)


def _is_payload_block(value: bytes) -> bool:
    """Whether the offsets of a payload block fit each other."""
    if len(value) < 8:
        return False
    count = payload_count(value)
    if count < 1 or 4 * (count + 1) > len(value) or int.from_bytes(value[:4], "little") % 4:
        return False
    offsets = [int.from_bytes(value[at : at + 4], "little") for at in range(0, 4 * (count + 1), 4)]
    return offsets == sorted(offsets) and offsets[-1] <= len(value)


def _check_end(found: Survey, path: Path, sequence: int) -> None:
    """Compare the last write with the one that the marker file says must be there."""
    try:
        marker = read_marker(path)
        if marker is None:
            found.add_problem(LOG_MARKER_FILE, "it is missing", is_harmless=True)
    except (ValueError, OSError) as error:
        found.add_problem(LOG_MARKER_FILE, f"it is unreadable ({error})", is_harmless=True)
        marker = None
    if not any(_WRITE_AHEAD_LOG.fullmatch(place.name) for place in path.iterdir()):
        found.lose_end("the write-ahead log", "it is missing, with the newest changes")
    if marker is not None and marker > sequence:
        found.missing_writes = marker - sequence
        what = f"at least the newest {found.missing_writes:,} changes are missing, which were on the disk"
        found.lose_end("the write-ahead log", what)
