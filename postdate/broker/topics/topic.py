"""A topic: its log, its producers and its subscriptions.

Appending is left out: a producer's connection appends straight to `ledger`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

from dispatcher.config import SubscriptionType
from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import ConsumerBusyError, DispatcherClosedError
from dispatcher.lateness import LatenessHistogram
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerError, LedgerWriteError
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.names import cursor_name_of, subscription_of
from managed_ledger.positions.position import Position
from managed_ledger.replacing import Entries
from postdate.broker.errors import (
    NotAllowedError,
    SubscriptionNotFoundError,
)
from postdate.broker.slices import in_slices
from postdate.broker.topics.change_order import ChangeOrder
from postdate.broker.topics.consumer import Consumer
from postdate.broker.topics.deduplication import UNKNOWN, Deduplication
from postdate.broker.topics.delayed_range import PROPERTIES_WITHOUT_DELAYS, note_delays, settle_notes
from postdate.broker.topics.figures import (
    NOTHING_COUNTED,
    SubscriptionCounters,
    SubscriptionSnapshot,
    TopicCounts,
    TopicSnapshot,
)
from postdate.broker.topics.limits import DELETE_WHEN_NO_SUBSCRIPTIONS, is_full
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.broker.topics.producers import Producer, Producers
from postdate.broker.topics.rates import RateMeter
from postdate.broker.topics.services import TopicServices
from postdate.broker.topics.snapshot_sweep import SnapshotSweep
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic_index import INDEX_CURSOR_NAME, TopicIndex, follow_slowest, settle_index
from postdate.broker.topics.topic_name import TopicName
from postdate.command_line.milliseconds import may_be_seconds
from tracker.bucket_properties import names_buckets
from tracker.residual_snapshots import remove_index_properties
from tracker.stats import BucketFigures, BucketOperation, TrackerCounters, TrackerStats, summed

logger = logging.getLogger(__name__)

LATEST_ENTRY_ID = 2**63 - 1
"""Entry and ledger id of the protocol's "latest" message id."""


class Topic:
    """One topic of the service; belongs to its event loop.

    Args:
        name: Its name.
        ledger: Its log.
        services: What all topics share.
        delayed_delivery: The policies that are in force for it.
        index: The delayed index that its subscriptions share, None where each has its own.
    """

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        services: TopicServices,
        delayed_delivery: DelayedDeliveryPolicies,
        index: TopicIndex | None,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.delayed_delivery = delayed_delivery
        self.delay_ms_max = delayed_delivery.enforced_delay_ms_max
        """The longest delay that is accepted now, 0 for any; for every publish."""
        self.producers = Producers(
            name,
            services.epochs,
            count_max=services.limits.producers_per_topic_max,
            steady_ms=services.steady_ms,
            spawn=services.spawn,
        )
        self._services = services
        opened_ms = services.steady_ms()
        self._last_active_ms = opened_ms
        self.messages_in_total = 0
        self.bytes_in_total = 0
        self.entries_in_total = 0
        self.due_before_1990_total = 0
        """Messages whose delivery time is before 1990, which may be seconds."""
        self.published_without_subscription_total = 0
        """Messages that were published while there was no subscription: none that is made at the end gets them."""
        self.lateness = LatenessHistogram()
        """The lateness of delayed messages, of all subscriptions."""
        self.window_s = 60.0
        """The length of the last whole window of its rates."""
        self._window_began_ms = opened_ms
        self.meter = RateMeter(opened_ms, (0, 0))
        """The rates of messages and bytes in."""
        # Consumers whose subscribe is under way; they count, or two at once would take the last place.
        self._joining: dict[Consumer, None] = {}
        is_deduplicating = services.deduplication.is_enabled
        self.deduplication = (
            Deduplication(ledger, services.deduplication, services.now_ms) if is_deduplicating else None
        )
        """Finds repeated messages; None where it is switched off."""
        if not is_deduplicating:
            # Its producers may begin anew with their numbers meanwhile.
            ledger.remove_producers(ledger.sequence_ids)
        self._index = index
        # Of deleted subscriptions and their indexes; the sums of the topic and of its namespace must not decrease.
        self._deleted_counters = NOTHING_COUNTED
        self._index_counters_before: TrackerCounters | None = None
        self._sweep = SnapshotSweep(self, services.residual, services.spawn)
        self._lock = asyncio.Lock()
        ledger.set_abandoned_listener(self.producers.disconnect_all)
        self.subscriptions: dict[str, Subscription] = {}
        self.counts: TopicCounts | None = None
        """The last count of its scheduled messages; None where it is not known."""
        self.changes = ChangeOrder()
        """The order of the changes of its scheduled messages."""
        for cursor in ledger.cursors.values():
            if cursor.name != INDEX_CURSOR_NAME:
                self._add_subscription(subscription_of(cursor.name), cursor)

    @classmethod
    async def open(cls, name: TopicName, ledger: ManagedLedger, services: TopicServices) -> "Topic":
        """Put a topic together from its opened log, and bring the log in line with what is configured now."""
        index = services.new_index(ledger)
        await settle_index(ledger, is_shared=index is not None, is_kept=services.is_index_kept)
        settled = None
        while settled != (policies := services.policies.applied(name)):
            # They may be changed again while notes are written.
            settled = policies
            try:
                await settle_notes(ledger, policies)
            except LedgerWriteError as error:
                logger.warning("%s: not noted how far delays are heeded; the next opening does: %s", name, error)
        return cls(name, ledger, services, policies, index)

    @property
    def is_used(self) -> bool:
        """Whether the topic has producers or consumers, or a subscribe under way."""
        return bool(
            self.producers
            or self._joining
            or self._lock.locked()
            or any(subscription.consumers for subscription in self.subscriptions.values())
        )

    @property
    def last_active_ms(self) -> int:
        """When something last kept it from being deleted: a client, a subscription or a backlog; at first its opening.

        By the steady clock; while it is active, the time of an earlier change.
        """
        of_subscriptions = (one.last_active_ms for one in self.subscriptions.values())
        return max(self._last_active_ms, self.producers.last_active_ms, *of_subscriptions)

    @property
    def messages_per_second(self) -> float:
        """Messages that come in and go out, over the last whole window of the statistics."""
        consumers = (consumer for one in self.subscriptions.values() for consumer in one.consumers)
        return self.meter.rates[0] + sum(consumer.meter.rates[0] for consumer in consumers)

    def note_active(self) -> None:
        """Note that something keeps it from being deleted, or did until now.

        Every end of what keeps it comes here or to `last_active_ms` of its producers or of a subscription: messages
        with a receipt are deleted by this time, so it may not be as old as the last check.
        """
        self._last_active_ms = self._services.steady_ms()

    def is_active(self, mode: str) -> bool:
        """Whether it must not be deleted, by Pulsar's rules of that mode."""
        if self.is_used:
            return True
        if mode == DELETE_WHEN_NO_SUBSCRIPTIONS:
            return bool(self.subscriptions)
        return any(subscription.cursor.backlog for subscription in self.subscriptions.values())

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest sequence id that a producer has published; -1 where none is known."""
        return UNKNOWN if self.deduplication is None else self.deduplication.last_sequence_id(producer_name)

    def on_published(self, producer: Producer, message_count: int, deliver_at_ms: int | None) -> None:
        """Count and log what no answer can tell a producer; its messages are stored.

        Args:
            producer: The producer.
            message_count: How many messages it has published.
            deliver_at_ms: When they are to be delivered, None for at once.
        """
        if not self.subscriptions:
            if not self.published_without_subscription_total:
                logger.warning(
                    "%s: published without a subscription: %d; of later ones only those get it that begin at the "
                    "earliest message",
                    self.name,
                    message_count,
                )
            self.published_without_subscription_total += message_count
        if deliver_at_ms is not None and may_be_seconds(deliver_at_ms):
            self.due_before_1990_total += message_count
            if not producer.is_warned_of_seconds:
                producer.is_warned_of_seconds = True
                logger.warning(
                    "producer %s of %s gives a delivery time before 1990, %d: it may be seconds for milliseconds; such "
                    "messages are due at once",
                    producer.name,
                    self.name,
                    deliver_at_ms,
                )

    async def subscribe(
        self,
        consumer: Consumer,
        subscription_type: SubscriptionType,
        *,
        durable: bool,
        start: Position | None,
    ) -> Subscription:
        """Attach a consumer to the subscription that it names; a missing subscription is created.

        Args:
            consumer: The consumer; `consumer.subscription_name` names the subscription.
            subscription_type: How it shares it.
            durable: Whether the subscription outlives its consumers; readers' do not.
            start: The next entry to read of a new subscription, or None for the earliest.

        Raises:
            ConsumerBusyError: The topic has as many consumers as are allowed; see also `Subscription.add_consumer`.
            ConsumerAssignError: See `Subscription.add_consumer`.
            NotAllowedError: The topic has as many subscriptions as are allowed, or the present one is durable and this
                consumer's is not, or the other way round.
        """
        self.producers.check_open()
        present = {*self._joining, *(consumer for one in self.subscriptions.values() for consumer in one.consumers)}
        if is_full(present, self._services.limits.consumers_per_topic_max):
            raise ConsumerBusyError("Topic reached max consumers limit")
        self._joining[consumer] = None
        try:
            return await self._subscribe(consumer, subscription_type, durable=durable, start=start)
        except DispatcherClosedError:
            # Its clients come back for it by themselves.
            raise
        except Exception:
            del self._joining[consumer]
            await self._delete_unused(consumer.subscription_name)
            raise
        finally:
            self._joining.pop(consumer, None)
            self.note_active()

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Hold the lock of subscriptions for a change that may end what keeps the topic."""
        try:
            async with self._lock:
                yield
        finally:
            self.note_active()

    async def _subscribe(
        self, consumer: Consumer, subscription_type: SubscriptionType, *, durable: bool, start: Position | None
    ) -> Subscription:
        name = consumer.subscription_name
        async with self._lock:
            subscription = self.subscriptions.get(name)
            if subscription is None:
                subscription = await self._create_subscription(name, durable=durable, start=start)
            elif subscription.cursor.is_durable is not durable:
                # A reader would acknowledge what a durable subscription of its name has to deliver, and a durable
                # consumer lose its subscription with a reader's.
                kind = "Durable" if subscription.cursor.is_durable else "Non-durable"
                raise NotAllowedError(f"{kind} subscription with the same name already exists")
            if self._index is not None:
                await self._index.prepare()
        tracker_before = subscription.bucket_tracker
        await subscription.add_consumer(consumer, subscription_type)
        if tracker_before is not None and subscription.bucket_tracker is not tracker_before:
            # A snapshot that it was storing has no owner now.
            self._sweep.note_left()
        return subscription

    async def ensure_subscription(self, name: str, *, start: Position | None = None) -> bool:
        """Create a durable subscription, unless there is one of this name; return whether it was created.

        Args:
            name: Its name.
            start: The next entry to read of a new one, None for the earliest.

        Raises:
            NotAllowedError: The topic has as many subscriptions as are allowed.
        """
        self.producers.check_open()
        async with self._changing():
            if name in self.subscriptions:
                return False
            await self._create_subscription(name, durable=True, start=start)
            return True

    async def delete_subscription(self, name: str, *, is_forced: bool = False) -> None:
        """Delete a subscription; its snapshots follow in the background.

        Args:
            name: Its name.
            is_forced: Whether consumers are disconnected; they come back to a new subscription by themselves.

        Raises:
            ConsumerBusyError: It has consumers that may not be disconnected, or one is about to be attached to it.
            SubscriptionNotFoundError: There is none of this name.
        """
        async with self._changing():
            subscription = self.subscriptions.get(name)
            if subscription is None:
                raise SubscriptionNotFoundError(f"Subscription {name} not found for topic {self.name}")
            is_joined = any(one.subscription_name == name for one in self._joining)
            if is_joined or (subscription.consumers and not is_forced):
                raise ConsumerBusyError("Subscription has active connected consumers")
            await subscription.abandon()
            await self._delete(subscription)

    async def _create_subscription(self, name: str, *, durable: bool, start: Position | None) -> Subscription:
        if is_full(self.subscriptions, self._services.limits.subscriptions_per_topic_max):
            raise NotAllowedError(f"Exceed the maximum number of subscriptions of the topic: {self.name}")
        cursor = await self.ledger.open_cursor(
            cursor_name_of(name),
            initial_position=start,
            durable=durable,
            properties=None if self.delayed_delivery.is_active else PROPERTIES_WITHOUT_DELAYS,
        )
        subscription = self._add_subscription(name, cursor)
        await self._join_pause(subscription)
        return subscription

    async def _join_pause(self, subscription: Subscription) -> None:
        """Let a new subscription take part in the pause of the whole topic, before its first consumer is attached.

        Raises:
            LedgerError: The pause could not be stored, and there is no subscription.
        """
        pauses = (one.pause for one in self.subscriptions.values())
        pause = next((one for one in pauses if one.is_paused and one.is_of_topic), None)
        if pause is not None:
            try:
                await subscription.set_pause(pause)
            except LedgerError:
                await self._delete(subscription)
                raise

    async def unsubscribe(self, consumer: Consumer, *, is_forced: bool = False) -> None:
        """Delete the consumer's subscription; its snapshots follow in the background.

        Args:
            consumer: The consumer.
            is_forced: Whether other consumers are disconnected; they come back to a new subscription by themselves.

        Raises:
            MetadataError: Other consumers are attached to it, and may not be disconnected.
            SubscriptionNotFoundError: The subscription is deleted already.
        """
        async with self._changing():
            subscription = self.subscriptions.get(consumer.subscription_name)
            if subscription is None:
                raise SubscriptionNotFoundError(f"Subscription {consumer.subscription_name!r} not found")
            await subscription.prepare_unsubscribe(consumer, is_forced=is_forced)
            await self._delete(subscription)

    async def consumer_left(self, consumer: Consumer) -> None:
        """Detach a consumer; a reader's subscription goes with its last consumer."""
        async with self._changing():
            subscription = self.subscriptions.get(consumer.subscription_name)
            if subscription is None:
                return
            subscription.remove_consumer(consumer)
        await self._delete_unused(consumer.subscription_name)

    async def _delete_unused(self, name: str) -> None:
        """Delete a reader's subscription that has no consumer, unless one is about to be attached to it."""
        async with self._changing():
            subscription = self.subscriptions.get(name)
            is_joined = any(one.subscription_name == name for one in self._joining)
            if subscription is None or subscription.cursor.is_durable or subscription.consumers or is_joined:
                return
            try:
                await subscription.abandon()
                await self._delete(subscription)
            except LedgerError as error:
                # The client has left or was answered: no caller could do more, and the topic is mostly being closed.
                logger.warning("%s / %s: its cursor could not be deleted: %s", self.name, name, error)

    def dismiss_consumer(self, consumer: Consumer) -> None:
        """Close a consumer and tell its client at once; `consumer_left` does the rest."""
        subscription = self.subscriptions.get(consumer.subscription_name)
        if subscription is not None:
            subscription.remove_consumer(consumer)
        consumer.disconnect()

    async def apply_policies(self) -> None:
        """Put the stored policies in force.

        When delays are switched off, messages that are in the log keep their times, and later ones are not delayed.
        After a crash before that is noted, the next opening notes it: too much is delayed then, and nothing is early.

        Raises:
            LedgerWriteError: It could not be noted how far delays are heeded; until it is, all are.
        """
        # With the lock: a subscription that is being created has its cursor before the change, or is made after it.
        async with self._lock:
            was_active = self.delayed_delivery.is_active
            self.delayed_delivery = policies = self._services.policies.applied(self.name)
            self.delay_ms_max = policies.enforced_delay_ms_max
            if was_active and not policies.is_active:
                await note_delays(self.ledger)
            else:
                await settle_notes(self.ledger, policies)
            for subscription in self.subscriptions.values():
                subscription.apply_delayed_delivery(policies)

    def subscription_of(self, consumer: Consumer) -> Subscription:
        """Give the subscription that a consumer is attached to.

        Raises:
            SubscriptionNotFoundError: It was deleted meanwhile.
        """
        subscription = self.subscriptions.get(consumer.subscription_name)
        if subscription is None:
            raise SubscriptionNotFoundError(f"Subscription {consumer.subscription_name!r} not found")
        return subscription

    def is_reader(self, consumer: Consumer) -> bool:
        """Whether a consumer's subscription goes with its last consumer; not while the topic is being closed."""
        subscription = self.subscriptions.get(consumer.subscription_name)
        return subscription is not None and not subscription.cursor.is_durable and not self.producers.is_fenced

    def dispatcher_of(self, consumer: Consumer) -> Dispatcher | None:
        """Give the dispatcher that serves a consumer, or None when it is detached."""
        subscription = self.subscriptions.get(consumer.subscription_name)
        if subscription is None or consumer not in subscription.consumers:
            return None
        return subscription.dispatcher

    def next_position(self) -> Position:
        """Give the position that the next published entry will have at the earliest."""
        last = self.ledger.last_position
        return Position(last.ledger_id, last.entry_id + 1)

    def resolve_position(self, position: Position) -> Position:
        """Turn a client's message id into the next entry to read; the protocol's extremes mean the ends."""
        if position.ledger_id >= LATEST_ENTRY_ID:
            return self.next_position()
        if position.ledger_id < 0:
            return self.ledger.first_position
        return position

    async def roll_over_and_trim(self, now_ms: int) -> None:
        """Close the open ledger if it is old, and delete ledgers that every subscription has passed."""
        self.ledger.roll_over_if_aged(now_ms)
        if self.deduplication is not None:
            self.deduplication.remove_inactive(self.producers)
        follow_slowest(self.ledger)
        if self._index is not None:
            self._index.refresh()
        self.sweep_snapshots()
        await self.ledger.trim()

    async def make_room(self, now_ms: int) -> None:
        """Give back the space of everything that every subscription has passed, also in the open ledger."""
        self.ledger.roll_over_if_passed()
        await self.roll_over_and_trim(now_ms)

    def sweep_snapshots(self) -> None:
        """Begin to delete unneeded snapshots without a tracker."""
        self._sweep.start()

    def note_lost(self, cursor_name: str, count: int) -> None:
        """Tell and count snapshots that were missing before their cursor had a tracker, which does so itself."""
        shown = "the shared index" if cursor_name == INDEX_CURSOR_NAME else subscription_of(cursor_name)
        logger.warning(
            "%d snapshots of %s / %s are missing: their messages are read from the log again", count, self.name, shown
        )
        lost = TrackerCounters(buckets_lost=count)
        subscription = None if cursor_name == INDEX_CURSOR_NAME else self.subscriptions.get(shown)
        if subscription is None:
            self._index_counters_before = summed(self._index_counters_before, lost)
        else:
            subscription.index_counters_before = summed(subscription.index_counters_before, lost)

    async def expire(self, now_ms: int, ttl_ms: int) -> None:
        """Acknowledge expired messages for every subscription, and let its dispatcher know."""
        try:
            await self.ledger.expire(now_ms, ttl_ms, spared=(INDEX_CURSOR_NAME,), on_expired=self._on_expired)
        finally:
            for subscription in list(self.subscriptions.values()):
                await subscription.expiry.save(self.ledger.first_position.ledger_id)

    def _on_expired(self, cursor_name: str, entries: Entries) -> None:
        subscription = self.subscriptions.get(subscription_of(cursor_name))
        if subscription is not None:
            count = sum(map(len, entries.values()))
            logger.info("%d messages of %s / %s expired", count, self.name, subscription.name)
            subscription.expired(entries)

    async def end_rate_window(self, steady_ms: int) -> None:
        """End a window of rates, those of the time since the last call, for one subscription after the other."""
        self.ledger.append_stats.end_window()
        self.window_s = max(0.001, (steady_ms - self._window_began_ms) / 1000)
        self._window_began_ms = steady_ms
        self.meter.end_window((self.messages_in_total, self.bytes_in_total), steady_ms)
        async for subscription in in_slices(list(self.subscriptions.values())):
            subscription.end_rate_window(steady_ms)

    def _count_deleted(self, counters: SubscriptionCounters, of_index: TrackerCounters | None) -> None:
        self._deleted_counters = self._deleted_counters.plus(counters)
        self._index_counters_before = summed(self._index_counters_before, of_index)

    def problems(self) -> Iterator[list[str]]:
        """Give the present failures of each subscription, and of the index that they share; mostly empty lists."""
        yield from map(Subscription.problems, list(self.subscriptions.values()))
        index = None if self._index is None else self._index.stats()
        if index is not None:
            yield [f"the shared index: {problem}" for problem in index.problems()]

    def metrics(self) -> TopicSnapshot:
        """Give the figures of the topic and of its subscriptions at this moment."""
        return self._figures(self.subscriptions.values())

    def metrics_at_the_end(self) -> TopicSnapshot:
        """Give the figures of what is left when the topic is closed: readers' subscriptions end with it."""
        return self._figures(one for one in self.subscriptions.values() if one.cursor.is_durable)

    def metrics_in_parts(self) -> Iterator[TopicSnapshot]:
        """Give the figures for `/metrics`, one subscription after the other: 1,000 of them take 50 ms.

        The subscriptions are those of this moment, and so is what deleted ones have counted: one that is deleted before
        its turn is counted once, and one that comes meanwhile is left to the next scrape.
        """
        subscriptions = list(self.subscriptions.values())
        if len(subscriptions) <= 1:
            yield self._figures(subscriptions)
            return
        own = replace(self._figures(()), part="own")
        given: list[SubscriptionSnapshot] = []
        for subscription in subscriptions:
            given.append(subscription.metrics())
            yield replace(own, subscriptions=given[-1:], part="subscriptions")
        yield replace(own, subscriptions=given)

    def _figures(self, subscriptions: Iterable[Subscription]) -> TopicSnapshot:
        return TopicSnapshot(
            name=str(self.name),
            namespace=self.name.namespace_name,
            producer_count=len(self.producers),
            messages_in_total=self.messages_in_total,
            bytes_in_total=self.bytes_in_total,
            due_before_1990_total=self.due_before_1990_total,
            published_without_subscription_total=self.published_without_subscription_total,
            storage_size_bytes=self.ledger.size_bytes,
            rate_in=self.meter.rates[0],
            throughput_in=self.meter.rates[1],
            appended=self.ledger.append_stats.last,
            window_s=self.window_s,
            lateness=self.lateness,
            counts=self.counts,
            subscriptions=[subscription.metrics() for subscription in subscriptions],
            deleted_counters=self._deleted_counters,
            shared_index=None if self._index is None else self._index.stats(),
            index_counters_before=summed(
                self._index_counters_before, None if self._index is None else self._index.counters_before
            ),
        )

    async def swept(self) -> None:
        """Wait until no snapshots are being deleted.

        Raises:
            SnapshotsLeftError: Some could not be deleted.
        """
        await self._sweep.finished()

    def fence(self) -> None:
        """Let no producer and no consumer in any more: the topic is about to be closed or deleted."""
        self.producers.fence()

    async def delete_snapshots(self) -> None:
        """Delete all snapshots of a fenced topic; the caller closes it, and deletes its log and cursors in one write.

        The cursors stay until then. Without them, after a crash, a subscription that is made anew would receive what it
        has acknowledged.

        Raises:
            LedgerError: A cursor could not let go of its snapshots.
            SnapshotsLeftError: Snapshots could not be deleted; the topic has its log and its cursors.
        """
        async with self._lock:
            await self._for_all(Subscription.abandon)
            if self._index is not None:
                await self._index.abandon()
            # From here on the snapshots have no owner, also after a crash.
            await asyncio.gather(*(remove_index_properties(cursor) for cursor in self.ledger.cursors.values()))
        self._sweep.note_left()
        self._sweep.start()
        await self.swept()

    async def close(self, *, is_lost: bool = False) -> None:
        """Disconnect all clients, and close the subscriptions and the log.

        Args:
            is_lost: Whether another process may have the log already: no index is sealed, as nothing could name it.
        """
        self.fence()
        self.producers.disconnect_all()
        # The cursor of a reader does not outlive this process, so its index is not worth sealing.
        await self._for_all(lambda one: one.close() if one.cursor.is_durable and not is_lost else one.abandon())
        if self._index is not None:
            await (self._index.abandon() if is_lost else self._index.close())
        for subscription in self.subscriptions.values():
            subscription.stop_listening()
        self._sweep.close()
        await self.ledger.close()

    async def _for_all(self, action: Callable[[Subscription], Awaitable[None]]) -> None:
        await asyncio.gather(*(action(subscription) for subscription in self.subscriptions.values()))

    def _add_subscription(self, name: str, cursor: Cursor) -> Subscription:
        trackers = self._index or self._services.trackers
        subscription = Subscription(name, self.ledger, cursor, self._services, trackers, self.lateness)
        self.subscriptions[name] = subscription
        return subscription

    def delayed_indexes(self) -> Iterator[tuple[str | None, TrackerStats, list[BucketFigures]]]:
        """Give the figures of each delayed index and its buckets, by subscription; a shared one comes first, as None.

        A subscription that is deleted before its turn has no index.
        """
        shared = None if self._index is None else self._index.tracker
        if shared is not None:
            yield None, shared.stats(), shared.buckets()
        for name, subscription in list(self.subscriptions.items()):
            stats = subscription.index_stats()
            if stats is not None:
                yield name, stats, subscription.index_buckets()

    def has_tracker(self, cursor_name: str) -> bool:
        """Whether the snapshots of a cursor have a tracker now."""
        if cursor_name == INDEX_CURSOR_NAME:
            return self._index is not None and self._index.has_tracker
        subscription = self.subscriptions.get(subscription_of(cursor_name))
        return subscription is not None and subscription.bucket_tracker is not None

    def failed_creates(self) -> int:
        """Count the creates of the present trackers that failed: each may have left a snapshot without a name."""
        indexes = [one.index_stats() for one in self.subscriptions.values()]
        if self._index is not None:
            indexes.append(self._index.stats())
        return sum(
            stats.operations[kind].failed
            for stats in indexes
            for kind in (BucketOperation.CREATE, BucketOperation.MERGE)
            if stats is not None and kind in stats.operations
        )

    async def _delete(self, subscription: Subscription) -> None:
        """Delete a subscription. Once its cursor is gone, its snapshots have no owner, also after a crash."""
        has_index = subscription.index_counters_before is not None or names_buckets(subscription.cursor.properties)
        del self.subscriptions[subscription.name]
        try:
            await self.ledger.delete_cursor(subscription.cursor.name)
        except LedgerError:
            # It is there, and keeps the log.
            self.subscriptions[subscription.name] = subscription
            raise
        subscription.stop_listening()
        self._count_deleted(subscription.counters, subscription.index_counters_before)
        if self._index is not None and not self.subscriptions:
            has_index = True
            await self._index.delete()
        if has_index:
            # In the background: a leaving client does not wait for a storage that may be down.
            self._sweep.note_left()
            self._sweep.start()
