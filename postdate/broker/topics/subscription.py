"""A subscription: one durable cursor and, while consumers are attached, the dispatcher that serves them.

The type (Exclusive, Shared, Failover, Key_Shared) is not a property of the subscription but of the consumers that
are attached now: when the last has left, the next may bring another type, and then the dispatcher is replaced. That
is Pulsar's rule. Every asynchronous operation holds the subscription's lock, so a subscribe and a seek never
interleave. The choice of a consumer is in the dispatcher, the protocol in the connection.

When a dispatcher stops for a defect, its consumers are disconnected. They subscribe again by themselves, as after a
restart, and get a new dispatcher that reads the log from the cursor's position. With repeated defects they wait longer
each time, so that a defect that returns at once costs little.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from dispatcher.config import SubscriptionType
from dispatcher.core.gate import DeliveryGate
from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import ConsumerBusyError, DispatcherClosedError, RangeConflictError
from dispatcher.lateness import LatenessHistogram
from dispatcher.stats import ConsumerStats, SubscriptionStats
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import DAMAGE_REMEDY, LedgerError
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Clock
from managed_ledger.reading.unread_entries import named
from managed_ledger.replacing import Entries
from postdate.broker.errors import MetadataError
from postdate.broker.topics.consumer import Consumer
from postdate.broker.topics.delayed_range import delays_through
from postdate.broker.topics.expired_entries import Expiry
from postdate.broker.topics.figures import (
    NOTHING_COUNTED,
    NOTHING_SCHEDULED,
    ScheduledCounts,
    SubscriptionCounters,
    SubscriptionSnapshot,
)
from postdate.broker.topics.limits import is_full
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.pause import PAUSE_PROPERTY, PauseState
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.broker.topics.rates import ConsumerCounters
from postdate.broker.topics.services import TopicServices
from snapshot_storage.backoff import Backoff
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.delayed_delivery_tracker import DelayedDeliveryTrackerFactory
from tracker.stats import BucketFigures, TrackerCounters, TrackerStats, summed

logger = logging.getLogger(__name__)

_REBUILD_WAIT_MS_MIN: Final = 1_000
_REBUILD_WAIT_MS_MAX: Final = 60_000
"""The longest wait of consumers after repeated defects; the wait doubles with each defect."""
_REBUILDS_FORGOTTEN_AFTER_MS: Final = 600_000
"""After so long without a defect the next one counts as the first again."""

TYPE_PROPERTY: Final = "#postdate.type"
"""The cursor's property with the type of a subscription that heeds no delivery times; absent for one that does."""
_WITHOUT_DELAYS: Final = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class Rebuilds:
    """How long consumers wait for a new dispatcher after repeated defects; after the first they do not.

    Args:
        steady_ms: A clock that is never set.
    """

    def __init__(self, steady_ms: Clock) -> None:
        self._steady_ms = steady_ms
        self._waits = Backoff(min_ms=_REBUILD_WAIT_MS_MIN, max_ms=_REBUILD_WAIT_MS_MAX)
        self._last_defect_ms: int | None = None
        self._from_ms = 0

    @property
    def is_waiting(self) -> bool:
        """Whether no dispatcher is made yet."""
        return self._steady_ms() < self._from_ms

    def defect(self) -> None:
        """Count a defect of a dispatcher."""
        now_ms = self._steady_ms()
        if self._last_defect_ms is None or now_ms - self._last_defect_ms > _REBUILDS_FORGOTTEN_AFTER_MS:
            self._waits.reset()
        else:
            self._from_ms = now_ms + round(1_000 * self._waits.next_seconds())
        self._last_defect_ms = now_ms


@dataclass(frozen=True, slots=True)
class DelayedInLog:
    """How many messages wait for their time, as counted in the log; the default where they are not counted there."""

    count: int = 0
    valid_until_s: float = 0.0
    """When a long log may be counted again, on a clock that never goes back."""
    through: Position | None = None
    """The last entry of the log at that time; None where nothing was counted."""
    backlog: int = 0
    """Entries that were not acknowledged at that time."""
    some_deliver_at_ms: Sequence[int] = ()
    """Some of their delivery times, ascending, with the first and the last."""
    first_overdue_ms: int | None = None
    """The earliest delivery time of those that were due and in no hand."""
    holds_until_ms: int | None = None
    """When the first of the counts changes by itself, what comes due soon among them; None for never."""
    delays_through: Position | None = None
    """The last entry of which the delivery time was heeded."""


class Subscription:
    """One named reader of a topic.

    Args:
        name: The name that clients use.
        ledger: The topic's log.
        cursor: Where this subscription stands in it.
        services: What all topics share.
        trackers: Makes its trackers.
        lateness: The lateness of the topic's delayed messages.
    """

    def __init__(
        self,
        name: str,
        ledger: ManagedLedger,
        cursor: Cursor,
        services: TopicServices,
        trackers: DelayedDeliveryTrackerFactory,
        lateness: LatenessHistogram,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.dispatcher: Dispatcher | None = None
        self.consumers: dict[Consumer, None] = {}
        """In the order in which they came; a look-up for each FLOW and ACK may not search a list of a thousand."""
        self._ledger = ledger
        self._services = services
        self._trackers = trackers
        self._lateness = lateness
        self.subscription_type: SubscriptionType | None = None
        """The type of the dispatcher, None without one."""
        self._lock = asyncio.Lock()
        self.last_active_ms = 0
        """When a consumer last left, or the backlog became less: either may have kept the topic; 0 for never. By the
        steady clock."""
        self.counters = NOTHING_COUNTED
        """Without those of the dispatcher and of its consumers, which are counted in when they go."""
        self.index_counters_before: TrackerCounters | None = None
        """The counters of its own closed trackers, None if there was none."""
        self.expiry = Expiry(ledger.name, cursor, services.steady_ms())
        self.mark_delete_advanced_ms = 0
        self.delayed_in_log = DelayedInLog()
        """The last count of delayed messages; without a meaning while an unpaused dispatcher knows."""
        self.scheduled: ScheduledCounts | None = None
        """The last count of delayed and overdue messages and of those in hand; None where it is not known."""
        self._gate = DeliveryGate()
        """Of all its dispatchers, one after the other."""
        self._rebuilds = Rebuilds(services.steady_ms)
        self._is_delay_warned = False
        """Whether the log has said that it does not delay."""
        cursor.add_listener(self._on_mark_delete_moved)

    async def add_consumer(self, consumer: Consumer, subscription_type: SubscriptionType) -> None:
        """Attach a consumer; its type may differ from before only when no other consumer is attached.

        If another consumer has the requested hash ranges, or the whole subscription, that consumer's client must give a
        sign of life. Without one that consumer is removed, and the request is decided again.

        Raises:
            ConsumerBusyError: Consumers of another type are attached, or as many as the type or the limit allows.
            ConsumerAssignError: No key range can be given to it.
        """
        async with self._lock:
            await self._drop_failed_dispatcher()
            if self._rebuilds.is_waiting:
                raise DispatcherClosedError(f"subscription {self.name!r} is being rebuilt after a defect")
            if is_full(self.consumers, self._services.limits.consumers_per_subscription_max):
                raise ConsumerBusyError("Subscription reached max consumers limit")
            if self.subscription_type is not subscription_type:
                await self._change_type(subscription_type)
            assert self.dispatcher is not None
            try:
                self.dispatcher.add_consumer(consumer)
            except (ConsumerBusyError, RangeConflictError) as refusal:
                if not await self._remove_dead(self._holders(refusal), consumer.link):
                    raise
                self.dispatcher.add_consumer(consumer)
            self.consumers[consumer] = None

    def permits_and_unacked_of(self, consumer: Consumer) -> tuple[int, int]:
        """Give a consumer's permits and its unacknowledged messages; zeros when it is detached."""
        stats = self._stats_of(consumer)
        return (0, 0) if stats is None else (stats.available_permits, stats.unacked_messages)

    def stats(self) -> SubscriptionStats | None:
        """Return the dispatcher's figures, or None without a subscribe since the start."""
        return None if self.dispatcher is None else self.dispatcher.stats()

    def delayed(self, stats: SubscriptionStats | None) -> int:
        """Return how many messages wait for their time: as its dispatcher's figures say, or as counted in the log."""
        is_counted = self.delayed_in_log.through is not None and not self.knows_all_delayed
        return self.delayed_in_log.count if stats is None or is_counted else stats.msg_delayed

    @property
    def knows_all_delayed(self) -> bool:
        """Whether its dispatcher has read the log to the end; in a pause it may have stopped earlier."""
        return self.dispatcher is not None and not self.pause.is_paused and self.dispatcher.has_read_all

    def metrics(self) -> SubscriptionSnapshot:
        """Give the figures for `/metrics`."""
        stats = self.stats()
        is_paused = self.pause.is_paused
        now_ms = self._services.now_ms()
        known = self.known_counts()
        counts = self.scheduled if known is None else known
        return SubscriptionSnapshot(
            name=self.name,
            backlog=self.cursor.backlog,
            delayed=self.delayed(stats),
            counters=self.counters if stats is None else self.counters.plus(_counted_by(stats)),
            dispatcher=stats,
            consumer_addresses=self._consumer_addresses(),
            tracker=self.index_stats(),
            index_counters_before=self.index_counters_before,
            rates=ConsumerCounters(*map(sum, zip(*(one.meter.rates for one in self.consumers), strict=True))),
            expired_rate=self.expiry.meter.rates[0],
            last_expired_ms=self.expiry.last_ms,
            mark_delete_advanced_ms=self.mark_delete_advanced_ms,
            backlog_bytes=self._ledger.bytes_behind(self.cursor.mark_delete_position),
            is_paused=is_paused,
            held_by_pause=self._waiting(stats) if is_paused else 0,
            scheduled=counts,
            first_overdue_ms=self.delayed_in_log.first_overdue_ms if counts is not None and counts.overdue else None,
            damaged=0 if stats is None else stats.damaged_entries,
            next_deliver_at_ms=self.next_due_ms(now_ms),
            last_deliver_at_ms=self.last_due_ms(now_ms),
        )

    # Messages with a delivery time, by numbers that are there: the log is not read.

    def known_counts(self) -> ScheduledCounts | None:
        """Return the counts where they are known without the log: nothing is left, or nothing but delayed entries."""
        if not self.has_delays or not self.cursor.backlog:
            return NOTHING_SCHEDULED
        if self.dispatcher is None or not self.knows_all_delayed:
            return None
        delayed = self.dispatcher.delayed_if_quiet()
        return None if delayed is None else ScheduledCounts(delayed)

    def may_have_delayed(self, now_ms: int) -> bool:
        """Whether a message may wait for its time, as far as the ledgers' own figures tell."""
        if not self.has_delays or not self.cursor.backlog:
            return False
        last_ms = self._last_due_bound_ms()
        return last_ms is not None and last_ms > now_ms

    def next_due_ms(self, now_ms: int) -> int | None:
        """Return about when the next message comes due; 0 for never, None where that is not known."""
        if not self.may_have_delayed(now_ms):
            return 0
        indexed_ms = self.next_in_index(now_ms)
        if indexed_ms is not None:
            return indexed_ms
        counted = self.delayed_in_log
        place = bisect_right(counted.some_deliver_at_ms, now_ms)
        if place < len(counted.some_deliver_at_ms):
            return counted.some_deliver_at_ms[place]
        # Messages that were appended since then may be delayed.
        return 0 if counted.through == self._ledger.last_confirmed_position else None

    def last_due_ms(self, now_ms: int) -> int:
        """Return when the last message comes due, 0 for never: as last counted, or an upper bound from the ledgers."""
        if not self.may_have_delayed(now_ms):
            return 0
        counted = self.delayed_in_log
        if counted.through == self._ledger.last_confirmed_position:
            return max((one for one in counted.some_deliver_at_ms[-1:] if one > now_ms), default=0)
        return self._last_due_bound_ms() or 0

    def next_in_index(self, now_ms: int) -> int | None:
        """Return the next time in the delayed index; None where it does not know all or holds what is due already."""
        dispatcher = self.dispatcher
        if dispatcher is None or dispatcher.tracker is None or not self.knows_all_delayed:
            return None
        deliver_at_ms = dispatcher.tracker.next_delivery_time()
        return deliver_at_ms if deliver_at_ms is not None and deliver_at_ms > now_ms else None

    def _last_due_bound_ms(self) -> int | None:
        return self._ledger.last_due_ms_behind(self.cursor.next_unacknowledged_position)

    def _consumer_addresses(self) -> list[str]:
        """Return the addresses of the dispatcher's consumers, in the order of its figures."""
        handles = () if self.dispatcher is None else self.dispatcher.consumers
        return [one.link.peer for one in handles if isinstance(one, Consumer)]

    def count(self, more: SubscriptionCounters) -> None:
        """Add these counts."""
        self.counters = self.counters.plus(more)

    def _waiting(self, stats: SubscriptionStats | None) -> int:
        """Return how many due entries no consumer has, by the dispatcher's figures or the last count in the log.

        Damaged ones do not count: they wait for a repair, and for no consumer.
        """
        backlog, counted = self.cursor.backlog, self.delayed_in_log
        if not self.knows_all_delayed and counted.through is not None:
            # Messages that were published since the count may be delayed.
            backlog = min(backlog, counted.backlog)
        pending = damaged = 0
        if stats is not None:
            pending, damaged = sum(one.pending_entries for one in stats.consumers), stats.damaged_entries
        return max(0, backlog - self.delayed(stats) - pending - damaged)

    def end_rate_window(self, steady_ms: int) -> None:
        """End a window of rates: they are those of the time since the last call."""
        self.expiry.meter.end_window((self.counters.expired,), steady_ms)
        for consumer in self.consumers:
            counters = self._counters_of(consumer)
            if counters is not None:
                consumer.meter.end_window(counters, steady_ms)

    def _counters_of(self, consumer: Consumer) -> ConsumerCounters | None:
        stats = self._stats_of(consumer)
        if stats is None:
            return None
        return ConsumerCounters(
            stats.msg_out_counter, stats.bytes_out_counter, stats.message_redeliver_counter, stats.message_ack_counter
        )

    def expired(self, entries: Entries) -> None:
        """Count entries that have expired, and let the dispatcher know."""
        self.count(SubscriptionCounters(expired=sum(map(len, entries.values()))))
        self.expiry.add(entries, self._services.now_ms())
        if entries and self.dispatcher is not None:
            self.dispatcher.mark_delete_advanced()

    def problems(self) -> list[str]:
        """Return the present failures of its deliveries; empty when all is well."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            return []
        problems = []
        if dispatcher.failure is not None:
            problems.append(f"subscription {self.name} has stopped by a defect: {dispatcher.failure!r}")
        damaged = dispatcher.damaged()
        if damaged:
            count = sum(map(len, damaged.values()))
            problems.append(
                f"subscription {self.name}: the log is damaged, and {count} entries of it go to no consumer: "
                f"{named(damaged)}. Stop the service. {DAMAGE_REMEDY}"
            )
        tracker = self.bucket_tracker
        if tracker is not None:
            problems += [f"subscription {self.name}: {problem}" for problem in tracker.stats().problems()]
        return problems

    # Pause and resume.

    @property
    def pause(self) -> PauseState:
        """Whether deliveries are held, or let go at a limited rate; durable."""
        return PauseState.of(self.cursor.properties)

    @property
    def has_delays(self) -> bool:
        """Whether delivery times are heeded: in Shared and Key_Shared; without a dispatcher, the last type decides."""
        return self.type_without_delays is None

    @property
    def type_without_delays(self) -> SubscriptionType | None:
        """The type where it heeds no delivery times, Exclusive or Failover; None where they are heeded."""
        if self.subscription_type is None:
            noted = self.cursor.properties.get(TYPE_PROPERTY)
            return None if noted is None else SubscriptionType(noted)
        return self.subscription_type if self.subscription_type in _WITHOUT_DELAYS else None

    async def set_pause(self, state: PauseState) -> None:
        """Pause or resume deliveries; durable on return.

        Raises:
            LedgerWriteError: The state could not be stored; nothing has changed, or a pause is in force that may not be
                durable.
        """
        if state.is_paused and self.dispatcher is not None:
            # A pause is in force before it is durable: no message may go out between the two.
            self.dispatcher.pause_deliveries()
        try:
            await self.cursor.update_properties(put=state.to_properties(), remove=(PAUSE_PROPERTY,))
        finally:
            self._apply_pause()

    def _apply_pause(self) -> None:
        """Pass the durable state on to the dispatcher."""
        if self.dispatcher is None:
            return
        state = self.pause
        if state.is_paused:
            self.dispatcher.pause_deliveries()
        elif state.rate_per_second is not None or not self._gate.is_open:
            self.dispatcher.resume_deliveries(state.rate_per_second, self._on_drained)

    def _on_drained(self) -> None:
        self._services.spawn(self._forget_rate())

    async def _forget_rate(self) -> None:
        if self.pause.rate_per_second is not None:
            try:
                await self.cursor.update_properties(remove=(PAUSE_PROPERTY,))
            except LedgerError as error:
                # After a restart deliveries are limited to that rate once more, until the backlog is gone.
                logger.warning(
                    "%s / %s: its smooth resume has ended, which was not noted: %s", self._ledger.name, self.name, error
                )

    # Scheduled messages that are cancelled or moved.

    def cancel(self, positions: Sequence[tuple[int, int]]) -> None:
        """Acknowledge entries, so that no consumer gets them any more; `cursor.flush` makes it durable."""
        if not positions:
            return
        if self.dispatcher is not None:
            self.dispatcher.acknowledge(None, positions)
        else:
            self.cursor.acknowledge(*zip(*positions, strict=True))
        self.count(SubscriptionCounters(cancelled=len(positions)))

    def skip(self, last: Position, *, is_expiry: bool = False) -> None:
        """Acknowledge all entries up to a position, also what consumers have; `cursor.flush` makes it durable.

        Args:
            last: The last of them.
            is_expiry: Whether they count as expired; `expiry.save` notes it.
        """
        entries = self._ledger.unacknowledged_through(self.cursor, last) if is_expiry else {}
        self.cursor.acknowledge_cumulative(last)
        if is_expiry:
            self.expired(entries)
        elif self.dispatcher is not None:
            self.dispatcher.mark_delete_advanced()

    def withdraw(self, entries: Mapping[int, BitMap]) -> None:
        """Take entries, which the cursor withholds, out of the dispatcher."""
        if self.dispatcher is not None:
            self.dispatcher.withdraw(entries)

    def give_back(self, entries: Mapping[int, BitMap]) -> None:
        """Deliver withdrawn entries after all."""
        if self.dispatcher is not None:
            self.dispatcher.give_back(entries)

    def in_hand(self, positions: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return which of these entries a consumer has, or is about to be sent."""
        return set() if self.dispatcher is None else self.dispatcher.in_hand(positions)

    def entries_in_hand(self) -> Entries:
        """Return all entries that a consumer has, or is about to be sent."""
        return {} if self.dispatcher is None else self.dispatcher.entries_in_hand()

    @property
    def bucket_tracker(self) -> BucketDelayedDeliveryTracker | None:
        """The tracker of this subscription's own index, None without one."""
        tracker = None if self.dispatcher is None else self.dispatcher.tracker
        return tracker if isinstance(tracker, BucketDelayedDeliveryTracker) else None

    def index_stats(self) -> TrackerStats | None:
        """Return the figures of this subscription's own index, which is empty while its tracker is deferred."""
        if self.bucket_tracker is not None:
            return self.bucket_tracker.stats()
        dispatcher = self.dispatcher
        is_deferred = dispatcher is not None and dispatcher.has_delays and dispatcher.tracker is None
        return TrackerStats(bucket_total=1) if is_deferred else None

    def index_buckets(self) -> list[BucketFigures]:
        """Return the figures of each immutable bucket of this subscription's own index."""
        return [] if self.bucket_tracker is None else self.bucket_tracker.buckets()

    def _on_mark_delete_moved(self, _: Position) -> None:
        self.mark_delete_advanced_ms = self._services.now_ms()
        self.last_active_ms = self._services.steady_ms()

    def apply_delayed_delivery(self, policies: DelayedDeliveryPolicies) -> None:
        """Put other policies of the topic in force; delayed messages keep their times."""
        if self.dispatcher is not None and self.dispatcher.has_delays:
            self.dispatcher.reset_tick_time(policies.tick_time_ms)
            self.dispatcher.heed_delays(delays_through(self.cursor, policies))

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer; its unacknowledged messages go to the others. An unknown consumer is ignored."""
        if consumer not in self.consumers:
            return
        assert self.dispatcher is not None
        stats = self._stats_of(consumer)
        if stats is not None:
            self.count(SubscriptionCounters(messages_out=stats.msg_out_counter, bytes_out=stats.bytes_out_counter))
        del self.consumers[consumer]
        self.last_active_ms = self._services.steady_ms()
        self.dispatcher.remove_consumer(consumer)

    async def seek(self, position: Position) -> None:
        """Continue at `position`; consumers are disconnected and come back by themselves, as with Pulsar.

        The tracker's record of handed-out positions is dropped with its index. Snapshots without a tracker stay: they
        hold the delivery times of stored messages, which no seek changes.
        """
        async with self._lock:
            self._disconnect_consumers()
            await self._drop_failed_dispatcher()
            if self.dispatcher is not None:
                await self.dispatcher.reset(position)
            else:
                await self.cursor.seek(position)
            await self.expiry.clear()

    async def prepare_unsubscribe(self, consumer: Consumer, *, is_forced: bool) -> None:
        """Give up the delayed index, so that the cursor can be deleted.

        Args:
            consumer: The consumer that asks for it.
            is_forced: Whether other consumers are disconnected.

        Raises:
            MetadataError: The consumer is not attached, or others are and may not be disconnected.
        """
        async with self._lock:
            if consumer not in self.consumers or (len(self.consumers) > 1 and not is_forced):
                raise MetadataError("Unconnected or shared consumer attempting to unsubscribe")
            self.remove_consumer(consumer)
            self._disconnect_consumers()
            await self._drop_dispatcher()

    async def abandon(self) -> None:
        """Detach everything and store nothing more: the cursor is being deleted, and its snapshots with it."""
        async with self._lock:
            self._disconnect_consumers()
            await self._drop_dispatcher()

    def stop_listening(self) -> None:
        """Hear no more of the cursor, which is deleted or closed: a closed topic is part of no cycle of references."""
        self.cursor.remove_listener(self._on_mark_delete_moved)

    async def close(self) -> None:
        """Detach everything; a large enough index is sealed."""
        async with self._lock:
            self._disconnect_consumers()
            await self._close_dispatcher()

    def _holders(self, refusal: ConsumerBusyError | RangeConflictError) -> list[Consumer]:
        """Return the consumers that have what another one was refused."""
        if isinstance(refusal, RangeConflictError):
            return [one for one in self.consumers if one.name == refusal.consumer_name]
        return list(self.consumers) if self.subscription_type is SubscriptionType.EXCLUSIVE else []

    async def _remove_dead(self, holders: Sequence[Consumer], asking: ClientLink) -> bool:
        """Check the liveness of these consumers, and remove dead ones; return whether there were any."""
        links = list({one.link for one in holders} - {asking})
        alive = dict(zip(links, await asyncio.gather(*(link.is_alive() for link in links)), strict=True))
        for holder in holders:
            if not alive.get(holder.link, True):
                logger.info("consumer %s of %s / %s is gone", holder.name, self._ledger.name, self.name)
                self.remove_consumer(holder)
        return any(holder not in self.consumers for holder in holders)

    def _stats_of(self, consumer: Consumer) -> ConsumerStats | None:
        return None if self.dispatcher is None else self.dispatcher.consumer_stats(consumer)

    async def _change_type(self, subscription_type: SubscriptionType) -> None:
        if self.consumers:
            raise ConsumerBusyError("Subscription is of different type")
        await self._drop_dispatcher()
        await self._note_type(subscription_type)
        self.dispatcher = self._services.new_dispatcher(subscription_type, self._ledger, self.cursor, self._trackers)
        self.dispatcher.on_failure = self._on_dispatcher_failure
        self.dispatcher.on_delay_ignored = self._on_delay_ignored
        self.dispatcher.lateness = self._lateness
        self.dispatcher.use_gate(self._gate)
        self._apply_pause()
        self.subscription_type = subscription_type

    async def _note_type(self, subscription_type: SubscriptionType) -> None:
        """Note durably whether the type delays: without it a cancel of all that delay would reach others later."""
        noted = self.cursor.properties.get(TYPE_PROPERTY)
        wanted = subscription_type.value if subscription_type in _WITHOUT_DELAYS else None
        if noted == wanted or not self.cursor.is_durable:
            return
        put = {} if wanted is None else {TYPE_PROPERTY: wanted}
        try:
            await self.cursor.update_properties(put=put, remove=(TYPE_PROPERTY,))
        except LedgerError as error:
            # Consumers are served all the same: on a full disk, what they acknowledge makes room.
            logger.warning("%s / %s: its type could not be noted: %s", self._ledger.name, self.name, error)

    def _on_delay_ignored(self) -> None:
        # A reader reads what there is by its purpose, and is told of nothing: each is a subscription of its own.
        if self._is_delay_warned or not self.cursor.is_durable:
            return
        self._is_delay_warned = True
        kind = self.type_without_delays
        logger.warning(
            "%s / %s: a message comes before its delivery time, since its subscription is %s, which does not delay; "
            "subscribe as Shared or Key_Shared",
            self._ledger.name,
            self.name,
            "" if kind is None else kind.value,
        )

    def _on_dispatcher_failure(self) -> None:
        self.count(SubscriptionCounters(rebuilds=1))
        self._rebuilds.defect()
        logger.warning(
            "%s / %s: its dispatcher has stopped; its consumers are disconnected, and get what they have not "
            "acknowledged from a new one",
            self._ledger.name,
            self.name,
        )
        self._disconnect_consumers()

    async def _drop_failed_dispatcher(self) -> None:
        if self.dispatcher is not None and self.dispatcher.failure is not None:
            await self._drop_dispatcher()

    async def _drop_dispatcher(self) -> None:
        """Close the dispatcher without waiting for the storage; unsealed rows are read from the log again."""
        tracker = None if self.dispatcher is None else self.dispatcher.tracker
        if tracker is not None:
            tracker.abandon()
        await self._close_dispatcher()

    async def _close_dispatcher(self) -> None:
        if self.dispatcher is not None:
            tracker = self.bucket_tracker
            await self.dispatcher.close()
            if tracker is not None:
                self.index_counters_before = summed(self.index_counters_before, tracker.stats())
            totals = self.dispatcher.core.totals
            self.count(
                SubscriptionCounters(
                    entries_read=totals.entries_read,
                    delayed_reread=totals.delayed_reread_at_recovery,
                    index_mistimed=totals.index_mistimed,
                )
            )
            self.dispatcher = None
            self.subscription_type = None

    def _disconnect_consumers(self) -> None:
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.disconnect()


def _counted_by(stats: SubscriptionStats) -> SubscriptionCounters:
    """Return the counts of a dispatcher and its present consumers."""
    return SubscriptionCounters(
        messages_out=sum(one.msg_out_counter for one in stats.consumers),
        bytes_out=sum(one.bytes_out_counter for one in stats.consumers),
        entries_read=stats.entries_read_total,
        delayed_reread=stats.delayed_reread_at_recovery_total,
        index_mistimed=stats.index_mistimed_total,
    )
