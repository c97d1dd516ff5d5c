"""A prefix whose owner is gone for good: who that was, what is left of it, and giving the prefix to another folder.

Blocking. Whether the owner is really gone is not known here; what speaks against it is how long ago something was
written.
"""

from dataclasses import dataclass
from pathlib import Path

from snapshot_storage.s3.client import S3Client
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.layout import bucket_id_of, owner_key
from snapshot_storage.s3.owner import LastOwner, PrefixOwner


@dataclass(frozen=True, slots=True)
class OwnedPrefix:
    """A prefix that somebody has."""

    owner: LastOwner
    bucket_ids: frozenset[int]
    """The snapshots under it."""
    taken_s_ago: float
    """When the owner opened it to write, by the server's clock."""
    written_s_ago: float
    """When anything was written under it last; deletes leave no trace."""


class PrefixTakeover:
    """One prefix, and the folder that is to have it."""

    def __init__(self, config: S3Config, owner_file: Path) -> None:
        """Ask nothing of the server yet.

        Raises:
            StorageAccessError: The AWS chain's own files are wrong.
        """
        self._client = S3Client(config)
        self._prefix = config.prefix
        self._owner = PrefixOwner(self._client, config.bucket, config.prefix, owner_file)

    def look(self) -> OwnedPrefix | None:
        """Say whose the prefix is and what is there; None where it is nobody's.

        Raises:
            SnapshotStorageError: The server does not answer, or refuses.
        """
        owner = self._owner.last_owner()
        if owner is None:
            return None
        ages_s = dict(self._client.list_with_ages(f"{self._prefix}/"))
        ids = (bucket_id_of(self._prefix, key) for key in ages_s)
        found = frozenset(bucket_id for bucket_id in ids if bucket_id is not None)
        newest_s = min(ages_s.values(), default=0.0)
        return OwnedPrefix(owner, found, ages_s.get(owner_key(self._prefix), newest_s), newest_s)

    def take(self, seen: OwnedPrefix) -> None:
        """Give the prefix to the folder.

        Raises:
            StorageAccessError: Somebody else has taken it since.
            SnapshotStorageError: The server does not answer, or refuses.
        """
        self._owner.take_over(seen.owner)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()
