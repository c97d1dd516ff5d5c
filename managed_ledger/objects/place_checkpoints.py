"""Checkpoints of all bundles in one place: with one bundle as `checkpoints` has it, and with several so.

    bundles.json           which ones there are; it is written last, when all are there
    settings.json          the records that are of no single topic
    bundle/RANGE/...       the checkpoint of each, as of a moment of its own

A folder of a log becomes such a place by `FolderCheckpoints`, so that reading knows one form.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from managed_ledger.bundle_settings import (
    BUNDLES,
    LEDGERS,
    RESTORING,
    SETTINGS,
    bundle_folders,
    decode_settings,
    encode_settings,
)
from managed_ledger.bundles import WHOLE, BundleRange
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.errors import BackupError, BackupTakenError
from managed_ledger.objects.checkpoints import (
    OnBytes,
    StoredCheckpoint,
    fetch_checkpoint,
    manifest_of,
    restoring_folder,
    store_checkpoint,
)
from managed_ledger.objects.manifest import MANIFEST, TABLES, Manifest
from managed_ledger.objects.object_store import FolderObjects, ObjectsBelow, ObjectStore, ReadObjects
from managed_ledger.objects.shared_records import SHARED_RECORDS, decode_records, put_shared
from managed_ledger.rocksdb_store.files import sync_folder

_BUNDLE: Final = "bundle/"
_WRITE_BUFFER_BYTES: Final = 32 * 2**20
_OWN_OF_RESTORING: Final = frozenset({RESTORING, SETTINGS, SHARED_RECORDS, "lock"})

Ranges = Sequence[BundleRange]


def objects_of(objects: ObjectStore, bundle: BundleRange) -> ObjectStore:
    """Return the objects of one bundle of a place."""
    return objects if bundle == WHOLE else ObjectsBelow(objects, f"{_BUNDLE}{bundle}")


class MadeBackup(NamedTuple):
    """A backup that was made.

    Attributes:
        made_at_ms: When it was begun.
        files: Tables and write-ahead logs.
        size_bytes: Their size.
        new_files: Of these, what the backup of before did not have.
        new_bytes: Their size.
        missing: Bundles that this service does not have: others are to add them.
    """

    made_at_ms: int
    files: int
    size_bytes: int
    new_files: int
    new_bytes: int
    missing: tuple[BundleRange, ...]


class SummedBytes:
    """The progress of several parts, one after the other, as one.

    Args:
        on_bytes: Told of the sums.
    """

    def __init__(self, on_bytes: OnBytes) -> None:
        self._on_bytes = on_bytes
        self._done = self._all = 0

    def part(self) -> OnBytes:
        """Return what the next part is to tell."""
        done_before, all_before = self._done, self._all

        def on_bytes(done: int, of_all: int) -> None:
            self._done, self._all = done_before + done, all_before + of_all
            self._on_bytes(self._done, self._all)

        return on_bytes


class _ReadBelow:
    """The objects of a bundle, to read."""

    def __init__(self, objects: ReadObjects, bundle: BundleRange) -> None:
        self._objects = objects
        self._root = f"{_BUNDLE}{bundle}/"

    def __str__(self) -> str:
        return f"{self._objects}/{self._root.rstrip('/')}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        return self._objects.read(self._root + name)

    def fetch_file(self, name: str, path: Path) -> bool:
        return self._objects.fetch_file(self._root + name, path)


def bundles_in(objects: ReadObjects) -> tuple[BundleRange, ...]:
    """Return the bundles of a place of checkpoints; one that has no list of them has one.

    Raises:
        BackupError: It is the log of a cluster, not a backup.
        LedgerError: The list makes no sense.
        Exception: As `ObjectStore` raises.
    """
    found = objects.read(SETTINGS)
    if found is None:
        return (WHOLE,)
    ranges, cluster = decode_settings(found[0], f"{objects}/{SETTINGS}")
    if cluster:
        raise BackupError(
            f"{objects} has the log of the cluster {cluster}, which is no backup: name another place, or copy it by "
            "`postdate ledger copy`"
        )
    return ranges


def check_place(objects: ObjectStore, ranges: Ranges, *, replaces_other: bool) -> None:
    """Check that the checkpoints of these bundles may be stored in a place; nothing is changed.

    Raises:
        BackupError: There is something else.
        LedgerError: Its list of bundles makes no sense.
        Exception: As `ObjectStore` raises.
    """
    there = bundles_in(objects)
    other = f"{objects} has the backup of a log with {{}}, which would be lost: name another place"
    if tuple(ranges) == (WHOLE,):
        if there != (WHOLE,):
            # What its tables would be called is not known here.
            raise BackupError(other.format(f"{len(there)} bundles"))
        return
    if there == tuple(ranges):
        return
    if there == (WHOLE,):
        strange = {name for name in objects.names("") if not name.startswith(_BUNDLE) and name != SHARED_RECORDS}
        if strange and MANIFEST not in strange:
            raise BackupError(f"{objects} has other files than a backup's: name an empty place")
        if not strange:
            return
    if not replaces_other:
        what = "one bundle" if there == (WHOLE,) else f"{len(there)} other bundles"
        raise BackupError(f"{other.format(what)}, or replace it by `postdate backup --replace`")


def complete_place(objects: ObjectStore, ranges: Ranges, shared: bytes | None) -> bool:
    """Make the checkpoints of several bundles the backup of a place, once all of them are there.

    Args:
        objects: The place.
        ranges: All bundles.
        shared: The records that are of no single topic; None where the log has them.

    Returns:
        Whether all are there. Before the first time, nothing in the place is a backup.

    Raises:
        BackupTakenError: Another writer was there at the same time.
        Exception: As `ObjectStore` raises.
    """
    for one in ranges:
        found = objects_of(objects, one).read(MANIFEST)
        if found is None or not Manifest.decode(found[0], str(objects)).files:
            return False
    if shared is not None:
        put_object(objects, SHARED_RECORDS, shared)
    elif tuple(ranges) == (WHOLE,):
        # The log has them; and what is there is older.
        objects.delete(SHARED_RECORDS)
    before = bundles_in(objects)
    if before != tuple(ranges):
        put_object(objects, SETTINGS, encode_settings(ranges))
        # Of the backup that this one has replaced, and nothing else that somebody keeps there.
        replaced = [f"{_BUNDLE}{one}/" for one in before if one not in ranges]
        if before == (WHOLE,):
            objects.delete(MANIFEST)
            replaced = [TABLES]
        objects.delete_all([name for below in replaced for name in objects.names(below)])
    return True


def put_object(objects: ObjectStore, name: str, data: bytes) -> None:
    """Make an object have these bytes.

    Raises:
        BackupTakenError: Another writer was there at the same time.
        Exception: As `ObjectStore` raises.
    """
    before = objects.read(name)
    if before is not None and before[0] == data:
        return
    if objects.replace(name, data, None if before is None else before[1]) is not None:
        return
    # Of services that share the bundles, the last two may be here at once.
    after = objects.read(name)
    if after is None or after[0] != data:
        raise BackupTakenError(f"Another backup to {objects} has begun meanwhile; this one is given up")


@contextmanager
def checkpoints_of(data: Path) -> Iterator[dict[BundleRange, Path]]:
    """Make a checkpoint of each bundle of a stopped data folder, which stays stopped in the `with`.

    Raises:
        StoreLockedError: A service has it open.
        LedgerError: There is no log, or it cannot be read.
    """
    with ExitStack() as made:
        found: dict[BundleRange, Path] = {}
        for bundle, folder in bundle_folders(data).items():
            database = RocksDatabase.open(folder / LEDGERS, write_buffer_bytes=_WRITE_BUFFER_BYTES)
            made.callback(database.release)
            # A start removes it, if this is killed.
            place = folder / f"{LEDGERS}.checkpoint"
            shutil.rmtree(place, ignore_errors=True)
            made.callback(shutil.rmtree, place, ignore_errors=True)
            database.checkpoint(place)
            found[bundle] = place
        yield found


def store_bundles(
    objects: ObjectStore,
    data: Path,
    *,
    made_at_ms: int,
    on_bytes: OnBytes,
    replaces_other: bool = False,
) -> list[StoredCheckpoint]:
    """Store checkpoints of all bundles of a stopped data folder; what is stored already is not stored again.

    Raises:
        StoreLockedError: A service has it open.
        LedgerError: As `checkpoints_of` and `store_checkpoint`.
        Exception: As `ObjectStore` raises; the backup of before counts.
    """
    progress = SummedBytes(on_bytes)
    with checkpoints_of(data) as folders:
        ranges = tuple(folders)
        check_place(objects, ranges, replaces_other=replaces_other)
        stored = [
            store_checkpoint(
                objects_of(objects, bundle),
                folder,
                made_at_ms=made_at_ms,
                on_bytes=progress.part(),
                is_stopping=lambda: False,
                replaces_other=replaces_other,
            )
            for bundle, folder in folders.items()
        ]
        complete_place(objects, ranges, _shared_of(data))
    return stored


def fetch_bundles(objects: ReadObjects, data: Path, *, on_bytes: OnBytes) -> list[Manifest]:
    """Make a data folder of the checkpoints in a place: whole, with every byte checked, or not at all.

    Args:
        objects: The place.
        data: The data folder: empty, missing, or with what a call that was cut off has left; that is gone on with.
        on_bytes: Told of the progress.

    Raises:
        BackupError: The folder has something else, or there is no whole backup, or it is damaged.
        LedgerError: A log in it is damaged, or of another format.
        Exception: As `ObjectStore` raises, or the system.
    """
    check_empty(data)
    ranges = bundles_in(objects)
    beside = data / RESTORING
    begin_folder(data, ranges)
    if ranges == (WHOLE,):
        complete = complete_with(objects.read(SHARED_RECORDS))
        return [fetch_checkpoint(objects, data / LEDGERS, on_bytes=on_bytes, complete=complete)]
    progress = SummedBytes(on_bytes)
    fetched = [_fetch(_ReadBelow(objects, one), beside / str(one), progress.part()) for one in ranges]
    complete_folder(objects, data, ranges)
    return fetched


def begin_folder(data: Path, ranges: Ranges) -> None:
    """Remove from a data folder that is being restored what a call that was cut off has left of other bundles."""
    beside = data / RESTORING
    if beside.is_dir():
        # What a call that was cut off at its end has written.
        for name in (SETTINGS, SHARED_RECORDS):
            (data / name).unlink(missing_ok=True)
    if tuple(ranges) == (WHOLE,):
        shutil.rmtree(beside, ignore_errors=True)
        return
    beside.mkdir(parents=True, exist_ok=True)
    for place in set(beside.iterdir()) - {beside / str(one) for one in ranges}:
        shutil.rmtree(place)


def _fetch(objects: ReadObjects, folder: Path, on_bytes: OnBytes) -> Manifest:
    """Fetch one bundle, if a call that was cut off has not fetched the same one."""
    found = objects.read(MANIFEST)
    if found is None:
        raise BackupError(f"The backup in {objects} is damaged: its manifest is missing")
    mark = folder / MANIFEST
    if (folder / LEDGERS).is_dir():
        if mark.exists() and mark.read_bytes() == found[0]:
            return Manifest.decode(found[0], str(objects))
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    mark.write_bytes(found[0])
    return fetch_checkpoint(objects, folder / LEDGERS, on_bytes=on_bytes)


def complete_with(shared: tuple[bytes, str] | None) -> Callable[[Path], None]:
    """Return what puts the records that are of no single topic into the only log of a place.

    Args:
        shared: The object that has them, as it was read; None where the log has them.
    """

    def complete(log: Path) -> None:
        if shared is not None:
            put_shared(log, decode_records(shared[0], SHARED_RECORDS))

    return complete


def complete_folder(objects: ReadObjects, data: Path, ranges: Ranges) -> None:
    """Make the bundles beside a data folder its own, with what belongs to all of them.

    Raises:
        Exception: As `ObjectStore` raises, or the system.
    """
    beside = data / RESTORING
    for one in ranges:
        (beside / str(one) / MANIFEST).unlink()
        sync_folder(beside / str(one))
    sync_folder(beside)
    # Beside a folder that is being restored they say nothing yet.
    files = FolderObjects(data)
    shared = objects.read(SHARED_RECORDS)
    if shared is not None:
        put_object(files, SHARED_RECORDS, shared[0])
    put_object(files, SETTINGS, encode_settings(ranges))
    beside.rename(data / BUNDLES)
    sync_folder(data)


def check_empty(data: Path) -> None:
    """Check that a data folder can be made in a place.

    Raises:
        BackupError: The folder has something else than what a call that was cut off has left.
    """
    if not data.is_dir():
        return
    own = {restoring_folder(data / LEDGERS).name}
    if (data / RESTORING).is_dir():
        own |= _OWN_OF_RESTORING
    if any(place.name not in own for place in data.iterdir()):
        raise BackupError(f"{data} is not empty: name a folder that is, or move away what is in it")


def _shared_of(data: Path) -> bytes | None:
    found = FolderObjects(data).read(SHARED_RECORDS)
    return None if found is None else found[0]


class FolderCheckpoints:
    """Checkpoints of the bundles of a data folder as a place of objects, to read: nothing is stored twice.

    Args:
        data: The data folder.
        folders: A checkpoint of each bundle (`checkpoints_of`).
        made_at_ms: When they were made.
    """

    def __init__(self, data: Path, folders: Mapping[BundleRange, Path], made_at_ms: int) -> None:
        self._data = data
        self._small: dict[str, bytes] = {}
        self._files: dict[str, Path] = {}
        ranges = tuple(folders)
        if ranges != (WHOLE,):
            self._small[SETTINGS] = encode_settings(ranges)
            if (shared := _shared_of(data)) is not None:
                self._small[SHARED_RECORDS] = shared
        for bundle, folder in folders.items():
            root = "" if bundle == WHOLE else f"{_BUNDLE}{bundle}/"
            manifest = manifest_of(folder, made_at_ms=made_at_ms)
            self._small[f"{root}{MANIFEST}"] = manifest.encode()
            self._files |= {f"{root}{table.name}": folder / name for name, table in manifest.tables.items()}

    def __str__(self) -> str:
        return str(self._data)

    def read(self, name: str) -> tuple[bytes, str] | None:
        data = self._small.get(name)
        return None if data is None else (data, "")

    def fetch_file(self, name: str, path: Path) -> bool:
        if name not in self._files:
            return False
        shutil.copyfile(self._files[name], path)
        return True
