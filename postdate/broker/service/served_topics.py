"""The topics of all open bundles, as one: a topic of another bundle is not served here."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from managed_ledger.bundles import BundleRange, bundle_of
from postdate.broker.admin.ended_topics import EndedTopics
from postdate.broker.errors import NotServedError
from postdate.broker.service.bundle import Bundle
from postdate.broker.service.topic_lives import NamespaceSums, TopicLives
from postdate.broker.topics.figures import TopicCounts, TopicSnapshot
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

if TYPE_CHECKING:
    import asyncio


class TopicsElsewhere(Protocol):
    """The topics of the other services of a cluster."""

    async def topics(self, namespace: str, role: str | None) -> list[str]:
        """Return those of a namespace that a client's role may see; a `NotServedError` where that cannot be told."""

    async def has_topic(self, name: TopicName, role: str | None) -> bool:
        """Whether there is a topic, which a client's role may look up; raises the same."""


class ServedTopics(Mapping[TopicName, Topic]):
    """All topics of a service; as a mapping, those that are open.

    Args:
        bundles: The open bundles, by range.
        ranges: All bundles of the place.
        sums: The sums of namespaces.
    """

    def __init__(
        self, bundles: Mapping[BundleRange, Bundle], ranges: Sequence[BundleRange], sums: NamespaceSums
    ) -> None:
        self._bundles = bundles
        self._ranges = ranges
        self._sums = sums

    # ---- the bundle of a topic ----

    def range_of(self, name: TopicName) -> BundleRange:
        """Return the bundle of a topic, open here or not."""
        return bundle_of(str(name), self._ranges)

    def bundle_of(self, name: TopicName) -> Bundle:
        """Return the open bundle of a topic.

        Raises:
            NotServedError: It is not open here.
        """
        bundle = self._bundles.get(self.range_of(name))
        if bundle is None:
            raise NotServedError(f"{name} is not served here now: look it up again")
        return bundle

    def lives_of(self, name: TopicName) -> TopicLives:
        """Return the topics of the open bundle of a topic; raises as `bundle_of`."""
        return self.bundle_of(name).topics

    # ---- open topics ----

    def __getitem__(self, name: TopicName) -> Topic:
        """Return an open topic."""
        bundle = self._bundles.get(self.range_of(name))
        if bundle is None:
            raise KeyError(name)
        return bundle.topics[name]

    def __iter__(self) -> Iterator[TopicName]:
        """Iterate over the names of open topics."""
        return iter([topic.name for topic in self.all_open()])

    def __len__(self) -> int:
        """Return how many topics are open."""
        return len(self.all_open())

    def all_open(self) -> list[Topic]:
        """List the open topics."""
        return [topic for lives in self._all_lives() for topic in lives.all_open()]

    # ---- all topics ----

    def exists(self, name: TopicName) -> bool:
        """Whether there is a topic of this name, open or not; raises as `bundle_of`."""
        return self.lives_of(name).exists(name)

    def names(self, namespace: str | None = None) -> list[str]:
        """List the topics of a namespace (`tenant/namespace`), or all, by full name and in order; open or not."""
        return sorted(name for lives in self._all_lives() for name in lives.names(namespace))

    def figures(self) -> Iterator[TopicSnapshot]:
        """Give the figures of all topics of this call, those of one subscription at a time; closed ones come last."""
        lives = self._all_lives()
        return chain(*[one.open_figures() for one in lives], *[one.closed_figures() for one in lives])

    def closed_figures(self) -> Iterator[TopicSnapshot]:
        """Give the figures of each closed topic, one by one; the topics are those of this call."""
        return chain(*[one.closed_figures() for one in self._all_lives()])

    async def scheduled_in(self, name: TopicName, *, is_counted: bool) -> TopicCounts | None:
        """Return how many messages of a topic are scheduled, None where not known; see `TopicLives`."""
        return await self.lives_of(name).scheduled_in(name, is_counted=is_counted)

    @property
    def counts(self) -> Counter[str]:
        """Topics by namespace, with those that are being created."""
        return self._sums.counts

    @property
    def ended(self) -> Mapping[str, EndedTopics]:
        """What the topics of each namespace had counted when they were closed or deleted."""
        return self._sums.ended

    @property
    def ended_total(self) -> int:
        """How often a topic was closed or deleted."""
        return self._sums.ended_total

    # ---- transitions ----

    async def get_or_create(self, name: TopicName) -> Topic:
        """Return a topic, opened; a missing one is created.

        Raises:
            NotAllowedError: It is missing, and its namespace has as many topics as are allowed.
            NotServedError: Its bundle is not open here.
        """
        return await self.lives_of(name).get_or_create(name)

    async def existing(self, name: TopicName) -> Topic | None:
        """Return a topic, opened, None if it is missing; raises as `bundle_of`."""
        return await self.lives_of(name).existing(name)

    @asynccontextmanager
    async def visit(self, name: TopicName) -> AsyncIterator[Topic | None]:
        """Open a topic for a question, None if it is missing; raises as `bundle_of`. See `TopicLives`."""
        async with self.lives_of(name).visit(name) as topic:
            yield topic

    def close(self, topic: Topic) -> "asyncio.Task[None]":
        """Close an open topic; a request for it waits, and opens it anew."""
        return self.lives_of(topic.name).close(topic)

    def delete(self, topic: Topic) -> "asyncio.Task[None]":
        """Delete an open topic with its policies and the grants on it; a request for it waits, and creates it anew."""
        return self.lives_of(topic.name).delete(topic)

    def _all_lives(self) -> list[TopicLives]:
        return [bundle.topics for bundle in self._bundles.values()]
