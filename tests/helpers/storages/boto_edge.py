"""Boto3's client behind an open storage: tests watch its requests here, and put failures in.

Boto3 calls back for each request of a client, and only of that one. So a test has to reach behind our adapter, and does
it through this function alone.
"""

from typing import Any

from snapshot_storage.s3.client import S3Client
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage


def boto_client(opened: S3BucketSnapshotStorage | S3Client) -> Any:
    """Return the client of boto3 that the next request is made with."""
    if isinstance(opened, S3BucketSnapshotStorage):
        assert opened._open is not None
        opened = opened._open.snapshots._client
    return opened._client
