"""What all topics of a service share: storages, clocks, limits, and what makes their dispatchers and trackers."""

from collections.abc import Callable
from dataclasses import dataclass

from dispatcher.config import DispatcherConfig, SubscriptionType
from dispatcher.dispatcher import Dispatcher
from dispatcher.factory import make_dispatcher
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.value_types import Clock
from postdate.broker.topics.delayed_range import delays_through
from postdate.broker.topics.limits import DeduplicationConfig, LimitsConfig
from postdate.broker.topics.policies import PolicyBook
from postdate.broker.topics.producers import TopicEpochs
from postdate.broker.topics.snapshot_sweep import Spawn
from postdate.broker.topics.topic_index import TopicIndex
from postdate.broker.topics.topic_name import TopicName
from tracker.bucket_tracker import BucketDelayedDeliveryTrackerFactory
from tracker.delayed_delivery_tracker import DelayedDeliveryTrackerFactory
from tracker.residual_snapshots import ResidualSnapshots


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicServices:
    """What all topics of a service share.

    Attributes:
        limits: The most producers, subscriptions and consumers.
        deduplication: Whether and how repeated messages are found.
        dispatcher: The configuration of dispatchers.
        trackers: Makes the tracker of a subscription, or of a topic with a shared index.
        is_index_shared: Whether the subscriptions of a topic share one delayed index.
        is_index_kept: Whether the snapshot storage keeps snapshots while no service runs.
        residual: Deletes snapshots that have no tracker.
        policies: The policies of topics and namespaces.
        epochs: The epochs of topics.
        spawn: Runs work in the background.
        now_ms: The wall clock.
        steady_ms: A clock that is never set; durations are measured by it alone.
        may_deliver: Whether messages may be delivered now: no other service can have these topics yet.
    """

    limits: LimitsConfig
    deduplication: DeduplicationConfig
    dispatcher: DispatcherConfig
    trackers: DelayedDeliveryTrackerFactory
    is_index_shared: bool
    is_index_kept: bool
    residual: ResidualSnapshots
    policies: PolicyBook
    epochs: TopicEpochs
    spawn: Spawn
    now_ms: Clock
    steady_ms: Clock
    may_deliver: Callable[[], bool]

    def new_index(self, ledger: ManagedLedger) -> TopicIndex | None:
        """Make the index that the subscriptions of a topic share, None where each has its own."""
        # The in-memory tracker has no index that could be shared.
        if self.is_index_shared and isinstance(self.trackers, BucketDelayedDeliveryTrackerFactory):
            return TopicIndex(ledger, self.trackers)
        return None

    def new_dispatcher(
        self, kind: SubscriptionType, ledger: ManagedLedger, cursor: Cursor, trackers: DelayedDeliveryTrackerFactory
    ) -> Dispatcher:
        """Make the dispatcher of a subscription."""
        policies = self.policies.applied(TopicName.parse(ledger.name))
        return make_dispatcher(
            kind,
            ledger,
            cursor,
            trackers,
            self.dispatcher,
            self.now_ms,
            topic_name=ledger.name,
            tick_time_ms=policies.tick_time_ms,
            delays_through=delays_through(cursor, policies),
            may_deliver=self.may_deliver,
        )
