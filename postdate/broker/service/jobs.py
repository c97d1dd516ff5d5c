"""The periodic work on topics and connections: liveness, credentials, retention, expiry, room on the disk, rates, rest.

Each job goes through topics or connections in slices, so that deliveries go on in between. A topic that is damaged does
not keep the others from their turn; while the log takes no writes, the topics wait for the next turn.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from managed_ledger.errors import LedgerError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.value_types import Clock
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.refusal_log import REFUSAL_LOG_S, RefusalLog
from postdate.broker.service.resting import REST_CHECK_INTERVAL_S, RestingTopics
from postdate.broker.service.scheduler import Job
from postdate.broker.slices import in_slices
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

CREDENTIALS_CHECK_INTERVAL_S: Final = 0.5
"""The interval of checks for ending credentials: at 5,000 connections 1.2 ms each time."""
MAKE_ROOM_INTERVAL_S: Final = 2
"""The interval of deleting acknowledged entries while disk space is short."""


class PeriodicJobs:
    """The jobs of one service.

    Args:
        config: The intervals, and the jobs that are switched on.
        store: The log.
        topics: The open topics.
        connections: The open connections.
        resting: The topics that are closed because they are unused.
        refusal_log: Counts refused clients.
        count_delayed: Counts delayed messages for `/metrics`.
        now_ms: The wall clock in milliseconds.
        steady_ms: A clock that is never set.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: LedgerStore,
        topics: Mapping[TopicName, Topic],
        connections: Collection[ClientLink],
        resting: RestingTopics,
        refusal_log: RefusalLog,
        count_delayed: Callable[[], Awaitable[None]],
        now_ms: Clock,
        steady_ms: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._connections = connections
        self._resting = resting
        self._refusal_log = refusal_log
        self._count_delayed = count_delayed
        self._now_ms = now_ms
        self._steady_ms = steady_ms

    def listed(self, *, checks_credentials: bool) -> list[Job]:
        """List the jobs; a job without an interval in the configuration is left out."""
        config = self._config
        jobs = [
            Job("keep-alive", config.keep_alive_interval_s, self._check_connections, is_time_limit=True),
            Job("roll over and trim", config.retention_check_interval_s, self._roll_over_and_trim),
            Job("make room", MAKE_ROOM_INTERVAL_S, self._make_room),
            Job("count refusals", REFUSAL_LOG_S, self._refusal_log.say_counts),
            Job("statistics", config.stats_interval_s, self._end_rate_window),
            Job("count delayed messages", config.stats_interval_s, self._count_delayed),
            Job("close unused topics", REST_CHECK_INTERVAL_S, self._resting.rest_unused),
        ]
        if config.inactive_topics.is_deleted:
            interval_s = config.inactive_topics.check_interval_s
            jobs.append(Job("delete inactive topics", interval_s, self._resting.delete_inactive))
        if checks_credentials:
            jobs.append(Job("check credentials", CREDENTIALS_CHECK_INTERVAL_S, self._check_credentials))
        if config.ttl_ms:
            jobs.append(Job("expire", config.expiry_check_interval_s, self._expire))
        return [job for job in jobs if job.interval_s > 0]

    async def _check_connections(self) -> None:
        async for connection in in_slices(list(self._connections)):
            connection.check_alive()

    async def _check_credentials(self) -> None:
        async for connection in in_slices(list(self._connections)):
            connection.check_credentials()

    async def _roll_over_and_trim(self) -> None:
        await self._for_each_topic(lambda topic: topic.roll_over_and_trim(self._now_ms()))

    async def _make_room(self) -> None:
        if self._store.refusal is not None:
            await self._for_each_topic(lambda topic: topic.make_room(self._now_ms()))
            await self._resting.make_room()
            self._store.compact_trimmed()

    async def _expire(self) -> None:
        await self._for_each_topic(lambda topic: topic.expire(self._now_ms(), self._config.ttl_ms))
        await self._resting.expire(ttl_ms=self._config.ttl_ms)

    async def _for_each_topic(self, work: Callable[[Topic], Awaitable[None]]) -> None:
        async for topic in self._resting.open_topics():
            if self._store.is_failing:
                # The next turn does it, once a commit has succeeded.
                return
            try:
                await work(topic)
            except LedgerError as error:
                # A damaged topic must not keep the others from their turn in the job.
                logger.error("housekeeping of %s failed: %s", topic.name, error)

    async def _end_rate_window(self) -> None:
        messages_in_total = 0
        async for topic in in_slices(list(self._topics.values())):
            await topic.end_rate_window(self._steady_ms())
            messages_in_total += topic.messages_in_total
        logger.info(
            "%d topics, %d connections, %d messages in since the start",
            self._store.managed_ledger_count,
            len(self._connections),
            messages_in_total,
        )
