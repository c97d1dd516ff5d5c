"""The requests of one connection: those of one topic are answered in order, those of several topics side by side.

    requests ─► topic a: subscribe ─► seek ─► close      each waits for the one before it
             ─► topic b: producer ─► subscribe
             ─► no topic: look-ups, lists, schemas

When a client closes a consumer and subscribes again, the close is finished before the subscribe begins, and no handler
runs beside another one of its topic. A request that waits for the disk holds up its own topic alone, so a client of
thousands of topics shares each synced write among many of them.

A request that names a producer or a consumer by its id goes to the topic of that id, behind all waiting requests of the
same id. A topic has a task while it has requests.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from postdate.broker.errors import BrokerError
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.slices import Turns
from postdate.broker.topics.topic_name import TopicName

_NO_TOPIC: Final = ""

_PRODUCER: Final = "producer_id"
_CONSUMER: Final = "consumer_id"
_FIELDS: Final = {
    BaseCommand.PRODUCER: ("producer", _PRODUCER),
    BaseCommand.CLOSE_PRODUCER: ("close_producer", _PRODUCER),
    BaseCommand.SUBSCRIBE: ("subscribe", _CONSUMER),
    BaseCommand.CLOSE_CONSUMER: ("close_consumer", _CONSUMER),
    BaseCommand.UNSUBSCRIBE: ("unsubscribe", _CONSUMER),
    BaseCommand.SEEK: ("seek", _CONSUMER),
    BaseCommand.GET_LAST_MESSAGE_ID: ("getLastMessageId", _CONSUMER),
    BaseCommand.CONSUMER_STATS: ("consumerStats", _CONSUMER),
}
"""The field of a producer's or consumer's id, by command; other commands are about no topic, or never wait."""
_NAMES_TOPIC: Final = frozenset({BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE})

_Id = tuple[str, int]


class RequestQueues:
    """A queue for each topic with waiting requests.

    Args:
        answer: Answers one request; raises nothing.
        producer_topic: The topic of a producer of this connection, by id.
        consumer_topic: The same of a consumer.
        spawn: Runs a task.
    """

    def __init__(
        self,
        answer: Callable[[BaseCommand], Awaitable[None]],
        *,
        producer_topic: Callable[[int], TopicName | None],
        consumer_topic: Callable[[int], TopicName | None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._answer = answer
        self._topic_of = {_PRODUCER: producer_topic, _CONSUMER: consumer_topic}
        self._spawn = spawn
        self._queues: dict[str, deque[tuple[BaseCommand, _Id | None]]] = {}
        self._unanswered: dict[_Id, tuple[str, int]] = {}
        """By id, the queue of its requests and their number."""
        self._count = 0
        self._finished: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return self._count

    def put(self, command: BaseCommand) -> None:
        """Answer a request after the earlier ones of its topic."""
        named_id = _id_of(command)
        key = self._queue_of(command, named_id)
        self._count += 1
        if named_id is not None:
            self._unanswered[named_id] = (key, self._unanswered.get(named_id, (key, 0))[1] + 1)
        queue = self._queues.get(key)
        if queue is not None:
            queue.append((command, named_id))
            return
        self._queues[key] = deque([(command, named_id)])
        self._spawn(self._answer_all(key))

    async def finished(self) -> None:
        """Wait until every request is answered."""
        while self._count:
            self._finished = asyncio.get_running_loop().create_future()
            await self._finished

    def _queue_of(self, command: BaseCommand, named_id: _Id | None) -> str:
        if named_id is None:
            return _NO_TOPIC
        if named_id in self._unanswered:
            return self._unanswered[named_id][0]
        if command.type in _NAMES_TOPIC:
            name = (command.producer if command.type == BaseCommand.PRODUCER else command.subscribe).topic
            try:
                return str(TopicName.parse(name))
            except BrokerError:
                # The handler of the request answers that the name is wrong.
                return _NO_TOPIC
        kind, number = named_id
        topic = self._topic_of[kind](number)
        return _NO_TOPIC if topic is None else str(topic)

    async def _answer_all(self, key: str) -> None:
        queue = self._queues[key]
        turns = Turns()
        while queue:
            command, named_id = queue[0]
            await self._answer(command)
            queue.popleft()
            self._count -= 1
            if named_id is not None:
                self._note_answered(named_id)
            await turns.give_way()
        del self._queues[key]
        if not self._count and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def _note_answered(self, named_id: _Id) -> None:
        key, count = self._unanswered[named_id]
        if count == 1:
            del self._unanswered[named_id]
        else:
            self._unanswered[named_id] = (key, count - 1)


def _id_of(command: BaseCommand) -> _Id | None:
    found = _FIELDS.get(command.type)
    if found is None:
        return None
    field, kind = found
    return kind, getattr(getattr(command, field), kind)
