"""The configuration of delayed delivery: Pulsar's keys with Pulsar's defaults, and ours.

`metadata["key"]` on a field is its key in `config/broker.conf`. Inside, every time is in milliseconds; where the
file's unit is another one, `metadata["scale"]` is what one unit of the file is in ours.
"""

from dataclasses import dataclass, field, fields
from operator import index
from typing import Final, SupportsIndex

BUCKET_FACTORY: Final = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
IN_MEMORY_FACTORY: Final = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"

FACTORY_CLASS_NAMES: Final = {
    spelling: class_name
    for class_name, module in ((BUCKET_FACTORY, "tracker.bucket_tracker"), (IN_MEMORY_FACTORY, "tracker.in_memory"))
    for simple_name in (class_name.rpartition(".")[2],)
    for spelling in (class_name, simple_name, f"{module}.{simple_name}")
}
"""Every spelling that is accepted, with the Java class that it stands for."""

UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerConfig:
    """How delayed messages are tracked, and how buckets are sealed, cut, loaded and merged."""

    is_enabled: bool = field(default=True, metadata={"key": "delayedDeliveryEnabled"})
    """Whether delivery times are heeded. When off, a message with a delay is delivered at once. Default on."""

    tracker_factory_class_name: str = field(
        default=BUCKET_FACTORY, metadata={"key": "delayedDeliveryTrackerFactoryClassName"}
    )
    """The tracker: a Java class name of Pulsar's or the Python path of a factory, see `FACTORY_CLASS_NAMES`.

    Default: the bucket tracker, as delayed messages must survive a restart at no cost; Pulsar's default forgets.
    """

    tick_time_ms: int = field(default=1_000, metadata={"key": "delayedDeliveryTickTimeMillis"})
    """How early a message may be delivered when times are not strict, and the in-memory tracker's precision.

    Larger means fewer and larger batches. Delivery is never later because of it, but for the in-memory tracker's when
    times are strict: it rounds up to its precision. Default 1,000.
    """

    is_deliver_at_time_strict: bool = field(default=True, metadata={"key": "isDelayedDeliveryDeliverAtTimeStrict"})
    """Whether nothing is ever delivered before its time; when off, up to one tick early.

    Exactness costs nothing: a timer is set from the next delivery time. Default on, in Pulsar off.
    """

    delay_ms_max: int = field(default=0, metadata={"key": "delayedDeliveryMaxDelayInMillis"})
    """A message with a longer delay is refused when it is published (PIP-315). 0 is no limit. Default 0."""

    fixed_delay_detection_lookahead: int = field(
        default=50_000, metadata={"key": "delayedDeliveryFixedDelayDetectionLookahead"}
    )
    """In-memory tracker: stop reading ahead beyond this many messages while all delays look the same.

    0 switches the detection off. Default 50,000.
    """

    index_count_per_bucket_min: int = field(default=50_000, metadata={"key": "delayedDeliveryMinIndexCountPerBucket"})
    """Seal the mutable bucket once it holds this many indexes and its ledger has ended.

    Larger means fewer snapshots and more to read again after a crash. Default 50,000.
    """

    index_count_per_bucket_max: int = field(
        default=UNLIMITED, metadata={"key": "delayedDeliveryMaxIndexCountPerBucket"}
    )
    """Seal the mutable bucket at this many indexes even in the middle of a ledger that never ends (ours).

    -1 is no limit but `unsealed_row_count_max`. Must be at least `index_count_per_bucket_min`. Default -1.
    """

    index_count_at_close_min: int = field(default=1_000, metadata={"key": "delayedDeliveryMinIndexCountAtClose"})
    """When the tracker is closed, seal the mutable bucket if it holds at least this many indexes (ours).

    -1 never seals at close. Reading fewer again from the log is cheaper than a snapshot. Default 1,000.
    """

    segment_step_ms_max: int = field(
        default=300_000,
        metadata={"key": "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds", "scale": 1_000},
    )
    """The longest time span of one segment. Larger means fewer segments and more memory a load. Default 300 s."""

    segment_row_count_max: int = field(
        default=5_000, metadata={"key": "delayedDeliveryMaxIndexesPerBucketSnapshotSegment"}
    )
    """The most indexes in one segment, -1 for no limit. Default 5,000.

    The more buckets there are, the fewer has a segment of the next one; see `segment_row_count_max`.
    """

    bucket_count_max: int = field(default=UNLIMITED, metadata={"key": "delayedDeliveryMaxNumBuckets"})
    """Merge adjacent buckets when there are more than this. 0 or less switches merging off. Default -1."""

    is_index_shared: bool = field(default=False, metadata={"key": "delayedDeliverySharedIndexEnabled"})
    """Whether all subscriptions of a topic share one index (PIP-195, optional part); see `shared_index`.

    It costs what one subscription's costs, however many there are. Bucket tracker only, and the service alone heeds
    it: `tracker_factory` refuses it. Default off.
    """

    prefetch_ms: int = field(default=5_000, metadata={"key": "delayedDeliverySegmentPrefetchMillis"})
    """Load a segment this long before its first message is due (ours).

    Larger means more memory; smaller than a slow storage's answer means late delivery. Default 5,000.
    """

    loaded_row_count_max: int = field(default=262_144, metadata={"key": "delayedDeliveryMaxLoadedIndexes"})
    """Load no more segments ahead while this many indexes of loaded segments wait, 24 bytes each at most (ours).

    The segment that is due next is always loaded, so delivery never waits for this. More than 2,048 buckets that are
    due at once each have a 2,048th of it, 128 indexes, as a bucket takes as much memory itself. On a shared index also
    how many due indexes wait in memory for a subscription that does not take them; the others are read again from the
    log. Default 262,144.
    """

    unsealed_row_count_max: int = field(default=10_000_000, metadata={"key": "delayedDeliveryMaxUnsealedIndexes"})
    """Pause reading while this many indexes wait in memory for a snapshot that cannot be stored (ours).

    Reached only when the snapshot storage is down for long. Due messages flow on. Also the most indexes in the
    mutable bucket. Default 10,000,000 (240 MB).
    """

    order_wait_ms_max: int = field(default=5_000, metadata={"key": "delayedDeliveryMaxOrderWaitMillis"})
    """How long due messages wait for an earlier part of the index that cannot be read yet (ours).

    Within it, messages come out in order even when snapshots are slow to read or are read again after a failure;
    beyond it, being on time comes first. -1 waits for ever. A dispatcher waits as long for the log to be read, after a
    start and where a damaged snapshot was lost (`DispatcherConfig.order_wait_ms_max`). Default 5,000.
    """

    retry_backoff_ms_min: int = field(default=100, metadata={"key": "delayedDeliveryRetryBackoffMinMillis"})
    """The first wait after a failed storage call, doubled after each further failure (ours). Default 100."""

    retry_backoff_ms_max: int = field(default=30_000, metadata={"key": "delayedDeliveryRetryBackoffMaxMillis"})
    """The longest wait between two attempts (ours). Default 30,000."""

    operation_timeout_ms: int = field(default=60_000, metadata={"key": "delayedDeliveryOperationTimeoutMillis"})
    """A storage call that takes longer has failed (ours); Pulsar has no limit for most. Default 60,000."""

    operations_in_flight_max: int = field(default=16, metadata={"key": "delayedDeliveryMaxOperationsInFlight"})
    """The most storage calls of a kind (loads, reads, creates, deletes) a tracker has in flight (ours). Default 16."""

    close_timeout_ms: int = field(default=10_000, metadata={"key": "delayedDeliveryCloseTimeoutMillis"})
    """How long closing waits for snapshots in flight (ours). Rows that are not stored are read again. A service keeps
    to it with all that a stop waits for beside the log. A cursor that does not
    answer is waited for beyond it, for `operation_timeout_ms`. Default 10,000."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, alone or together."""
        _require(
            self.tracker_factory_class_name in FACTORY_CLASS_NAMES,
            "tracker_factory_class_name",
            self.tracker_factory_class_name,
            "one of the two of Pulsar",
        )
        for number in fields(self):
            if number.type is int:
                value = getattr(self, number.name)
                # Times and row numbers are added to others of 64 bits.
                is_met = isinstance(value, SupportsIndex) and -(2**63) <= index(value) < 2**63
                _require(is_met, number.name, value, "an integer from -2**63 to 2**63 - 1")
        for name in _NON_NEGATIVE:
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        for name in _POSITIVE:
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in _POSITIVE_OR_UNLIMITED:
            value = getattr(self, name)
            _require(value >= 1 or value == UNLIMITED, name, value, "at least 1, or -1 for no limit")
        for name in _NON_NEGATIVE_OR_OFF:
            _require(getattr(self, name) >= -1, name, getattr(self, name), "at least 0, or -1")
        if self.index_count_per_bucket_max != UNLIMITED:
            # A cap below the minimum would seal in the middle of every ledger and never at its end.
            _require(
                self.index_count_per_bucket_max >= self.index_count_per_bucket_min,
                "index_count_per_bucket_max",
                self.index_count_per_bucket_max,
                f"at least index_count_per_bucket_min ({self.index_count_per_bucket_min})",
            )
        _require(
            self.retry_backoff_ms_max >= self.retry_backoff_ms_min,
            "retry_backoff_ms_max",
            self.retry_backoff_ms_max,
            f"at least retry_backoff_ms_min ({self.retry_backoff_ms_min})",
        )

    @property
    def factory_class_name(self) -> str:
        """Pulsar's class name of the factory, however it is spelled: `BUCKET_FACTORY` or `IN_MEMORY_FACTORY`."""
        return FACTORY_CLASS_NAMES[self.tracker_factory_class_name]


_NON_NEGATIVE = (
    "tick_time_ms",
    "delay_ms_max",
    "fixed_delay_detection_lookahead",
    "segment_step_ms_max",
    "prefetch_ms",
    "close_timeout_ms",
)
_POSITIVE = (
    "index_count_per_bucket_min",
    "loaded_row_count_max",
    "unsealed_row_count_max",
    "retry_backoff_ms_min",
    "operation_timeout_ms",
    "operations_in_flight_max",
)
_POSITIVE_OR_UNLIMITED = ("index_count_per_bucket_max", "segment_row_count_max")
_NON_NEGATIVE_OR_OFF = ("index_count_at_close_min", "order_wait_ms_max")


def _require(is_met: bool, name: str, value: object, allowed: str) -> None:
    if not is_met:
        raise ValueError(f"{name} must be {allowed}, but is {value}")
