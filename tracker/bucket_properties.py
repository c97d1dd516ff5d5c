"""The cursor properties that name buckets: reading them, and finding a name for another one.

The properties are the list of snapshots: `#pulsar.internal.delayed.bucket_<first>_<last>` = snapshot id. A property
that cannot be parsed is reported and left alone, so that it costs only its own bucket.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX, LedgerRange, bucket_key, parse_bucket_id, parse_bucket_key
from tracker.columns.positions import LEDGER_ID_MAX


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
    malformed_ids: list[int]
    """Snapshot ids that malformed properties seem to name; they are no orphans."""


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
    malformed_ids: list[int] = []
    for key, value in properties.items():
        if not key.startswith(BUCKET_KEY_PREFIX):
            continue
        ledgers, bucket_id = parse_bucket_key(key), parse_bucket_id(value)
        if ledgers is not None and bucket_id is not None:
            buckets.append(SnapshotProperty(key, ledgers, bucket_id))
            continue
        malformed[key] = value
        if bucket_id is not None:
            malformed_ids.append(bucket_id)
    buckets.sort(key=lambda bucket: (bucket.ledgers, bucket.bucket_id))
    return BucketProperties(buckets, malformed, malformed_ids)


def free_key(ledgers: LedgerRange, taken: Container[str]) -> str:
    """Return what `free_key_or_none` does, where a name is left for sure: ledgers are not at both ends of all."""
    key = free_key_or_none(ledgers, taken)
    assert key is not None, f"every name of a range around {ledgers} is taken"
    return key


def free_key_or_none(ledgers: LedgerRange, taken: Container[str]) -> str | None:
    """Return the property key of the range, or of a wider one that no other bucket has; None where all are taken.

    A ledger that is sealed in several pieces, or a merge with an enclosing bucket, would otherwise need one key
    twice. The wider range is a name and nothing else: it says where rows can be, not where they are.

    >>> free_key_or_none(LedgerRange(7, 7), {"#pulsar.internal.delayed.bucket_7_7"})
    '#pulsar.internal.delayed.bucket_6_7'
    """
    first, last = ledgers
    while (key := bucket_key(first, last)) in taken:
        # The range grows downwards first, as no message comes for past ledgers.
        if first > 0:
            first -= 1
        elif last < LEDGER_ID_MAX:
            last += 1
        else:
            # Other buckets have all these names, up to the one from the first ledger to the last.
            return None
    return key
