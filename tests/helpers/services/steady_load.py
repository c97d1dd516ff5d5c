"""A load that goes on through failures, and what must hold of it: each topic has a producer and a consumer."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise

import pulsar

KEYS = 5
DELAYED_SHARE = 3
"""Each third message is delayed."""
DELAY = timedelta(seconds=1)
ACKNOWLEDGED_S_MAX = 4.0
"""A message that was received so long before something happened is acknowledged for good: a client sends
acknowledgements after 0.1 s, the service stores them within a second, and this machine may be busy."""
_POLL_MS = 200
_MISSING_S_MAX = 60.0


class SteadyLoad:
    """Sends numbers to topics and receives them, until `end`.

    Args:
        client: The client of all producers and consumers.
        topics: The topics.
    """

    def __init__(self, client: pulsar.Client, topics: Iterable[str]) -> None:
        self.streams = {topic: _OneTopicLoad(client, topic) for topic in topics}

    def grows(self, more: int = 20, *, timeout_s: float = _MISSING_S_MAX) -> None:
        """Wait until each topic has had so many more receipts, and messages received."""
        goals = {one: (one.sent + more, len(one.received) + more) for one in self.streams.values()}
        ends_at_s = time.monotonic() + timeout_s
        while any(one.sent < sent or len(one.received) < received for one, (sent, received) in goals.items()):
            assert time.monotonic() < ends_at_s, {one.topic: (one.sent, len(one.received)) for one in goals}
            time.sleep(0.02)

    def end(self) -> None:
        """Stop sending, and wait for all that was sent."""
        for one in self.streams.values():
            one.is_ending.set()
        for one in self.streams.values():
            one.join()

    def check(self, *events_s: float) -> None:
        """Check that nothing is lost, each key is in order, and only what was not acknowledged came again.

        Args:
            events_s: The times of what has happened, by `time.monotonic`.
        """
        for one in self.streams.values():
            one.check(events_s)

    def pauses(self, since_s: float) -> dict[str, float]:
        """Return the longest time between two receipts since then, by topic, in seconds."""
        return {topic: one.pause_s(since_s) for topic, one in self.streams.items()}


class _OneTopicLoad:
    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.topic = topic
        self._consumer = client.subscribe(topic, "load", consumer_type=pulsar.ConsumerType.KeyShared)
        self._producer = client.create_producer(topic, send_timeout_millis=0, batching_enabled=False)
        self.is_ending = threading.Event()
        self._is_all_sent = threading.Event()
        self.sent = 0
        self.receipts_s: list[float] = []
        self.received: list[tuple[int, float]] = []
        """Numbers, and when they came."""
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._send, self._receive)]
        for one in self._threads:
            one.start()

    def _send(self) -> None:
        while not self.is_ending.is_set():
            number = self.sent
            delay = DELAY if number % DELAYED_SHARE == 0 else None
            self._producer.send(str(number).encode(), partition_key=str(number % KEYS), deliver_after=delay)
            self.receipts_s.append(time.monotonic())
            self.sent += 1
        self._is_all_sent.set()

    def _receive(self) -> None:
        last_s = time.monotonic()
        while not self._is_all_sent.is_set() or len({number for number, _ in self.received}) < self.sent:
            try:
                message = self._consumer.receive(_POLL_MS)
            except pulsar.Timeout:
                if self._is_all_sent.is_set() and time.monotonic() - last_s > _MISSING_S_MAX:
                    return
                continue
            last_s = time.monotonic()
            if message.data().isdigit():
                self.received.append((int(message.data()), last_s))
            self._consumer.acknowledge(message)

    def join(self) -> None:
        for one in self._threads:
            one.join(2 * _MISSING_S_MAX)
            assert not one.is_alive(), f"{self.topic}: {self.sent} sent, {len(self.received)} received"

    def pause_s(self, since_s: float) -> float:
        times = [since_s, *(one for one in self.receipts_s if one >= since_s)]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def check(self, events_s: Iterable[float]) -> None:
        first_s: dict[int, float] = {}
        again: list[tuple[int, float]] = []
        for number, at_s in self.received:
            if number in first_s:
                again.append((number, first_s[number]))
            else:
                first_s[number] = at_s
        assert {*range(self.sent)} <= first_s.keys(), (self.topic, sorted({*range(self.sent)} - first_s.keys())[:20])
        orders: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
        for number in first_s:
            orders[number % KEYS, number % DELAYED_SHARE == 0].append(number)
        for order in orders.values():
            assert order == sorted(order), (self.topic, order)
        for number, at_s in again:
            assert any(at_s > event_s - ACKNOWLEDGED_S_MAX for event_s in events_s), (self.topic, number)
