"""The statistics of a dispatcher for operators: plain values, with PIP-379's names in snake case.

`postdate/broker/` renders them with the JSON names of Pulsar's topic stats. Counts of messages count the messages of a
batch; `msg_in_replay`, `pending_entries` and the references of draining hashes count entries, as they do there.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from managed_ledger.positions.position import Position


class DrainingHash(NamedTuple):
    """A slot that a consumer must finish before it moves on."""

    hash: int
    owner_index: int
    """The consumer that still holds entries."""
    unack_msgs: int
    blocked_attempts: int
    """How many entries were held back by it."""
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """One consumer."""

    consumer_id: int
    consumer_name: str
    priority_level: int
    available_permits: int
    unacked_messages: int
    pending_entries: int
    unsent_entries: int
    blocked_consumer_on_unacked_msgs: bool
    msg_out_counter: int
    bytes_out_counter: int
    message_ack_counter: int
    message_redeliver_counter: int
    last_acked_timestamp: int
    last_consumed_timestamp: int
    last_consumed_flow_timestamp: int
    first_messages_sent_timestamp: int = 0
    first_consumed_flow_timestamp: int = 0
    holding_since_timestamp: int = 0
    """Since when it has held messages and acknowledged none; 0 where it holds none, and in Exclusive and Failover."""
    avg_messages_per_entry: int = 0
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    draining_hashes: list[DrainingHash] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """One subscription and its consumers."""

    type: str
    consumers: list[ConsumerStats]
    active_consumer_name: str | None
    msg_in_replay: int
    msg_delayed: int
    unacked_messages: int
    blocked_subscription_on_unacked_msgs: bool
    key_shared_mode: str | None
    allow_out_of_order_delivery: bool
    draining_hashes_count: int
    draining_hashes_cleared_total: int
    draining_hashes_unacked_messages: int
    read_position: Position | None
    entries_read_total: int
    """Headers read from the log by scan and forward reads."""
    delayed_reread_at_recovery_total: int
    """Of these, headers of delayed messages that were in the log at the last start and in no snapshot."""
    index_mistimed_total: int = 0
    """Entries that the delayed index gave at another time than the log has."""
    is_reading: bool = False
    """A read of the log is under way, or waits for new entries."""
    is_reading_replay: bool = False
    """The headers of due messages are being read."""
    waits_for_entries: bool = False
    """Everything is read, and there are consumers."""
    damaged_entries: int = 0
    """Entries that are put aside, as the log is damaged where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewcomerStats:
    """The figures of PIP-282 and the classic mode; consumers in the order of `SubscriptionStats.consumers`."""

    position_when_joining: list[Position | None]
    """The last sent position, or the read position, when each consumer joined."""
    is_waiting: list[bool]
    """Whether it still waits for everything up to there."""
    last_sent_position: Position | None
    """Everything up to here was sent; None in the classic mode."""
    individually_sent_positions: list[tuple[Position, Position]]
    """The positions sent beyond it: ranges without their first and with their last position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryStatus:
    """Where one unacknowledged entry is."""

    consumer: str | None
    """The consumer that has it."""
    given_ms: int | None
    """When, if that is known."""
    is_waiting: bool
    """It was read and waits for its consumer."""
    owner: str | None
    """The consumer that would get it: of its slot, or the active one; None where any may get it, or none can."""
    slot: int | None
    """Its slot, where keys decide."""
    reason: str
    """The reason why it waits, in words; empty where that is not known."""
    draining_at: str | None
    """The consumer that still holds entries of its slot although the slot moved away."""


class HeldEntry(NamedTuple):
    """An unacknowledged entry."""

    position: Position
    consumer_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatus:
    """The state of one key: the consumer that gets it, and the reason why it waits."""

    slot: int
    owner: str | None
    waiting_entries: int
    reason: str
    """Why they wait, in words."""
    draining_at: str | None
    """The consumer that still holds entries of the slot although it moved away."""
    draining_since_ms: int | None
    held_by: list[HeldEntry]
    """Unacknowledged entries of the slot, and the consumer that holds them."""
