"""Key_Shared: one consumer for a key at a time, and each key in order, while consumers come and go."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pulsar
import pytest
from pulsar import ConsumerType

from tests.helpers.services.programs.clients import (
    Clients,
    drain,
    nothing_comes,
    now_ms,
    receive,
    subscribe,
    texts,
    wait_for,
)

KEYS = [f"key-{i}" for i in range(60)]


class Watcher:
    """A Key_Shared consumer in a thread, which notes when it holds what and acknowledges after a while."""

    def __init__(self, clients: Clients, topic: str, name: str, *, hold_s: float) -> None:
        # A small queue keeps the others busy too: a consumer holds the messages in its queue.
        self.consumer = subscribe(
            clients.new(), topic, ConsumerType.KeyShared, consumer_name=name, receiver_queue_size=50
        )
        self.seen: list[tuple[float, float, str, int]] = []
        """(received, acknowledged, key, number) in order of arrival."""
        self._hold_s = hold_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop receiving and close; messages in the queue go back."""
        self._ended.set()
        self._thread.join()
        self.consumer.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                message = self.consumer.receive(100)
            except pulsar.Timeout:
                continue
            received = time.monotonic()
            time.sleep(self._hold_s)
            key, number = message.data().decode().split(":")
            # The note is taken before the acknowledgement, so that the next owner cannot be noted first.
            self.seen.append((received, time.monotonic(), key, int(number)))
            self.consumer.acknowledge(message)


def assert_ordered_and_exclusive(watchers: list[Watcher], per_key: int, *, may_repeat: Watcher | None) -> None:
    """Assert that every key came whole, in order, and from one hand to the next.

    Messages that `may_repeat` has acknowledged just before it left may come once more.
    """
    by_key = defaultdict(list)
    for watcher in watchers:
        for received, acknowledged, key, number in watcher.seen:
            by_key[key].append((received, acknowledged, number, watcher))

    assert sorted(by_key) == sorted(KEYS)
    for key, seen in by_key.items():
        seen.sort(key=lambda one: one[0])
        repeated = [
            index
            for index, (before, after) in enumerate(pairwise(seen))
            if before[2] == after[2] and before[3] is may_repeat and after[3] is not may_repeat
        ]
        for index in reversed(repeated):
            del seen[index]
        assert [number for _, _, number, _ in seen] == list(range(per_key)), key
        for before, after in pairwise(seen):
            if before[3] is not after[3]:
                assert before[1] <= after[0], f"{key} was held twice at once"


def run_with_changes(
    clients: Clients,
    topic: str,
    send: Callable[[pulsar.Producer, str, int], None],
    *,
    per_key: int,
    is_real_pulsar: bool,
) -> None:
    """Send to three consumers, of which one leaves while another joins; then look at what they saw."""
    watchers = [Watcher(clients, topic, name, hold_s=0.001) for name in ("a", "b", "c")]
    producer = clients.new().create_producer(topic, max_pending_messages=20_000)
    total = per_key * len(KEYS)

    def seen() -> int:
        return len({(key, number) for watcher in watchers for _, _, key, number in list(watcher.seen)})

    for number in range(per_key):
        for key in KEYS:
            send(producer, key, number)
    producer.flush()
    wait_for(lambda: seen() > total // 4)
    watchers.append(Watcher(clients, topic, "d", hold_s=0.001))
    wait_for(lambda: seen() > total // 2)
    watchers[0].leave()
    wait_for(lambda: seen() >= total, timeout_s=30)
    for watcher in watchers[1:]:
        watcher.leave()

    try:
        # On a busy machine a real Pulsar gave away again what a leaver had acknowledged just before it closed.
        assert_ordered_and_exclusive(watchers, per_key, may_repeat=watchers[0] if is_real_pulsar else None)
    except AssertionError as error:
        # At load 5 it let messages overtake, 1 run of some 20. It is asked here, and Postdate alone has to pass.
        if is_real_pulsar:
            pytest.xfail(f"a real Pulsar lost the order of a key: {str(error).splitlines()[0]}")
        raise
    assert all(watcher.seen for watcher in watchers)


def test_each_key_stays_in_order_while_consumers_come_and_go(
    clients: Clients, topic: str, is_real_pulsar: bool
) -> None:
    """Immediate messages: in the order in which they were sent."""

    def send(producer: pulsar.Producer, key: str, number: int) -> None:
        producer.send_async(f"{key}:{number}".encode(), None, partition_key=key)

    run_with_changes(clients, topic, send, per_key=40, is_real_pulsar=is_real_pulsar)


def test_delayed_messages_stay_in_order_within_their_key(clients: Clients, topic: str, is_real_pulsar: bool) -> None:
    """Delayed messages: in the order of their times, which here is the reverse of how they were sent."""
    per_key = 12
    start_ms = now_ms() + 1000

    def send(producer: pulsar.Producer, key: str, number: int) -> None:
        turned = per_key - 1 - number
        # A real Pulsar delivers what falls due within one tick, here 100 ms, in log order: stay clear of that.
        deliver_at_ms = start_ms + turned * 250
        producer.send_async(f"{key}:{turned}".encode(), None, partition_key=key, deliver_at=deliver_at_ms)

    run_with_changes(clients, topic, send, per_key=per_key, is_real_pulsar=is_real_pulsar)


def test_a_key_moves_only_when_its_old_consumer_is_done(clients: Clients, topic: str) -> None:
    """A newcomer gets nothing of a key that has an unacknowledged message elsewhere, and gets it then."""
    old = subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name="old")
    producer = clients.new().create_producer(topic)
    held = {}
    for key in KEYS:
        producer.send(b"1", partition_key=key)
    for message in receive(old, len(KEYS)):
        held[message.partition_key()] = message

    new = subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name="new")
    for key in KEYS:
        producer.send(b"2", partition_key=key)
    stayed = {message.partition_key() for message in drain(old, ack=False)}
    quiet = nothing_comes(new)
    for message in held.values():
        old.acknowledge(message)
    moved = {message.partition_key() for message in drain(new)}

    assert quiet, "the newcomer got a key that the old consumer still holds"
    # About half of the keys move; with 60 keys neither side is ever empty.
    assert stayed
    assert moved
    assert stayed | moved == set(KEYS)
    assert not stayed & moved


def test_the_ordering_key_goes_before_the_partition_key(clients: Clients, topic: str) -> None:
    """Messages with one ordering key go to one consumer, with any partition keys."""
    consumers = [subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name=name) for name in "abc"]
    producer = clients.new().create_producer(topic)

    for key in KEYS:
        producer.send(b"x", partition_key=key, ordering_key="one")

    assert sorted(len(drain(consumer)) for consumer in consumers) == [0, 0, len(KEYS)]


def test_a_nacked_message_stays_with_its_key(clients: Clients, topic: str) -> None:
    """It comes again to the consumer that has its key, and to no other."""
    consumers = [
        subscribe(
            clients.new(),
            topic,
            ConsumerType.KeyShared,
            consumer_name=name,
            negative_ack_redelivery_delay_ms=100,
        )
        for name in "ab"
    ]
    clients.new().create_producer(topic).send(b"x", partition_key="k")
    owner = next(consumer for consumer in consumers if (message := first_or_none(consumer)))
    other = next(consumer for consumer in consumers if consumer is not owner)

    owner.negative_acknowledge(message)
    again = owner.receive(10_000)

    assert again.redelivery_count() == 1
    assert nothing_comes(other)


def first_or_none(consumer: pulsar.Consumer) -> pulsar.Message | None:
    """Return the first message if one comes soon."""
    try:
        return consumer.receive(1000)
    except pulsar.Timeout:
        return None


def test_one_stuck_key_does_not_stop_the_others(clients: Clients, topic: str) -> None:
    """A consumer that never acknowledges one key still gets all the others, also delayed ones."""
    consumer = subscribe(clients.new(), topic, ConsumerType.KeyShared)
    producer = clients.new().create_producer(topic)
    producer.send(b"stuck", partition_key="stuck")
    stuck = receive(consumer, 1)

    for key in KEYS:
        producer.send(b"x", partition_key=key, deliver_after=timedelta(milliseconds=300))
    others = receive(consumer, len(KEYS))

    assert texts(stuck) == ["stuck"]
    assert {message.partition_key() for message in others} == set(KEYS)
