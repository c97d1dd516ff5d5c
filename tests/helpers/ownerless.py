"""Snapshots that no property names, deleted as the owner of a storage does it: a tracker looks for none."""

from collections.abc import Mapping
from functools import partial

from snapshot_storage.storage import BucketSnapshotStorage
from tracker.residual_snapshots import ResidualSnapshots, is_named


async def delete_unnamed(storage: BucketSnapshotStorage, properties: Mapping[str, str], topic_name: str = "t") -> None:
    """Delete a topic's snapshots that are not named by these properties of its one cursor."""
    residual = ResidualSnapshots(storage, timeout_ms=30_000)
    await residual.clean_ownerless(topic_name, partial(is_named, properties))
