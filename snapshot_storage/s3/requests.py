"""Counts of what was asked of a server, for metrics: a bill is made of requests and of bytes."""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The upper ends of the ranges of durations."""


class RequestOutcome(Enum):
    """How a request ended."""

    DONE = "done"
    CONDITION = "condition"
    """There is no such object, or there is one where none should be: an answer as good as any other."""
    BUSY = "busy"
    """Refused for the moment."""
    FAILED = "failed"
    """Refused for good, or not answered."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The counts since the start, by S3's operation as boto3 writes it, such as `put_object`.

    Attributes:
        requests: How many, by operation and outcome.
        sent_bytes: The bytes of objects that were sent, once for each request.
        received_bytes: The bytes of objects that came.
        seconds: How long requests took to their answer: a number for each range of `SECONDS`, and one beyond.
        seconds_sum: All of that together.
    """

    requests: Mapping[tuple[str, str], int]
    sent_bytes: Mapping[str, int]
    received_bytes: Mapping[str, int]
    seconds: Mapping[str, Sequence[int]]
    seconds_sum: Mapping[str, float]


class S3Requests:
    """Counts requests; any thread may call it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._seconds: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))
        self._seconds_sum: defaultdict[str, float] = defaultdict(float)

    def note(self, operation: str, outcome: RequestOutcome, seconds: float, sent_bytes: int) -> None:
        """Count a request that has ended."""
        with self._turn:
            self._requests[operation, outcome.value] += 1
            self._sent[operation] += sent_bytes
            self._seconds[operation][bisect_left(SECONDS, seconds)] += 1
            self._seconds_sum[operation] += seconds

    def note_received(self, operation: str, received_bytes: int) -> None:
        """Count the bytes of an answer."""
        with self._turn:
            self._received[operation] += received_bytes

    def counts(self) -> RequestCounts:
        """Return the counts as they are now."""
        with self._turn:
            return RequestCounts(
                dict(self._requests),
                {operation: count for operation, count in self._sent.items() if count},
                dict(self._received),
                {operation: tuple(counts) for operation, counts in self._seconds.items()},
                dict(self._seconds_sum),
            )
