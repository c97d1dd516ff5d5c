"""Checkpoints of a log on objects, beside its writer: they end what a takeover has to replay.

    frozen folder ─► new tables ─► the manifest, by its tag ─► logs and tables that fell out are deleted

Nothing is deleted before the manifest that makes it useless is known to be stored; and no fence is, ever.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from managed_ledger.errors import LogFencedError
from managed_ledger.objects.checkpoints import at_once, digest_of, digest_of_end, is_same_table
from managed_ledger.objects.local_tables import LocalTables
from managed_ledger.objects.log_object import without
from managed_ledger.objects.manifest import Manifest, TableObject, table_name
from managed_ledger.objects.object_store import ObjectStore
from managed_ledger.objects.takeover import Claim, TakenLog, change_manifest

logger = logging.getLogger(__name__)

TAKEOVER_BYTES_MAX: Final = 4 * 2**30
"""Tables of more make a takeover without a warm copy long: 3.5 s at 10 Gbit/s."""
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0


class Patience:
    """Pauses between requests whose outcome is not known, until there is no use in more of them.

    Args:
        given_up: Set once the log is to be let go.
    """

    def __init__(self, given_up: threading.Event) -> None:
        self._given_up = given_up
        self._pause_s = _PAUSE_S_MIN

    def wait(self, objects: ObjectStore, error: Exception) -> None:
        """Wait before the next request.

        Raises:
            LogFencedError: The log was given up.
        """
        if self._pause_s == _PAUSE_S_MIN:
            logger.warning("%s does not answer, and is asked until it does: %s", objects, error)
        if self._given_up.wait(self._pause_s):
            raise LogFencedError(f"The log in {objects} was given up, as its storage did not answer") from error
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


class BundleCheckpoints:
    """The checkpoints of a log while it is served; called by one thread at a time."""

    def __init__(self, objects: ObjectStore, tables: LocalTables, served: TakenLog, given_up: threading.Event) -> None:
        self._objects = objects
        self._tables = tables
        self._claim = served.claim
        self._fences = served.fences
        self._given_up = given_up
        self._look_at_size()

    def store(self, folder: Path, start: int, made_at_ms: int) -> None:
        """Store a checkpoint in place of the one before.

        Args:
            folder: What RocksDB has frozen.
            start: The first number that is not in it.
            made_at_ms: When it was frozen.

        Raises:
            LogFencedError: The log is another owner's, or was given up.
            Exception: As `ObjectStore` raises; the checkpoint before counts.
        """
        before = self._claim.manifest
        tables = self._stored_tables(folder, before)
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".sst"}
        made = replace(before, start=start, fences=self._fences, made_at_ms=made_at_ms, tables=tables, files=files)
        self._claim = Claim(made, self._changed(made))
        self._tables.keep(folder, tables)
        named = {table.name for table in tables.values()}
        gone = [table.name for table in before.tables.values() if table.name not in named]
        try:
            self._objects.delete_all([*without(range(before.start, start), self._fences), *gone])
        # What stays takes room, until the next owner.
        except Exception as error:
            logger.warning("objects that nobody needs in %s are deleted by the next owner: %s", self._objects, error)
        if before.size_bytes <= TAKEOVER_BYTES_MAX:
            self._look_at_size()

    def _look_at_size(self) -> None:
        size_bytes = self._claim.manifest.size_bytes
        if size_bytes > TAKEOVER_BYTES_MAX:
            logger.warning(
                "%s has %.1f GiB of tables, which a takeover may have to download: divide it into more bundles",
                self._objects,
                size_bytes / 2**30,
            )

    def _stored_tables(self, folder: Path, before: Manifest) -> Mapping[str, TableObject]:
        files = sorted(folder.glob("*.sst"))

        def store(file: Path) -> TableObject:
            known = before.tables.get(file.name)
            if known is not None and is_same_table(file, known):
                return known
            # RocksDB gives each table of a folder a number of its own, also after it was opened again.
            name = table_name(before.epoch, file.name)
            self._objects.put_file(name, file)
            return TableObject(name, file.stat().st_size, digest_of(file), digest_of_end(file))

        return {file.name: table for file, table in zip(files, at_once(store, files), strict=True)}

    def _changed(self, made: Manifest) -> str:
        patience = Patience(self._given_up)
        while True:
            try:
                tag = change_manifest(self._objects, made, self._claim.tag)
            # Whether it was changed is not known, so nothing else may be done before it is.
            except Exception as error:
                patience.wait(self._objects, error)
                continue
            if tag is None:
                raise LogFencedError(f"The log in {self._objects} is another owner's")
            return tag
