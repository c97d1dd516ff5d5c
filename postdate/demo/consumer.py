"""A consumer that records its deliveries and acknowledgements with their times.

Each consumer has a client and a thread of its own. (Measured: threads and processes see the same lateness at 1,000
messages a second, 1.1 ms in the median, and threads start faster.) It holds each message for a random time before it
acknowledges, as an application with work would. Without that time, a message at two consumers at once would hardly ever
show in the record.
"""

import heapq
import random
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pulsar

from postdate.demo.verdict import NEVER, Deliveries

SUBSCRIPTION: Final = "demo"
KEY_PREFIX: Final = "key-"

_RECEIVE_TIMEOUT_MS: Final = 50
"""The time after which a consumer without messages checks whether it has to leave."""

_OPERATION_TIMEOUT_S: Final = 15


def new_client(url: str, log_path: Path) -> pulsar.Client:
    """Make a client whose own log, noisy while the service is down, goes to a file.

    Never a Python logger: with one, a process now and then aborts at its exit (pulsar-client-python, issue 256).
    """
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log_path))
    return pulsar.Client(url, operation_timeout_seconds=_OPERATION_TIMEOUT_S, logger=logger)


class RecordingConsumer(threading.Thread):
    """One Key_Shared consumer; `start` it, `leave` and `join` it, then read `deliveries`.

    Args:
        number: Its number, from 0.
        client: Its own client, closed with it.
        topic: The topic that it consumes.
        seen: Positions that any consumer has received; each adds its own.
        hold_ms_max: It acknowledges each message between 0 and this many milliseconds after it received it.
    """

    def __init__(
        self, number: int, client: pulsar.Client, topic: str, *, seen: set[tuple[int, int]], hold_ms_max: int
    ) -> None:
        super().__init__(name=f"consumer-{number + 1}", daemon=True)
        self.number = number
        self.failure: BaseException | None = None
        self._client = client
        self._seen = seen
        self._hold_ns_max = hold_ms_max * 1_000_000
        self._random = random.Random(number)
        self._is_leaving = threading.Event()
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self._acked_ns: list[int] = []
        # Held messages, in order of the time of their acknowledgement.
        self._held: list[tuple[int, int, Any]] = []
        self._consumer = client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.KeyShared,
            consumer_name=self.name,
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def run(self) -> None:
        try:
            while not self._is_leaving.is_set():
                self._receive_one()
                self._acknowledge(until_ns=time.time_ns())
            # It receives nothing more and acknowledges its messages, so that none of them is delivered twice.
            self._acknowledge(until_ns=NEVER)
            self._consumer.close()
            self._client.close()
        except Exception as error:
            # An exception of a thread has no caller; `join` raises it.
            self.failure = error

    def leave(self) -> None:
        """Begin to leave; `join` waits for the end."""
        self._is_leaving.set()

    def abandon(self) -> None:
        """End at once, without waiting for the service."""
        self._is_leaving.set()
        self._client.shutdown()

    @property
    def deliveries(self) -> Deliveries:
        """The record, once the thread has ended."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 6).T
        return Deliveries(
            consumers=np.full(len(self._rows), self.number, dtype=np.int64),
            ledger_ids=rows[0],
            entry_ids=rows[1],
            keys=rows[2],
            deliver_at_ms=rows[3],
            received_ns=rows[4],
            acked_ns=np.array(self._acked_ns, dtype=np.int64),
            redelivery_counts=rows[5],
        )

    def _receive_one(self) -> None:
        timeout_ms = _RECEIVE_TIMEOUT_MS
        if self._held:
            timeout_ms = min(timeout_ms, max(1, (self._held[0][0] - time.time_ns()) // 1_000_000))
        try:
            message = self._consumer.receive(timeout_ms)
        except pulsar.Timeout:
            return
        now_ns = time.time_ns()
        message_id = message.message_id()
        position = (message_id.ledger_id(), message_id.entry_id())
        key = int(message.partition_key().removeprefix(KEY_PREFIX))
        row = len(self._rows)
        self._rows.append((*position, key, int(message.data()), now_ns, message.redelivery_count()))
        self._acked_ns.append(NEVER)
        self._seen.add(position)
        heapq.heappush(self._held, (now_ns + self._random.randint(0, self._hold_ns_max), row, message))

    def _acknowledge(self, *, until_ns: int) -> None:
        while self._held and self._held[0][0] <= until_ns:
            _, row, message = heapq.heappop(self._held)
            # Noted before the acknowledgement: after it the next owner might already have received a message.
            self._acked_ns[row] = time.time_ns()
            self._consumer.acknowledge(message)
