"""The log of a bundle of a dataDirectory on S3, read out to a temporary folder, also beside services that use it."""

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from managed_ledger.bundle_settings import LEDGERS
from managed_ledger.objects.reading_out import read_out
from postdate.index.prefix_place import PrefixPlace, is_prefix
from postdate.pipeline.logs.parquet_log import is_parquet_log
from snapshot_storage.s3.location import is_s3, s3_location


@contextmanager
def local_log(data: str, bundle: str | None, topics: Collection[str]) -> Iterator[str]:
    """Give where a job reads a log: the place it was given, or a folder, where that is a dataDirectory on S3.

    Args:
        data: The place.
        bundle: The bundle that is meant of a dataDirectory on S3.
        topics: Names of topics, which tell the bundle as well.

    Raises:
        BundlesError: There are several bundles, and none is named.
        LedgerError: The log cannot be read, or changes all the time.
        SnapshotStorageError: The storage does not answer, or refuses.
    """
    # An export needs no list of bundles, nor the library that reads it.
    if not is_s3(data) or is_parquet_log(data) or not is_prefix(data):
        yield data
        return
    with PrefixPlace(data) as place, tempfile.TemporaryDirectory(prefix="postdate-bundle-") as folder:
        read_out(place.objects_of(place.one(bundle, topics)), Path(folder) / LEDGERS)
        yield folder


@contextmanager
def local_index(data: str, bundle: str | None, topics: Collection[str]) -> Iterator[str]:
    """Give where a job reads an index: the place it was given, or that of a bundle of a dataDirectory on S3.

    Args:
        data: The place.
        bundle: The bundle that is meant of a dataDirectory on S3.
        topics: Names of topics, which tell the bundle as well.

    Raises:
        BundlesError: There are several bundles, and none is named.
        LedgerError: The list of bundles makes no sense.
        SnapshotStorageError: The storage does not answer, or refuses.
    """
    if is_prefix(data):
        with PrefixPlace(data) as place:
            snapshots = place.index_of(place.one(bundle, topics)).config
        data = s3_location(data)._replace(prefix=snapshots.prefix).uri
    yield data
