"""Small programs on the real client that most client tests need.

Times out rather than waits: `receive` gives what should be there, `nothing_comes` shows that nothing is.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pulsar

RECEIVE_TIMEOUT_MS = 10_000
"""Generous, as it is only ever waited out by a test that fails."""

QUIET_MS = 400
"""How long silence is listened to, to call it silence."""


class Clients:
    """Clients of one service, closed together."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[pulsar.Client] = []

    def new(self, **options: Any) -> pulsar.Client:
        """Return a client of its own connection."""
        # A Python logger can abort the process at its exit, see issue 256 of pulsar-client-python.
        settings = {
            "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            "operation_timeout_seconds": 10,
        }
        client = pulsar.Client(self.url, **(settings | options))
        self._made.append(client)
        return client

    def close(self) -> None:
        """Close every client; one that is closed already does not matter."""
        for client in self._made:
            try:
                client.close()
            except pulsar.PulsarException:
                # A test that closed it itself, or killed its service, has said what it wants to say by now.
                client.shutdown()


def subscribe(
    client: pulsar.Client,
    topic: str | Sequence[str],
    kind: pulsar.ConsumerType = pulsar.ConsumerType.Shared,
    *,
    subscription: str = "sub",
    **options: Any,
) -> pulsar.Consumer:
    """Subscribe from the earliest message on."""
    settings = {"initial_position": pulsar.InitialPosition.Earliest}
    return client.subscribe(topic, subscription, consumer_type=kind, **(settings | options))


def receive(consumer: pulsar.Consumer, count: int, *, timeout_ms: int = RECEIVE_TIMEOUT_MS) -> list[pulsar.Message]:
    """Receive exactly this many messages, without acknowledging them."""
    return [consumer.receive(timeout_ms) for _ in range(count)]


def receive_and_ack(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """Receive exactly this many messages and acknowledge each."""
    messages = receive(consumer, count)
    for message in messages:
        consumer.acknowledge(message)
    return messages


def texts(messages: Sequence[pulsar.Message]) -> list[str]:
    """Return the payloads as text."""
    return [message.data().decode() for message in messages]


def positions(messages: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the (ledger id, entry id) of messages or message ids."""
    ids = [one.message_id() if isinstance(one, pulsar.Message) else one for one in messages]
    return [(one.ledger_id(), one.entry_id()) for one in ids]


def nothing_comes(consumer: pulsar.Consumer, *, within_ms: int = QUIET_MS) -> bool:
    """Listen for a while and say whether it stayed quiet."""
    try:
        consumer.receive(within_ms)
    except pulsar.Timeout:
        return True
    return False


def drain(consumer: pulsar.Consumer, *, quiet_ms: int = QUIET_MS, ack: bool = True) -> list[pulsar.Message]:
    """Receive until it stays quiet."""
    messages = []
    while True:
        try:
            message = consumer.receive(quiet_ms)
        except pulsar.Timeout:
            return messages
        messages.append(message)
        if ack:
            consumer.acknowledge(message)


def send_all(producer: pulsar.Producer, payloads: Sequence[str], **options: Any) -> list[pulsar.MessageId]:
    """Send one after the other, each with the same options, and return their ids."""
    return [producer.send(payload.encode(), **options) for payload in payloads]


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Ask until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.02)


def now_ms() -> int:
    """Wall-clock milliseconds, as the client and the service see them."""
    return time.time_ns() // 1_000_000
