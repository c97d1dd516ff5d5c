"""Moves a log between a data folder and a prefix that services share, as `shipped_database` has it there.

    in     a claim of each bundle ─► its first checkpoint ─► settings.json ─► bundles.json: the moment
    out    each bundle is read out, beside whoever serves it ─► bundles.json ─► the folder's own name: the moment

No service starts on a prefix that has other objects and no `bundles.json`, nor on a folder that is not whole. A service
that began on an empty prefix at the same time has claimed bundles before or after: its list of bundles is seen once the
claims are made, and from then on its claims make the changes of the manifests fail.
"""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from managed_ledger.bundle_settings import LEDGERS, RESTORING, SETTINGS, decode_settings, encode_settings
from managed_ledger.bundles import WHOLE, BundleRange
from managed_ledger.errors import BackupError, BackupTakenError
from managed_ledger.objects.checkpoints import (
    OnBytes,
    StoredCheckpoint,
    at_once,
    digest_of,
    digest_of_end,
    is_same_table,
)
from managed_ledger.objects.log_object import log_name
from managed_ledger.objects.manifest import MANIFEST, TABLES, Manifest, TableObject, table_name
from managed_ledger.objects.object_store import ObjectsBelow, ObjectStore, ReadObjects
from managed_ledger.objects.place_checkpoints import (
    SummedBytes,
    begin_folder,
    check_empty,
    checkpoints_of,
    complete_folder,
    complete_with,
    put_object,
)
from managed_ledger.objects.reading_out import read_out
from managed_ledger.objects.shared_records import SHARED_RECORDS, encode_records, shared_in_log
from managed_ledger.objects.takeover import Claim, change_manifest, claim_log
from managed_ledger.rocksdb_store.files import IDENTITY_FILE

NOTED_BYTES: Final = 256 * 2**20
"""After so many bytes the manifest names what is stored, so that a call that was cut off goes on from there."""
_BUNDLE: Final = "bundle/"
_PROBES: Final = "probe/"
"""What a start that was killed may have left."""


def bundle_objects(objects: ObjectStore, bundle: BundleRange) -> ObjectStore:
    """Return the objects of a bundle of a prefix, also of the only one."""
    return ObjectsBelow(objects, f"{_BUNDLE}{bundle}")


def cluster_in(objects: ReadObjects) -> str:
    """Return the name of the cluster whose log is in a place; empty where there is none.

    Raises:
        LedgerError: The list of bundles makes no sense.
        Exception: As `ObjectStore` raises.
    """
    found = objects.read(SETTINGS)
    return "" if found is None else decode_settings(found[0], f"{objects}/{SETTINGS}")[1]


def move_in(
    objects: ObjectStore, data: Path, cluster: str, *, made_at_ms: int, on_bytes: OnBytes
) -> list[StoredCheckpoint]:
    """Copy the log of a stopped data folder to a prefix, for services to start on; each table is read again.

    Args:
        objects: The prefix: empty, or with what a call that was cut off has left; that is gone on with.
        data: The data folder.
        cluster: The name of the cluster of these services.
        made_at_ms: The time.
        on_bytes: Told of the progress.

    Raises:
        BackupError: The prefix has something else, or keeps other bytes than were stored; no service starts on it.
        BackupTakenError: Another copy, or a service, has begun there meanwhile.
        StoreLockedError: A service has the data folder open.
        LedgerError: There is no log, or it cannot be read.
        Exception: As `ObjectStore` raises; no service starts on what is there.
    """
    progress = SummedBytes(on_bytes)
    with checkpoints_of(data) as folders:
        ranges = tuple(folders)
        _check_free(objects, ranges)
        places = {bundle: bundle_objects(objects, bundle) for bundle in ranges}
        claims = {bundle: claim_log(places[bundle], _copy_id(folders[bundle], places[bundle])) for bundle in ranges}
        _check_unserved(objects)
        stored = [
            _FirstCheckpoint(places[bundle], folder, claims[bundle]).store(made_at_ms, progress.part())
            for bundle, folder in folders.items()
        ]
        shared = (data / SHARED_RECORDS).read_bytes() if (data / SHARED_RECORDS).exists() else None
        if ranges == (WHOLE,):
            shared = encode_records(shared_in_log(folders[WHOLE]))
    if shared is not None:
        put_object(objects, SHARED_RECORDS, shared)
    if not objects.create(SETTINGS, encode_settings(ranges, cluster)):
        raise BackupTakenError(f"{objects} was taken by another copy, or a service, meanwhile")
    return stored


def _check_unserved(objects: ObjectStore) -> None:
    if cluster := cluster_in(objects):
        raise BackupError(f"{objects} has the log of the cluster {cluster}: name another prefix; nothing has changed")


def _check_free(objects: ObjectStore, ranges: tuple[BundleRange, ...]) -> None:
    """Check that a prefix has nothing but what a copy of the same bundles has left."""
    _check_unserved(objects)
    own = (SHARED_RECORDS, _PROBES, *(f"{_BUNDLE}{one}/{name}" for one in ranges for name in (MANIFEST, TABLES)))
    strange = next((name for name in objects.names("") if not name.startswith(own)), None)
    if strange is not None:
        raise BackupError(f"{objects} has other objects, such as {strange}: name a prefix that is empty")


def _copy_id(folder: Path, objects: ObjectStore) -> str:
    """Return the id of the copy: it must not replace the backup of the log that it is a copy of, which may live on."""
    return str(uuid5(NAMESPACE_URL, f"{(folder / IDENTITY_FILE).read_text().strip()} {objects}"))


class _FirstCheckpoint:
    """The checkpoint with which the log of a bundle begins on objects.

    Args:
        objects: The place of the bundle.
        folder: The checkpoint, as `RocksDatabase.checkpoint` makes it.
        claim: The claim of the place.
    """

    def __init__(self, objects: ObjectStore, folder: Path, claim: Claim) -> None:
        self._objects, self._folder = objects, folder
        self._claim = claim
        self._log = _copy_id(folder, objects)

    def store(self, made_at_ms: int, on_bytes: OnBytes) -> StoredCheckpoint:
        """Store it; what a call that was cut off has stored of it stays.

        Raises:
            BackupError: The place has another log, or keeps other bytes than were stored.
            BackupTakenError: Another copy, or a service, has claimed the place.
            Exception: As `ObjectStore` raises.
        """
        before = self._claim.manifest
        if before.log != self._log:
            raise BackupError(f"{self._objects} has a part of another log: name a prefix that is empty")
        files = sorted(self._folder.glob("*.sst"))
        tables = {
            file.name: known
            for file in files
            if (known := before.tables.get(file.name)) is not None and is_same_table(file, known)
        }
        kept_bytes = sum(one.size_bytes for one in tables.values())
        all_bytes = sum(file.stat().st_size for file in files)
        stored_bytes = noted_bytes = kept_bytes
        on_bytes(kept_bytes, all_bytes)
        new = [file for file in files if file.name not in tables]
        with tempfile.TemporaryDirectory(prefix="postdate-copy-") as back:
            for file, table in zip(new, at_once(lambda file: self._put(file, Path(back)), new), strict=True):
                tables[file.name] = table
                stored_bytes += table.size_bytes
                on_bytes(stored_bytes, all_bytes)
                if stored_bytes - noted_bytes >= NOTED_BYTES:
                    self._change(replace(before, log=self._log, tables=dict(tables)))
                    noted_bytes = stored_bytes
        small = {file.name: file.read_bytes() for file in self._folder.iterdir() if file.suffix != ".sst"}
        made = replace(before, log=self._log, made_at_ms=made_at_ms, tables=tables, files=small)
        self._change(made)
        self._delete_unnamed(made)
        return StoredCheckpoint(made, len(new), all_bytes - kept_bytes)

    def _put(self, file: Path, back: Path) -> TableObject:
        name = table_name(self._claim.manifest.epoch, file.name)
        table = TableObject(name, file.stat().st_size, digest_of(file), digest_of_end(file))
        self._objects.put_file(name, file)
        read = back / file.name
        if not self._objects.fetch_file(name, read):
            raise self._taken()
        if digest_of(read) != table.sha256:
            raise BackupError(f"{self._objects} does not give back what was stored as {name}")
        read.unlink()
        return table

    def _change(self, manifest: Manifest) -> None:
        tag = change_manifest(self._objects, manifest, self._claim.tag)
        if tag is None:
            raise self._taken()
        self._claim = Claim(manifest, tag)

    def _taken(self) -> BackupTakenError:
        return BackupTakenError(f"{self._objects} was claimed by another copy, or a service, meanwhile")

    def _delete_unnamed(self, made: Manifest) -> None:
        named = {table.name for table in made.tables.values()}
        self._objects.delete_all([name for name in self._objects.names(TABLES) if name not in named])


def move_out(objects: ObjectStore, data: Path, *, on_bytes: OnBytes) -> list[Manifest]:
    """Make a data folder of the log in a prefix, which may be in use: whole, or not at all.

    Each bundle is as of a moment of its own, after the call.

    Args:
        objects: The prefix.
        data: The data folder: empty, missing, or with what a call that was cut off has left; that is gone on with.
        on_bytes: Told of the progress.

    Raises:
        BackupError: The folder has something else, or the prefix no log, or it changes all the time.
        LedgerError: It is damaged, or the disk refuses.
        Exception: As `ObjectStore` raises, or the system.
    """
    check_empty(data)
    ranges = _served_ranges(objects)
    data.mkdir(parents=True, exist_ok=True)
    begin_folder(data, ranges)
    if ranges == (WHOLE,):
        complete = complete_with(objects.read(SHARED_RECORDS))
        log = read_out(bundle_objects(objects, WHOLE), data / LEDGERS, on_bytes=on_bytes, complete=complete)
        return [log.manifest]
    progress = SummedBytes(on_bytes)
    moved = [_moved_out(bundle_objects(objects, one), data / RESTORING / str(one), progress.part()) for one in ranges]
    complete_folder(objects, data, ranges)
    return moved


def tables_bytes(objects: ReadObjects) -> int:
    """Return how much `move_out` of a prefix reads, but for what came since the checkpoints.

    Raises:
        BackupError: The prefix has no log, or a manifest is damaged.
        LedgerError: The list of bundles makes no sense.
        Exception: As `ObjectStore` raises.
    """
    found = [objects.read(f"{_BUNDLE}{one}/{MANIFEST}") for one in _served_ranges(objects)]
    return sum(Manifest.decode(one[0], str(objects)).size_bytes for one in found if one is not None)


def _served_ranges(objects: ReadObjects) -> tuple[BundleRange, ...]:
    found = objects.read(SETTINGS)
    if found is None:
        raise BackupError(f"There is no log of a cluster in {objects}")
    return decode_settings(found[0], f"{objects}/{SETTINGS}")[0]


def _moved_out(objects: ObjectStore, folder: Path, on_bytes: OnBytes) -> Manifest:
    """Read out one bundle, if a call that was cut off has not read out the same one."""
    mark = folder / MANIFEST
    if (folder / LEDGERS).is_dir():
        if mark.exists() and (known := _if_as_before(objects, mark.read_bytes())) is not None:
            return known
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    log = read_out(objects, folder / LEDGERS, on_bytes=on_bytes)
    mark.write_bytes(b"%d\n%b" % (log.end, log.manifest.encode()))
    return log.manifest


def _if_as_before(objects: ObjectStore, mark: bytes) -> Manifest | None:
    """Return the manifest in a mark if nothing was written behind what was read out with it."""
    end, _, data = mark.partition(b"\n")
    found = objects.read(MANIFEST)
    is_same = found is not None and found[0] == data and objects.read(log_name(int(end))) is None
    return Manifest.decode(data, str(objects)) if is_same else None
