"""The tables of a bundle on the local disk: kept from one opening to the next, so that a warm copy makes it short.

CACHE/tables/<epoch>-<k>   a table's object, under its own name; no name is used twice
CACHE/log                  RocksDB's folder, made anew of links to them each time that the log is taken over
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from managed_ledger.errors import LogFencedError, StoreCorruptedError
from managed_ledger.objects.checkpoints import OnBytes, at_once, digest_of, is_same_table
from managed_ledger.objects.manifest import MANIFEST, Manifest, TableObject
from managed_ledger.objects.object_store import ObjectStore
from managed_ledger.rocksdb_store.files import RESTORED_ID_FILE


class LocalTables:
    """Copies of a bundle's tables.

    Args:
        cache: The folder of the bundle on the local disk; this process's alone.
    """

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "tables"

    def fetch(self, objects: ObjectStore, manifest: Manifest, on_bytes: OnBytes = lambda _done, _of_all: None) -> None:
        """Have all tables of a manifest here, and no others.

        A table that is here is known by its size and its end, which has a random id of RocksDB's; one that comes is
        checked whole.

        Args:
            objects: The place of the bundle.
            manifest: The manifest.
            on_bytes: Told of the progress.

        Raises:
            LogFencedError: The manifest does not count any more, and a table of it is gone.
            StoreCorruptedError: A table is missing or damaged.
            Exception: As `ObjectStore` raises, or the system.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self.prune(manifest.tables)

        def fetch(table: TableObject) -> int:
            place = self._place(table)
            if place.exists() and is_same_table(place, table):
                return table.size_bytes
            beside = place.with_suffix(".new")
            if not objects.fetch_file(table.name, beside):
                found = objects.read(MANIFEST)
                if found is None or found[0] != manifest.encode():
                    raise LogFencedError(f"The log in {objects} was changed by another owner meanwhile")
                raise StoreCorruptedError(f"The log in {objects} is damaged: {table.name} is missing")
            if beside.stat().st_size != table.size_bytes or digest_of(beside) != table.sha256:
                raise StoreCorruptedError(f"The log in {objects} is damaged: {table.name} is not what was written")
            # A later opening looks at its end alone.
            with beside.open("rb") as opened:
                os.fsync(opened.fileno())
            beside.replace(place)
            return table.size_bytes

        fetched_bytes = 0
        on_bytes(0, manifest.size_bytes)
        for size_bytes in at_once(fetch, manifest.tables.values()):
            fetched_bytes += size_bytes
            on_bytes(fetched_bytes, manifest.size_bytes)

    def lay_out(self, manifest: Manifest, log: Path) -> None:
        """Make RocksDB's folder of the tables that are here, in place of the one that is there."""
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir(parents=True)
        for name, table in manifest.tables.items():
            os.link(self._place(table), log / name)
        for name, data in manifest.files.items():
            (log / name).write_bytes(data)
        if manifest.log:
            # Else it would be RocksDB's own again, also of a log that was copied to this place.
            (log / RESTORED_ID_FILE).write_text(manifest.log)

    def keep(self, folder: Path, tables: Mapping[str, TableObject]) -> None:
        """Have the tables of a checkpoint in a folder here as well, and no others."""
        for name, table in tables.items():
            if not self._place(table).exists():
                os.link(folder / name, self._place(table))
        self.prune(tables)

    def prune(self, tables: Mapping[str, TableObject]) -> None:
        """Remove what is not among these."""
        kept = {self._place(table) for table in tables.values()}
        for file in self._folder.iterdir():
            if file not in kept:
                file.unlink()

    def remove(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _place(self, table: TableObject) -> Path:
        return self._folder / table.name.rpartition("/")[2]


def warm(objects: ObjectStore, cache: Path) -> int:
    """Have the tables of a bundle near that somebody else has open; called now and then by the next one to own it.

    Args:
        objects: The place of the bundle.
        cache: Its folder on the local disk, where it is not open.

    Returns:
        The bytes of its tables.

    Raises:
        LedgerError: The tables are not to be had: they change, or are damaged.
        Exception: As `ObjectStore` raises, or the system.
    """
    found = objects.read(MANIFEST)
    if found is None:
        return 0
    manifest = Manifest.decode(found[0], str(objects))
    LocalTables(cache).fetch(objects, manifest)
    return manifest.size_bytes
