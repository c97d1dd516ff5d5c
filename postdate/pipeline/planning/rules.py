"""The rules of buckets made in bulk: the live tracker's own limits, with its defaults."""

from dataclasses import dataclass

from snapshot_storage.encoding.segmenter import ROWS_UNLIMITED

ROWS_PER_BUCKET_MAX = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRules:
    """How buckets are made; the defaults are the live tracker's."""

    now_ms: int
    """Rows that are due at this time are left out: a broker delivers them without an index.

    A tracker that is not strict counts messages that fall due within its tick as due. To get its very bytes, add the
    tick.
    """

    step_ms: int = 300_000
    """The longest time span of one segment (`...MaxTimeStepPerBucketSnapshotSegmentSeconds`)."""

    rows_max: int = 5_000
    """The most rows of one segment, -1 for no limit (`...MaxIndexesPerBucketSnapshotSegment`).

    As live, segments have fewer where there are many buckets (`tracker.columns.segment_table`).
    """

    rows_per_bucket_min: int = 50_000
    """A bucket ends with the ledger that brings it to this many rows; 1 makes a bucket of each ledger."""

    rows_per_bucket_max: int = ROWS_PER_BUCKET_MAX
    """A bucket ends with this many rows, also in the middle of a ledger.

    `delayedDeliveryMaxIndexCountPerBucket`, or without it `delayedDeliveryMaxUnsealedIndexes`, as live. A task holds
    one bucket, so this bounds its memory, and one ledger of more rows is built by several tasks.
    """

    last_bucket_rows_min: int = 1
    """The last rows of a subscription become a bucket if there are so many."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name, is_allowed in (
            ("now_ms", self.now_ms >= 0),
            ("step_ms", self.step_ms >= 0),
            ("rows_max", self.rows_max == ROWS_UNLIMITED or self.rows_max > 0),
            ("rows_per_bucket_min", self.rows_per_bucket_min > 0),
            ("rows_per_bucket_max", self.rows_per_bucket_max >= self.rows_per_bucket_min),
            ("last_bucket_rows_min", self.last_bucket_rows_min > 0),
        ):
            if not is_allowed:
                raise ValueError(f"{name} cannot be {getattr(self, name)}")
