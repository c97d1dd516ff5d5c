"""The configuration of delayed delivery: Pulsar's keys with Pulsar's defaults, and ours.

`metadata["key"]` on a field is its key in `config/broker.conf`. Inside, every time is in milliseconds; where the
file's unit is another one, `metadata["scale"]` is what one unit of the file is in ours.
"""

from dataclasses import dataclass, field, fields
from operator import index
from typing import Final, SupportsIndex, TypeVar

from managed_ledger.positions.value_types import InvalidValueError

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

T = TypeVar("T")

_NO_LIMIT: Final = ", or -1 for no limit"
_OFF: Final = ", or -1"


def _key(key: str, default: T, *, at_least: int | None = None, otherwise: str = "", scale: int = 1) -> T:
    """Return a field of the configuration; `otherwise` is what -1 stands for, where that is allowed too."""
    bounds = {} if at_least is None else {"least": at_least, "otherwise": otherwise}
    made: T = field(default=default, metadata={"key": key, "scale": scale, **bounds})
    return made


def _require(is_met: bool, name: str, value: object, rule: str, **bounds: int) -> None:
    if not is_met:
        raise InvalidValueError(name, rule, value=value, **bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerConfig:
    """How delayed messages are tracked, and how buckets are sealed, cut, loaded and merged."""

    is_enabled: bool = _key("delayedDeliveryEnabled", True)
    """Whether delivery times are heeded. When off, a message with a delay is delivered at once. Default on."""

    tracker_factory_class_name: str = _key("delayedDeliveryTrackerFactoryClassName", BUCKET_FACTORY)
    """The tracker: a Java class name of Pulsar's or the Python path of a factory, see `FACTORY_CLASS_NAMES`.
    Default: the bucket tracker, as delayed messages must survive a restart; Pulsar's default forgets."""

    tick_time_ms: int = _key("delayedDeliveryTickTimeMillis", 1_000, at_least=0)
    """How early a message may be delivered when times are not strict. Larger means fewer and larger batches.
    It is also how much delays may differ that the in-memory tracker takes for the same. Default 1,000."""

    is_deliver_at_time_strict: bool = _key("isDelayedDeliveryDeliverAtTimeStrict", True)
    """Whether nothing is ever delivered before its time; when off, up to one tick early. Default on, in Pulsar off."""

    delay_ms_max: int = _key("delayedDeliveryMaxDelayInMillis", 0, at_least=0)
    """A message with a longer delay is refused when it is published (PIP-315). 0 is no limit. Default 0."""

    fixed_delay_detection_lookahead: int = _key("delayedDeliveryFixedDelayDetectionLookahead", 50_000, at_least=0)
    """In-memory tracker: read no further ahead than so many messages while all delays look the same, 0 for no limit.
    Default 50,000."""

    index_count_per_bucket_min: int = _key("delayedDeliveryMinIndexCountPerBucket", 50_000, at_least=1)
    """Seal the mutable bucket once it holds this many indexes and its ledger has ended.
    Larger means fewer snapshots and more to read again after a crash. Default 50,000."""

    index_count_per_bucket_max: int = _key(
        "delayedDeliveryMaxIndexCountPerBucket", UNLIMITED, at_least=1, otherwise=_NO_LIMIT
    )
    """Seal the mutable bucket at this many indexes even in the middle of a ledger that never ends (ours).
    -1 is no limit but `unsealed_row_count_max`. Must be at least `index_count_per_bucket_min`. Default -1."""

    index_count_at_close_min: int = _key("delayedDeliveryMinIndexCountAtClose", 1_000, at_least=0, otherwise=_OFF)
    """When the tracker is closed, seal the mutable bucket if it holds at least this many indexes (ours).
    -1 never seals at close. Reading fewer again from the log is cheaper than a snapshot. Default 1,000."""

    segment_step_ms_max: int = _key(
        "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds", 300_000, at_least=0, scale=1_000
    )
    """The longest time span of one segment. Larger means fewer segments and more memory a load. Default 300 s."""

    segment_row_count_max: int = _key(
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment", 5_000, at_least=1, otherwise=_NO_LIMIT
    )
    """The most indexes in one segment, -1 for no limit. Default 5,000.
    The more buckets there are, the fewer has a segment of the next one; see `columns.segment_table`."""

    bucket_count_max: int = _key("delayedDeliveryMaxNumBuckets", UNLIMITED)
    """Merge adjacent buckets when there are more than this. 0 or less switches merging off. Default -1."""

    is_index_shared: bool = _key("delayedDeliverySharedIndexEnabled", False)
    """Whether all subscriptions of a topic share one index (PIP-195, optional part); see `shared_index`.
    It costs what one subscription's costs, however many there are. Bucket tracker only, and the service alone heeds
    it: `tracker_factory` refuses it. Default off."""

    prefetch_ms: int = _key("delayedDeliverySegmentPrefetchMillis", 5_000, at_least=0)
    """Load a segment this long before its first message is due (ours).
    Larger means more memory; smaller than a slow storage's answer means late delivery. Default 5,000."""

    loaded_row_count_max: int = _key("delayedDeliveryMaxLoadedIndexes", 262_144, at_least=1)
    """Load no more segments ahead while this many indexes of loaded segments wait, 24 bytes each at most (ours).
    The segment that is due next is always loaded, so delivery never waits for this. More than 2,048 buckets that are
    due at once each have a 2,048th of it, 128 indexes, as a bucket takes as much memory itself. On a shared index also
    how many due indexes wait in memory for a subscription that does not take them; the others are read again from the
    log. Default 262,144."""

    unsealed_row_count_max: int = _key("delayedDeliveryMaxUnsealedIndexes", 10_000_000, at_least=1)
    """Pause reading while this many indexes wait in memory for a snapshot that cannot be stored (ours).
    Reached only when the snapshot storage is down for long. Due messages flow on. Also the most indexes in the
    mutable bucket. Default 10,000,000 (240 MB)."""

    order_wait_ms_max: int = _key("delayedDeliveryMaxOrderWaitMillis", 5_000, at_least=0, otherwise=_OFF)
    """How long due messages wait for an earlier part of the index that cannot be read yet (ours).
    Within it, messages come out in order even when snapshots are slow to read or are read again after a failure;
    beyond it, being on time comes first. -1 waits for ever. A dispatcher waits as long for the log to be read, after a
    start and where a damaged snapshot was lost (`DispatcherConfig.order_wait_ms_max`). Default 5,000."""

    retry_backoff_ms_min: int = _key("delayedDeliveryRetryBackoffMinMillis", 100, at_least=1)
    """The first wait after a failed storage call, doubled after each further failure (ours). Default 100."""

    retry_backoff_ms_max: int = _key("delayedDeliveryRetryBackoffMaxMillis", 30_000)
    """The longest wait between two attempts (ours). Default 30,000."""

    operation_timeout_ms: int = _key("delayedDeliveryOperationTimeoutMillis", 60_000, at_least=1)
    """A storage call that takes longer has failed (ours); Pulsar has no limit for most. Default 60,000."""

    operations_in_flight_max: int = _key("delayedDeliveryMaxOperationsInFlight", 16, at_least=1)
    """The most storage calls of a kind (loads, reads, creates, deletes) a tracker has in flight (ours). Default 16."""

    close_timeout_ms: int = _key("delayedDeliveryCloseTimeoutMillis", 10_000, at_least=0)
    """How long closing waits for snapshots in flight (ours). Rows that are not stored are read again. A service keeps
    to it with all that a stop waits for beside the log. A cursor that does not answer is waited for beyond it, for
    `operation_timeout_ms`. Default 10,000."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, alone or together."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type is int:
                # Times and row numbers are added to others of 64 bits.
                is_met = isinstance(value, SupportsIndex) and -(2**63) <= index(value) < 2**63
                _require(is_met, one.name, value, "an integer from -2**63 to 2**63 - 1")
            if "least" in one.metadata:
                least, otherwise = one.metadata["least"], one.metadata["otherwise"]
                is_met = value >= least or (bool(otherwise) and value == UNLIMITED)
                _require(is_met, one.name, value, f"at least {{least}}{otherwise}", least=least)
        is_known = self.tracker_factory_class_name in FACTORY_CLASS_NAMES
        _require(is_known, "tracker_factory_class_name", self.tracker_factory_class_name, "one of the two of Pulsar")
        # A cap below the minimum would seal in the middle of every ledger and never at its end.
        if self.index_count_per_bucket_max != UNLIMITED:
            self._require_order("index_count_per_bucket_min", "index_count_per_bucket_max")
        self._require_order("retry_backoff_ms_min", "retry_backoff_ms_max")

    def _require_order(self, lower: str, upper: str) -> None:
        least, value = getattr(self, lower), getattr(self, upper)
        _require(value >= least, upper, value, f"at least {{{lower}}} ({{least}})", least=least)

    @property
    def factory_class_name(self) -> str:
        """Pulsar's class name of the factory, however it is spelled: `BUCKET_FACTORY` or `IN_MEMORY_FACTORY`."""
        return FACTORY_CLASS_NAMES[self.tracker_factory_class_name]
