"""Divide a stopped data folder: the topics of its bundles, with all that is theirs, go to more and smaller bundles.

    lock ─► read the small rows ─► bundles.new/RANGE/ledgers: copied, read again, compared
         ─► moved to bundles/RANGE ─► settings.json ─► bundles.json: the moment ─► the old ones go to bundles.old

Up to the moment the old folder counts, and from then on the new one; what a kill leaves beside it is removed, or moved
away, by the next call. Topics keep the ids of their ledgers and cursors, so a position means what it meant.

PERFORMANCE: the log is read once, in order; a row is a block of entries, never a single one.
"""

import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from managed_ledger.bundle_settings import (
    BUNDLES,
    LEDGERS,
    SETTINGS,
    SNAPSHOTS,
    bundle_folder,
    bundle_folders,
    encode_settings,
    ranges_in,
)
from managed_ledger.bundles import WHOLE, BundleRange, bundle_of, even_ranges
from managed_ledger.disk import keys, meta_copies
from managed_ledger.disk.bulk_writing import BulkWriting
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.disk.rocksdb_edge import damage_advice
from managed_ledger.errors import BundlesError, LedgerError, StoreCorruptedError, StoreFullError, StoreUnavailableError
from managed_ledger.objects.object_store import FolderObjects
from managed_ledger.objects.shared_records import SHARED_RECORDS, decode_records, encode_records
from managed_ledger.positions.value_types import OnStage, OnStep
from managed_ledger.repair.rewriting import locked
from managed_ledger.rocksdb_store.disk_room import REOPEN_BYTES, measure_room
from managed_ledger.rocksdb_store.files import sync_folder

NEW: Final = f"{BUNDLES}.new"
"""The bundles that are being made."""
OLD: Final = f"{BUNDLES}.old"
"""The bundles, or the one, of before."""
_BUFFERS_BYTES: Final = 64 * 2**20
"""Memory for the write buffers of all bundles together."""
_BUFFER_BYTES_MIN: Final = 2**20
_LOGS_BYTES_MAX: Final = 128 * 2**20
"""What write-ahead logs take beside the tables that are made of them."""
_END: Final = b"\xff" * 32

HomeOfRecord = Callable[[str, Sequence[BundleRange]], BundleRange | None]
"""Gives the bundle of a record, of some; None for one that is of no single topic, and belongs to all of them."""


@dataclass(frozen=True, slots=True)
class Divided:
    """The result of a division.

    Attributes:
        bundles: The number of topics of each.
        rows: Blocks, records and states that were copied and compared.
        old: Where the log of before is; None if there was nothing to do.
    """

    bundles: Mapping[BundleRange, int]
    rows: int
    old: Path | None


def divide(
    data: Path,
    count: int,
    *,
    home_of: HomeOfRecord,
    fill: Callable[[Path, Path], None] = lambda _source, _made: None,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> Divided:
    """Divide the bundles of a stopped data folder evenly.

    Args:
        data: The data folder.
        count: How many bundles it shall have: a multiple of what it has.
        home_of: Where records go.
        fill: Called with the folder of an old bundle and that of one of its parts, whose log is there; whatever it adds
            comes into force with it.
        on_stage: Told of each stage, "divide" and "verify", and its steps.
        on_step: Told of steps that are done.

    Raises:
        BundlesError: It cannot be divided so, or has the leavings of an earlier division; nothing has changed.
        StoreLockedError: A service has it open.
        LedgerError: There is no log, it cannot be read, or there is no room; nothing has changed.
        OSError: The system refuses; likewise.
    """
    found = ranges_in(data)
    new = even_ranges(count)
    if set(new) == set(found):
        _move_old(data, found)
        return Divided(dict.fromkeys(found, 0), 0, None)
    parts = {old: [one for one in new if old.begin <= one.begin and one.end <= old.end] for old in found}
    if sum(map(len, parts.values())) < count:
        raise BundlesError(
            f"{data} has {len(found)} bundles, which cannot be divided into {count}: name a multiple of {len(found)}"
        )
    with ExitStack() as locks:
        for folder in bundle_folders(data).values():
            locks.enter_context(locked(folder / LEDGERS, creates=True))
        _remove_unfinished(data, found)
        _check_room(data, found, count)
        return _Division(data, found, parts, home_of, fill, on_stage, on_step).made()


def _remove_unfinished(data: Path, found: Sequence[BundleRange]) -> None:
    """Remove what a division that was killed before the moment has left, and move the rest of one that was later."""
    _move_old(data, found)
    if (data / OLD).exists():
        raise BundlesError(
            f"{data / OLD} has the log of before the last division: see that all is well, and remove it or move it away"
        )
    shutil.rmtree(data / NEW, ignore_errors=True)
    for name in _strangers(data, found):
        shutil.rmtree(data / BUNDLES / str(name))


def _strangers(data: Path, found: Sequence[BundleRange]) -> list[BundleRange]:
    """Return the bundles that are in their folder, and not in their list."""
    folder = data / BUNDLES
    here: list[BundleRange] = []
    for place in folder.iterdir() if folder.is_dir() else ():
        try:
            here.append(BundleRange.parse(place.name))
        except ValueError:
            continue
    return [one for one in here if one not in found]


def _move_old(data: Path, found: Sequence[BundleRange]) -> None:
    """Move away what a division has taken the place of: the larger ones of the bundles that are not in the list."""
    if tuple(found) == (WHOLE,):
        return
    old = {data / name: data / OLD / name for name in (LEDGERS, SNAPSHOTS)}
    for one in _strangers(data, found):
        if any(one.begin <= part.begin and part.end <= one.end for part in found):
            old[bundle_folder(data, one)] = data / OLD / str(one)
    for place, kept in old.items():
        if place.exists():
            kept.parent.mkdir(exist_ok=True)
            place.rename(kept)
            sync_folder(kept.parent)
            sync_folder(place.parent)


def _check_room(data: Path, found: Sequence[BundleRange], count: int) -> None:
    folders = [bundle_folder(data, one) / name for one in found for name in (LEDGERS, SNAPSHOTS)]
    used = [measure_room(folder) for folder in folders if folder.is_dir()]
    used_bytes = sum(room.unflushed_bytes + room.table_bytes for room in used)
    wanted_bytes = used_bytes + min(used_bytes, _LOGS_BYTES_MAX) + count * REOPEN_BYTES
    free_bytes = used[0].free_bytes - used[0].margin_bytes
    if free_bytes < wanted_bytes:
        raise StoreFullError(
            f"{data} has no room to be divided: that takes {wanted_bytes / 2**20:,.0f} MiB beside the log of before, "
            f"and {max(0, free_bytes) / 2**20:,.0f} MiB may be used"
        )


class _Digest:
    """How many rows there were, and a checksum of them in order."""

    __slots__ = ("checksum", "rows")

    def __init__(self) -> None:
        self.rows = self.checksum = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.rows += 1
        self.checksum = zlib.crc32(value, zlib.crc32(key, self.checksum))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Digest) and (self.rows, self.checksum) == (other.rows, other.checksum)

    __hash__ = None  # type: ignore[assignment]


class _Target:
    """The log of a new bundle while it is written."""

    def __init__(self, folder: Path, write_buffer_bytes: int) -> None:
        self._database = RocksDatabase.open(folder, write_buffer_bytes=write_buffer_bytes)
        self._writing = BulkWriting(self._database)
        self._digests = {family: _Digest() for family in Family}
        self._folder = folder

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self._writing.put(family, key, value)
        self._digests[family].add(key, value)

    def finish(self) -> None:
        self._writing.flush()
        # Tables of all, so that a start has no write-ahead log to replay.
        self._database.flush()
        self._database.close()

    def release(self) -> None:
        self._database.release()

    def verify(self) -> int:
        """Read all of it again, and return the number of rows.

        Raises:
            StoreUnavailableError: It is not what was written.
        """
        database = RocksDatabase.open_read_only(self._folder)
        try:
            for family, expected in self._digests.items():
                found = _Digest()
                for key, value in _rows(database, family):
                    found.add(key, value)
                if found != expected:
                    raise StoreUnavailableError(
                        f"{self._folder} is not what was written: {found.rows:,} rows of {family} and not "
                        f"{expected.rows:,}, or others. The disk fails; the old log is as it was"
                    )
        except StoreCorruptedError as error:
            raise StoreUnavailableError(f"The new log is damaged, so the disk fails: {error}") from error
        finally:
            database.release()
        return sum(one.rows for one in self._digests.values())


def _rows(database: RocksDatabase, family: Family) -> Iterator[tuple[bytes, bytes]]:
    """Give the rows of a family but those that each folder has of its own."""
    own = keys.FORMAT_KEY if family is Family.META else keys.FIRST_KEY
    for key, value in database.scan(family, b"", _END):
        if key != own:
            yield key, value


@dataclass(slots=True)
class _Plan:
    """Where the rows of one log go, by their topics."""

    meta: dict[BundleRange, dict[bytes, bytes]]
    topics: dict[BundleRange, int]
    ledgers: dict[bytes, BundleRange] = field(default_factory=dict)
    """By the beginning of keys, as are the cursors."""
    cursors: dict[bytes, BundleRange] = field(default_factory=dict)
    shared: dict[str, bytes] = field(default_factory=dict)


def _planned(database: RocksDatabase, folder: Path, ranges: Sequence[BundleRange], home_of: HomeOfRecord) -> _Plan:
    """Read the small rows.

    Raises:
        StoreCorruptedError: They make no sense.
    """
    plan = _Plan({one: {} for one in ranges}, dict.fromkeys(ranges, 0))
    rows = dict(_rows(database, Family.META))
    owners: dict[bytes, BundleRange] = {}
    for key, value in rows.items():
        if key[:1] == b"m":
            home = bundle_of(key[1:].decode(), ranges)
            # In keys owners are big endian, and in values little.
            owners[value[::-1]] = home
            plan.topics[home] += 1
    for key, value in rows.items():
        if key == keys.COUNTERS_KEY:
            homes: Sequence[BundleRange | None] = ranges
        elif key[:1] == b"r":
            homes = [home_of(key[1:].decode(), ranges)]
        elif key[:1] == b"m":
            homes = [owners[value[::-1]]]
        elif key[:1] in (b"l", b"c", b"d", b"h") and key[1:9] in owners:
            homes = [owners[key[1:9]]]
        else:
            raise StoreCorruptedError(damage_advice(folder, f"the row {key!r} is of no topic"))
        for one in homes:
            if one is None:
                plan.shared[key[1:].decode()] = value
                continue
            plan.meta[one][key] = value
            if key[:1] == b"l":
                plan.ledgers[key[9:17]] = one
            elif key[:1] == b"c" and key != keys.COUNTERS_KEY:
                plan.cursors[value[::-1]] = one
    return plan


class _Division:
    """The steps of a division."""

    def __init__(
        self,
        data: Path,
        found: Sequence[BundleRange],
        parts: Mapping[BundleRange, Sequence[BundleRange]],
        home_of: HomeOfRecord,
        fill: Callable[[Path, Path], None],
        on_stage: OnStage,
        on_step: OnStep,
    ) -> None:
        self._data, self._found, self._parts = data, found, parts
        self._home_of, self._fill = home_of, fill
        self._on_stage, self._on_step = on_stage, on_step
        self._topics: dict[BundleRange, int] = {}
        self._shared: dict[str, bytes] = {}
        self._rows = 0

    def made(self) -> Divided:
        (self._data / NEW).mkdir()
        try:
            for old, ranges in self._parts.items():
                self._make(bundle_folder(self._data, old), ranges)
            self._sync()
        except BaseException:
            shutil.rmtree(self._data / NEW, ignore_errors=True)
            raise
        self._put_in_place()
        return Divided(dict(sorted(self._topics.items())), self._rows, self._data / OLD)

    def _make(self, source: Path, ranges: Sequence[BundleRange]) -> None:
        folders = {one: self._data / NEW / str(one) for one in ranges}
        targets = self._copied(source / LEDGERS, {one: folder / LEDGERS for one, folder in folders.items()})
        self._on_stage("verify", len(targets))
        for target in targets:
            self._rows += target.verify()
            self._on_step(1)
        for folder in folders.values():
            self._fill(source, folder)

    def _copied(self, source: Path, folders: Mapping[BundleRange, Path]) -> Sequence[_Target]:
        database = RocksDatabase.open_read_only(source)
        targets: dict[BundleRange, _Target] = {}
        try:
            plan = _planned(database, source, list(folders), self._home_of)
            self._topics |= plan.topics
            self._shared |= plan.shared
            self._on_stage("divide", len(plan.ledgers))
            buffer_bytes = max(_BUFFER_BYTES_MIN, _BUFFERS_BYTES // len(folders))
            for one, folder in folders.items():
                targets[one] = _Target(folder, buffer_bytes)
            self._copy(database, source, plan, targets)
            for target in targets.values():
                target.finish()
        except BaseException:
            for target in targets.values():
                target.release()
            raise
        finally:
            database.release()
        return list(targets.values())

    def _copy(self, database: RocksDatabase, source: Path, plan: _Plan, targets: Mapping[BundleRange, _Target]) -> None:
        for family in (Family.HEADERS, Family.PAYLOADS):
            ledger, target = b"", None
            for key, value in _rows(database, family):
                if key[:8] != ledger:
                    ledger = key[:8]
                    home = plan.ledgers.get(ledger)
                    if home is None:
                        number = int.from_bytes(ledger)
                        raise StoreCorruptedError(damage_advice(source, f"ledger {number} is of no topic"))
                    target = targets[home]
                    self._on_step(family is Family.PAYLOADS)
                assert target is not None
                target.put(family, key, value)
        for key, value in _rows(database, Family.CURSORS):
            if not key.startswith(meta_copies.PREFIX) and (home := plan.cursors.get(key[:8])) is not None:
                targets[home].put(Family.CURSORS, key, value)
        for home, rows in plan.meta.items():
            for key, value in rows.items():
                targets[home].put(Family.META, key, value)
                if meta_copies.has_copy(key):
                    targets[home].put(Family.CURSORS, meta_copies.copy_key(key), value)

    def _sync(self) -> None:
        for folder, _, files in os.walk(self._data / NEW):
            for file in files:
                with (Path(folder) / file).open("rb") as opened:
                    os.fsync(opened.fileno())
            sync_folder(Path(folder))

    def _put_in_place(self) -> None:
        new = [one for ranges in self._parts.values() for one in ranges]
        (self._data / BUNDLES).mkdir(exist_ok=True)
        for one in new:
            (self._data / NEW / str(one)).rename(bundle_folder(self._data, one))
        sync_folder(self._data / BUNDLES)
        objects = FolderObjects(self._data)
        records = objects.read(SHARED_RECORDS)
        # Beside a folder with one bundle it is what a division that was cut off has left.
        if records is not None and tuple(self._found) != (WHOLE,):
            self._shared |= decode_records(records[0], str(self._data / SHARED_RECORDS))
        _replace(objects, SHARED_RECORDS, encode_records(self._shared))
        _replace(objects, SETTINGS, encode_settings(new))
        (self._data / NEW).rmdir()
        _move_old(self._data, new)


def _replace(objects: FolderObjects, name: str, data: bytes) -> None:
    before = objects.read(name)
    if objects.replace(name, data, None if before is None else before[1]) is None:
        raise LedgerError(f"{name} in {objects} was changed meanwhile: something else is at work there")
