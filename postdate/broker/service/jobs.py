"""The periodic work: liveness, credentials, retention, expiry, room on the disk, rates, unused and inactive topics.

Each job goes through topics or connections in slices, so that deliveries go on in between. A topic that is damaged does
not keep the others from their turn; while the log takes no writes, the topics wait for the next turn. Closed topics are
visited where something may be due in them: messages that expire, space that is to be given back, a topic without
numbers. All else of a closed topic waits until it is used.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from managed_ledger.bundles import BundleRange
from managed_ledger.errors import LedgerError
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import BrokerError, SnapshotsLeftError
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.delayed_counts import count_delayed
from postdate.broker.service.bundle import Bundle
from postdate.broker.service.refusal_log import REFUSAL_LOG_S, RefusalLog
from postdate.broker.service.scheduler import Job
from postdate.broker.slices import in_slices
from postdate.broker.topics.closed_topics import ClosedTopic
from postdate.broker.topics.limits import DELETE_WHEN_NO_SUBSCRIPTIONS
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

CREDENTIALS_CHECK_INTERVAL_S: Final = 0.5
"""The interval of checks for ending credentials: at 5,000 connections 1.2 ms each time."""
MAKE_ROOM_INTERVAL_S: Final = 2
"""The interval of deleting acknowledged entries while disk space is short."""
REST_CHECK_INTERVAL_S: Final = 60
VISIT_SHARE: Final = 0.1
"""The share of the time that visits of closed topics take; clients come first."""


class PeriodicJobs:
    """The jobs of one service.

    Args:
        config: The intervals, and the jobs that are switched on.
        bundles: The open bundles; they may change at any time.
        connections: The open connections.
        refusal_log: Counts refused clients.
        catalog: Keeps columns of open topics.
        now_ms: The wall clock in milliseconds.
        steady_ms: A clock that is never set.
    """

    def __init__(
        self,
        config: BrokerConfig,
        bundles: Mapping[BundleRange, Bundle],
        connections: Collection[ClientLink],
        refusal_log: RefusalLog,
        catalog: ScheduleCatalog,
        now_ms: Clock,
        steady_ms: Clock,
    ) -> None:
        self._config = config
        self._inactive = config.inactive_topics
        self._bundles = bundles
        self._connections = connections
        self._refusal_log = refusal_log
        self._catalog = catalog
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._stopping = asyncio.Event()

    def listed(self, *, checks_credentials: bool) -> list[Job]:
        """List the jobs; a job without an interval in the configuration is left out."""
        config = self._config
        jobs = [
            Job("keep-alive", config.keep_alive_interval_s, self._check_connections, is_time_limit=True),
            Job("roll over and trim", config.retention_check_interval_s, self._roll_over_and_trim),
            Job("make room", MAKE_ROOM_INTERVAL_S, self._make_room),
            Job("count refusals", REFUSAL_LOG_S, self._refusal_log.say_counts),
            Job("statistics", config.stats_interval_s, self._end_rate_window),
            Job("count delayed messages", config.stats_interval_s, self.count_delayed),
            Job("close unused topics", REST_CHECK_INTERVAL_S, self.close_unused),
        ]
        if self._inactive.is_deleted:
            jobs.append(Job("delete inactive topics", self._inactive.check_interval_s, self.delete_inactive))
        if checks_credentials:
            jobs.append(Job("check credentials", CREDENTIALS_CHECK_INTERVAL_S, self._check_credentials))
        if config.ttl_ms:
            jobs.append(Job("expire", config.expiry_check_interval_s, self.expire))
        return [job for job in jobs if job.interval_s > 0]

    def stop(self) -> None:
        """Begin no further visit and no work on a further topic, as the service stops: it would take minutes."""
        self._stopping.set()
        for bundle in self._bundles.values():
            bundle.topics.is_stopping = True

    async def close_unused(self) -> None:
        """Close the topics that were not used for a while."""
        async for bundle, topic in self._open_topics():
            await bundle.topics.close_unused(topic)

    async def delete_inactive(self) -> None:
        """Delete the topics that have been inactive for long enough; closed ones are opened first, and stay open."""
        await self._visit_closed(self._may_be_inactive)
        async for bundle, topic in self._open_topics():
            if topic.is_active(self._inactive.mode):
                topic.note_active()
            elif self._steady_ms() - topic.last_active_ms >= self._inactive.inactive_ms_max:
                await self._delete(bundle, topic)

    def _may_be_inactive(self, closed: ClosedTopic | None) -> bool:
        """Whether a closed topic has nothing that keeps it, as far as is known."""
        if closed is None:
            return True
        return not (closed.subscriptions if self._inactive.mode == DELETE_WHEN_NO_SUBSCRIPTIONS else closed.has_backlog)

    async def _delete(self, bundle: Bundle, topic: Topic) -> None:
        try:
            await bundle.topics.delete(topic)
        except (LedgerError, BrokerError) as error:
            logger.warning("%s could not be deleted, which is tried again later: %s", topic.name, error)
        else:
            inactive_s = self._inactive.inactive_ms_max // 1_000
            logger.info("%s was deleted: it had been inactive for %d s", topic.name, inactive_s)

    async def visit_unknown(self) -> None:
        """Visit the topics that have no numbers, after a kill in their first life."""
        await self._visit_closed(lambda closed: closed is None)

    async def expire(self) -> None:
        """Acknowledge the messages that have expired."""

        async def expire(topic: Topic) -> None:
            await topic.expire(self._now_ms(), self._config.ttl_ms)

        await self._for_each_topic(expire)
        await self._visit_closed(lambda closed: closed is not None and closed.has_backlog, expire)

    async def count_delayed(self) -> None:
        """Count the messages with a delivery time of the open topics in the log, where nothing else tells."""
        async for bundle, topic in self._open_topics():
            await count_delayed(topic, self._catalog, self._now_ms)
            if bundle.topics.get(topic.name) is not topic:
                # It was closed while it was counted.
                self._catalog.forget(topic.ledger.name)

    async def _make_room(self) -> None:
        """Where disk space is short, give back what has nothing to deliver."""
        short = [bundle for bundle in self._bundles.values() if bundle.store.refusal is not None]

        async def make_room(topic: Topic) -> None:
            await topic.make_room(self._now_ms())

        def has_room_to_give(closed: ClosedTopic | None) -> bool:
            return closed is not None and bool(closed.storage_size_bytes) and not closed.has_backlog

        for bundle in short:
            await self._for_each_topic(make_room, of=bundle)
            await self._visit_closed(has_room_to_give, make_room, of=bundle)
            bundle.store.compact_trimmed()

    async def _roll_over_and_trim(self) -> None:
        await self._for_each_topic(lambda topic: topic.roll_over_and_trim(self._now_ms()))

    async def _check_connections(self) -> None:
        async for connection in in_slices(list(self._connections)):
            connection.check_alive()

    async def _check_credentials(self) -> None:
        async for connection in in_slices(list(self._connections)):
            connection.check_credentials()

    async def _end_rate_window(self) -> None:
        messages_in_total = 0
        async for topic in in_slices([one for bundle in self._bundles.values() for one in bundle.topics.all_open()]):
            await topic.end_rate_window(self._steady_ms())
            messages_in_total += topic.messages_in_total
        logger.info(
            "%d topics, %d connections, %d messages in since the start",
            sum(bundle.store.managed_ledger_count for bundle in self._bundles.values()),
            len(self._connections),
            messages_in_total,
        )

    def _open_bundles(self, of: Bundle | None = None) -> list[Bundle]:
        return list(self._bundles.values()) if of is None else [of]

    async def _open_topics(self, of: Bundle | None = None) -> AsyncIterator[tuple[Bundle, Topic]]:
        """Yield the topics that are open at this call and at their turn; none any more once the service stops."""
        topics = [(bundle, topic) for bundle in self._open_bundles(of) for topic in bundle.topics.all_open()]
        async for bundle, topic in in_slices(topics):
            if self._stopping.is_set():
                return
            if bundle.topics.get(topic.name) is topic:
                yield bundle, topic

    async def _for_each_topic(self, work: Callable[[Topic], Awaitable[None]], of: Bundle | None = None) -> None:
        """Do some work on each open topic, of all bundles or of one."""
        async for bundle, topic in self._open_topics(of):
            if bundle.store.is_failing:
                # The next turn does it, once a commit has succeeded.
                continue
            try:
                await work(topic)
            except LedgerError as error:
                # A damaged topic must not keep the others from their turn in the job.
                logger.error("housekeeping of %s failed: %s", topic.name, error)

    async def _visit_closed(
        self,
        is_meant: Callable[[ClosedTopic | None], bool],
        work: Callable[[Topic], Awaitable[None]] | None = None,
        of: Bundle | None = None,
    ) -> None:
        """Open closed topics for some work, one after the other, and close them again.

        Args:
            is_meant: Tells by its numbers whether a topic is visited; None are those of a topic without.
            work: The work on it. Without, nothing is trimmed: right after a start, subscribers may still be connecting.
            of: The bundle of the topics; None for all.
        """
        names = [(bundle, name) for bundle in self._open_bundles(of) for name in bundle.topics.closed_names()]
        async for bundle, name in in_slices(names):
            if self._stopping.is_set():
                return
            topic_name, topics = TopicName.parse(name), bundle.topics
            if topics.is_stopping or topic_name in topics or not is_meant(topics.numbers.of(name)):
                continue
            begin = time.monotonic()
            try:
                async with topics.visit(topic_name) as topic:
                    if topic is not None and work is not None:
                        await work(topic)
                    if topic is not None:
                        await topic.swept()
            except SnapshotsLeftError:
                # The topic stays open and is tried again later; the sweep has logged it once.
                pass
            except (LedgerError, BrokerError) as error:
                # A damaged topic must not keep the others from being visited.
                logger.error("housekeeping of %s failed: %s", name, error)
            with suppress(TimeoutError):
                async with asyncio.timeout((time.monotonic() - begin) * (1 / VISIT_SHARE - 1)):
                    await self._stopping.wait()
