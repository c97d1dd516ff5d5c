"""A copy of a whole log between data folders, prefixes and backups. Each end says what it is when it is looked at."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from managed_ledger.bundle_settings import BUNDLES, DEFAULT_CLUSTER, LEDGERS, SETTINGS
from managed_ledger.errors import BackupError
from managed_ledger.objects.checkpoints import OnBytes, StoredCheckpoint
from managed_ledger.objects.manifest import MANIFEST, Manifest
from managed_ledger.objects.moving import cluster_in, move_in, move_out
from managed_ledger.objects.object_store import ObjectStore, ReadObjects
from managed_ledger.objects.place_checkpoints import FolderCheckpoints, checkpoints_of, fetch_bundles, store_bundles
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
from postdate.index.object_places import objects_at
from snapshot_storage.s3.location import is_s3


class CopiedLog(NamedTuple):
    """A log that was copied.

    Attributes:
        bundles: How many it has.
        files: Tables and write-ahead logs.
        bytes: Their size.
        new_bytes: Of these, what the target had not.
    """

    bundles: int
    files: int
    bytes: int
    new_bytes: int


def copy_log(
    source: str,
    target: str,
    *,
    now_ms: int,
    on_bytes: OnBytes,
    replaces_other: bool = False,
    to_backup: bool = False,
    cluster: str = DEFAULT_CLUSTER,
) -> CopiedLog:
    """Copy a log.

    Args:
        source: A data folder, the prefix of a cluster, or a backup as a folder or `s3://BUCKET/PREFIX`.
        target: The same. What is empty or missing becomes a data folder, or on S3 the prefix of a cluster.
        now_ms: The time.
        on_bytes: Told of the progress.
        replaces_other: Whether a backup of another log is replaced.
        to_backup: Whether a target that is empty or missing becomes a backup.
        cluster: The name of the cluster that a prefix becomes that of.

    Raises:
        BackupError: It cannot be copied so, or the target has something else; nothing has changed there.
        StoreLockedError: A service has the data folder open.
        LedgerError: There is no log, or it cannot be read.
        SnapshotStorageError: The storage does not answer or refuses.
        OSError: The disk refuses.
    """
    if not cluster.strip():
        raise BackupError("The name of the cluster is empty: say the clusterName of its services")
    is_to_folder = not (to_backup or is_backup(target))
    if is_backup(source) and not is_to_folder:
        raise BackupError("One of both must be a data folder: copy to one first, and that to the other place")
    if not is_to_folder:
        with closing(objects_at(target)) as place:
            if to_backup or not is_s3(target) or _is_backup_there(place):
                return _stored(place, Path(source), now_ms, on_bytes, replaces_other=replaces_other)
            return _copied(move_in(place, Path(source), cluster, made_at_ms=now_ms, on_bytes=on_bytes))
    if is_s3(source):
        with closing(objects_at(source)) as place:
            if cluster_in(place):
                return _fetched(move_out(place, Path(target), on_bytes=on_bytes))
    with reading_end(source, now_ms) as objects:
        return _fetched(fetch_bundles(objects, Path(target), on_bytes=on_bytes))


def _is_backup_there(place: ObjectStore) -> bool:
    return not cluster_in(place) and any(place.read(name) is not None for name in (SETTINGS, MANIFEST))


def _fetched(manifests: Sequence[Manifest]) -> CopiedLog:
    size_bytes = sum(one.size_bytes for one in manifests)
    return CopiedLog(len(manifests), sum(len(one.tables) for one in manifests), size_bytes, size_bytes)


def _stored(place: ObjectStore, data: Path, now_ms: int, on_bytes: OnBytes, *, replaces_other: bool) -> CopiedLog:
    return _copied(store_bundles(place, data, made_at_ms=now_ms, on_bytes=on_bytes, replaces_other=replaces_other))


def _copied(stored: Sequence[StoredCheckpoint]) -> CopiedLog:
    manifests = [one.manifest for one in stored]
    return CopiedLog(
        len(stored),
        sum(len(one.tables) for one in manifests),
        sum(one.size_bytes for one in manifests),
        sum(one.new_bytes for one in stored),
    )


@contextmanager
def reading_end(source: str, now_ms: int) -> Iterator[ReadObjects]:
    """Give what is at a place as the objects of a backup; a data folder stays stopped meanwhile.

    Raises:
        BackupError: The text names no place.
        LedgerError: There is no log, or a service has it open.
    """
    if is_backup(source):
        with closing(objects_at(source)) as objects:
            yield objects
        return
    data = Path(source)
    if not is_data_folder(data):
        raise BackupError(f"There is no log in {data}: name a data folder, or a backup")
    with checkpoints_of(data) as folders:
        yield FolderCheckpoints(data, folders, now_ms)


def is_data_folder(folder: Path) -> bool:
    """Whether a folder has the log of a service, with one bundle or several."""
    return (folder / LEDGERS / LOG_MARKER_FILE).exists() or (folder / BUNDLES).is_dir()


def is_backup(text: str) -> bool:
    """Whether a text names a place of backups: any but a data folder, or what becomes one."""
    if "://" in text:
        return True
    folder = Path(text)
    return not is_data_folder(folder) and ((folder / "manifest").exists() or (folder / "bundle").is_dir())
