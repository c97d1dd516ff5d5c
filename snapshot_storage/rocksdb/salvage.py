"""Bring back what RocksDB drops of a damaged log, so that a flipped bit costs one entry, which is told by its bucket.

1. Before the folder is opened its logs are linked into a folder of their own: opening turns logs into tables, without
   what it dropped, and removes them.
2. Where the opened folder shows that something was dropped, what is whole in those logs (`wal`) is written
   again, in synced writes. Snapshots never change, so what is there already is only written twice. An entry that is not
   whole stays missing: whoever reads it gets `SnapshotCorruptedError` with bucket and entry.
3. The links are removed. A crash before that leaves them, and the next opening does step 2 again.

A deletion that was dropped is not brought back: the snapshot then has no owner, which the tracker finds by listing.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from rocksdict import Rdict, WriteBatch

from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.rocksdb.database import mapped
from snapshot_storage.rocksdb.headers import RocksDBHeaders
from snapshot_storage.rocksdb.layout import entry_key, unfinished_key
from snapshot_storage.rocksdb.wal import LoggedSnapshot, logged_snapshots
from snapshot_storage.storage import METADATA_ENTRY, BucketSnapshotInfo

_FOLDER = "KEPT-LOGS"

log = logging.getLogger(__name__)


class KeptLogs:
    """The logs of a folder as they were before it was opened."""

    def __init__(self, folder: Path, *, are_left_over: bool) -> None:
        """Take over what `keep` has kept."""
        self._folder = folder
        self._new: list[Path] = []
        self.are_left_over = are_left_over
        """Whether they are of a salvage that a crash ended."""

    @classmethod
    def keep(cls, path: Path) -> Self:
        """Link the logs; after a close there are none.

        Raises:
            OSError: The system refuses.
        """
        folder = path / _FOLDER
        kept = cls(folder, are_left_over=folder.exists())
        for file in path.glob("*.log"):
            if file.stat().st_size and not (folder / file.name).exists():
                folder.mkdir(exist_ok=True)
                _link(file, folder / file.name)
                kept._new.append(folder / file.name)
        return kept

    def undo(self) -> None:
        """Forget what was kept just now; nothing was done with the folder."""
        for file in self._new:
            file.unlink(missing_ok=True)
        with suppress(OSError):
            # It stays if there are others.
            self._folder.rmdir()

    def put_back(self, path: Path, database: Rdict, headers: RocksDBHeaders) -> None:
        """Write what is whole, synced, and log which entries are not there.

        Raises:
            OSError: The system refuses.
            Exception: What rocksdict raises.
        """
        damage: list[SnapshotCorruptedError] = []
        for snapshot in logged_snapshots(self._contents()).values():
            if snapshot.header is not None:
                _put(database, headers, snapshot.header.info, snapshot)
                damage += _missing(path, database, snapshot.header.info)
        database.flush_wal(sync=True)
        for error in damage:
            log.warning("the log of %s is damaged: %s", path, error)

    def _contents(self) -> Iterator[bytes]:
        for file in sorted(self._folder.glob("*.log"), key=lambda file: int(file.stem)):
            yield file.read_bytes()

    def remove(self) -> None:
        """Forget them."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _put(database: Rdict, headers: RocksDBHeaders, info: BucketSnapshotInfo, snapshot: LoggedSnapshot) -> None:
    batch = WriteBatch(raw_mode=True)
    for entry, stored in snapshot.entries.items():
        batch.put(entry_key(info.bucket_id, entry), stored)
    headers.put(batch, info)
    batch.delete(unfinished_key(info.bucket_id))
    database.write(batch)


def _missing(path: Path, database: Rdict, info: BucketSnapshotInfo) -> Iterator[SnapshotCorruptedError]:
    for entry in range(METADATA_ENTRY, info.segment_count + 1):
        try:
            with mapped("look for an entry", path, bucket_id=info.bucket_id, entry=entry):
                if database.get(entry_key(info.bucket_id, entry)) is None:
                    raise SnapshotCorruptedError("it is missing", bucket_id=info.bucket_id, entry=entry)
        except SnapshotCorruptedError as error:
            yield error


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        # A file system without hard links. Under another name first: a half copy must not count.
        beside = target.with_suffix(".new")
        shutil.copyfile(file, beside)
        beside.rename(target)
