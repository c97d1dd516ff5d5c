"""Requests of one connection: one after the other for one topic, side by side for several."""

import asyncio
import functools
from collections.abc import Awaitable, Callable

from postdate.broker.clients.request_queues import RequestQueues
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.topics.topic_name import TopicName


def _on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class _QueueWorld:
    """Answers requests when the test says so."""

    def __init__(self) -> None:
        self.begun: list[BaseCommand] = []
        self.answered: list[BaseCommand] = []
        self.topics: dict[int, TopicName] = {}
        self._may_end: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.queues = RequestQueues(
            self._answer,
            producer_topic=lambda _: None,
            consumer_topic=self.topics.get,
            spawn=lambda work: self._tasks.append(asyncio.get_running_loop().create_task(work)),
        )

    async def _answer(self, command: BaseCommand) -> None:
        self.begun.append(command)
        await self._may_end.setdefault(id(command), asyncio.Event()).wait()
        self.answered.append(command)

    async def end(self, command: BaseCommand) -> None:
        self._may_end.setdefault(id(command), asyncio.Event()).set()
        await self.turn()

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def _subscribe(topic: str, consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic = topic
    command.subscribe.consumer_id = consumer_id
    return command


def _close(consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    return command


@_on_a_loop
async def test_a_request_that_waits_holds_up_its_own_topic_alone() -> None:
    world = _QueueWorld()
    first, second, other = _subscribe("a", 1), _subscribe("a", 2), _subscribe("b", 3)
    for command in (first, second, other):
        world.queues.put(command)
    await world.turn()
    assert world.begun == [first, other]

    await world.end(first)

    assert world.begun == [first, other, second]


@_on_a_loop
async def test_a_topic_has_one_queue_however_its_name_is_written() -> None:
    world = _QueueWorld()
    first, second = _subscribe("a", 1), _subscribe("persistent://public/default/a", 2)
    world.queues.put(first)
    world.queues.put(second)
    await world.turn()

    assert world.begun == [first]


@_on_a_loop
async def test_a_request_by_id_comes_after_those_of_its_topic_and_of_its_id() -> None:
    world = _QueueWorld()
    world.topics[7] = TopicName.parse("a")
    close_old, subscribe_again = _close(7), _subscribe("a", 8)
    close_new = _close(8)
    elsewhere_with_the_old_id = _subscribe("b", 7)
    for command in (close_old, subscribe_again, close_new, elsewhere_with_the_old_id):
        world.queues.put(command)
    await world.turn()
    assert world.begun == [close_old]

    for command in (close_old, subscribe_again, close_new):
        await world.end(command)

    assert world.begun == [close_old, subscribe_again, close_new, elsewhere_with_the_old_id]


@_on_a_loop
async def test_requests_without_a_topic_that_can_be_served_are_answered_too() -> None:
    world = _QueueWorld()
    look_up = BaseCommand(type=BaseCommand.LOOKUP)
    wrong = _subscribe("non-persistent://public/default/a", 1)
    for command in (look_up, wrong):
        world.queues.put(command)
    await world.end(look_up)
    await world.end(wrong)

    assert world.answered == [look_up, wrong]


@_on_a_loop
async def test_whoever_leaves_waits_for_everything_that_is_being_answered() -> None:
    world = _QueueWorld()
    commands = [_subscribe(topic, number) for number, topic in enumerate("aabc")]
    for command in commands:
        world.queues.put(command)
    finished = asyncio.get_running_loop().create_task(world.queues.finished())
    for command in commands:
        assert not finished.done()
        await world.end(command)
    await world.turn()

    assert finished.done()
    assert len(world.queues) == 0
