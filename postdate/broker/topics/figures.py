"""The figures of one topic and of its subscriptions, as they are at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Final, Literal, NamedTuple

from dispatcher.lateness import LatenessHistogram
from dispatcher.stats import SubscriptionStats
from managed_ledger.writing.append_stats import AppendWindow
from postdate.broker.topics.rates import ConsumerCounters
from tracker.stats import TrackerCounters, TrackerStats

NO_RATES: Final = ConsumerCounters()


class SubscriptionCounters(NamedTuple):
    """The counts of one subscription, or of several, since the start of the service; a count never falls."""

    messages_out: int = 0
    """Messages sent to consumers."""
    bytes_out: int = 0
    expired: int = 0
    """Entries that expired."""
    cancelled: int = 0
    rescheduled: int = 0
    """Scheduled messages that were moved, delivered early or replaced by id."""
    rebuilds: int = 0
    """How often its dispatcher stopped for a defect."""
    entries_read: int = 0
    """Headers that its dispatchers have read from the log."""
    delayed_reread: int = 0
    """Of these, headers of delayed messages that were in the log when a dispatcher began and in no snapshot."""
    index_mistimed: int = 0
    """Entries that the delayed index gave at another time than the log has."""

    def plus(self, more: "SubscriptionCounters") -> "SubscriptionCounters":
        """Return the sums.

        >>> SubscriptionCounters(expired=1).plus(SubscriptionCounters(expired=2, cancelled=3))[2:4]
        (3, 3)
        """
        return SubscriptionCounters(*map(add, self, more))


NOTHING_COUNTED: Final = SubscriptionCounters()


class ScheduledCounts(NamedTuple):
    """The unacknowledged messages with a delivery time of a subscription, as `broker.scheduled.histogram` defines."""

    delayed: int = 0
    overdue: int = 0
    in_hand: int = 0


NOTHING_SCHEDULED: Final = ScheduledCounts()

SOON_MS: Final = (60_000, 3_600_000, 86_400_000)
"""A minute, an hour and a day: the spans of `DueSoon`."""


class DueSoon(NamedTuple):
    """The messages that come due within a span from now; what is overdue is in none."""

    within_minute: int = 0
    within_hour: int = 0
    within_day: int = 0


NOTHING_DUE_SOON: Final = DueSoon()


class TopicCounts(NamedTuple):
    """The scheduled messages of a topic, each once, however many of its subscriptions wait for it."""

    subscriptions: int = 0
    """How many may wait for some."""
    delayed: int = 0
    overdue: int = 0
    due_soon: DueSoon = NOTHING_DUE_SOON
    is_estimate: bool = False
    """Whether the topic is closed, and `overdue` and `due_soon` follow from its first and last times."""


NOTHING_WAITS: Final = TopicCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSnapshot:
    """One subscription.

    Attributes:
        name: Its name.
        backlog: Entries that are not acknowledged.
        delayed: Entries that wait for their time.
        counters: Its counts since the start.
        dispatcher: The dispatcher's figures, None while there is no dispatcher.
        consumer_addresses: The client's address and port of each consumer in them.
        tracker: The figures of its delayed index, None without a bucket tracker.
        index_counters_before: The counters of its closed trackers, None if there was none.
    """

    name: str
    backlog: int
    counters: SubscriptionCounters = NOTHING_COUNTED
    delayed: int = 0
    dispatcher: SubscriptionStats | None = None
    consumer_addresses: Sequence[str] = ()
    tracker: TrackerStats | None = None
    index_counters_before: TrackerCounters | None = None
    rates: ConsumerCounters = NO_RATES
    """Per second, of its consumers, in the last whole window."""
    expired_rate: float = 0.0
    last_expired_ms: int = 0
    mark_delete_advanced_ms: int = 0
    backlog_bytes: int = 0
    """About how many bytes of the log lie behind its mark-delete position."""
    is_paused: bool = False
    paused_since_ms: int | None = None
    """None where it is not paused, or that is not known."""
    held_by_pause: int = 0
    """Due entries that no consumer has and its pause holds."""
    scheduled: ScheduledCounts | None = NOTHING_SCHEDULED
    """Of one moment; None where that is not known."""
    first_overdue_ms: int | None = None
    """The earliest delivery time of those that are overdue, as last counted; None where nothing is, or not known."""
    damaged: int = 0
    """Entries that no consumer gets, as the log is damaged where they are."""
    next_deliver_at_ms: int | None = None
    """When its next message comes due, about; 0 for never, None where that is not known."""
    last_deliver_at_ms: int = 0
    """When its last message comes due, at the latest; 0 for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    """One topic.

    Attributes:
        name: Its full name, `persistent://tenant/namespace/topic`.
        namespace: `tenant/namespace`.
        producer_count: Producers that are connected.
        messages_in_total: Messages published since the start.
        bytes_in_total: Bytes published since the start.
        storage_size_bytes: Bytes of its log.
        subscriptions: Its subscriptions.
        shared_index: The figures of the delayed index that they share, None where each has its own.
        deleted_counters: The counts of its deleted subscriptions.
        index_counters_before: The counters of deleted subscriptions' trackers and of closed shared indexes; None if
            there was none.
    """

    name: str
    namespace: str
    producer_count: int
    messages_in_total: int
    bytes_in_total: int
    storage_size_bytes: int
    subscriptions: Sequence[SubscriptionSnapshot] = ()
    deleted_counters: SubscriptionCounters = NOTHING_COUNTED
    shared_index: TrackerStats | None = None
    index_counters_before: TrackerCounters | None = None
    due_before_1990_total: int = 0
    """Messages published with a delivery time before 1990."""
    published_without_subscription_total: int = 0
    """Messages published while there was no subscription."""
    rate_in: float = 0.0
    throughput_in: float = 0.0
    appended: AppendWindow | None = None
    """The rate of appended messages in the last whole window."""
    window_s: float = 60.0
    """The length of a window."""
    lateness: LatenessHistogram | None = None
    counts: TopicCounts | None = None
    """As last counted; None where that is not known."""
    part: Literal["whole", "subscriptions", "own"] = "whole"
    """The figures that are meant. Of many subscriptions each is given by itself; the topic's own figures, with the sums
    over all of them, come last."""

    @property
    def next_deliver_at_ms(self) -> int | None:
        """When its next message comes due: 0 for never, None where that is not known."""
        nexts = [one.next_deliver_at_ms for one in self.subscriptions]
        # Where one is not known, the others are bounds all the same.
        return min((one for one in nexts if one), default=None if None in nexts else 0)

    @property
    def last_deliver_at_ms(self) -> int:
        """When its last message comes due, at the latest; 0 for never."""
        return max((one.last_deliver_at_ms for one in self.subscriptions), default=0)
