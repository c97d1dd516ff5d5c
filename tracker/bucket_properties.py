"""The cursor properties that name buckets: reading them.

The properties are the list of snapshots: `#pulsar.internal.delayed.bucket_<first>_<last>` = snapshot id. A property
that cannot be parsed is reported and left alone, so that it costs only its own bucket.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX, LedgerRange, parse_bucket_id, parse_bucket_key


@dataclass(frozen=True, slots=True)
class SnapshotProperty:
    """A property that names a bucket's snapshot."""

    key: str
    ledgers: LedgerRange
    bucket_id: int


@dataclass(frozen=True, slots=True)
class BucketProperties:
    """All that a cursor's properties say about buckets."""

    buckets: list[SnapshotProperty]
    """In order of ledgers."""
    malformed: dict[str, str]
    """Properties with the prefix that name no bucket."""

    @property
    def malformed_ids(self) -> list[int]:
        """Snapshot ids that malformed properties seem to name; they are no orphans."""
        ids = map(parse_bucket_id, self.malformed.values())
        return [bucket_id for bucket_id in ids if bucket_id is not None]


def names_buckets(properties: Mapping[str, str]) -> bool:
    """Return whether a property names a bucket, or seems to.

    >>> names_buckets({"#pulsar.internal.delayed.bucket_1_5": "7"}), names_buckets({"owner": "me"})
    (True, False)
    """
    return any(key.startswith(BUCKET_KEY_PREFIX) for key in properties)


def read_properties(properties: Mapping[str, str]) -> BucketProperties:
    """Return what the properties say about buckets.

    >>> read_properties({"#pulsar.internal.delayed.bucket_1_5": "7", "owner": "me"}).buckets
    [SnapshotProperty(key='#pulsar.internal.delayed.bucket_1_5',
                    ledgers=LedgerRange(first_ledger_id=1, last_ledger_id=5), bucket_id=7)]
    """
    buckets: list[SnapshotProperty] = []
    malformed: dict[str, str] = {}
    for key, value in properties.items():
        if not key.startswith(BUCKET_KEY_PREFIX):
            continue
        ledgers, bucket_id = parse_bucket_key(key), parse_bucket_id(value)
        if ledgers is None or bucket_id is None:
            malformed[key] = value
            continue
        buckets.append(SnapshotProperty(key, ledgers, bucket_id))
    buckets.sort(key=lambda bucket: (bucket.ledgers, bucket.bucket_id))
    return BucketProperties(buckets, malformed)
