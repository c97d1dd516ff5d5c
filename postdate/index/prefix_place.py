"""A dataDirectory on object storage, as services share it: where the index of a bundle is, and tools that meet one.

What a tool reads of a bundle's log it reads out to a folder, beside whoever serves it. What it changes, it changes as
the bundle's owner, as a service does: once another one has taken the bundle, its fence refuses the change.
"""

import hashlib
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from managed_ledger.bundle_settings import MEMBERS, SETTINGS, SNAPSHOTS, decode_settings
from managed_ledger.bundles import BundleRange, bundle_of
from managed_ledger.errors import BackupError, StoreLockedError, StoreUnavailableError
from managed_ledger.names import full_topic_name
from managed_ledger.objects.moving import bundle_objects, cluster_in
from managed_ledger.objects.object_store import ObjectStore
from postdate.index.bundle_choice import chosen_ranges, refuse_several
from postdate.index.location import S3FolderLocation
from postdate.index.object_places import objects_at
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import is_s3, s3_location

_WATCHED_S: Final = 12.0
"""Longer than a service with the default lease is silent; one with another lease loses no more than its bundle."""
_LOOK_S: Final = 0.5


def place_id(s3: S3Config) -> str:
    """Return the same digits for each configuration of a prefix, and others for other prefixes."""
    return hashlib.sha256(f"{s3.endpoint or ''}\n{s3.bucket}\n{s3.prefix}".encode()).hexdigest()[:32]


def bundle_snapshots(snapshots: S3Config, data: S3Config, bundle: BundleRange) -> S3Config:
    """Return where the snapshots of a bundle are.

    Args:
        snapshots: Where those of the whole prefix are to be: below it, or anywhere else.
        data: The prefix.
        bundle: The bundle.
    """
    is_beside = (snapshots.endpoint, snapshots.bucket) == (data.endpoint, data.bucket)
    if not (is_beside and snapshots.prefix.startswith(f"{data.prefix}/")):
        # The snapshots of other prefixes may be there as well.
        return replace(snapshots, prefix=f"{snapshots.prefix}/{place_id(data)}/{bundle}")
    return replace(snapshots, prefix=f"{snapshots.prefix}/{bundle}")


def is_prefix(text: str) -> bool:
    """Whether a text names a dataDirectory on S3.

    Raises:
        SnapshotStorageError: The storage does not answer, or refuses.
        LedgerError: The list of bundles makes no sense.
    """
    if not is_s3(text) or not s3_location(text).prefix:
        return False
    try:
        with closing(objects_at(text)) as objects:
            return bool(cluster_in(objects))
    except BackupError:
        # Without the library it is read with, it is none that can be.
        return False


class PrefixPlace:
    """A dataDirectory on S3; a context manager.

    Args:
        text: `s3://BUCKET/PREFIX`, with options.

    Raises:
        LedgerError: It names no place, or there is no log of a cluster.
        SnapshotStorageError: The storage does not answer, or refuses.
    """

    def __init__(self, text: str) -> None:
        self.objects: ObjectStore = objects_at(text)
        try:
            self.config = s3_location(text).config()
            found = self.objects.read(SETTINGS)
            if found is None:
                raise StoreUnavailableError(f"There is no log of a cluster in {self.objects}")
            self.ranges = decode_settings(found[0], f"{self.objects}/{SETTINGS}")[0]
        except BaseException:
            self.objects.close()
            raise

    def chosen(self, bundle: str | None, topics: Collection[str] = ()) -> dict[BundleRange, list[str]]:
        """Return the bundles that are meant, and which of the topics each has.

        Args:
            bundle: The name of a range, None for any.
            topics: Names of topics, short or whole; empty for any.

        Raises:
            BundlesError: There is no such bundle.
        """
        chosen = chosen_ranges(self.ranges, str(self.objects), bundle, topics)
        if bundle is not None:
            return {chosen[0]: list(topics)}
        homes = {name: bundle_of(full_topic_name(name), self.ranges) for name in topics}
        return {one: [name for name in topics if homes[name] == one] for one in chosen}

    def one(self, bundle: str | None, topics: Collection[str] = ()) -> BundleRange:
        """Return the bundle that is meant, where only one can be.

        Raises:
            BundlesError: There are several, and it is not said which one; or there is no such one.
        """
        found = self.chosen(bundle, topics)
        if len(found) > 1:
            refuse_several(found)
        return next(iter(found))

    def objects_of(self, bundle: BundleRange) -> ObjectStore:
        """Return the objects of a bundle's log."""
        return bundle_objects(self.objects, bundle)

    def index_of(self, bundle: BundleRange, index: str | None = None) -> S3FolderLocation:
        """Return where the snapshots of a bundle are.

        Args:
            bundle: The bundle.
            index: Where those of the whole prefix are, if elsewhere than the services have them by default.

        Raises:
            ValueError: The text names no place on S3.
        """
        if index is None:
            snapshots = replace(self.config, prefix=f"{self.config.prefix}/{SNAPSHOTS}")
        elif is_s3(index):
            snapshots = s3_location(index).config()
        else:
            raise ValueError(f"the index of a dataDirectory on S3 is on S3 too, and {index} is not")
        return S3FolderLocation(bundle_snapshots(snapshots, self.config, bundle))

    def check_unused(self, watched_s: float = _WATCHED_S, wait: Callable[[float], None] = time.sleep) -> None:
        """Check that no service lives here: one that died has left an object that changes no more.

        Args:
            watched_s: How long the objects of services are watched, where there are any.
            wait: Waits for so many seconds.

        Raises:
            StoreLockedError: A service uses the prefix.
            SnapshotStorageError: The storage does not answer.
        """
        before, watched = self._members(), 0.0
        while before and watched < watched_s:
            wait(_LOOK_S)
            watched += _LOOK_S
            now = self._members()
            if any(before.get(name) != tag for name, tag in now.items()):
                raise StoreLockedError(f"{self.objects} is in use: stop all services of this dataDirectory first")
            before = now

    def _members(self) -> dict[str, str]:
        found = {name: self.objects.read(name) for name in self.objects.names(MEMBERS)}
        return {name: one[1] for name, one in found.items() if one is not None}

    def close(self) -> None:
        """Let go of the connections."""
        self.objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
