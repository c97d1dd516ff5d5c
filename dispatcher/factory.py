"""Makes the dispatcher of a subscription: which core, and whether anything is delayed."""

from collections.abc import Callable
from functools import partial

from dispatcher.config import DispatcherConfig, SubscriptionType
from dispatcher.core.acknowledgements.deliverable import NOTHING_ACKNOWLEDGED, Acknowledgements
from dispatcher.core.fences.recently_joined import Ledgers
from dispatcher.core.key_shared import KeySharedAssignor
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.shared import SharedConsumerAssignor
from dispatcher.core.single_active import SingleActiveCore
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.dispatcher import Dispatcher
from dispatcher.ports import Log, SubscriptionCursor
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from managed_ledger.positions.value_types import Clock
from tracker.delayed_delivery_tracker import (
    DelayedDeliveryTracker,
    DelayedDeliveryTrackerFactory,
    TrackerContext,
)

_Callback = Callable[[], None]
"""Has a name, since the annotations of an inner function are made at each call."""


def make_dispatcher(
    subscription_type: SubscriptionType,
    log: Log,
    cursor: SubscriptionCursor,
    tracker_factory: DelayedDeliveryTrackerFactory | None,
    config: DispatcherConfig,
    now_ms: Clock,
    *,
    topic_name: str,
    tick_time_ms: int | None = None,
    delays_through: Position = AFTER_EVERYTHING,
    may_deliver: Callable[[], bool] = lambda: True,
) -> Dispatcher:
    """Return an open dispatcher; must be called on the event loop.

    Args:
        subscription_type: How consumers share the subscription. Delays apply to Shared and Key_Shared.
        log: The topic's managed ledger.
        cursor: The subscription's cursor.
        tracker_factory: Makes the tracker; None delivers everything at once.
        config: Limits and waits.
        now_ms: The clock.
        topic_name: The full name; Failover chooses by it, and snapshots carry it.
        tick_time_ms: The topic's own tick of the tracker, if it has one.
        delays_through: The last position of which delivery times are heeded; see `Dispatcher.heed_delays`.
        may_deliver: Asked before each turn of delivery; while it says no, what is due waits.
    """
    is_many = subscription_type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
    has_delays = is_many and tracker_factory is not None
    core = make_core(
        subscription_type, config, has_delays=has_delays, cursor=cursor, ledgers=log.ledgers, topic_name=topic_name
    )
    factory = tracker_factory

    def new_tracker(on_available: _Callback) -> DelayedDeliveryTracker:
        assert factory is not None

        return factory.new_tracker(
            TrackerContext(
                topic_name=topic_name,
                cursor_name=cursor.name,
                cursor=cursor,
                on_available=on_available,
                on_defect=dispatcher.stop_for_defect,
                tick_time_ms=tick_time_ms,
            )
        )

    dispatcher = Dispatcher(
        subscription_type,
        core,
        log,
        cursor,
        new_tracker if has_delays else None,
        config,
        now_ms,
        may_deliver=may_deliver,
        defers_tracker=factory is not None and _has_backlog(log, cursor) and factory.can_defer(cursor),
    )
    dispatcher.open()
    dispatcher.heed_delays(delays_through)
    return dispatcher


def _has_backlog(log: Log, cursor: SubscriptionCursor) -> bool:
    """Whether there is something to read already, as after a restart: due entries go out without a tracker.

    Without a backlog the tracker is made at once. It is small then, and the first delayed message does not wait for it.
    """
    return cursor.next_unacknowledged_position <= log.last_confirmed_position


def make_core(
    subscription_type: SubscriptionType,
    config: DispatcherConfig,
    *,
    has_delays: bool,
    cursor: Acknowledgements = NOTHING_ACKNOWLEDGED,
    ledgers: Ledgers = list,
    topic_name: str = "",
) -> SubscriptionCore:
    """Return the core of a subscription; see `make_dispatcher`."""
    match subscription_type:
        case SubscriptionType.KEY_SHARED:
            return MultipleConsumersCore(
                config,
                partial(KeySharedAssignor, cursor=cursor, ledgers=ledgers),
                has_delays=has_delays,
                cursor=cursor,
                parked_entries_max=config.parked_entries_max,
            )
        case SubscriptionType.SHARED:
            return MultipleConsumersCore(config, SharedConsumerAssignor, has_delays=has_delays, cursor=cursor)
        case _:
            is_failover = subscription_type is SubscriptionType.FAILOVER
            return SingleActiveCore(config, topic_name=topic_name, is_failover=is_failover, cursor=cursor)
