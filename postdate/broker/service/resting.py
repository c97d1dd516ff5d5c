"""Unused topics: they are closed to free their memory, and a few numbers of them stay (`broker.topics.closed_topics`).

    open ── unused for REST_AFTER_MS ──► closed: its numbers are stored, for /metrics ── next use ──► open
      └──── inactive by Pulsar's rules, where brokerDeleteInactiveTopicsEnabled ──► deleted

What a topic has counted goes into the sums of its namespace when it ends, and it counts from 0 when it is opened again.
After a start no topic is open, and a start opens none but those that have no numbers: after a kill in their first life.
Finished ledgers are deleted while a topic is open, or when disk space is short.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from managed_ledger.errors import LedgerError
from managed_ledger.positions.value_types import Clock
from postdate.broker.admin.ended_topics import EndedTopics, with_ended
from postdate.broker.errors import BrokerError, SnapshotsLeftError
from postdate.broker.slices import in_slices
from postdate.broker.topics.closed_topics import ClosedTopics
from postdate.broker.topics.figures import TopicSnapshot
from postdate.broker.topics.inactive import DELETE_WHEN_NO_SUBSCRIPTIONS, REST_AFTER_MS, InactiveTopicsConfig
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

REST_CHECK_INTERVAL_S: Final = 60
VISIT_SHARE: Final = 0.1
"""The share of the time that visits take; clients come first."""


class OpenTopics(Protocol):
    """The part of the service that this module calls."""

    topics: dict[TopicName, Topic]

    async def visited_topic(self, name: TopicName) -> Topic | None:
        """Open a topic without counting that as use, None if it is missing."""

    def topic_names(self) -> list[str]:
        """List all topics by full name, open or not."""

    async def count_delayed_at_the_end(self, topic: Topic) -> None:
        """Count the messages with a delivery time of a topic that is to be closed; logs what fails."""

    def take_away(self, topic: Topic) -> asyncio.Future[None]:
        """Close an open topic; a later request for it waits until it is closed."""

    def take_away_for_good(self, topic: Topic) -> asyncio.Future[None]:
        """Delete an open topic; a later request for it waits until it is deleted."""


class RestingTopics:
    """Closes unused topics, and keeps their numbers.

    Args:
        service: Opens and closes topics.
        closed: Stores the numbers.
        config: The rules by which inactive topics are deleted.
        now_ms: The wall clock.
        steady_ms: A clock that is never set.
    """

    def __init__(
        self,
        service: OpenTopics,
        closed: ClosedTopics,
        config: InactiveTopicsConfig,
        now_ms: Clock,
        steady_ms: Clock,
    ) -> None:
        self._service = service
        self._closed = closed
        self._config = config
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._ended: dict[str, EndedTopics] = {}
        """By namespace."""
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
        """Give the figures of each closed topic, one by one; the topics are those of this call."""
        return self._closed.figures(self._names(), self._now_ms())

    def _names(self) -> list[str]:
        """List the topics that are not open."""
        are_open = set(map(str, self._service.topics))
        return [name for name in self._service.topic_names() if name not in are_open]

    def ended(self) -> list[EndedTopics]:
        """Return what the topics of each namespace had counted when they were closed or deleted."""
        return list(self._ended.values())

    def remove_namespace(self, namespace: str) -> None:
        """Remove the sums of a namespace whose last topic is gone; those of the next topic begin at 0."""
        self._ended.pop(namespace, None)

    def count_ended(self, topic: Topic) -> None:
        """Add what a topic has counted to the sums of its namespace; in one step with the end of its own figures."""
        namespace = topic.name.namespace_name
        self._ended[namespace] = with_ended(self._ended.get(namespace), topic.metrics())

    async def keep(self, topic: Topic) -> None:
        """Store the numbers of a topic that is about to be closed; logs what fails."""
        try:
            await self._closed.put(topic.metrics_at_the_end())
        except LedgerError as error:
            logger.warning("%s: its numbers are not stored: %s", topic.name, error)

    async def rest_unused(self) -> None:
        """Close the topics that have not been used for a while."""
        async for topic in self.open_topics():
            if topic.is_used:
                topic.note_use()
            elif self._is_unused(topic):
                await self._service.count_delayed_at_the_end(topic)
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
            await self._service.count_delayed_at_the_end(topic)
            if self._may_rest(topic):
                await self._rest(topic)

    def _may_rest(self, topic: Topic) -> bool:
        """Whether a topic that was opened for a visit has no reason to stay open; a stop closes open ones itself."""
        is_left = self._stopping.is_set() or topic.is_fenced or self._is_to_be_deleted(topic)
        return not (is_left or topic.is_used or topic.looks or topic.was_asked_for)

    async def delete_inactive(self) -> None:
        """Delete the topics that have been inactive for long enough; closed ones are opened first."""
        async for name in in_slices(self._names()):
            if self._may_be_inactive(name):
                await self._visit(TopicName.parse(name), ttl_ms=0)
        async for topic in self.open_topics():
            # The deletions before may have taken long, and another call may have closed it meanwhile.
            if self._service.topics.get(topic.name) is not topic:
                continue
            if topic.is_active(self._config.mode):
                topic.note_active()
            elif self._steady_ms() - topic.last_active_ms >= self._config.inactive_ms_max:
                await self._delete(topic)

    def _may_be_inactive(self, name: str) -> bool:
        """Whether a closed topic has nothing that keeps it, as far as is known."""
        closed = self._closed.of(name)
        if closed is None:
            return True
        return not (closed.subscriptions if self._config.mode == DELETE_WHEN_NO_SUBSCRIPTIONS else closed.has_backlog)

    async def _delete(self, topic: Topic) -> None:
        try:
            # First: where the rest fails, a topic without numbers is opened again, and deleted later.
            await self._closed.remove(topic.name)
            if self._service.topics.get(topic.name) is not topic or topic.is_active(self._config.mode):
                return
            await self._service.take_away_for_good(topic)
        except (LedgerError, BrokerError) as error:
            logger.warning("%s could not be deleted, which is tried again later: %s", topic.name, error)
        else:
            inactive_s = self._config.inactive_ms_max // 1_000
            logger.info("%s was deleted: it had been inactive for %d s", topic.name, inactive_s)

    async def visit_unknown(self) -> None:
        """Visit the topics that have no numbers, one after the other."""
        async for name in in_slices(self._names()):
            if self._closed.of(name) is None:
                await self._visit(TopicName.parse(name), ttl_ms=0)

    async def expire(self, *, ttl_ms: int) -> None:
        """Visit the closed topics in which messages can expire."""
        async for name in in_slices(self._names()):
            closed = self._closed.of(name)
            if closed is not None and closed.has_backlog:
                await self._visit(TopicName.parse(name), ttl_ms=ttl_ms)

    async def make_room(self) -> None:
        """Visit the closed topics that take disk space and have nothing to deliver."""
        async for name in in_slices(self._names()):
            closed = self._closed.of(name)
            if closed is not None and closed.storage_size_bytes and not closed.has_backlog:
                await self._visit(TopicName.parse(name), ttl_ms=0, is_for_room=True)

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
            await self._service.count_delayed_at_the_end(topic)
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
        try:
            await self._service.take_away(topic)
        except LedgerError as error:
            logger.error("%s could not be closed in order: %s", topic.name, error)

    def _is_to_be_deleted(self, topic: Topic) -> bool:
        """Whether it stays open until it is deleted."""
        return self._config.is_deleted and not topic.is_active(self._config.mode)
