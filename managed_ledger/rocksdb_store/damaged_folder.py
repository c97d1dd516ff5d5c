"""The rows that RocksDB can still read of a damaged folder, through a temporary view; the folder stays as it is.

The view is opened by the first means that does: strictly; without what is damaged of its write-ahead logs; by the spare
copy of the list of files; after `Rdict.repair`. That comes last, as it sets a whole table aside for one bad block, and
forgets the families of which no table is left. Before all, a fragment of a recycled log is made a plain damage, which
RocksDB survives.

A bad block ends RocksDB's iterator, with an error. A row behind it is found by seeking: ever further while the error is
the same, then by halving. The block hides the rows of all other tables in its range, and a bad index those of
its family. So the gaps are read again from another view without the bad tables, and once more without RocksDB's
checksums (`unchecked`), where the caller has its own.
"""

import pickle
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, ReadOptions

from managed_ledger.rocksdb_store.files import SPARE_MANIFEST_FILE
from managed_ledger.rocksdb_store.folder_view import FolderView
from managed_ledger.rocksdb_store.log_format import clear_recycled_fragments

UNCHECKED_S_MAX: Final = 60
"""Time for the rows without checksums: after it, those that came are taken."""
_KEY_BYTES_MAX: Final = 256
"""Keys are halved as numbers of so many bytes: rows behind a bad block whose keys begin with the same are left out."""
_FILE: Final = re.compile(r"\d+\.(?:sst|log)|MANIFEST-\d+")
_BLOCK: Final = re.compile(r"block checksum mismatch.* in \S*?(\d+\.sst) offset (\d+) size (\d+)")


class FileFault(NamedTuple):
    """A fault, and the file that has it."""

    file: str
    what: str
    is_harmless: bool = False
    """Whether the file is one that can be made anew."""


class Gap(NamedTuple):
    """A range of a family in which RocksDB reads nothing."""

    family: str
    start: bytes
    end: bytes | None
    """The first key behind it, None where nothing is read any more."""
    fault: FileFault


class DamagedFolder:
    """A view of a damaged folder, as far as RocksDB opens it; `close` removes it.

    Args:
        path: The folder.
        without: Tables that the view lacks.

    Raises:
        Exception: RocksDB does not open it at all.
        OSError: The system refuses.
    """

    def __init__(self, path: Path, *, without: Collection[str] = ()) -> None:
        self.path = path
        self._view = FolderView(path)
        self._database: Rdict | None = None
        self.families: dict[str, Rdict] = {}
        """Those of which RocksDB knows, by name."""
        self.faults: list[FileFault] = []
        """Why it did not open strictly."""
        spare = path / SPARE_MANIFEST_FILE
        try:
            for name in without:
                (self._view.path / name).unlink(missing_ok=True)
            if without or not self._is_open_by_a_list(spare.read_bytes() if spare.is_file() else b""):
                self._release()
                Rdict.repair(str(self._view.path), _options(is_strict=False))
                self._open(is_strict=False)
        except BaseException:
            self.close()
            raise

    @property
    def sequence(self) -> int:
        """RocksDB's number of the last write that is there."""
        assert self._database is not None
        return self._database.latest_sequence_number()

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self.families[family].get(key)
        return value

    def rows(
        self, family: str, on_gap: Callable[[Gap], None], start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of `[start, end)` in order, on behind what cannot be read, of which `on_gap` is told."""

        def on_error(error: str, first: bytes, behind: bytes | None) -> None:
            on_gap(Gap(family, first, behind, self._fault(error)))

        return _rows(self.families[family], on_error, start, end) if family in self.families else iter(())

    def unchecked(self, gaps: Collection[Gap]) -> Iterator[tuple[bytes, bytes]]:
        """Rows of gaps that RocksDB reads without checksums, which may be anything.

        They may kill the process that reads them, so it is one of its own.
        """
        found = self._view.path / "unchecked"
        found.touch()
        reading = get_context("spawn").Process(target=_write_unchecked, args=(self._view.path, list(gaps), found))
        reading.start()
        # Rows that came within the time are as good as those before a crash.
        reading.join(UNCHECKED_S_MAX)
        reading.kill()
        reading.join()
        with found.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
            while True:
                yield pickle.load(file)

    def close(self) -> None:
        """Remove the view."""
        self._release()
        self._view.close()

    def _release(self) -> None:
        self.families, self._database = {}, None

    def _is_open_by_a_list(self, spare: bytes) -> bool:
        """Open it by its own list of files, or by the spare one."""
        path = self._view.path
        current = path / "CURRENT"
        named = current.read_bytes().decode(errors="replace") if current.is_file() else ""
        listed = next((place for place in path.glob("MANIFEST-*") if f"{place.name}\n" == named), None)
        self.faults += (FileFault(*fault) for fault in clear_recycled_fragments(path))
        if listed is None:
            self.faults.append(FileFault("CURRENT", "it names no list of files that is there", is_harmless=True))
        elif len(spare) > len(content := listed.read_bytes()) and spare.startswith(content):
            # RocksDB takes what is there for all.
            self.faults.append(FileFault(listed.name, "it ends too early", is_harmless=True))
        else:
            for is_strict in (not self.faults, False):
                fault = self._fault_of_opening(is_strict=is_strict)
                if fault is None:
                    return True
                self.faults += (fault,) if fault not in self.faults else ()
        if not spare:
            return False
        (path / "MANIFEST-000001").write_bytes(spare)
        current.write_text("MANIFEST-000001\n")
        # It may be older than the tables.
        return self._fault_of_opening(is_strict=False) is None and self._listed_tables() == {
            table.name for table in path.glob("*.sst")
        }

    def _listed_tables(self) -> set[str]:
        assert self._database is not None
        return {Path(file["name"]).name for file in self._database.live_files()}

    def _fault_of_opening(self, *, is_strict: bool) -> FileFault | None:
        try:
            self._open(is_strict=is_strict)
        except Exception as error:
            return self._fault(str(error))
        return None

    def _open(self, *, is_strict: bool) -> None:
        self._database, self.families = _opened(self._view.path, is_strict=is_strict)

    def _fault(self, error: str) -> FileFault:
        if block := _BLOCK.search(error):
            return FileFault(block[1], f"the block of {block[3]} bytes at {block[2]} is not what was written")
        file = _FILE.search(error)
        text = error.replace(f"{self._view.path}/", "")
        if file is not None and "No such file" in error:
            return FileFault(file[0], "it is missing")
        is_list = file is not None and file[0].startswith("MANIFEST")
        return FileFault(file[0] if file else "the folder", f"RocksDB reports: {text}", is_harmless=is_list)


def _opened(path: Path, *, is_strict: bool) -> tuple[Rdict, dict[str, Rdict]]:
    """Open a view, strictly or without what is damaged of its write-ahead logs; return also its families."""
    options = _options(is_strict=is_strict)
    families = {name: _options(is_strict=is_strict) for name in Rdict.list_cf(str(path), options)}
    database = Rdict(str(path), options, column_families=families, access_type=AccessType.read_only(False))
    return database, {name: database.get_column_family(name) for name in families}


def _options(*, is_strict: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(False)
    mode = DBRecoveryMode
    options.set_wal_recovery_mode(
        mode.tolerate_corrupted_tail_records() if is_strict else mode.skip_any_corrupted_record()
    )
    # Without this a bad index or footer refuses the whole folder.
    options.set_paranoid_checks(is_strict)
    options.set_disable_auto_compactions(True)
    options.set_keep_log_file_num(2)
    return options


def _rows(
    family: Rdict,
    on_error: Callable[[str, bytes, bytes | None], None],
    start: bytes,
    end: bytes | None,
    *,
    is_checked: bool = True,
) -> Iterator[tuple[bytes, bytes]]:
    options = ReadOptions()
    options.fill_cache(False)  # type: ignore[call-arg]  # rocksdict declares it without its argument.
    options.set_verify_checksums(is_checked)

    def sought(key: bytes) -> Any:
        # A new iterator each time: one that has met an error can return it again for a block that is whole.
        rows: Any = family.iter(options)
        rows.seek(key)
        return rows

    behind: bytes | None = start
    while behind is not None:
        rows = sought(start := behind)
        while rows.valid() and (end is None or rows.key() < end):
            yield rows.key(), rows.value()
            start = rows.key() + b"\x00"
            rows.next()
        error = _error_of(rows)
        if error is None:
            return
        behind = _readable_behind(sought, start, error)
        on_error(error, start, behind)


def _error_of(rows: Any) -> str | None:
    try:
        rows.status()
    except Exception as error:
        return str(error)
    return None


def _readable_behind(sought: Callable[[bytes], Any], start: bytes, error: str) -> bytes | None:
    """The smallest key behind `start` at which a seek does not end with this error; None if all do."""
    # The keys behind are hardly more than twice as long as the one before. Each byte takes 16 seeks.
    length = min(2 * len(start) or _KEY_BYTES_MAX, _KEY_BYTES_MAX)

    def fails(number: int) -> bool:
        rows = sought(number.to_bytes(length))
        return not rows.valid() and _error_of(rows) == error

    low, step, end = int.from_bytes(start[:length].ljust(length, b"\0")), 1, (1 << 8 * length) - 1
    while low + step < end and fails(low + step):
        low, step = low + step, step * 2
    high = min(low + step, end)
    if fails(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high.to_bytes(length)


def _write_unchecked(path: Path, gaps: Collection[Gap], found: Path) -> None:
    """Write the rows of gaps to a file, each at once: damaged bytes may kill this process."""
    _, families = _opened(path, is_strict=False)
    with found.open("wb", buffering=0) as file:
        for gap in gaps:
            for row in _rows(families[gap.family], lambda *_: None, gap.start, gap.end, is_checked=False):
                file.write(pickle.dumps(row))
