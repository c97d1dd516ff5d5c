"""The rows that may be handed out next, in order of time, without regard to positions. Pulsar's two priority queues.

Rows are in several queues: the loaded ones (segments, and what was kept when a bucket left memory), the mutable
bucket's, and one for each bucket whose snapshot is not durable yet, which leaves memory as a whole. They are read as
one. Whether a row still counts is not known here: that is `positions`.

A storage that is slower than the adds may leave a thousand buckets unsealed, and some things are asked of all of them
in every turn: so their earliest time and the number of their rows are kept, and counted again only when rows are taken.
"""

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tracker.columns.row_order import NEVER, Columns, RowKey
from tracker.columns.row_queue import POP_ROWS_MIN, RUN_ROWS_MIN, QueueSizes, RowQueue, pop_sorted
from tracker.core.sources import MUTABLE


class Popped(NamedTuple):
    """Rows that were taken in order, and what was taken beyond them."""

    rows: Columns
    rest: Columns
    """Rows that were taken with the others, in order; to be put back or dropped."""
    sources: list[int]
    """Buckets with rows among both, beside loaded ones: serials, or `MUTABLE`."""


class DueRows:
    """All queues of one tracker.

    Args:
        loaded_row_count_max: As in the configuration: small polls merge this many rows at a time, if not fewer, and
            rows are packed from half as many on. So a small limit meets all that a large one does.
    """

    def __init__(self, loaded_row_count_max: int) -> None:
        self._sizes = QueueSizes(
            pop_rows_min=min(POP_ROWS_MIN, loaded_row_count_max),
            run_rows_min=min(RUN_ROWS_MIN, 1 + loaded_row_count_max // 2),
        )
        self.loaded = RowQueue(self._sizes)
        self.mutable = RowQueue(self._sizes)
        self._unsealed: dict[int, RowQueue] = {}
        """By the bucket's serial, in the order in which they came."""
        self._unsealed_times: list[tuple[int, int]] = []
        """A heap of their first times and serials; also of some that are gone."""
        self._unsealed_row_count = 0
        self._empty: dict[int, None] = {}
        self.popped: dict[int, None] = {}
        """Unsealed buckets of which rows were taken from the front."""

    # Asking.

    @property
    def unsealed(self) -> Mapping[int, RowQueue]:
        """The queues of buckets whose snapshot is not durable, by serial; for reading only."""
        return self._unsealed

    @property
    def unsealed_row_count(self) -> int:
        """How many rows these have."""
        return self._unsealed_row_count

    @property
    def emptied(self) -> Collection[int]:
        """Which of these have no row any more; for reading only."""
        return self._empty

    @property
    def _unsealed_next_deliver_at_ms(self) -> int:
        deliver_at_ms = self._unsealed_times
        while deliver_at_ms:
            next_deliver_at_ms, serial = deliver_at_ms[0]
            queue = self._unsealed.get(serial)
            if queue is not None and queue.next_deliver_at_ms == next_deliver_at_ms:
                return next_deliver_at_ms
            heappop(deliver_at_ms)
        return NEVER

    @property
    def next_deliver_at_ms(self) -> int:
        """The earliest time of a row, `NEVER` if there is none."""
        # PERFORMANCE: this is asked after each single add, and `min` costs as much as all the rest.
        mutable_ms, loaded_ms = self.mutable.next_deliver_at_ms, self.loaded.next_deliver_at_ms
        first_ms = mutable_ms if mutable_ms < loaded_ms else loaded_ms
        return min(first_ms, self._unsealed_next_deliver_at_ms) if self._unsealed else first_ms

    @property
    def row_count(self) -> int:
        """How many rows there are, including those of positions that are tracked no more."""
        return len(self.loaded) + len(self.mutable) + self._unsealed_row_count

    @property
    def queues(self) -> list[RowQueue]:
        """All queues."""
        return [self.loaded, self.mutable, *self._unsealed.values()]

    def due_sources(self, through_ms: int) -> list[int]:
        """Return whose rows begin by a time, beside loaded ones."""
        sources = [MUTABLE] if self.mutable.next_deliver_at_ms <= through_ms else []
        if self._unsealed_next_deliver_at_ms <= through_ms:
            sources += [serial for serial, queue in self._unsealed.items() if queue.next_deliver_at_ms <= through_ms]
        return sources

    def queue_of(self, source: int) -> RowQueue:
        """Return the queue of an unsealed bucket or the mutable one."""
        return self.mutable if source == MUTABLE else self._unsealed[source]

    # Rows come and go.

    def seal_mutable(self, serial: int) -> RowQueue:
        """Let the mutable bucket's rows be those of an unsealed one, and begin a new queue."""
        queue, self.mutable = self.mutable, RowQueue(self._sizes)
        assert len(queue)
        self._unsealed[serial] = queue
        self._unsealed_row_count += len(queue)
        heappush(self._unsealed_times, (queue.next_deliver_at_ms, serial))
        return queue

    def drop_mutable(self) -> None:
        """Forget the mutable bucket's rows."""
        self.mutable = RowQueue(self._sizes)

    def take_unsealed(self, serial: int) -> RowQueue:
        """Let go of an unsealed bucket's rows, and return them."""
        queue = self._unsealed.pop(serial)
        self._unsealed_row_count -= len(queue)
        self._empty.pop(serial, None)
        self.popped.pop(serial, None)
        return queue

    def pop(self, through: RowKey, limit: int, sources: Iterable[int]) -> Popped | None:
        """Take rows at or before a key, in order, those of these sources and loaded ones; None if there are none.

        Fewer than `limit` may come although more are due: call again until none come.
        """
        counts = [(source, len(self.queue_of(source))) for source in sources]
        rows, rest = pop_sorted(self.queues, through, limit)
        if not len(rows[0]):
            return None
        touched = [source for source, count in counts if len(self.queue_of(source)) != count]
        self.note_taken(touched)
        return Popped(rows, rest, touched)

    def note_taken(self, sources: Iterable[int] | None = None) -> None:
        """Count again: rows of these sources were taken, or of unknown ones (None)."""
        changed = list(self._unsealed) if sources is None else [source for source in sources if source != MUTABLE]
        if sources is not None:
            self.popped.update(dict.fromkeys(changed))
        if not changed:
            return
        self._unsealed_times = [(queue.next_deliver_at_ms, serial) for serial, queue in self._unsealed.items()]
        heapify(self._unsealed_times)
        self._unsealed_row_count = sum(map(len, self._unsealed.values()))
        self._empty = {serial: None for serial, queue in self._unsealed.items() if queue.next_deliver_at_ms == NEVER}

    def clear(self) -> None:
        """Forget every row."""
        self.loaded, self.mutable = RowQueue(self._sizes), RowQueue(self._sizes)
        self._unsealed, self._unsealed_times, self._empty, self.popped = {}, [], {}, {}
        self._unsealed_row_count = 0

    def check(self) -> None:
        """Assert every invariant."""
        for queue in self.queues:
            queue.check()
        assert self.next_deliver_at_ms == min(queue.next_deliver_at_ms for queue in self.queues)
        assert self._unsealed_row_count == sum(map(len, self._unsealed.values()))
        assert self._empty.keys() == {
            serial for serial, queue in self._unsealed.items() if queue.next_deliver_at_ms == NEVER
        }
        assert self.popped.keys() <= self._unsealed.keys()
