"""The client programs of the service benchmark: one produces, one consumes, each in a process of its own.

    python -m benchmarks.service_load produce '{"url": "pulsar://127.0.0.1:6650", "topic": "t", "messages": 1000}'
    python -m benchmarks.service_load consume '{"url": "pulsar://127.0.0.1:6650", "topic": "t", "messages": 1000}'

The order is one JSON object, a `ProduceOrder` or `ConsumeOrder`. A program answers with JSON lines and goes on when it
gets a line, so that the benchmark decides when it begins:

    loaded ── line ──► connected: ready ── line ──► (progress ...) result | failed

The Python client is the bottleneck of every rate, not the service. So the loops here do as little as they can: no
callback for a receipt, no clock read for a message that is sent, one for a message that arrives. Arrivals are
looked at afterwards: each payload begins with the number of its message and the time it is due.
"""

import dataclasses
import json
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

import numpy as np
import pulsar
from numpy.typing import NDArray

PAYLOAD_HEAD: Final = struct.Struct("<qq")
"""The begin of a payload: the number of its message, and the time it is due in milliseconds (-1: at once)."""

NOT_DELAYED: Final = -1

_PENDING_MAX: Final = 10_000
"""How many messages a producer has under way. Enough that it never waits for a sync of the service's log."""

_RECEIVE_TIMEOUT_S: Final = 120
"""After this long without a message, one is missing. Longer than any service needs to recover."""

_CONNECT_TIMEOUT_S: Final = 120.0
_CONNECT_RETRY_S: Final = 0.05
_PROGRESS_MESSAGES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOrder:
    """The work of a producer.

    Attributes:
        url: Where the service listens.
        topic: Where the messages go.
        messages: How many.
        keys: Among how many keys, one after the other.
        payload_bytes: The size of each payload.
        lead_ms: When the first message is due, from the moment the producer is told to go; None sends without delay.
        spread_ms: When the last message is due, after the first one.
        is_shuffled: Whether times of delivery are random within the spread; otherwise they rise evenly.
    """

    url: str
    topic: str
    messages: int
    keys: int = 1_000
    payload_bytes: int = 100
    lead_ms: int | None = None
    spread_ms: int = 0
    is_shuffled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOrder:
    """The work of a Key_Shared consumer.

    Attributes:
        url: Where the service listens; it need not yet.
        topic: The topic of the messages that are received.
        messages: How many are received and acknowledged; with 0 it stays connected until it gets another line.
        subscription: The subscription's name.
        unsubscribes: Whether the subscription ends with the consumer, so that nothing is left for the next one.
    """

    url: str
    topic: str
    messages: int = 0
    subscription: str = "bench"
    unsubscribes: bool = False


def produce(order: ProduceOrder) -> None:
    """Send all messages, and tell how long it took until each was confirmed."""
    _tell("loaded")
    _wait_for_line()
    client = _new_client(order.url)
    producer = client.create_producer(
        order.topic,
        block_if_queue_full=True,
        max_pending_messages=_PENDING_MAX,
        # Every message has to survive a service that is slow at first.
        send_timeout_millis=0,
    )
    _tell("ready")
    _wait_for_line()
    begun_ns = time.time_ns()
    deliver_at_ms = _due_times(order, begun_ns // 1_000_000)
    send = producer.send_async
    messages = zip(_payloads(order, deliver_at_ms), deliver_at_ms.tolist(), _keys(order), strict=False)
    for sent, (payload, due, key) in enumerate(messages, start=1):
        send(payload, None, partition_key=key, deliver_at=due if due != NOT_DELAYED else None)
        if sent % _PROGRESS_MESSAGES == 0:
            _tell("progress", messages=sent)
    producer.flush()
    ended_ns = time.time_ns()
    # Without callbacks this is how a message that was refused would show.
    confirmed = producer.last_sequence_id() + 1
    _tell(
        "result",
        confirmed=confirmed,
        begun_ns=begun_ns,
        ended_ns=ended_ns,
        per_s=order.messages / (ended_ns - begun_ns) * 1e9,
        first_deliver_at_ms=int(deliver_at_ms.min()),
    )
    client.close()


def consume(order: ConsumeOrder) -> None:
    """Receive and acknowledge all messages, and tell when they came."""
    _tell("loaded")
    _wait_for_line()
    client, consumer = _subscribe(order)
    _tell("ready", at_ns=time.time_ns())
    _wait_for_line()
    if order.messages:
        _tell("result", **_receive(consumer, order.messages))
    else:
        _wait_for_line()
        _tell("result")
    if order.unsubscribes:
        consumer.unsubscribe()
    client.close()


def _receive(consumer: pulsar.Consumer, messages: int) -> dict[str, float]:
    receive, acknowledge, clock_ns = consumer.receive, consumer.acknowledge, time.time_ns
    timeout_ms = _RECEIVE_TIMEOUT_S * 1_000
    received_ns, payloads = [], []
    for received in range(messages):
        try:
            message = receive(timeout_ms)
        except pulsar.Timeout:
            missing = f"{messages - received:,} of {messages:,} messages"
            _tell("failed", reason=f"{missing} did not come, and none for {_RECEIVE_TIMEOUT_S} s")
            raise
        received_ns.append(clock_ns())
        payloads.append(message.data())
        acknowledge(message)
    return _arrivals(np.array(received_ns, dtype=np.int64), payloads)


def _arrivals(received_ns: NDArray[np.int64], payloads: list[bytes]) -> dict[str, float]:
    heads = np.frombuffer(b"".join(payload[: PAYLOAD_HEAD.size] for payload in payloads), np.int64).reshape(-1, 2)
    span_s = float(received_ns[-1] - received_ns[0]) / 1e9
    result = {
        "received": len(payloads),
        "repeated": len(payloads) - len(np.unique(heads[:, 0])),
        "first_ns": int(received_ns[0]),
        "last_ns": int(received_ns[-1]),
        "per_s": (len(payloads) - 1) / span_s if span_s else 0.0,
    }
    if (heads[:, 1] == NOT_DELAYED).any():
        return result
    late_ms = received_ns / 1e6 - heads[:, 1]
    p50, p99 = np.percentile(late_ms, [50, 99]).tolist()
    return result | {
        "early": int((late_ms < 0).sum()),
        "late_p50_ms": p50,
        "late_p99_ms": p99,
        "late_max_ms": float(late_ms.max()),
        "late_first_ms": float(late_ms[0]),
        "late_last_ms": float(late_ms[-1]),
    }


def _due_times(order: ProduceOrder, now_ms: int) -> NDArray[np.int64]:
    if order.lead_ms is None:
        return np.full(order.messages, NOT_DELAYED, dtype=np.int64)
    if order.is_shuffled:
        after_first = np.random.default_rng(195).integers(0, order.spread_ms, order.messages, endpoint=True)
    else:
        after_first = np.arange(order.messages) * order.spread_ms // order.messages
    return np.asarray(now_ms + order.lead_ms + after_first, dtype=np.int64)


def _payloads(order: ProduceOrder, deliver_at_ms: NDArray[np.int64]) -> Iterator[bytes]:
    padding = b"x" * (order.payload_bytes - PAYLOAD_HEAD.size)
    pack = PAYLOAD_HEAD.pack
    return (pack(number, due) + padding for number, due in enumerate(deliver_at_ms.tolist()))


def _keys(order: ProduceOrder) -> Iterator[str]:
    return cycle([f"key-{number}" for number in range(order.keys)])


def _new_client(url: str) -> pulsar.Client:
    # Never a Python logger: with one, a process now and then aborts at its exit (pulsar-client-python, issue 256).
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=30)


def _subscribe(order: ConsumeOrder) -> tuple[pulsar.Client, pulsar.Consumer]:
    """Subscribe as soon as the service lets one, also if it refuses at first."""
    deadline = time.monotonic() + _CONNECT_TIMEOUT_S
    while True:
        client = _new_client(order.url)
        try:
            consumer = client.subscribe(
                order.topic,
                order.subscription,
                consumer_type=pulsar.ConsumerType.KeyShared,
                initial_position=pulsar.InitialPosition.Earliest,
            )
        except pulsar.PulsarException:
            client.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(_CONNECT_RETRY_S)
        else:
            return client, consumer


def _tell(event: str, **values: Any) -> None:
    sys.stdout.write(json.dumps({"event": event} | values) + "\n")
    sys.stdout.flush()


def _wait_for_line() -> None:
    if not sys.stdin.readline():
        raise SystemExit("the benchmark has gone")


def main(arguments: list[str]) -> int:
    """Carry out one order."""
    if len(arguments) != 2 or arguments[0] not in ("produce", "consume"):
        sys.stderr.write(__doc__ or "")
        for order in (ProduceOrder, ConsumeOrder):
            sys.stderr.write(f"\n{order.__name__}: {', '.join(field.name for field in dataclasses.fields(order))}\n")
        return 2
    values = json.loads(arguments[1])
    if arguments[0] == "produce":
        produce(ProduceOrder(**values))
    else:
        consume(ConsumeOrder(**values))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
