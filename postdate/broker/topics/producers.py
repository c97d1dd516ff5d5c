"""The producers of a topic: their access modes, their epochs, and which of them are let in.

A producer holds the state that the broker keeps between two SENDs. Appending is left out: it is the connection's fast
path, over the topic's log directly.

    Shared               beside other producers, unless one of them is exclusive
    Exclusive            alone, or refused
    ExclusiveWithFencing alone; present producers are fenced
    WaitForExclusive     alone; it is accepted now and becomes ready when the topic is free

The epoch of a topic is the number of the last producer with exclusive access, stored durably. A producer learns it when
it gets access, and shows it whenever it comes back. With an earlier epoch another one has had access since, and the
producer is fenced. Without epochs, two producers that ask for exclusive access with fencing would take it from each
other for ever.

Source: PIP-68, "Exclusive Producer".
"""

import logging
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from managed_ledger.errors import LedgerError
from managed_ledger.positions.value_types import Clock
from postdate.broker.errors import NotAllowedError, ProducerBusyError, ProducerFencedError, TopicClosedError
from postdate.broker.topics.limits import is_full
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.policies import RecordStore, remove_record
from postdate.broker.topics.snapshot_sweep import Spawn
from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

_EPOCHS_END: Final = 2**63
"""Epochs are smaller, as in Pulsar, where they are signed."""
_EPOCH: Final = struct.Struct("<Q")


class ProducerAccessMode(Enum):
    """How a producer shares its topic; values are the protocol's numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


@dataclass(eq=False, slots=True)
class Producer:
    """A producer.

    Attributes:
        producer_id: The client's number for it, unique within the connection.
        name: Its name, unique within the topic.
        link: Its connection.
        access_mode: How it shares the topic with other producers.
        request_id: The request that created it, answered again when a waiting producer becomes ready.
        is_ready: False while it waits for the topic to be free.
        topic_epoch: The topic's epoch when it got access; before that, what its client shows of an earlier time, None
            at first.
        is_warned_of_seconds: Whether the log has said that its delivery times may be seconds.
    """

    producer_id: int
    name: str
    link: ClientLink
    access_mode: ProducerAccessMode = ProducerAccessMode.SHARED
    request_id: int = 0
    is_ready: bool = True
    topic_epoch: int | None = None
    is_warned_of_seconds: bool = False

    def disconnect(self) -> None:
        """Tell the client that this producer is closed; it will come back by itself."""
        self.link.close_producer(self.producer_id)

    def fence(self) -> None:
        """Tell the client that another producer has taken the access: one that waits is refused for good."""
        if self.is_ready:
            # When it comes back, its epoch is over.
            self.disconnect()
        else:
            self.link.refuse_producer(self.producer_id, self.request_id)


class TopicEpochs:
    """The epoch of every topic that has had a producer with exclusive access.

    Args:
        store: The storage of the records.
    """

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def of(self, topic: TopicName) -> int | None:
        """Return a topic's epoch, None if no producer has had exclusive access."""
        value = self._store.records.get(_epoch_record(topic))
        return None if value is None else int(_EPOCH.unpack(value)[0])

    async def put(self, topic: TopicName, epoch: int) -> None:
        """Store a topic's epoch; durable on return.

        Raises:
            LedgerWriteError: It could not be stored, and is as before.
        """
        await self._store.put_record(_epoch_record(topic), _EPOCH.pack(epoch))

    async def remove(self, topic: TopicName) -> None:
        """Remove the epoch of a topic that is being deleted.

        Raises:
            LedgerWriteError: It could not be removed.
        """
        await remove_record(self._store, _epoch_record(topic))


def _epoch_record(topic: TopicName) -> str:
    return f"topicEpoch {topic}"


class Producers(Mapping[str, Producer]):
    """The producers of one topic, by name.

    Producers have different names. A producer whose connection gives no sign of life is replaced by the next one of its
    name, so a client that lost its connection can return before the broker has noticed the loss.

    Args:
        topic: The name of the topic.
        epochs: Stores its epoch.
        count_max: The most producers, 0 for no limit.
        steady_ms: A clock that is never set.
        spawn: Runs work in the background.
    """

    def __init__(
        self, topic: TopicName, epochs: TopicEpochs, *, count_max: int, steady_ms: Clock, spawn: Spawn
    ) -> None:
        self._topic = topic
        self._epochs = epochs
        self._count_max = count_max
        self._steady_ms = steady_ms
        self._spawn = spawn
        self._producers: dict[str, Producer] = {}
        self.epoch = epochs.of(topic)
        """The number of the last producer with exclusive access, None before the first."""
        self.is_fenced = False
        """Whether the topic lets no client in any more, as it is being closed or deleted, or is closed."""
        self.last_active_ms = 0
        """When a producer last came or left, by the steady clock; 0 for never."""

    def __getitem__(self, name: str) -> Producer:
        """Return the producer of a name."""
        return self._producers[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._producers)

    def __len__(self) -> int:
        """Return how many there are, with those that wait for access."""
        return len(self._producers)

    async def add(self, producer: Producer) -> None:
        """Add a producer.

        As in Pulsar, a name is taken while the connection of its producer lives, for a producer of any epoch. That
        connection is asked for a sign of life, unless both producers are on it.

        Raises:
            ProducerBusyError: Another live producer has its name or exclusive access, or the limit is reached.
            ProducerFencedError: It asks for exclusive access, and other producers are connected, or another one has
                had access since its own.
            LedgerWriteError: Its epoch could not be stored.
        """
        try:
            await self._add(producer)
        finally:
            self.last_active_ms = self._steady_ms()

    async def _add(self, producer: Producer) -> None:
        present = self._producers.get(producer.name)
        if present is not None and present.link is not producer.link and not await present.link.is_alive():
            logger.info("producer %s of %s takes the place of one whose connection is gone", producer.name, self._topic)
            self.remove(present)
        # The topic may have been closed while the other was asked.
        self.check_open()
        # The name may also belong to a producer that came while the other was asked.
        if producer.name in self._producers:
            raise ProducerBusyError(
                f"Producer with name '{producer.name}' is already connected to topic '{self._topic}'"
            )
        self._admit(producer)
        self._producers[producer.name] = producer
        if producer.access_mode is ProducerAccessMode.SHARED:
            producer.topic_epoch = self.epoch
        elif producer.is_ready:
            try:
                await self._take_epoch(producer)
            except LedgerError:
                self.remove(producer)
                raise
            # Meanwhile the topic may have been closed, and another producer may have taken the access.
            self.check_open()
            if self._producers.get(producer.name) is producer:
                return
            if self.epoch == producer.topic_epoch:
                # No other has taken it: the producers were sent away, as after a commit that failed.
                raise TopicClosedError(f"producers of topic {self._topic} were sent away: come back")
            raise ProducerFencedError(f"Another producer has taken exclusive access to topic {self._topic}")

    def remove(self, producer: Producer) -> None:
        """Remove a producer, unless another has taken its name since; the first waiting one may become ready."""
        if self._producers.get(producer.name) is producer:
            del self._producers[producer.name]
            self.last_active_ms = self._steady_ms()
        if self._producers and not any(other.is_ready for other in self._producers.values()):
            waiting = next(iter(self._producers.values()))
            waiting.is_ready = True
            self._spawn(self._make_ready(waiting))

    def disconnect_all(self) -> None:
        """Close all producers; as in Pulsar, they return and send again what has no receipt."""
        producers, self._producers = list(self._producers.values()), {}
        if producers:
            self.last_active_ms = self._steady_ms()
        for producer in producers:
            producer.disconnect()

    def fence(self) -> None:
        """Let no producer in any more."""
        self.is_fenced = True

    def check_open(self) -> None:
        """Raise `TopicClosedError` where the topic lets no client in any more."""
        if self.is_fenced:
            raise TopicClosedError(f"topic {self._topic} is being closed")

    def check_shared_access(self) -> None:
        """Raise `TopicClosedError` or `ProducerBusyError` where none of shared access may be beside them."""
        self.check_open()
        if any(other.access_mode is not ProducerAccessMode.SHARED for other in self._producers.values()):
            raise ProducerBusyError("Topic has an existing exclusive producer")

    def _admit(self, producer: Producer) -> None:
        others = list(self._producers.values())
        shown = producer.topic_epoch
        if shown is not None and producer.access_mode is not ProducerAccessMode.SHARED:
            if shown >= _EPOCHS_END:
                raise NotAllowedError(f"Topic epoch {shown} is none that a producer was given")
            if self.epoch is not None and shown < self.epoch:
                raise ProducerFencedError(
                    f"Topic epoch has already moved. Current epoch: {self.epoch}, Producer epoch: {shown}"
                )
        match producer.access_mode:
            case ProducerAccessMode.SHARED:
                self.check_shared_access()
                if is_full(others, self._count_max):
                    raise ProducerBusyError(f"Topic '{self._topic}' reached max producers limit")
            case ProducerAccessMode.EXCLUSIVE:
                if others:
                    raise ProducerFencedError("Topic has existing producers, so none can be exclusive")
            case ProducerAccessMode.WAIT_FOR_EXCLUSIVE:
                producer.is_ready = not others
            case ProducerAccessMode.EXCLUSIVE_WITH_FENCING:
                self._producers.clear()
                for other in others:
                    other.fence()

    async def _take_epoch(self, producer: Producer) -> None:
        """Give a producer with exclusive access its epoch: the one that it shows, as it comes back, or a new one.

        Raises:
            LedgerWriteError: It could not be stored.
        """
        before = self.epoch
        if producer.topic_epoch is None:
            producer.topic_epoch = 0 if before is None else before + 1
        self.epoch = producer.topic_epoch
        if self.epoch != before:
            try:
                await self._epochs.put(self._topic, producer.topic_epoch)
            except LedgerError:
                # No producer has it, so those of before are not over.
                if self.epoch == producer.topic_epoch:
                    self.epoch = self._epochs.of(self._topic)
                raise

    async def _make_ready(self, waiting: Producer) -> None:
        """Tell the client of a waiting producer that it may begin, once its epoch is stored."""
        try:
            await self._take_epoch(waiting)
        except LedgerError as error:
            logger.warning("%s: producer %s cannot begin: %s", self._topic, waiting.name, error)
            self.remove(waiting)
            waiting.disconnect()
            return
        if self._producers.get(waiting.name) is waiting:
            waiting.link.producer_ready(waiting.request_id, waiting.name, waiting.topic_epoch)
