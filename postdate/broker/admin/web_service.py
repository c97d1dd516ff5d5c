"""The part of the service that the endpoints call, and the changes under way that they have begun."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Final, Protocol

from managed_ledger.bundles import BundleRange
from managed_ledger.objects.checkpoints import OnBytes
from managed_ledger.objects.place_checkpoints import MadeBackup
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.trail import TrailBook
from postdate.broker.authorization.grants import Actions, GrantBook
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.ownership.owners import Owners, ServiceInfo
from postdate.broker.scheduled.answers import Kind, OperationAnswer, both
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.operations import Progress
from postdate.broker.scheduled.publishing import DirectProducer
from postdate.broker.topics.figures import TopicCounts
from postdate.broker.topics.policies import DelayedDeliveryPolicies, PolicyOwner
from postdate.broker.topics.publishing_buffer import PublishBuffer
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

_OPERATIONS_MAX: Final = 100


class WebTopics(Protocol):
    """The topics of the service, as the endpoints know them."""

    def exists(self, name: TopicName) -> bool:
        """Whether there is a topic of this name."""

    async def existing(self, name: TopicName) -> Topic | None:
        """Return a topic, opened, None if it is missing."""

    async def get_or_create(self, name: TopicName) -> Topic:
        """Return a topic, opened; a missing one is created."""

    def close(self, topic: Topic) -> Awaitable[None]:
        """Close an open topic; its clients come back, and open it anew."""

    def delete(self, topic: Topic) -> Awaitable[None]:
        """Delete an open topic with its policies and the grants on it."""

    def visit(self, name: TopicName) -> AbstractAsyncContextManager[Topic | None]:
        """Open a topic for as long as the context lasts, None if it is missing; that is no use of it."""

    def names(self, namespace: str | None = None) -> list[str]:
        """List the topics of a namespace (`tenant/namespace`), or all, open or not, by full name and in order."""

    async def scheduled_in(self, name: TopicName, *, is_counted: bool) -> TopicCounts | None:
        """Return how many messages of a topic are scheduled, counted now or as last counted; None where not known."""


class WebBackups(Protocol):
    """The backups of the service, as the endpoints know them."""

    def make(self, target: str, on_bytes: OnBytes, *, replaces_other: bool = False) -> Awaitable[MadeBackup]:
        """Make a backup of the log."""


class WebService(Protocol):
    """The service, as the endpoints know it."""

    @property
    def config(self) -> BrokerConfig:
        """How long a message lives, and whether it may come a tick early."""

    @property
    def catalog(self) -> ScheduleCatalog:
        """The scheduled messages of all topics, as columns."""

    @property
    def owners(self) -> Owners:
        """Which service has which bundle."""

    @property
    def ranges(self) -> tuple[BundleRange, ...]:
        """All bundles, in order."""

    @property
    def grants(self) -> GrantBook | None:
        """All grants; None where authorization is switched off."""

    @property
    def trail(self) -> TrailBook:
        """Who changed what."""

    @property
    def backups(self) -> WebBackups:
        """Makes backups of the log."""

    @property
    def topics(self) -> WebTopics:
        """All topics."""

    @property
    def publish_buffer(self) -> PublishBuffer:
        """Counts bytes that wait for the disk."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds, against which times of delivery are compared."""

    def range_of(self, name: TopicName) -> BundleRange:
        """Return the bundle of a topic."""

    async def moved(self, name: TopicName) -> None:
        """Wait while the bundle of a topic moves to another service."""

    def look_up(self, name: TopicName) -> ServiceInfo:
        """Return the service that has a topic."""

    async def unload_bundle(self, bundle: BundleRange, to: str | None = None) -> None:
        """Move a bundle to another service; where there is none, close it and open it again."""

    def own_policies(self, owner: PolicyOwner) -> DelayedDeliveryPolicies | None:
        """Return the policies of a topic or a namespace, None if it has none of its own."""

    def applied_policies(self, name: TopicName) -> DelayedDeliveryPolicies:
        """Return the policies in force for a topic."""

    async def set_policies(self, owner: PolicyOwner, policies: DelayedDeliveryPolicies | None) -> None:
        """Store an owner's policies and put them in force."""

    async def set_grant(self, owner: TopicName | str, role: str, actions: Actions | None) -> None:
        """Store the actions of a role and put them in force."""


class _Running:
    """One call that changes something, while it runs and for a while after; as a context it notes its end."""

    __slots__ = ("error", "is_finished", "kind", "progress", "started_ms", "topic")

    def __init__(self, kind: Kind, topic: TopicName | None, started_ms: int) -> None:
        self.kind = kind
        self.topic = topic
        self.started_ms = started_ms
        self.progress = Progress()
        self.is_finished = False
        self.error: str | None = None

    def __enter__(self) -> Progress:
        return self.progress

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.is_finished = True
        if isinstance(error, Exception):
            self.error = str(error)


class Served:
    """What the endpoints are served by: the service, and the changes that run or have ended lately.

    Args:
        service: The service.
    """

    def __init__(self, service: WebService) -> None:
        self.service = service
        self.producer = DirectProducer(
            service.publish_buffer, message_bytes_max=service.config.message_size_max, now_ms=service.now_ms
        )
        """Publishes for callers over HTTP."""
        self.counted_until_s = 0.0
        """When the totals of all topics may be counted again, on a clock that never goes back."""
        self._operations: OrderedDict[str, _Running] = OrderedDict()

    async def topic(self, name: TopicName) -> Topic:
        """Return a topic, opened.

        Raises:
            RefusalError: There is none of this name.
        """
        topic = await self.service.topics.existing(name)
        if topic is None:
            raise unknown_topic(name)
        return topic

    async def pulsar_topic(self, name: TopicName) -> Topic:
        """Return a topic, opened, for one of Pulsar's paths.

        Raises:
            RefusalError: There is none of this name, in Pulsar's words.
        """
        topic = await self.service.topics.existing(name)
        if topic is None:
            raise RefusalError(404, f"Topic {name} not found")
        return topic

    def begin(self, name: str | None, kind: Kind, topic: TopicName | None) -> _Running:
        """Begin a change, whose progress can be asked for by its `Operation-Id` for a while."""
        running = _Running(kind, topic, self.service.now_ms())
        if name:
            self._operations[name] = running
            while len(self._operations) > _OPERATIONS_MAX:
                self._operations.popitem(last=False)
        return running

    def operation(self, name: str, may_see: Callable[[TopicName], bool]) -> OperationAnswer | None:
        """Return how far a change is; None where there is none of this name, or of a topic that is not to be seen."""
        running = self._operations.get(name)
        if running is None or (running.topic is not None and not may_see(running.topic)):
            return None
        return OperationAnswer(
            id=name,
            kind=running.kind,
            topic=None if running.topic is None else running.topic.short,
            **both("started", running.started_ms),
            **asdict(running.progress),
            finished=running.is_finished,
            error=running.error,
        )


def unknown_topic(name: TopicName) -> RefusalError:
    """Return the refusal of a request about a topic that does not exist."""
    advice = "GET /postdate/v1/topics (postdate topics) lists those that there are"
    return RefusalError(404, f"There is no topic {name.short}", field="topic", advice=advice)
