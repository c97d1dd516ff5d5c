"""The life of every topic: each has one state, and only `TopicLives` changes it.

    state     what there is       a request for it        how it ends
    absent    nothing             creates it              opening
    closed    a log, its numbers  opens it                opening
    opening   a task              waits                   open; closed or absent where that failed
    open      a `Topic`           gets it                 closing when it is unused, deleting when it is inactive
    closing   a `Topic`, a task   waits, then opens it    closed
    deleting  a `Topic`, a task   waits, then creates it  absent; closed where that failed

A question about a topic opens it and never creates it. Absent and closed topics have no object here: the store of the
logs tells them apart, and `broker.topics.closed_topics` has the numbers of closed ones. What a topic has counted goes
into the sums of its namespace when its `Topic` ends, and it counts from 0 when it is opened again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final

from managed_ledger.errors import LedgerError
from managed_ledger.ledger_store import LedgerStore
from postdate.broker.admin.ended_topics import EndedTopics, with_ended
from postdate.broker.authorization.grants import GrantBook
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import NotAllowedError, TopicClosedError
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.delayed_counts import count_delayed
from postdate.broker.slices import side_by_side
from postdate.broker.topics.closed_topics import ClosedTopics
from postdate.broker.topics.figures import TopicCounts, TopicSnapshot
from postdate.broker.topics.services import TopicServices
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import DOMAIN_PREFIX, TopicName

logger = logging.getLogger(__name__)

REST_AFTER_MS: Final = 300_000
"""A topic that is unused for so long is closed; its next use opens it again, in a millisecond."""

OPENED_AT_ONCE_MAX: Final = 16
"""Topics that are opened at one time. Each adds a few callbacks to a turn of the event loop, 0.5 ms for the longest,
and waits for the disk: their commits share a sync."""


class TopicState(Enum):
    """The states in which a topic is in memory."""

    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    DELETING = auto()


@dataclass(eq=False, slots=True)
class TopicLife:
    """One topic that is in memory.

    Attributes:
        last_used_ms: When it was last asked for or had a client, by the steady clock; at first its opening.
        is_for_visits: Whether it was opened for a question, and nobody has used it since.
        visits: How many questions about it are under way: it stays open for them.
    """

    last_used_ms: int
    is_for_visits: bool
    state: TopicState = TopicState.OPENING
    topic: Topic | None = None
    change: asyncio.Task[None] | None = None
    """Opens, closes or deletes it."""
    visits: int = 0


@dataclass(eq=False, slots=True)
class NamespaceSums:
    """The sums of a service by namespace, over all bundles that it has or had: they never fall when one leaves.

    Attributes:
        counts: Topics of open bundles, with those that are being created.
        ended: What topics had counted when they were closed or deleted.
        ended_total: How often a topic was closed or deleted.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ended: dict[str, EndedTopics] = field(default_factory=dict)
    ended_total: int = 0


class TopicLives(Mapping[TopicName, Topic]):
    """All topics of a bundle; as a mapping, those that are open.

    Args:
        config: Tells how many topics there may be, and whether inactive ones are deleted.
        store: The log.
        services: What all topics share; policies and epochs of a topic are deleted with it.
        grants: The grants on topics, likewise; None without authorization.
        catalog: Keeps columns of open topics.
        sums: The sums of namespaces, to which these topics add.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: LedgerStore,
        services: TopicServices,
        grants: GrantBook | None,
        catalog: ScheduleCatalog,
        sums: NamespaceSums,
    ) -> None:
        self._count_max = config.limits.topics_per_namespace_max
        self._inactive = config.inactive_topics
        self._store = store
        self._services = services
        self._grants = grants
        self._catalog = catalog
        self._places = asyncio.Semaphore(OPENED_AT_ONCE_MAX)
        self._lives: dict[TopicName, TopicLife] = {}
        self.numbers = ClosedTopics(store)
        """What is known of closed topics."""
        self._sums = sums
        sums.counts.update(map(TopicName.namespace_in, store.managed_ledger_names()))
        self.is_stopping = False
        """Whether the bundle is about to close: no visit closes a topic then, as its end closes all at once."""

    # ---- open topics ----

    def __getitem__(self, name: TopicName) -> Topic:
        """Return an open topic."""
        life = self._lives[name]
        if life.topic is None or life.state is not TopicState.OPEN:
            raise KeyError(name)
        return life.topic

    def __iter__(self) -> Iterator[TopicName]:
        """Iterate over the names of open topics."""
        return iter([topic.name for topic in self.all_open()])

    def __len__(self) -> int:
        """Return how many topics are open."""
        return len(self.all_open())

    def all_open(self) -> list[Topic]:
        """List the open topics."""
        return [one.topic for one in self._lives.values() if one.state is TopicState.OPEN and one.topic is not None]

    # ---- all topics ----

    def exists(self, name: TopicName) -> bool:
        """Whether there is a topic of this name, open or not; one that is being deleted does not exist."""
        life = self._lives.get(name)
        is_going = life is not None and life.state is TopicState.DELETING
        return not is_going and self._store.has_managed_ledger(str(name))

    def names(self, namespace: str | None = None) -> list[str]:
        """List the topics of a namespace (`tenant/namespace`), or all, by full name and in order; open or not."""
        beginning = DOMAIN_PREFIX if namespace is None else f"{DOMAIN_PREFIX}{namespace}/"
        going = {str(name) for name, life in self._lives.items() if life.state is TopicState.DELETING}
        return [name for name in self._store.managed_ledger_names() if name.startswith(beginning) and name not in going]

    def closed_names(self) -> list[str]:
        """List the closed topics by full name."""
        in_memory = set(map(str, self._lives))
        return [name for name in self._store.managed_ledger_names() if name not in in_memory]

    def open_figures(self) -> Iterator[TopicSnapshot]:
        """Give the figures of the topics that are open at this call, those of one subscription at a time."""
        in_memory = [one.topic for one in self._lives.values() if one.topic is not None]
        return (part for topic in in_memory for part in topic.metrics_in_parts())

    def closed_figures(self) -> Iterator[TopicSnapshot]:
        """Give the figures of each closed topic, one by one; the topics are those of this call."""
        return self.numbers.figures(self.closed_names(), self._services.now_ms())

    async def scheduled_in(self, name: TopicName, *, is_counted: bool) -> TopicCounts | None:
        """Return how many messages of a topic are scheduled; None where that is not known.

        Of a closed topic it is estimated by its numbers.

        Args:
            name: The topic.
            is_counted: Whether an open topic is counted now, or was it lately.
        """
        topic = self.get(name)
        if topic is not None:
            if is_counted:
                await count_delayed(topic, self._catalog, self._services.now_ms)
            return topic.counts
        closed = self.numbers.of(name)
        return None if closed is None else closed.counts(self._services.now_ms())

    # ---- transitions ----

    async def get_or_create(self, name: TopicName) -> Topic:
        """Return a topic, opened; a missing one is created.

        Raises:
            NotAllowedError: It is missing, and its namespace has as many topics as are allowed.
        """
        life = await self._opened(name, is_created=True)
        assert life is not None
        return self._used(life)

    async def existing(self, name: TopicName) -> Topic | None:
        """Return a topic, opened, None if it is missing: a question about a topic must not create it."""
        life = await self._opened(name)
        return None if life is None else self._used(life)

    @asynccontextmanager
    async def visit(self, name: TopicName) -> AsyncIterator[Topic | None]:
        """Open a topic for a question, None if it is missing; one that was closed is closed again after its last visit.

        So a list of ten thousand topics, asked for once a minute, does not keep them all open. After an error it stays
        open until it was unused for a while.
        """
        life = await self._opened(name, is_visit=True)
        if life is None:
            yield None
            return
        assert life.topic is not None
        life.visits += 1
        try:
            yield life.topic
        finally:
            life.visits -= 1
        if life.is_for_visits and self._may_rest(life) and not self.is_stopping:
            await self._rest(life.topic)

    async def close_unused(self, topic: Topic) -> None:
        """Close an open topic that was not used for a while."""
        life = self._lives[topic.name]
        if topic.is_used:
            self._used(life)
        elif self._services.steady_ms() - life.last_used_ms >= REST_AFTER_MS and self._may_rest(life):
            await self._rest(topic)

    async def _rest(self, topic: Topic) -> None:
        """Close an open topic; logs what fails."""
        try:
            await self.close(topic)
        except LedgerError as error:
            logger.error("%s could not be closed in order: %s", topic.name, error)

    def uncount(self) -> None:
        """Count these topics no more, as the bundle is closed; what they had counted stays in the sums."""
        for name in self._store.managed_ledger_names():
            namespace = TopicName.namespace_in(name)
            self._sums.counts[namespace] -= 1
            if not self._sums.counts[namespace]:
                del self._sums.counts[namespace]

    def close(self, topic: Topic) -> "asyncio.Task[None]":
        """Close an open topic; a request for it waits, and opens it anew."""
        return self._end(topic, TopicState.CLOSING, partial(self._close, topic, is_counted=True))

    def delete(self, topic: Topic) -> "asyncio.Task[None]":
        """Delete an open topic with its policies and the grants on it; a request for it waits, and creates it anew."""
        return self._end(topic, TopicState.DELETING, partial(self._delete, topic))

    async def close_all(self, *, is_lost: bool = False) -> list[BaseException]:
        """Close all open topics for good, and return what failed; no topic is opened any more.

        Args:
            is_lost: Whether another process may have the log already, so that nothing is stored.
        """
        self.is_stopping = True
        opening = [one.change for one in self._lives.values() if one.state is TopicState.OPENING and one.change]
        if opening:
            await asyncio.wait(opening)

        async def close(topic: Topic) -> None:
            if self.get(topic.name) is topic:
                work = partial(topic.close, is_lost=True) if is_lost else partial(self._close, topic, is_counted=False)
                await self._end(topic, TopicState.CLOSING, work)

        return await side_by_side(map(close, self.all_open()), has_errors=True)

    async def _opened(self, name: TopicName, *, is_created: bool = False, is_visit: bool = False) -> TopicLife | None:
        """Bring a topic to the state open, from whichever state it is in."""
        while True:
            life = self._lives.get(name)
            if life is None:
                is_new = not self._store.has_managed_ledger(str(name))
                if is_new and not is_created:
                    return None
                life = self._begin(name, is_new=is_new, is_for_visits=is_visit)
            assert life.change is not None
            match life.state:
                case TopicState.OPEN:
                    return life
                case TopicState.OPENING:
                    # Shielded: the first caller may be cancelled while others wait for the same topic.
                    await asyncio.shield(life.change)
                case TopicState.CLOSING | TopicState.DELETING:
                    await asyncio.wait([life.change])

    def _begin(self, name: TopicName, *, is_new: bool, is_for_visits: bool) -> TopicLife:
        """Let a topic begin to open."""
        self._check_running(name)
        if is_new:
            if self._count_max and self._sums.counts[name.namespace_name] >= self._count_max:
                raise NotAllowedError("Exceed maximum number of topics in namespace.")
            self._sums.counts[name.namespace_name] += 1
        life = self._lives[name] = TopicLife(self._services.steady_ms(), is_for_visits)
        life.change = self._services.spawn(self._open(name, life, is_new=is_new))
        return life

    async def _open(self, name: TopicName, life: TopicLife, *, is_new: bool) -> None:
        try:
            async with self._places:
                self._check_running(name)
                ledger = await self._store.open_managed_ledger(str(name))
                life.topic = await Topic.open(name, ledger, self._services)
        except BaseException:
            del self._lives[name]
            if is_new and not self._store.has_managed_ledger(str(name)):
                self._count_less(name)
            raise
        life.state = TopicState.OPEN
        life.topic.sweep_snapshots()

    def _end(self, topic: Topic, state: TopicState, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        """Let an open topic begin to close or to be deleted."""
        life = self._lives[topic.name]
        assert life.topic is topic
        assert life.state is TopicState.OPEN
        life.state = state
        # At once: a producer that has this topic in hand must get no receipt for what is deleted.
        topic.fence()
        life.change = self._services.spawn(self._ended(topic, work))
        return life.change

    async def _ended(self, topic: Topic, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            del self._lives[topic.name]
            # In one step with the end of its own figures: no sum of the namespace decreases.
            namespace = topic.name.namespace_name
            if self._sums.counts[namespace]:
                self._sums.ended[namespace] = with_ended(self._sums.ended.get(namespace), topic.metrics())
            self._catalog.forget(topic.ledger.name)
            self._sums.ended_total += 1

    async def _close(self, topic: Topic, *, is_counted: bool) -> None:
        try:
            if is_counted:
                # A catalog of its own, which goes with this call: a closed topic is to cost a few numbers.
                await count_delayed(topic, ScheduleCatalog(), self._services.now_ms)
            await self.numbers.put(topic.metrics_at_the_end())
        except LedgerError as error:
            logger.warning("%s: its numbers are not stored: %s", topic.name, error)
        finally:
            await topic.close()

    async def _delete(self, topic: Topic) -> None:
        name = topic.name
        try:
            # First: where the rest fails, a topic without numbers is opened again, and deleted later.
            await self.numbers.remove(name)
            await topic.delete_snapshots()
        finally:
            await topic.close()
        if self._grants is not None:
            await self._grants.forget_topic(name)
        if self._services.policies.of(name) is not None:
            await self._services.policies.put(name, None)
        await self._services.epochs.remove(name)
        # The log goes last: after a crash before that, the topic is inactive as it was, and is deleted again.
        await self._store.delete_managed_ledger(str(name))
        self._count_less(name)

    # ---- inside ----

    def _check_running(self, name: TopicName) -> None:
        if self.is_stopping:
            raise TopicClosedError(f"{name} is closed: the service stops, or its bundle moves")

    def _count_less(self, name: TopicName) -> None:
        namespace = name.namespace_name
        self._sums.counts[namespace] -= 1
        if not self._sums.counts[namespace]:
            # The sums of its next topic begin at 0.
            del self._sums.counts[namespace]
            self._sums.ended.pop(namespace, None)

    def _used(self, life: TopicLife) -> Topic:
        assert life.topic is not None
        life.is_for_visits = False
        life.last_used_ms = self._services.steady_ms()
        return life.topic

    def _may_rest(self, life: TopicLife) -> bool:
        """Whether a topic is open for nothing; an inactive one stays open until it is deleted."""
        topic = life.topic
        if topic is None or life.state is not TopicState.OPEN or life.visits or topic.is_used:
            return False
        return not self._inactive.is_deleted or topic.is_active(self._inactive.mode)
