"""The id of a data folder: the prefix of its snapshots on S3, so that no two services share keys.

Snapshots that no cursor of a folder names are garbage to its service. Under keys that two services share, each would
take the other's snapshots for garbage. So the snapshots of a folder are under `<bucketSnapshotS3Prefix>/<id>/`, and the
id is random, made once, and kept in a file of the folder.

A copy of a folder has the id of the original. Where both run, each deletes the snapshots that the other one's cursors
name, and the other reads its index again from its log: that costs time, and no message. An operator that keeps both
removes the file from one of them. That folder gets a new id at its next start and builds its index anew, as it does
where the file is lost or damaged. Snapshots under an id that no folder has any more are garbage that an operator has to
remove.
"""

import logging
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Final

from managed_ledger.rocksdb_store.files import is_misplaced, sync_folder
from snapshot_storage.errors import StorageAccessError, StorageUnavailableError
from snapshot_storage.s3.client import S3Client
from snapshot_storage.s3.config import S3Config

logger = logging.getLogger(__name__)

FOLDER_ID_FILE: Final = "snapshots-id"

_NEW_ID_FILE: Final = f"{FOLDER_ID_FILE}.new"
_ID: Final = re.compile(r"[0-9a-f]{32}")


def config_of_folder(config: S3Config, folder: Path, *, is_read_only: bool) -> S3Config:
    """Return where the snapshots of a data folder are; one that names its id already is left as it is.

    Raises:
        StorageAccessError: It has no id, and is only to be read, or may not be written; or a file of it is none.
        StorageUnavailableError: The disk refuses.
    """
    try:
        _refuse_misplaced(folder)
        found = _read(folder)
        if found is None and is_read_only:
            raise StorageAccessError(
                f"{folder} has no snapshots on S3: there is no id in its file {FOLDER_ID_FILE}, which a service makes"
            )
        folder_id = found or _make(folder)
    except PermissionError as error:
        raise StorageAccessError(f"cannot use {folder / FOLDER_ID_FILE}: {error}") from error
    except OSError as error:
        raise StorageUnavailableError(f"cannot use {folder / FOLDER_ID_FILE}: {error}") from error
    if config.prefix.rpartition("/")[2] == folder_id:
        return config
    return replace(config, prefix=f"{config.prefix}/{folder_id}")


def config_of_only_folder(config: S3Config) -> S3Config:
    """Find the one data folder with snapshots under a prefix, for a program that reads, and return their place.

    Raises:
        StorageAccessError: Several have.
        SnapshotStorageError: The server does not answer.
    """
    client = S3Client(config)
    try:
        ids = [name for name in client.folders(f"{config.prefix}/") if _ID.fullmatch(name)]
    finally:
        client.close()
    if len(ids) > 1:
        raise StorageAccessError(
            f"{len(ids)} data folders have snapshots under {config.bucket}/{config.prefix}: name one of them, as "
            f"{config.bucket}/{config.prefix}/{ids[0]}; the id of a folder is in its file {FOLDER_ID_FILE}"
        )
    return replace(config, prefix=f"{config.prefix}/{ids[0]}") if ids else config


def _refuse_misplaced(folder: Path) -> None:
    for name in (FOLDER_ID_FILE, _NEW_ID_FILE):
        if is_misplaced(folder / name):
            raise StorageAccessError(f"{folder / name} is no file: remove it")


def _read(folder: Path) -> str | None:
    try:
        text = (folder / FOLDER_ID_FILE).read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    if _ID.fullmatch(text):
        return text
    logger.error("%s is damaged: the folder gets a new id, and its index is read from the log", folder / FOLDER_ID_FILE)
    return None


def _make(folder: Path) -> str:
    """Make an id, durably: a crash leaves none or this one."""
    folder.mkdir(parents=True, exist_ok=True)
    folder_id = secrets.token_hex(16)
    beside = folder / _NEW_ID_FILE
    with beside.open("w") as file:
        file.write(folder_id + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / FOLDER_ID_FILE)
    sync_folder(folder)
    return folder_id
