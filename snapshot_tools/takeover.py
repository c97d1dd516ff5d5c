"""`postdate snapshots take-over`: give a prefix on S3 to a data folder, as the one that has it is gone for good.

An owner that still runs would notice nothing, and each would take the other's snapshots for garbage. So it is refused
where the owner can be seen to run: its folder is on this machine and in use. Of one elsewhere, nothing is known but
when something was written under the prefix last. A short while ago speaks for its being alive, and whoever knows better
has to say so; long ago proves nothing, as an idle service writes nothing.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.configuration.config import BrokerConfig
from broker.server.snapshot_storages import owner_file
from managed_ledger.cursor_properties import CursorPropertiesFolder
from managed_ledger.errors import LedgerError, StoreLockedError
from snapshot_storage.bucket_key import parse_bucket_id
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.inspection import is_bucket_property
from snapshot_storage.s3.takeover import OwnedPrefix, PrefixTakeover

QUIET_S_MIN = 600.0
"""A service with work to do writes more often than this."""


class Takeover:
    """A prefix, and the service's folder that is to have it; locked, so that no service runs on that."""

    def __init__(self, takeover: PrefixTakeover, folder: Path, named_ids: frozenset[int]) -> None:
        self._takeover = takeover
        self._folder = folder
        self._named_ids = named_ids

    def look(self) -> OwnedPrefix | None:
        """Say whose the prefix is; None where it is this folder's already, or nobody's."""
        seen = self._takeover.look()
        return None if seen is None or seen.owner.is_this_folder else seen

    def named_count(self, seen: OwnedPrefix) -> int:
        """Say how many of the snapshots there this folder's cursors name; the others are garbage to its service."""
        return len(seen.bucket_ids & self._named_ids)

    def take(self, seen: OwnedPrefix, *, was_just_written: bool) -> None:
        """Give the prefix to this folder.

        Args:
            seen: What was there.
            was_just_written: Whether to take it though something was written there a short while ago.

        Raises:
            StorageAccessError: The owner runs, or may run.
            SnapshotStorageError: The server does not answer, or refuses.
        """
        self.refuse_alive(seen, was_just_written=was_just_written)
        self._takeover.take(seen)

    def refuse_alive(self, seen: OwnedPrefix, *, was_just_written: bool) -> None:
        """Refuse where the owner is known to run, or wrote a short while ago from where nobody can look.

        Raises:
            StorageAccessError: So it is.
        """
        folder = Path(seen.owner.folder)
        is_here = not seen.owner.is_damaged and seen.owner.host == socket.gethostname()
        if is_here and (folder / "ledgers").is_dir():
            # This folder, whose proof is lost, is locked by this program.
            if not folder.samefile(self._folder) and _is_in_use(folder / "ledgers"):
                raise StorageAccessError(f"the service of {folder} is running, and uses the prefix: stop it first")
        elif seen.written_s_ago < QUIET_S_MIN and not was_just_written:
            whose = "its service" if seen.owner.is_damaged else f"the service of {folder} on {seen.owner.host}"
            raise StorageAccessError(
                f"something was written there {seen.written_s_ago:.0f} s ago, so {whose} may be running: stop it, and "
                f"wait until {QUIET_S_MIN:.0f} s have passed, or say with --owner-is-dead that it is"
            )


def _is_in_use(ledgers: Path) -> bool:
    try:
        CursorPropertiesFolder(ledgers, is_read_only=False).close()
    except StoreLockedError:
        return True
    except LedgerError:
        # Damaged or of another version: no service runs on it.
        return False
    return False


@contextmanager
def open_takeover(config: BrokerConfig) -> Iterator[Takeover]:
    """Lock the service's folder, and look at the prefix that the configuration names.

    Raises:
        StorageAccessError: The snapshots are not on S3.
        StoreLockedError: The folder's own service is running.
        LedgerError: The folder has no log that can be read.
        SnapshotStorageError: The prefix cannot be asked for.
    """
    if config.bucket_snapshot_storage != "s3":
        raise StorageAccessError(
            f"bucketSnapshotStorage={config.bucket_snapshot_storage}: only a prefix on S3 belongs to a data folder"
        )
    with CursorPropertiesFolder(config.data_directory / "ledgers", is_read_only=False) as cursors:
        named = frozenset(
            bucket_id
            for properties in cursors.read().values()
            for key, value in properties.items()
            if is_bucket_property(key) and (bucket_id := parse_bucket_id(value)) is not None
        )
        takeover = PrefixTakeover(config.s3, owner_file(config))
        try:
            yield Takeover(takeover, config.data_directory, named)
        finally:
            takeover.close()
