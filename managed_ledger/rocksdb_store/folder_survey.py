"""The rows that RocksDB can still read of a damaged folder, through a temporary view; the folder stays as it is.

The folder is opened strictly, else without what its write-ahead logs and list of files have wrong, else repaired by
RocksDB. That is the last means, as it sets a whole table aside for one bad block of it, and forgets the families of
which no table is left. Before each, a fragment of a recycled log is made a plain damage, which RocksDB survives.

A bad block ends RocksDB's iterator, with an error. A row behind it is found by seeking: ever further while the error is
the same, then by halving. The block hides the rows of all other tables in its range, and a bad index those of
its family. So the gaps are read again from another view without the bad tables, and once more without RocksDB's
checksums (`unchecked`), where the caller has its own.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, ReadOptions

from managed_ledger.rocksdb_store.folder_view import FolderView
from managed_ledger.rocksdb_store.log_format import clear_recycled_fragments, ends_within_a_record

UNCHECKED_S_MAX: Final = 60
"""Time for the rows without checksums: after it, those that came are taken."""
_KEY_BYTES: Final = 256
"""Keys are halved as numbers of so many bytes: rows behind a bad block whose keys begin with the same are left out."""
_END: Final = 256**_KEY_BYTES - 1
_FILE: Final = re.compile(r"\d+\.(?:sst|log)|MANIFEST-\d+")
_BLOCK: Final = re.compile(r"block checksum mismatch.* in \S*?(\d+\.sst) offset (\d+) size (\d+)")


class FileFault(NamedTuple):
    """A fault, and the file that has it."""

    file: str
    what: str


class Gap(NamedTuple):
    """A range of a family in which RocksDB reads nothing."""

    family: str
    start: bytes
    end: bytes | None
    """The first key behind it, None where nothing is read any more."""
    fault: FileFault


class DamagedFolder:
    """A view of a damaged folder, as far as RocksDB opens it; `close` removes it."""

    def __init__(self, path: Path, families: Collection[str], view: FolderView | None = None) -> None:
        """Take over a view, or borrow the folder of one."""
        self.path = path
        self._view = view
        self._wanted = families
        self._database: Rdict | None = None
        self._families: dict[str, Rdict] = {}
        self.faults: list[FileFault] = []
        """Why it did not open strictly."""
        self.sequence = 0
        """RocksDB's number of the last write that is there."""

    @classmethod
    def open(cls, path: Path, families: Collection[str], sequence_min: int) -> Self:
        """Open a view by the first means that does.

        Args:
            path: The folder.
            families: Its families.
            sequence_min: The write that it must have reached. If it did not, and has tables that its list of files does
                not name, the list is not the newest.

        Raises:
            Exception: RocksDB does not open it at all.
            OSError: The system refuses.
        """
        folder = cls._view_of(path, families)
        try:
            is_listed = folder._find_list_of_files()
            if not (is_listed and folder._try_to_open()) or (
                folder.sequence < sequence_min and folder._has_unlisted_tables()
            ):
                folder._repair()
        except BaseException:
            folder.close()
            raise
        return folder

    def without(self, tables: Collection[str]) -> Self:
        """Open another view, which lacks some tables."""
        other = self._view_of(self.path, self._wanted)
        try:
            for name in tables:
                (other.path / name).unlink(missing_ok=True)
            other._repair()
        except BaseException:
            other.close()
            raise
        return other

    @classmethod
    def _view_of(cls, path: Path, families: Collection[str]) -> Self:
        view = FolderView.of(path)
        (view.path / "rocksdict-config.json").unlink(missing_ok=True)
        return cls(view.path, families, view)

    @property
    def missing_families(self) -> list[str]:
        """Families of which RocksDB knows nothing any more."""
        return [name for name in self._wanted if name not in self._families]

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key."""
        value: bytes | None = self._families[family].get(key)
        return value

    def rows(
        self,
        family: str,
        on_gap: Callable[[Gap], None],
        start: bytes = b"",
        end: bytes | None = None,
        *,
        is_checked: bool = True,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of `[start, end)` in order, on behind what cannot be read.

        Args:
            family: The family.
            on_gap: Told of each range that cannot be read.
            start: The first key.
            end: The key behind the last one.
            is_checked: Whether RocksDB compares checksums. If not, rows may be anything, and the process may die.
        """
        if family not in self._families:
            return
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # rocksdict declares it without its argument.
        options.set_verify_checksums(is_checked)
        rows: Any = self._families[family].iter(options)
        rows.seek(start)
        while True:
            while rows.valid():
                key = rows.key()
                if end is not None and key >= end:
                    return
                yield key, rows.value()
                start = key + b"\x00"
                rows.next()
            error = _error_of(rows)
            if error is None:
                return
            behind = _readable_behind(rows, start, error)
            on_gap(Gap(family, start, behind, self._fault(error)))
            if behind is None:
                return
            start = behind

    def unchecked(self, gaps: Collection[Gap]) -> Iterator[tuple[bytes, bytes]]:
        """Rows of gaps that RocksDB reads without checksums: they may be anything. A process of its own reads them."""
        found = self.path / "unchecked"
        words = [sys.executable, "-m", __name__, str(self.path)]
        for gap in gaps:
            words += [gap.family, gap.start.hex(), "" if gap.end is None else gap.end.hex()]
        # Rows that came within the time are as good as after a crash.
        with found.open("wb") as file, suppress(subprocess.TimeoutExpired):
            environment = {"PYTHONPATH": ":".join(map(str, sys.path))}
            subprocess.run(
                words,
                stdout=file,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=UNCHECKED_S_MAX,
                check=False,
            )
        with found.open("rb") as file:
            while (key := _read(file)) is not None and (value := _read(file)) is not None:
                yield key, value

    def close(self) -> None:
        """Remove the view."""
        self._families, self._database = {}, None
        if self._view is not None:
            self._view.close()

    def _find_list_of_files(self) -> bool:
        """Let `CURRENT` name the newest list of files if it names none; return whether there is a whole one."""
        folder = self.path
        current = folder / "CURRENT"
        lists = {f"{place.name}\n".encode() for place in folder.glob("MANIFEST-*")}
        if not current.exists() or current.read_bytes() not in lists:
            self.faults.append(FileFault("CURRENT", "it does not name a list of files that is there"))
            current.unlink(missing_ok=True)
            if lists:
                current.write_bytes(max(lists))
            else:
                self.faults.append(FileFault("MANIFEST", "the list of files is missing"))
        # The list in use is known now, so these are all that RocksDB reads.
        self.faults += [FileFault(*fault) for fault in clear_recycled_fragments(folder)]
        name = current.read_text().strip() if lists else ""
        if not name or not ends_within_a_record(folder / name):
            return bool(name)
        self.faults.append(FileFault(name, "it ends too early"))
        return False

    def _try_to_open(self) -> bool:
        for is_strict in (not self.faults, False):
            try:
                self._open(is_strict=is_strict)
            except Exception as error:
                self._add_fault(str(error))
            else:
                return True
        return False

    def open_leniently(self) -> None:
        """Open the view without what is damaged of its write-ahead logs.

        Raises:
            Exception: RocksDB does not open it.
        """
        self._open(is_strict=False)

    def _open(self, *, is_strict: bool) -> None:
        path = str(self.path)
        options = _options(is_strict=is_strict)
        names = [name for name in Rdict.list_cf(path, options) if name in self._wanted]
        families = {name: _options(is_strict=is_strict) for name in names}
        database = Rdict(path, options, column_families=families, access_type=AccessType.read_only(False))
        self._database = database
        self._families = {name: database.get_column_family(name) for name in names}
        self.sequence = database.latest_sequence_number()

    def _has_unlisted_tables(self) -> bool:
        assert self._database is not None
        listed = {Path(file["name"]).name for file in self._database.live_files()}
        return any(table.name not in listed for table in self.path.glob("*.sst"))

    def _repair(self) -> None:
        self._families, self._database = {}, None
        Rdict.repair(str(self.path), _options(is_strict=False))
        self.open_leniently()

    def _add_fault(self, error: str) -> None:
        fault = self._fault(error)
        if fault not in self.faults:
            self.faults.append(fault)

    def _fault(self, error: str) -> FileFault:
        if block := _BLOCK.search(error):
            return FileFault(block[1], f"the block of {block[3]} bytes at {block[2]} is not what was written")
        file = _FILE.search(error)
        text = error.replace(f"{self.path}/", "")
        if file is not None and "No such file" in error:
            return FileFault(file[0], "it is missing")
        return FileFault(file[0] if file else "the folder", f"RocksDB reports: {text}")


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


def _error_of(rows: Any) -> str | None:
    try:
        rows.status()
    except Exception as error:
        return str(error)
    return None


def _readable_behind(rows: Any, start: bytes, error: str) -> bytes | None:
    """Seek to the smallest key behind `start` that does not end with this error, and return it."""

    def fails(number: int) -> bool:
        rows.seek(number.to_bytes(_KEY_BYTES))
        return not rows.valid() and _error_of(rows) == error

    low, step = int.from_bytes(start[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0")), 1
    while low + step < _END and fails(low + step):
        low, step = low + step, step * 2
    high = min(low + step, _END)
    if fails(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    behind = high.to_bytes(_KEY_BYTES)
    rows.seek(behind)
    return behind


def _read(file: Any) -> bytes | None:
    length = int.from_bytes(file.read(4))
    content: bytes = file.read(length)
    return content if length and len(content) == length else None


def _write_unchecked(path: str, *gaps: str) -> None:
    """Write the rows of gaps to the standard output; damaged bytes may kill this process."""
    folder = DamagedFolder(Path(path), set(gaps[::3]))
    folder.open_leniently()
    for family, start, end in zip(gaps[::3], gaps[1::3], gaps[2::3], strict=True):
        rows = folder.rows(
            family, lambda _: None, bytes.fromhex(start), bytes.fromhex(end) if end else None, is_checked=False
        )
        for row in rows:
            for part in row:
                sys.stdout.buffer.write(len(part).to_bytes(4) + part)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _write_unchecked(*sys.argv[1:])
