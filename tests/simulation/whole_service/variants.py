"""The choices of a seed before the first event: kinds of subscriptions, limits, and how storage and log behave.

Limits are small, so that portions are met and bounds are reached in nearly every run; each seed has only some of the
events and faults, in weights of its own (swarm testing), so that runs differ in kind and not only in order.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from dispatcher.config import DRAINING_HASHES, LAST_SENT_POSITION, DispatcherConfig, SubscriptionType
from dispatcher.consumer import KeySharedMode, KeySharedPolicy
from managed_ledger.bundles import BundleRange, even_ranges
from managed_ledger.config import ManagedLedgerConfig
from postdate.broker.configuration.config import BrokerConfig
from snapshot_storage.faults import NO_FAULTS, Fault, FaultPlan
from tracker.config import BUCKET_FACTORY, IN_MEMORY_FACTORY, TrackerConfig

EXCLUSIVE: Final = "exclusive"
FAILOVER: Final = "failover"
SHARED: Final = "shared"
DRAINING: Final = "key_shared_draining"
LAST_SENT: Final = "key_shared_last_sent"
CLASSIC: Final = "key_shared_classic"
STICKY: Final = "key_shared_sticky"
OUT_OF_ORDER: Final = "key_shared_out_of_order"

KINDS: Final = {
    SHARED: 5,
    DRAINING: 8,
    LAST_SENT: 2,
    CLASSIC: 3,
    STICKY: 2,
    OUT_OF_ORDER: 2,
    FAILOVER: 2,
    EXCLUSIVE: 2,
}
"""With how often each is chosen."""

_DELAY_LAWS: Final = ["none", "short", "long", "exponential", "fixed", "instants", "past", "far"]

OBJECTS: Final = "objects"
"""The variant whose logs are on an object storage; else they are on a disk."""

TRACKERS: Final = {"bucket": 6, "memory": 2, "shared_index": 3}

_SUBSCRIPTION_TYPES: Final = {
    EXCLUSIVE: SubscriptionType.EXCLUSIVE,
    FAILOVER: SubscriptionType.FAILOVER,
    SHARED: SubscriptionType.SHARED,
}


def subscription_type(kind: str) -> SubscriptionType:
    """Return the type that a consumer of a subscription of this kind asks for."""
    return _SUBSCRIPTION_TYPES.get(kind, SubscriptionType.KEY_SHARED)


def has_delays(kind: str) -> bool:
    """Return whether delivery times are heeded by this kind."""
    return kind not in (EXCLUSIVE, FAILOVER)


def policy(kind: str) -> KeySharedPolicy:
    """Return the Key_Shared policy of the consumers of this kind; sticky ones add their ranges."""
    if kind == STICKY:
        return KeySharedPolicy(KeySharedMode.STICKY)
    return KeySharedPolicy(allow_out_of_order_delivery=kind == OUT_OF_ORDER)


@dataclass(frozen=True, kw_only=True)
class StorageOfLogs:
    """How the object storage behaves that has the logs.

    Attributes:
        ranges: The bundles.
        latency_s: The longest that a request takes on its way, and its answer as much.
        fault_rate: How often a request is lost, done without an answer, late, or done twice.
        checkpoint_bytes: Changes after which a checkpoint is stored.
    """

    ranges: tuple[BundleRange, ...]
    latency_s: float
    fault_rate: float
    checkpoint_bytes: int


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The settings of a run, which do not change."""

    kinds: tuple[str, ...]
    """Of the subscriptions, in the order of their creation."""
    tracker: str
    config: BrokerConfig
    plan: FaultPlan
    """How calls of the snapshot storage go wrong while faults are on."""
    storage: str
    """quick, slow, faulty, lying."""
    read_failure_rate: float
    log_latency_s: float
    """The longest that a call of the log takes."""
    keys: tuple[int, ...]
    """Sticky hashes."""
    weights: dict[str, float] = field(default_factory=dict)
    """How often each event happens, by its name."""
    steps: int
    delay_laws: tuple[str, ...]
    is_bulky: bool
    """Thousands of entries at once."""
    has_clock_steps: bool
    is_stingy: bool
    """Consumers ask for few messages, so that many are due while no consumer can take them."""
    logs: StorageOfLogs | None = None
    """The object storage of the logs; None where they are on a disk."""

    @property
    def name(self) -> str:
        """Kinds and tracker, and where the logs are."""
        return f"{'+'.join(self.kinds)}/{self.tracker}" + ("" if self.logs is None else f"/{OBJECTS}")

    @property
    def description(self) -> str:
        """The name, the storage, and what else decides which situations can be met."""
        tracker = self.config.tracker
        words = [
            self.name,
            self.storage,
            "strict" if tracker.is_deliver_at_time_strict else f"tick{tracker.tick_time_ms}",
            f"merges{tracker.bucket_count_max}" if tracker.bucket_count_max > 0 else "no_merges",
            *sorted(self.weights),
        ]
        return "/".join(words)

    @property
    def keeps_times_in_order(self) -> bool:
        """Whether what falls due comes in the order of time: beyond some bounds being on time comes first."""
        dispatcher, tracker = self.config.dispatcher, self.config.tracker
        # On a shared index the due rows that do not fit into memory come by position.
        has_times = not tracker.is_index_shared or tracker.loaded_row_count_max > 1_000
        return dispatcher.held_entries_max > 1_000 and tracker.order_wait_ms_max > 0 and has_times

    @property
    def waits_for_storage(self) -> bool:
        """Whether the storage is only so slow that the order of time is waited for."""
        return self.storage == "slow" and self.plan.latency_ms_max * 20 <= self.config.tracker.order_wait_ms_max

    @property
    def uses_points(self) -> bool:
        """Whether slots are those of consistent hashing, for kinds that do not name their ranges."""
        return self.config.dispatcher.use_consistent_hashing

    @property
    def is_bounded_by_unacked(self) -> bool:
        """Whether a consumer or subscription can hold too much to be sent more."""
        dispatcher = self.config.dispatcher
        return bool(dispatcher.unacked_per_consumer_max or dispatcher.unacked_per_subscription_max)


def variant_of(seed: int, name: str | None = None) -> Variant:
    """Return the variant of a seed.

    Args:
        seed: Decides.
        name: `kind+kind/tracker` for others than its own; with `/objects`, or `objects` alone, on an object storage.
    """
    if name is not None and name.endswith(OBJECTS):
        return _on_objects(seed, variant_of(seed, name.removesuffix(OBJECTS).removesuffix("/") or None))
    chance = Random(f"variant {seed}")
    kinds, tracker = _named(chance, name)
    keys = tuple(chance.randrange(2**31) for _ in range(chance.choice([1, 2, 4, 12, 60])))
    storage = chance.choices(["quick", "slow", "faulty", "lying"], [5, 2, 2, 1])[0]
    is_bulky = chance.random() < 0.1
    laws = tuple(chance.sample(_DELAY_LAWS, chance.choice([1, 2, 3, 8])))
    if len(laws) > 1 and chance.random() < 0.6:
        laws = (*laws, "none")
    has_clock_steps = chance.random() < 0.25
    # It takes messages to be in order of time as long as all delays look the same, which they must be then.
    detects_fixed_delays = laws == ("fixed",) and not has_clock_steps
    return Variant(
        kinds=kinds,
        tracker=tracker,
        config=BrokerConfig(
            data_directory=Path("unused"),
            dispatcher=_dispatcher(chance, kinds, is_bulky=is_bulky),
            tracker=_tracker(chance, tracker, is_bulky=is_bulky, detects_fixed_delays=detects_fixed_delays),
            managed_ledger=_managed_ledger(chance, is_bulky=is_bulky),
            ttl_ms=chance.choice([5_000, 60_000, 600_000]),
            retention_check_interval_s=30,
            stats_interval_s=10,
        ),
        plan=_plan(chance, seed, storage),
        storage=storage,
        read_failure_rate=chance.choice([0.0, 0.0, 0.02]),
        log_latency_s=chance.choice([0.0, 0.001, 0.01]),
        keys=keys,
        weights=_weights(chance, is_bulky=is_bulky),
        steps=chance.choice([60, 120, 240]),
        delay_laws=laws,
        is_bulky=is_bulky,
        has_clock_steps=has_clock_steps,
        is_stingy=not is_bulky and chance.random() < 0.25,
    )


def _on_objects(seed: int, variant: Variant) -> Variant:
    """Put the logs of a variant on an object storage."""
    chance = Random(f"objects {seed}")
    logs = StorageOfLogs(
        ranges=even_ranges(chance.choice([1, 1, 2, 3])),
        latency_s=chance.choice([0.001, 0.01, 0.03]),
        fault_rate=chance.choice([0.0, 0.03, 0.1]),
        checkpoint_bytes=chance.choice([2_000, 10_000, 50_000]) * (100 if variant.is_bulky else 1),
    )
    paced = replace(variant.config.managed_ledger, synced_interval_ms=chance.choice([0, 10, 50]))
    # In the others each owner that goes is dead.
    weights = variant.weights if chance.random() < 0.4 else variant.weights | {"stall": 3.0, "wake": 6.0}
    return replace(variant, logs=logs, weights=weights, config=replace(variant.config, managed_ledger=paced))


def _named(chance: Random, name: str | None) -> tuple[tuple[str, ...], str]:
    tracker = chance.choices(list(TRACKERS), list(TRACKERS.values()))[0]
    count = chance.choice([2, 3]) if tracker == "shared_index" else chance.choice([1, 1, 1, 2])
    kinds = tuple(chance.choices(list(KINDS), list(KINDS.values()), k=count))
    # The order that a subscription heeds is the broker's setting, so there is one such setting a run.
    modes = [kind for kind in kinds if kind in (LAST_SENT, CLASSIC)]
    if modes:
        kinds = tuple(modes[0] if kind in (DRAINING, LAST_SENT, CLASSIC) else kind for kind in kinds)
    if name is not None:
        named_kinds, _, tracker = name.partition("/")
        kinds = tuple(named_kinds.split("+"))
        assert tracker in TRACKERS
        assert set(kinds) <= KINDS.keys()
    return kinds, tracker


def _dispatcher(chance: Random, kinds: tuple[str, ...], *, is_bulky: bool) -> DispatcherConfig:
    portion = chance.choice([1, 3, 10, 1_000])
    return DispatcherConfig(
        ordering_mode=LAST_SENT_POSITION if LAST_SENT in kinds else DRAINING_HASHES,
        use_classic_implementation=CLASSIC in kinds,
        key_shared_unblocking_interval_ms=chance.choice([0, 10, 10]),
        use_consistent_hashing=chance.random() < 0.7,
        consistent_hashing_replica_points=chance.choice([2, 10]),
        look_ahead_per_consumer=chance.choice([0, 1, 3, 10, 2_000]),
        look_ahead_per_subscription=chance.choice([0, 5, 20, 20_000]),
        look_ahead_per_hash=chance.choice([1, 3, 500]),
        parked_entries_max=chance.choice([0, 0, 5, 1_000_000]),
        read_batch_entries_max=chance.choice([100, 500]) if is_bulky else chance.choice([1, 3, 20, 500]),
        read_bytes_max=5 * 2**20 if is_bulky else chance.choice([1, 200, 5 * 2**20]),
        round_robin_batch_entries_max=chance.choice([1, 3, 20]),
        read_failure_backoff_initial_ms=1,
        read_failure_backoff_max_ms=chance.choice([10, 100]),
        unacked_per_consumer_max=50_000 if is_bulky else chance.choice([0, 0, 0, 4, 30]),
        unacked_per_subscription_max=200_000 if is_bulky else chance.choice([0, 0, 0, 6, 50]),
        scan_entries_max=chance.choice([30, 2_000]) if is_bulky else chance.choice([1, 5, 30, 2_000]),
        held_entries_max=chance.choice([1, 10, 1_000_000, 1_000_000, 1_000_000]),
        lookup_entries_max=chance.choice([1, 10, 10_000]),
        return_entries_max=chance.choice([100, 1_000]) if is_bulky else portion,
        serve_entries_max=2_000 if is_bulky else chance.choice([1, 5, 2_000]),
        admit_entries_max=1_000 if is_bulky else portion,
    )


def _tracker(chance: Random, tracker: str, *, is_bulky: bool, detects_fixed_delays: bool) -> TrackerConfig:
    # Thousands of buckets would be another test.
    count_min = chance.choice([200, 1_000]) if is_bulky else chance.choice([1, 5, 20])
    return TrackerConfig(
        tracker_factory_class_name=IN_MEMORY_FACTORY if tracker == "memory" else BUCKET_FACTORY,
        is_index_shared=tracker == "shared_index",
        tick_time_ms=chance.choice([1, 10, 1_000]),
        is_deliver_at_time_strict=chance.random() < 0.7,
        fixed_delay_detection_lookahead=10 if detects_fixed_delays else chance.choice([0, 50_000]),
        index_count_per_bucket_min=count_min,
        index_count_per_bucket_max=chance.choice([-1, count_min, count_min + 7]),
        index_count_at_close_min=chance.choice([-1, 0, 1, 5]),
        segment_step_ms_max=10_000 if is_bulky else chance.choice([1, 100, 10_000]),
        segment_row_count_max=100 if is_bulky else chance.choice([1, 3, 10, 100]),
        bucket_count_max=chance.choice([-1, 1, 2, 4]),
        prefetch_ms=chance.choice([0, 500, 5_000]),
        loaded_row_count_max=chance.choice([1, 5, 30, 262_144]),
        unsealed_row_count_max=chance.choice([30, 10_000_000, 10_000_000]),
        order_wait_ms_max=chance.choice([0, 500, 5_000]),
        retry_backoff_ms_min=chance.choice([1, 100]),
        retry_backoff_ms_max=chance.choice([200, 2_000]),
        operation_timeout_ms=chance.choice([500, 3_000]),
        operations_in_flight_max=chance.choice([1, 2, 16]),
        close_timeout_ms=chance.choice([200, 2_000]),
    )


def _managed_ledger(chance: Random, *, is_bulky: bool) -> ManagedLedgerConfig:
    return ManagedLedgerConfig(
        entries_per_ledger_max=chance.choice([400, 50_000]) if is_bulky else chance.choice([2, 7, 25, 100]),
        rollover_time_ms=chance.choice([1_000, 240 * 60_000]),
        cache_bytes_max=2**20 if is_bulky else chance.choice([0, 10_000, 2**20]),
    )


def _plan(chance: Random, seed: int, storage: str) -> FaultPlan:
    match storage:
        case "slow":
            return FaultPlan(
                seed=seed, rate=0.7, faults=(Fault.LATENCY,), latency_ms_max=chance.choice([50, 400, 2_000])
            )
        case "faulty":
            faults = (Fault.LATENCY, Fault.FAILURE_BEFORE, Fault.FAILURE_AFTER, Fault.TIMEOUT_AFTER, Fault.HANG)
            return FaultPlan(
                seed=seed, rate=chance.choice([0.1, 0.4]), faults=faults, latency_ms_max=300, timeout_ms=700
            )
        case "lying":
            return FaultPlan(seed=seed, rate=0.15, latency_ms_max=300, timeout_ms=700)
        case _:
            return NO_FAULTS


def _weights(chance: Random, *, is_bulky: bool) -> dict[str, float]:
    usual = {
        "publish": 14,
        "publish_many": 1.5 if is_bulky else 0,
        "join": 6,
        "leave": 4,
        "crash": 3,
        "flow": 10,
        "acknowledge": 10,
        "acknowledge_part": 3,
        "acknowledge_cumulative": 3,
        "acknowledge_late": 3,
        "forget": 1,
        "nack": 4,
        "redeliver_all": 6 if is_bulky else 4,
        "stick": 2,
        "unstick": 3,
        "seek": 1.5,
        "expire": 1.5,
        "skip": 1,
        "clear": 0.5,
        "cancel": 1.5,
        "cancel_by_id": 2,
        "cancel_while_moved": 0.5,
        "look": 3,
        "reschedule": 2.5,
        "deliver_now": 1.5,
        "pause": 1,
        "resume": 2,
        "just_in_time": 5,
        "switch_delays": 1,
        "change_tick": 0.5,
        "step_clock": 1,
        "keep_house": 2,
        "break_storage": 1,
        "mend_storage": 2,
        "lose_snapshot": 0.5,
        "kill": 1,
        "cut_power": 0.5,
        "restart": 0.7,
        "unsubscribe": 0.5,
        "change_kind": 0.5,
        "wait": 4,
        "wait_long": 1,
        "rest": 0.7,
    }
    if is_bulky:
        # So that thousands are in hand, and come back.
        usual |= {"seek": 0.5, "skip": 0.3, "clear": 0.2, "expire": 0.5, "kill": 0.5, "restart": 0.5}
    always = {"publish", "publish_many", "join", "flow", "acknowledge", "unstick", "mend_storage", "wait"}
    share = chance.choice([0.3, 0.6, 1.0])
    weights = {
        name: weight * chance.choice([0.5, 1, 1, 2])
        for name, weight in usual.items()
        if weight and (name in always or chance.random() < share)
    }
    if chance.random() < 0.3:
        # Some services hardly live.
        weights |= dict.fromkeys(chance.sample(["kill", "cut_power", "restart"], 2), 4.0)
    return weights
