"""The buckets that the cursor's properties name are known again: their heads are read, and set the bits.

Unlike Pulsar's, a bucket's segments that are due already are loaded, not skipped, so that a key's messages keep their
order across a restart. One bucket that cannot be read affects only itself.
"""

from collections.abc import Mapping

from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from tracker.bucket_properties import BucketProperties, read_properties
from tracker.core.actions import Head
from tracker.core.bucket import ImmutableBucket, Phase
from tracker.core.deleting import remove
from tracker.core.state import TrackerState, move, new_bucket

_NONE = BitMap()


def recover(state: TrackerState, properties: Mapping[str, str], *, now_ms: int) -> BucketProperties:
    """Begin to recover what the cursor's properties name; call once, before anything else but `trim`."""
    named_by_cursor = read_properties(properties)
    bucket_ids: set[int] = set()
    for named in named_by_cursor.buckets:
        # Two keys for one snapshot: one of them owns it, and the other one names nothing of its own.
        is_second = named.bucket_id in bucket_ids
        bucket_ids.add(named.bucket_id)
        bucket = new_bucket(state, named.ledgers, named.key, Phase.UNNAMING if is_second else Phase.RECOVERING)
        bucket.bucket_id, bucket.has_name, bucket.wanted_since_ms = named.bucket_id, True, now_ms
        if bucket.ledgers.last_ledger_id < state.first_ledger_id:
            remove(state, bucket)
    return named_by_cursor


def on_head(state: TrackerState, bucket: ImmutableBucket, head: Head) -> None:
    """Set the bits of what is left of a bucket, and serve it from its segments."""
    bucket.size_bytes, bucket.table = head.size_bytes, head.table
    if head.bitmaps:
        # The head says where the rows are; those beyond the range of the key do not count.
        first = max(bucket.ledgers.first_ledger_id, min(head.bitmaps))
        last = min(bucket.ledgers.last_ledger_id, max(head.bitmaps))
        bucket.ledgers = LedgerRange(first, last) if first <= last else bucket.ledgers
    first, last = max(bucket.ledgers.first_ledger_id, state.first_ledger_id), bucket.ledgers.last_ledger_id
    has_any = False
    for ledger_id, entry_ids in head.bitmaps.items():
        if first <= ledger_id <= last:
            left = entry_ids - state.acknowledged_in(ledger_id) - state.gone.bitmaps.get(ledger_id, _NONE)
            state.tracked.unite(ledger_id, left)
            state.to_read_again.subtract(ledger_id, left)
            has_any = has_any or bool(left)
    move(state, bucket, Phase.SEALED)
    if not has_any:
        remove(state, bucket)
