"""The dispatcher's limits and intervals, one field per key of `config/broker.conf`.

Names and defaults are Pulsar's, with two exceptions that are explained at their fields: the read batch and the back-off
after a failed read. Parsing is not done here: the broker turns text into values and calls the constructor, which
checks ranges and relations.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

from managed_ledger.positions.value_types import InvalidValueError

DRAINING_HASHES: Final = "draining_hashes"
LAST_SENT_POSITION: Final = "last_sent_position"

REPLICA_POINTS_MAX: Final = 65_535
"""The slots of the ring. With so many points the second consumer's join holds the loop up for 50 to 100 ms."""


_LEAST: Final = {
    "order_wait_ms_max": -1,
    "key_shared_unblocking_interval_ms": 0,
    "look_ahead_per_consumer": 0,
    "look_ahead_per_subscription": 0,
    "parked_entries_max": 0,
    "read_failure_backoff_initial_ms": 0,
    "read_failure_backoff_max_ms": 0,
    "unacked_per_consumer_max": 0,
    "unacked_per_subscription_max": 0,
}
"""The least value of a number; 1 for those that are not here."""


class SubscriptionType(StrEnum):
    """The four ways in which consumers can share a subscription, by their names in Pulsar's stats."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherConfig:
    """How far to look ahead, when to stop and how long to wait."""

    ordering_mode: str = field(
        default=DRAINING_HASHES,
        metadata={"key": "subscriptionKeySharedOrderingMode"},
    )
    """How the order of a key survives a join: `draining_hashes` (PIP-379) or `last_sent_position` (PIP-282).

    The latter gives a newcomer nothing beyond what was sent when it joined, until all of that is acknowledged. Ours;
    Pulsar had one or the other. Default draining_hashes.
    """

    use_classic_implementation: bool = field(
        default=False, metadata={"key": "subscriptionKeySharedUseClassicPersistentImplementation"}
    )
    """As Pulsar before 4.0: a newcomer gets nothing beyond the read position at its join. Slots stay those of Pulsar 4.
    Goes before the ordering mode. Default false."""

    key_shared_unblocking_interval_ms: int = field(default=10, metadata={"key": "keySharedUnblockingIntervalMs"})
    """Hashes that have drained within this time are unblocked together. 0 unblocks at once. Default 10."""

    use_consistent_hashing: bool = field(default=True, metadata={"key": "subscriptionKeySharedUseConsistentHashing"})
    """Assign hashes by consistent hashing; otherwise split the widest range for each new consumer. Default true."""

    consistent_hashing_replica_points: int = field(
        default=100, metadata={"key": "subscriptionKeySharedConsistentHashingReplicaPoints"}
    )
    """Points on the ring per consumer, 1 to 65535. More spread the hashes more evenly and make joins dearer.
    Default 100."""

    look_ahead_per_consumer: int = field(
        default=2_000, metadata={"key": "keySharedLookAheadMsgInReplayThresholdPerConsumer"}
    )
    """Entries per consumer that may wait as objects. 0 leaves only the next limit. Default 2,000."""

    look_ahead_per_subscription: int = field(
        default=20_000, metadata={"key": "keySharedLookAheadMsgInReplayThresholdPerSubscription"}
    )
    """Entries per subscription that may wait as objects. 0 is no limit. Default 20,000."""

    look_ahead_per_hash: int = field(default=500, metadata={"key": "keySharedLookAheadMsgInReplayThresholdPerHash"})
    """Entries of one hash that may wait as objects; Pulsar has no such limit, so that one hot key stops all. Default
    500, which is what is handed out in one turn of the loop."""

    parked_entries_max: int = field(default=1_000_000, metadata={"key": "keySharedLookAheadMsgParkedThreshold"})
    """Entries per subscription that wait beyond those three limits before reading stops, at 50 to 100 bytes each.
    0 stops reading at the limits, as Pulsar does. Default 1,000,000."""

    read_batch_entries_max: int = field(default=500, metadata={"key": "dispatcherMaxReadBatchSize"})
    """Entries handed to consumers per turn of the loop.

    Larger amortises the turn, smaller lets acknowledgements and connections in between sooner. Pulsar 4 has 100 and
    Pulsar 5 has 500; ours is 500, because a turn of 500 takes about 1 ms here.
    """

    read_bytes_max: int = field(default=5 * 2**20, metadata={"key": "dispatcherMaxReadSizeBytes"})
    """Payload bytes read at once for one consumer; at least one entry is read. Default 5 MiB."""

    round_robin_batch_entries_max: int = field(default=20, metadata={"key": "dispatcherMaxRoundRobinBatchSize"})
    """Shared: entries given to one consumer before it is the next one's turn. Default 20."""

    read_failure_backoff_initial_ms: int = field(
        default=100, metadata={"key": "dispatcherReadFailureBackoffInitialTimeInMs"}
    )
    """First wait after a read of the log failed; doubles. Pulsar waits 15,000; the log here is local. Default 100."""

    read_failure_backoff_max_ms: int = field(
        default=15_000, metadata={"key": "dispatcherReadFailureBackoffMaxTimeInMs"}
    )
    """Longest wait after a read of the log failed. Pulsar has 60,000. Default 15,000."""

    unacked_per_consumer_max: int = field(default=50_000, metadata={"key": "maxUnackedMessagesPerConsumer"})
    """Messages a consumer may hold unacknowledged; it is served again at half of it. 0 is no limit. Default 50,000."""

    unacked_per_subscription_max: int = field(default=200_000, metadata={"key": "maxUnackedMessagesPerSubscription"})
    """Messages a subscription may hold unacknowledged; served again at half. 0 is no limit. Default 200,000."""

    order_wait_ms_max: int = 5_000
    """How long due entries wait for the log to be read that may hold earlier ones; -1 is for ever.

    5,000 is enough for some millions of headers; behind more, being on time comes first. No key of its own: the service
    gives the tracker's bound (`delayedDeliveryMaxOrderWaitMillis`), so that one key bounds both waits. Default 5,000.
    """

    # How much is done in one turn of the loop. Not keys of `broker.conf`: the simulation makes them small, so that work
    # in portions is met in every run.

    scan_entries_max: int = 2_000
    """Headers per read of the scan: well below a millisecond of columns."""

    held_entries_max: int = 1_000_000
    """Held rows at which the scan stops and admission starts, also when more is unread: 40 MB of columns."""

    admit_entries_max: int = 1_000
    """Held entries that are taken in at once: a few milliseconds. The rest follows in the next turns."""

    lookup_entries_max: int = 10_000
    """Entries of a lost snapshot that are read again at once."""

    return_entries_max: int = 1_000
    """Entries that go back to their queues at once: two or three milliseconds."""

    serve_entries_max: int = 1_000
    """Waiting entries that are given at once; the rest follows by the timer, so that the entries of a consumer
    that left do not hold up the loop."""

    def __post_init__(self) -> None:
        if self.ordering_mode not in (DRAINING_HASHES, LAST_SENT_POSITION):
            rule = f"{DRAINING_HASHES} or {LAST_SENT_POSITION}"
            raise InvalidValueError("ordering_mode", rule, value=self.ordering_mode)
        for one in fields(self):
            value, least = getattr(self, one.name), _LEAST.get(one.name, 1)
            if type(value) is int and value < least:
                raise InvalidValueError(one.name, "at least {least}", value=value, least=least)
        if self.consistent_hashing_replica_points > REPLICA_POINTS_MAX:
            rule = f"from 1 to {REPLICA_POINTS_MAX}"
            raise InvalidValueError(
                "consistent_hashing_replica_points", rule, value=self.consistent_hashing_replica_points
            )
        least, most = self.read_failure_backoff_initial_ms, self.read_failure_backoff_max_ms
        if most < least:
            rule = "at least {read_failure_backoff_initial_ms} ({least})"
            raise InvalidValueError("read_failure_backoff_max_ms", rule, value=most, least=least)
