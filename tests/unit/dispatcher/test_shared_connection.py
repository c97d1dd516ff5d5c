"""Consumers of one connection read at once, and no more than it takes; what is being read counts up to its write."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from dispatcher import Delivery, DispatcherConfig, SubscriptionType
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

SIZE, MESSAGES, CONSUMERS = 100, 20, 10


class SlowConnection:
    """Takes bytes while it holds none and nothing is being read for it, and tells when it does again."""

    def __init__(self) -> None:
        self.held = self.held_most = self.being_read = 0
        self.on_writable: Callable[[], None] = lambda: None

    @property
    def is_writable(self) -> bool:
        return self.held == 0 and self.being_read == 0

    def write(self, size: int) -> None:
        """Hold bytes until the client has read them all, after a while."""
        self.held += size
        self.held_most = max(self.held_most, self.held)
        asyncio.get_running_loop().call_later(0.005, self._sent, size)

    def _sent(self, size: int) -> None:
        self.held -= size
        self.look()

    def look(self) -> None:
        if self.is_writable:
            self.on_writable()


class ConnectedConsumer(FakeConsumer):
    """A consumer that has its connection in common with others."""

    def __init__(self, name: str, connection: SlowConnection) -> None:
        self.connection = connection
        super().__init__(name)

    @property
    def is_writable(self) -> bool:
        return self.connection.is_writable

    @is_writable.setter
    def is_writable(self, value: bool) -> None:
        """Ignore it: the connection decides."""

    def begin_read(self, size: int) -> None:
        self.connection.being_read += size

    def end_read(self, size: int) -> None:
        self.connection.being_read -= size
        self.connection.look()

    def send_messages(self, deliveries: Sequence[Delivery]) -> None:
        self.connection.write(sum(len(delivery.payload) for delivery in deliveries))
        super().send_messages(deliveries)


class ColdLog(FakeLog):
    """A log whose payloads are on a disk."""

    fails = False

    async def read_payloads(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> list[bytes | None]:
        await asyncio.sleep(0.010)
        if self.fails:
            raise OSError("the disk says no")
        return await super().read_payloads(ledger_ids, entry_ids)


def world_with(connection: SlowConnection) -> tuple[ShellWorld, list[ConnectedConsumer]]:
    """Return a subscription with messages for each of its consumers, which have one connection."""
    config = DispatcherConfig(round_robin_batch_entries_max=1, read_bytes_max=MESSAGES * SIZE)
    world = ShellWorld(SubscriptionType.SHARED, log=ColdLog(), config=config)
    consumers = [ConnectedConsumer(f"c{number}", connection) for number in range(CONSUMERS)]

    def tell() -> None:
        for consumer in consumers:
            world.dispatcher.consumer_writable(consumer)

    connection.on_writable = tell
    for consumer in consumers:
        world.dispatcher.add_consumer(consumer)
        world.dispatcher.consumer_flow(consumer, MESSAGES)
    for _ in range(CONSUMERS * MESSAGES):
        world.log.append(bytes(SIZE))
    return world, consumers


def test_reads_that_end_together_are_not_written_together() -> None:
    async def scenario() -> None:
        connection = SlowConnection()
        world, consumers = world_with(connection)

        await settle(10)

        assert [len(consumer.payloads) for consumer in consumers] == [MESSAGES] * CONSUMERS
        assert connection.held_most <= MESSAGES * SIZE
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("event", ["it leaves", "it asks for redelivery", "the dispatcher ends", "the read fails"])
def test_what_is_not_written_after_all_is_counted_no_more(event: str) -> None:
    async def scenario() -> None:
        connection = SlowConnection()
        world, consumers = world_with(connection)
        # In the middle of the first read.
        await settle(0.005)
        assert connection.being_read > 0
        assert isinstance(world.log, ColdLog)
        match event:
            case "it leaves":
                for consumer in consumers:
                    world.dispatcher.remove_consumer(consumer)
            case "it asks for redelivery":
                for consumer in consumers:
                    world.dispatcher.redeliver_unacknowledged_messages(consumer)
            case "the read fails":
                world.log.fails = True
            case _:
                await world.dispatcher.close()
        await settle(0.006)
        if event == "the read fails":
            # Another one reads while the first waits for its next try.
            assert connection.being_read > 0
            world.log.fails = False
        await settle(10)

        assert connection.being_read == 0
        got = sum(len(consumer.payloads) for consumer in consumers)
        assert got == (0 if event in ("it leaves", "the dispatcher ends") else CONSUMERS * MESSAGES)
        await world.dispatcher.close()

    run(scenario())
