"""Everything that RocksDB can still read of a log, and the faults by file.

Small rows are kept in memory; of the blocks of headers and payloads only where they are. RocksDB alone knows which
row of a key is the newest. So rows of the ranges where it reads nothing may be old ones, and those of `meta` are apart.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from managed_ledger.disk import keys
from managed_ledger.disk.keys import Family
from managed_ledger.disk.log_marker import read_marker
from managed_ledger.disk.rocksdb_edge import checked
from managed_ledger.entries.blocks import payload_at, payload_count, row_count
from managed_ledger.rocksdb_store.damaged_folder import DamagedFolder, FileFault, Gap
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE

_BLOCK_KEY_BYTES = 16


class EntryFormat(Protocol):
    """The service's format of entries, which the log does not know."""

    def header_row(self, entry: bytes) -> bytes | None:
        """The row of its header, made from the entry itself; None if its own checksum does not say that it is whole."""


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
    problems: list[FileFault] = field(default_factory=list)
    damaged: set[Family] = field(default_factory=set)
    """Families of which something may be missing."""
    missing_writes: int = 0
    """How many of the newest changes are gone without a trace."""
    is_end_missing: bool = False
    """Whether the newest changes are gone, so that nothing names what was in them."""

    def add_gap(self, gap: Gap) -> None:
        """Name a range that cannot be read."""
        problem = FileFault(gap.fault.file, f"{gap.fault.what} (family {gap.family})")
        if problem not in self.problems:
            self.problems.append(problem)
        self.damaged.add(Family(gap.family))

    def lose_end(self, file: str, what: str) -> None:
        """Say that the newest changes are gone."""
        self.problems.append(FileFault(file, what))
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
    with ExitStack() as opened:
        with checked(path, "read the log"):
            folder = opened.enter_context(closing(DamagedFolder(path)))
            gaps = _read(found, folder, on_family)
            if gaps and entry_format is not None:
                _prove(found, folder.unchecked([gap for gap in gaps if gap.family == Family.PAYLOADS]), entry_format)
            if gaps:
                others = opened.enter_context(closing(DamagedFolder(path, without={gap.fault.file for gap in gaps})))
                for gap in gaps:
                    rows = others.rows(gap.family, found.add_gap, gap.start, gap.end)
                    _keep(found, found.older_meta, Family(gap.family), rows, others)
            _check_end(found, path, folder.sequence)
        yield found


def _read(found: Survey, folder: DamagedFolder, on_family: Callable[[], None]) -> list[Gap]:
    """Keep what a folder has, and its faults; return the ranges that cannot be read."""
    found.problems += folder.faults
    if folder.faults:
        # RocksDB leaves out damaged records of the logs beside a damaged file, without an error.
        found.damaged.update(Family)
    if lost := [family for family in Family if family not in folder.families]:
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
    """Keep the rows of a family, blocks by where they are."""
    blocks, count = (found.payloads, payload_count) if family is Family.PAYLOADS else (found.headers, row_count)
    for key, value in rows:
        if family is Family.META:
            meta[key] = value
        elif family is Family.CURSORS:
            found.cursors.setdefault(key, value)
        elif len(key) == _BLOCK_KEY_BYTES and key != keys.FIRST_KEY:
            ledger_id, first = keys.pair.unpack(key)
            blocks.setdefault(ledger_id, {}).setdefault(first, StoredBlock(first, count(value), source))


def _prove(found: Survey, rows: Iterator[tuple[bytes, bytes]], entry_format: EntryFormat) -> None:
    """Keep the whole entries of damaged blocks."""
    for key, value in rows:
        if len(key) == _BLOCK_KEY_BYTES and _is_payload_block(value):
            ledger_id, first = keys.pair.unpack(key)
            for index in range(payload_count(value)):
                entry = payload_at(value, index)
                if (row := entry_format.header_row(entry)) is not None:
                    found.proven[ledger_id, first + index] = ProvenEntry(entry, row)


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
    except (ValueError, OSError) as error:
        marker, what = None, f"it is unreadable ({error})"
    else:
        what = "it is missing"
    if marker is None:
        found.problems.append(FileFault(LOG_MARKER_FILE, what, is_harmless=True))
    if not any(path.glob("*.log")):
        found.lose_end("the write-ahead log", "it is missing, with the newest changes")
    if marker is not None and marker > sequence:
        found.missing_writes = marker - sequence
        what = f"at least the newest {found.missing_writes:,} changes are missing, which were on the disk"
        found.lose_end("the write-ahead log", what)
