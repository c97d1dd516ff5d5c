"""Unused topics: they are closed to free their memory, and their figures stay.

    open ── unused for REST_AFTER_MS ──► resting: a few numbers for /metrics ── next use ──► open
      └──── inactive by Pulsar's rules, where brokerDeleteInactiveTopicsEnabled ──► deleted: its counters are in a sum

After a start a topic is neither open nor resting: the log knows its name alone. `survey` opens one topic after the
other in the background, expires its old messages, and lets it rest again. So the figures are complete after a while,
and a start does not wait for them. Finished ledgers are deleted while a topic is open, or when disk space is short.
"""

import asyncio
import logging
import pickle
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, Protocol

from managed_ledger.errors import LedgerError
from managed_ledger.value_types import Clock
from postdate.broker.admin.deleted_topics import DeletedTopics, with_deleted
from postdate.broker.errors import BrokerError, SnapshotsLeftError
from postdate.broker.slices import in_slices
from postdate.broker.topics.figures import ScheduledCounts, SubscriptionSnapshot, TopicSnapshot
from postdate.broker.topics.inactive import REST_AFTER_MS, InactiveTopicsConfig
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from tracker.stats import TrackerCounters, summed

logger = logging.getLogger(__name__)

REST_CHECK_INTERVAL_S: Final = 60
VISIT_SHARE: Final = 0.1
"""The share of the time that visits take; clients come first."""


class OpenTopics(Protocol):
    """The part of the service that this module calls."""

    topics: dict[TopicName, Topic]

    async def visited_topic(self, name: TopicName) -> Topic | None:
        """Open a topic without counting that as use, None if it is missing."""

    async def note_last_due_times(self, topic: Topic) -> None:
        """Note at a topic that is to be closed when its messages are due and how many wait; logs what fails."""

    def take_away(self, topic: Topic) -> asyncio.Future[None]:
        """Close an open topic; a later request for it waits until it is closed."""

    def take_away_for_good(self, topic: Topic) -> asyncio.Future[None]:
        """Delete an open topic; a later request for it waits until it is deleted."""


class RestingTopics:
    """Closes unused topics, and keeps their figures.

    Args:
        service: Opens and closes topics.
        config: The rules by which inactive topics are deleted.
        now_ms: The wall clock.
        steady_ms: A clock that is never set.
    """

    def __init__(self, service: OpenTopics, config: InactiveTopicsConfig, now_ms: Clock, steady_ms: Clock) -> None:
        self._service = service
        self._config = config
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._figures: dict[str, bytes] = {}
        """By full name, pickled: half of what objects take, and there may be thousands of them."""
        self._deleted: dict[str, DeletedTopics] = {}
        """By namespace."""
        self._left_over: set[TopicName] = set()
        """Topics that could not be deleted."""
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Begin no further visit and no job's work on a further topic, as the service stops: it would take minutes."""
        self._stopping.set()

    async def open_topics(self) -> AsyncIterator[Topic]:
        """Yield the topics that are open at this call, in slices, for a job; none any more once the service stops."""
        async for topic in in_slices(list(self._service.topics.values())):
            if self._stopping.is_set():
                return
            yield topic

    def figures(self) -> Iterator[TopicSnapshot]:
        """Give the figures of each resting topic, as they were when it was closed; delayed until the last one is due.

        One by one, as to unpack those of thousands would hold up the event loop; the topics are those of this call.
        """
        return map(self._unpacked, list(self._figures.values()))

    def _unpacked(self, packed: bytes) -> TopicSnapshot:
        figures: TopicSnapshot = pickle.loads(packed)
        now_ms = self._now_ms()
        if figures.last_deliver_at_ms is not None and figures.last_deliver_at_ms <= now_ms:
            return _without_delayed(figures)
        if figures.next_deliver_at_ms and figures.next_deliver_at_ms <= now_ms:
            return _with_next_due(figures, now_ms)
        return figures

    def deleted(self) -> list[DeletedTopics]:
        """Return what the deleted topics of each namespace have counted."""
        return list(self._deleted.values())

    def forget_deleted(self, namespace: str) -> None:
        """Forget a namespace whose last topic is gone: its sums end, and those of the next topic begin at 0."""
        self._deleted.pop(namespace, None)

    def take(self, name: TopicName) -> TopicSnapshot | None:
        """Return the figures of a topic that is opened, and forget them; None without any."""
        packed = self._figures.pop(str(name), None)
        return None if packed is None else self._unpacked(packed)

    async def rest_unused(self) -> None:
        """Close the topics that have not been used for a while."""
        async for topic in self.open_topics():
            if topic.is_used:
                topic.note_use()
            elif self._is_unused(topic):
                await self._service.note_last_due_times(topic)
                # Meanwhile it may have been used, or another call may have closed it.
                if self._is_unused(topic) and self._service.topics.get(topic.name) is topic:
                    await self._rest(topic)

    def _is_unused(self, topic: Topic) -> bool:
        """Whether a topic was not used for a while, has no question about it under way, and is not to be deleted."""
        is_idle = self._steady_ms() - topic.last_used_ms >= REST_AFTER_MS
        return is_idle and not (topic.is_used or topic.looks or self._is_to_be_deleted(topic))

    @asynccontextmanager
    async def looked_at(self, name: TopicName) -> AsyncIterator[Topic | None]:
        """Open a topic for a question, None if it is missing; one that was at rest rests again at once.

        So a list of ten thousand topics, asked for once a minute, does not keep them all open.
        """
        was_open = name in self._service.topics
        topic = await self._service.visited_topic(name)
        if topic is None:
            yield None
            return
        topic.looks += 1
        try:
            yield topic
        finally:
            topic.looks -= 1
        if not was_open and self._may_rest(topic):
            await self._service.note_last_due_times(topic)
            if self._may_rest(topic):
                await self._rest(topic)

    def _may_rest(self, topic: Topic) -> bool:
        """Whether a topic that was opened for a visit has no reason to stay open; a stop closes open ones itself."""
        is_left = self._stopping.is_set() or topic.is_fenced or self._is_to_be_deleted(topic)
        return not (is_left or topic.is_used or topic.looks or topic.was_asked_for)

    async def delete_inactive(self) -> None:
        """Delete the topics that have been inactive for long enough."""
        async for name in in_slices(list(self._left_over)):
            await self._open_again(name)
        async for topic in self.open_topics():
            # The deletions before may have taken long, and another call may have closed it meanwhile.
            if self._service.topics.get(topic.name) is not topic:
                continue
            if topic.is_active(self._config.mode):
                topic.note_active()
            elif self._steady_ms() - topic.last_active_ms >= self._config.inactive_ms_max:
                await self._delete(topic)

    async def _delete(self, topic: Topic) -> None:
        # In one step with the end of its figures. Where the deletion fails, the topic begins at 0 when it is opened
        # again.
        namespace = topic.name.namespace_name
        self._deleted[namespace] = with_deleted(self._deleted.get(namespace), topic.metrics())
        try:
            await self._service.take_away_for_good(topic)
        except (LedgerError, BrokerError) as error:
            logger.warning("%s could not be deleted, which is tried again later: %s", topic.name, error)
            if not self._stopping.is_set():
                await self._open_again(topic.name)
        else:
            inactive_s = self._config.inactive_ms_max // 1_000
            logger.info("%s was deleted: it had been inactive for %d s", topic.name, inactive_s)

    async def _open_again(self, name: TopicName) -> None:
        """Open a topic that could not be deleted: an open one has figures, and is deleted once it is inactive again."""
        self._left_over.add(name)
        try:
            await self._service.visited_topic(name)
        except (LedgerError, BrokerError) as error:
            logger.warning("%s could not be deleted, and cannot be opened: %s", name, error)
        else:
            self._left_over.discard(name)

    async def survey(self, names: Iterable[str], *, ttl_ms: int) -> None:
        """Visit the topics that have not been opened since the start, one after the other."""
        async for name in in_slices(names):
            await self._visit(TopicName.parse(name), ttl_ms=ttl_ms)

    async def expire(self, *, ttl_ms: int) -> None:
        """Visit the resting topics in which messages can expire."""
        async for figures in in_slices(self.figures()):
            if any(one.backlog for one in figures.subscriptions):
                await self._visit(TopicName.parse(figures.name), ttl_ms=ttl_ms)

    async def make_room(self) -> None:
        """Visit the resting topics that take disk space and have nothing to deliver."""
        async for figures in in_slices(self.figures()):
            if figures.storage_size_bytes and not any(one.backlog for one in figures.subscriptions):
                await self._visit(TopicName.parse(figures.name), ttl_ms=0, is_for_room=True)

    async def _visit(self, name: TopicName, *, ttl_ms: int, is_for_room: bool = False) -> None:
        if name in self._service.topics or self._stopping.is_set():
            return
        begin = time.monotonic()
        try:
            topic = await self._service.visited_topic(name)
            if topic is None:
                return
            if ttl_ms:
                await topic.expire(self._now_ms(), ttl_ms)
            if is_for_room:
                await topic.make_room(self._now_ms())
            # Otherwise nothing is trimmed: right after a start, subscribers may still be connecting.
            await topic.swept()
            await self._service.note_last_due_times(topic)
            if self._may_rest(topic):
                await self._rest(topic)
        except SnapshotsLeftError:
            # The topic stays open and is tried again later; the sweep has logged it once.
            pass
        except (LedgerError, BrokerError) as error:
            # A damaged topic must not keep the others from being visited.
            logger.error("housekeeping of %s failed: %s", name, error)
        with suppress(TimeoutError):
            async with asyncio.timeout((time.monotonic() - begin) * (1 / VISIT_SHARE - 1)):
                await self._stopping.wait()

    async def _rest(self, topic: Topic) -> None:
        figures = _at_rest(topic.metrics())
        self._figures[figures.name] = pickle.dumps(figures, pickle.HIGHEST_PROTOCOL)
        try:
            await self._service.take_away(topic)
        except LedgerError as error:
            logger.error("%s could not be closed in order: %s", topic.name, error)

    def _is_to_be_deleted(self, topic: Topic) -> bool:
        """Whether it stays open until it is deleted."""
        return self._config.is_deleted and not topic.is_active(self._config.mode)


def _with_next_due(figures: TopicSnapshot, now_ms: int) -> TopicSnapshot:
    """Return the figures once the first message has come due; the next one is not known before the next use."""

    def is_due(one: SubscriptionSnapshot) -> bool:
        return one.next_deliver_at_ms is not None and one.next_deliver_at_ms <= now_ms

    return replace(
        figures,
        subscriptions=[_with_one_due(one) if is_due(one) else one for one in figures.subscriptions],
        next_deliver_at_ms=None,
    )


def _with_one_due(one: SubscriptionSnapshot) -> SubscriptionSnapshot:
    is_told = one.scheduled is None or one.scheduled.overdue
    return one if is_told else replace(one, scheduled=_due(one.scheduled, count=1))


def _due(counts: ScheduledCounts | None, *, count: int | None) -> ScheduledCounts | None:
    """Return the counts once so many delayed messages have come due, None for all of them."""
    if counts is None:
        return None
    due = counts.delayed if count is None else min(count, counts.delayed)
    return counts._replace(delayed=counts.delayed - due, overdue=counts.overdue + due)


def _without_delayed(figures: TopicSnapshot) -> TopicSnapshot:
    """Return the figures with every message due."""
    if not figures.next_deliver_at_ms and not any(one.delayed for one in figures.subscriptions):
        return figures
    return replace(
        figures,
        subscriptions=[
            replace(one, delayed=0, scheduled=_due(one.scheduled, count=None)) for one in figures.subscriptions
        ],
        next_deliver_at_ms=0,
        last_deliver_at_ms=0,
    )


def _at_rest(figures: TopicSnapshot) -> TopicSnapshot:
    """Leave out what a closed topic has not: dispatchers and delayed indexes, whose counters are kept."""
    subscriptions = tuple(
        replace(
            one,
            dispatcher=None,
            tracker=None,
            index_counters_before=_counted(one.tracker, one.index_counters_before),
        )
        for one in figures.subscriptions
    )
    return replace(
        figures,
        subscriptions=subscriptions,
        shared_index=None,
        index_counters_before=_counted(figures.shared_index, figures.index_counters_before),
        # There may be thousands of such topics.
        lateness=figures.lateness if figures.lateness is not None and any(figures.lateness.counts) else None,
    )


def _counted(*counters: TrackerCounters | None) -> TrackerCounters | None:
    """Return the sums of counters, None where nothing was counted."""
    total = summed(*counters)
    return None if total is None or total == TrackerCounters() else total
