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

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, ReadOptions

from managed_ledger.rocksdb_store.files import SPARE_MANIFEST_FILE, is_misplaced
from managed_ledger.rocksdb_store.folder_view import FolderView
from managed_ledger.rocksdb_store.log_format import clear_recycled_fragments, ends_within_a_record

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


class Gap(NamedTuple):
    """A range of a family in which RocksDB reads nothing."""

    family: str
    start: bytes
    end: bytes | None
    """The first key behind it, None where nothing is read any more."""
    fault: FileFault


class DamagedFolder:
    """A view of a damaged folder, as far as RocksDB opens it; `close` removes it."""

    def __init__(self, path: Path, view: FolderView | None = None) -> None:
        """Take over a view, or borrow the folder of one."""
        self.path = path
        self._view = view
        self._database: Rdict | None = None
        self.families: dict[str, Rdict] = {}
        """Those of which RocksDB knows, by name."""
        self.faults: list[FileFault] = []
        """Why it did not open strictly."""

    @classmethod
    def open(cls, path: Path, *, without: Collection[str] = ()) -> Self:
        """Open a view.

        Args:
            path: The folder.
            without: Tables that the view lacks.

        Raises:
            Exception: RocksDB does not open it at all.
            OSError: The system refuses.
        """
        view = FolderView.of(path)
        folder = cls(view.path, view)
        try:
            for name in without:
                (view.path / name).unlink(missing_ok=True)
            if without or not (folder._is_open_as_listed(path) or folder._is_open_by_spare(path)):
                folder._release()
                Rdict.repair(str(folder.path), _options(is_strict=False))
                folder.open_leniently()
        except BaseException:
            folder.close()
            raise
        return folder

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
        if family not in self.families:
            return
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # rocksdict declares it without its argument.
        options.set_verify_checksums(is_checked)

        def sought(key: bytes) -> Any:
            # A new iterator each time: one that has met an error can return it again for a block that is whole.
            rows: Any = self.families[family].iter(options)
            rows.seek(key)
            return rows

        while True:
            rows = sought(start)
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
            behind = _readable_behind(sought, start, error)
            on_gap(Gap(family, start, behind, self._fault(error)))
            if behind is None:
                return
            start = behind

    def unchecked(self, gaps: Collection[Gap]) -> Iterator[tuple[bytes, bytes]]:
        """Rows of gaps that RocksDB reads without checksums: they may be anything. A process of its own reads them."""
        found = self.path / "unchecked"
        lines = "".join(f"{gap.family} {gap.start.hex()} {(gap.end or b'').hex()}\n" for gap in gaps)
        # Rows that came within the time are as good as those before a crash.
        with found.open("w") as file, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-m", __name__, str(self.path)],
                input=lines,
                text=True,
                stdout=file,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                timeout=UNCHECKED_S_MAX,
                check=False,
            )
        with found.open() as file:
            for line in file:
                if line.endswith("\n"):
                    key, value = line[:-1].split(" ")
                    yield bytes.fromhex(key), bytes.fromhex(value)

    def close(self) -> None:
        """Remove the view."""
        self._release()
        if self._view is not None:
            self._view.close()

    def _release(self) -> None:
        self.families, self._database = {}, None

    def _is_open_as_listed(self, source: Path) -> bool:
        """Open it by its own list of files, which is the newest one where `CURRENT` does not name one."""
        current = self.path / "CURRENT"
        names = [place.name for place in self.path.glob("MANIFEST-*")]
        if not current.is_file() or current.read_bytes() not in [f"{name}\n".encode() for name in names]:
            self.faults.append(FileFault("CURRENT", "it does not name a list of files that is there"))
            if names:
                current.write_text(f"{max(names)}\n")
        self.faults += [FileFault(*fault) for fault in clear_recycled_fragments(self.path)]
        if not names:
            self.faults.append(FileFault("MANIFEST", "the list of files is missing"))
            return False
        name = current.read_text().strip()
        listed, spare = (self.path / name).read_bytes(), _spare_of(source)
        if ends_within_a_record(self.path / name) or (spare.startswith(listed) and spare != listed):
            # RocksDB takes what is there for all.
            self.faults.append(FileFault(name, "it ends too early"))
            return False
        for is_strict in (not self.faults, False):
            try:
                self._open(is_strict=is_strict)
            except Exception as error:
                fault = self._fault(str(error))
                if fault not in self.faults:
                    self.faults.append(fault)
            else:
                return True
        return False

    def _is_open_by_spare(self, source: Path) -> bool:
        """Open it by the spare list of files, if that names exactly the tables that are there."""
        spare = _spare_of(source)
        if not spare:
            return False
        name = "MANIFEST-000001"
        (self.path / name).write_bytes(spare)
        (self.path / "CURRENT").write_text(f"{name}\n")
        try:
            self.open_leniently()
        except Exception:
            return False
        assert self._database is not None
        listed = {Path(file["name"]).name for file in self._database.live_files()}
        return listed == {table.name for table in self.path.glob("*.sst")}

    def open_leniently(self) -> None:
        """Open the view without what is damaged of its write-ahead logs.

        Raises:
            Exception: RocksDB does not open it.
        """
        self._open(is_strict=False)

    def _open(self, *, is_strict: bool) -> None:
        path = str(self.path)
        options = _options(is_strict=is_strict)
        families = {name: _options(is_strict=is_strict) for name in Rdict.list_cf(path, options)}
        self._database = Rdict(path, options, column_families=families, access_type=AccessType.read_only(False))
        self.families = {name: self._database.get_column_family(name) for name in families}

    def _fault(self, error: str) -> FileFault:
        if block := _BLOCK.search(error):
            return FileFault(block[1], f"the block of {block[3]} bytes at {block[2]} is not what was written")
        file = _FILE.search(error)
        text = error.replace(f"{self.path}/", "")
        if file is not None and "No such file" in error:
            return FileFault(file[0], "it is missing")
        return FileFault(file[0] if file else "the folder", f"RocksDB reports: {text}")


def _spare_of(folder: Path) -> bytes:
    """The spare list of files of a folder; empty if there is none."""
    spare = folder / SPARE_MANIFEST_FILE
    return spare.read_bytes() if spare.exists() and not is_misplaced(spare) else b""


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


def _write_unchecked(folder: DamagedFolder) -> None:
    """Write the rows of the gaps in the standard input to the output; damaged bytes may kill this process."""
    folder.open_leniently()
    for line in sys.stdin:
        family, start, end = line[:-1].split(" ")
        begin, behind = bytes.fromhex(start), bytes.fromhex(end) or None
        for key, value in folder.rows(family, lambda _: None, begin, behind, is_checked=False):
            print(key.hex(), value.hex(), flush=True)  # noqa: T201


if __name__ == "__main__":
    _write_unchecked(DamagedFolder(Path(sys.argv[1])))
