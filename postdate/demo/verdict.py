"""Judge a record of deliveries: lost, early, out of order, at two consumers at once, or duplicate.

Pure functions over columns: the published messages (from the receipts), the deliveries and acknowledgements of every
consumer, and the times of the kill and the restart. The record is judged from the consumers' side:

- A consumer holds a message from its receipt until its acknowledgement. The service holds it pending for longer at both
  ends, so two consumers whose times overlap on one key are always a fault.
- The kill releases all pending messages. The service has two *lives*, and a delivery belongs to the life that sent it:
  the second if it came after the start of the second process. A client may still hand out messages of the first life
  a moment after the kill, so the service must stay down for longer than that moment.
- An acknowledgement has no answer, and the client gathers them for up to 100 ms. So a message counts as unacknowledged
  at the kill if it was acknowledged less than a grace before, and may come once more.

Times are wall-clock nanoseconds of one machine; delivery times are milliseconds of the same clock. Left out are
clients, processes and the screen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from managed_ledger.positions.value_types import Int64Array, Mask

NEVER: Final = int(np.iinfo(np.int64).max)
"""The time of an acknowledgement that did not happen."""

EXAMPLES_MAX: Final = 5
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PublishedMessages:
    """Messages that the service has confirmed, one row each."""

    ledger_ids: Int64Array
    entry_ids: Int64Array
    keys: Int64Array
    deliver_at_ms: Int64Array

    def __len__(self) -> int:
        return len(self.ledger_ids)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Deliveries:
    """The deliveries, one row each; the rows of one consumer are in the order of their receipt."""

    consumers: Int64Array
    ledger_ids: Int64Array
    entry_ids: Int64Array
    keys: Int64Array
    deliver_at_ms: Int64Array
    received_ns: Int64Array
    acked_ns: Int64Array
    redelivery_counts: Int64Array

    def __len__(self) -> int:
        return len(self.consumers)

    def describe(self, row: int) -> str:
        """Write one delivery for a reader."""
        return (
            f"({self.ledger_ids[row]}, {self.entry_ids[row]}) of key {self.keys[row]} "
            f"due {_time_of_day(int(self.deliver_at_ms[row]) * _NS_PER_MS)} "
            f"at consumer {self.consumers[row] + 1} {_time_of_day(int(self.received_ns[row]))}, "
            f"acknowledged {_time_of_day(int(self.acked_ns[row]))}, redelivery {self.redelivery_counts[row]}"
        )


@dataclass(frozen=True, slots=True)
class Outage:
    """When the service was killed, and when its next process was started."""

    killed_ns: int
    restarted_ns: int


@dataclass(frozen=True, slots=True)
class FaultExamples:
    """One kind of fault: its count, and the first cases."""

    count: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lateness:
    """The lateness of messages, in milliseconds; without a message all values are 0."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of a record.

    Attributes:
        delivered: Different messages that arrived.
        lost: Published messages that never arrived.
        altered: Deliveries of unpublished messages, or with another key or time than the published one.
        early: Deliveries before their time.
        out_of_order: Deliveries after one of the same key that comes later by (time due, position): among the first
            deliveries of the whole record, and among the first ones in each life of the service.
        two_owners: Keys of which two consumers held messages at the same time.
        duplicates_other: Repeated deliveries that the kill does not excuse.
        duplicates_at_kill: Repeated deliveries of messages that were unacknowledged at the kill.
        ack_lost_before_kill_ms_max: How long before the kill the oldest acknowledgement was made that it undid.
        lateness_up: Of messages that fell due while the service and all its consumers were there.
        lateness_outage: Of messages that fell due, or were waiting, from the kill until all consumers were back.
        first_delivery_ns: The first delivery of the second life, `NEVER` without one.
        all_back_ns: When the last consumer of both lives had its first delivery in the second.
    """

    delivered: int
    lost: FaultExamples
    altered: FaultExamples
    early: FaultExamples
    out_of_order: FaultExamples
    two_owners: FaultExamples
    duplicates_other: FaultExamples
    duplicates_at_kill: int
    ack_lost_before_kill_ms_max: float
    lateness_up: Lateness
    lateness_outage: Lateness
    first_delivery_ns: int
    all_back_ns: int

    @property
    def faults(self) -> dict[str, FaultExamples]:
        """All faults, by their names in the table."""
        return {
            "lost": self.lost,
            "altered": self.altered,
            "early": self.early,
            "out of order within a key": self.out_of_order,
            "keys with two owners at once": self.two_owners,
            "duplicates, other": self.duplicates_other,
        }

    @property
    def is_clean(self) -> bool:
        """Whether the record has no fault."""
        return not any(finding.count for finding in self.faults.values())


def judge(published: PublishedMessages, deliveries: Deliveries, outage: Outage, *, ack_grace_ms: int) -> Verdict:
    """Judge a whole record.

    Args:
        published: The messages that must arrive.
        deliveries: The deliveries, in any order between consumers.
        outage: The kill and the restart.
        ack_grace_ms: An acknowledgement of the application younger than this at the kill counts as not made.
    """
    record = _Record(published, deliveries, outage)
    excused = record.is_excused(ack_grace_ms)
    undone = record.acks_undone_ns(excused)
    all_back_ns = record.all_back_ns()
    lateness_ms = deliveries.received_ns / _NS_PER_MS - deliveries.deliver_at_ms
    due_ns = deliveries.deliver_at_ms * _NS_PER_MS
    is_across = (due_ns >= outage.killed_ns) & (due_ns <= all_back_ns)
    # Due before the kill and not handed out by then: they waited through the outage too.
    is_across |= (due_ns < outage.killed_ns) & (record.lives == 1)
    second = deliveries.received_ns[record.lives == 1]
    return Verdict(
        delivered=int(record.is_first.sum()),
        lost=record.lost(),
        altered=_finding(record.is_altered(), deliveries.describe),
        early=_finding(deliveries.received_ns < due_ns, deliveries.describe),
        out_of_order=_finding(record.is_out_of_order(), deliveries.describe),
        two_owners=record.two_owners(),
        duplicates_other=_finding(~record.is_first & ~excused, deliveries.describe),
        duplicates_at_kill=int(excused.sum()),
        ack_lost_before_kill_ms_max=max(0.0, float(outage.killed_ns - undone.min(initial=NEVER)) / _NS_PER_MS),
        lateness_up=_lateness(lateness_ms[record.is_first & ~is_across]),
        lateness_outage=_lateness(lateness_ms[record.is_first & is_across]),
        first_delivery_ns=int(second.min(initial=NEVER)),
        all_back_ns=all_back_ns,
    )


class _Record:
    """The deliveries in order of receipt, with columns that several checks share."""

    def __init__(self, published: PublishedMessages, deliveries: Deliveries, outage: Outage) -> None:
        self._published = published
        self._deliveries = deliveries
        self._outage = outage
        # Stable, so that receipts of one consumer within one tick of the clock keep their order.
        self._by_time = np.argsort(deliveries.received_ns, kind="stable")
        self.lives = (deliveries.received_ns >= outage.restarted_ns).astype(np.int64)
        self._messages = _message_numbers(published, deliveries)
        self.is_first = self._first_of(self._messages)
        self._is_first_of_life = self._first_of(self._messages * 2 + self.lives)

    def lost(self) -> FaultExamples:
        rows = self._published
        is_lost = ~np.isin(np.arange(len(rows)), self._messages)
        return _finding(is_lost, lambda row: f"({rows.ledger_ids[row]}, {rows.entry_ids[row]}) of key {rows.keys[row]}")

    def is_altered(self) -> Mask:
        if not len(self._published):
            return np.ones(len(self._deliveries), dtype=np.bool_)
        rows = np.where(self._messages < len(self._published), self._messages, 0)
        is_same: Mask = self._published.keys[rows] == self._deliveries.keys
        is_same &= self._published.deliver_at_ms[rows] == self._deliveries.deliver_at_ms
        is_same &= self._messages < len(self._published)
        return ~is_same

    def is_out_of_order(self) -> Mask:
        of_all = self._comes_after_a_later_one(self._deliveries.keys, self.is_first)
        of_life = self._comes_after_a_later_one(self._deliveries.keys * 2 + self.lives, self._is_first_of_life)
        return of_all | of_life

    def two_owners(self) -> FaultExamples:
        """Find keys held by two consumers, in one sweep over each key's deliveries in order of receipt."""
        rows = self._deliveries
        killed_ns = self._outage.killed_ns
        # Lives are judged apart, since the kill releases everything. A message of the first life that its consumer took
        # from its client's queue after the kill was pending at the kill.
        start_ns = np.where(self.lives == 0, np.minimum(rows.received_ns, killed_ns), rows.received_ns)
        examples: dict[int, str] = {}
        held_until: dict[int, tuple[int, int]] = {}
        group = None
        for row in np.lexsort((start_ns, rows.keys, self.lives)).tolist():
            key, consumer = int(rows.keys[row]), int(rows.consumers[row])
            if group != (self.lives[row], key):
                group, held_until = (self.lives[row], key), {}
            end = int(rows.acked_ns[row])
            for other, (until, other_row) in held_until.items():
                # Half-open: a key may move in the moment in which it is acknowledged.
                if other != consumer and until > start_ns[row]:
                    examples.setdefault(key, f"{rows.describe(other_row)}; {rows.describe(row)}")
            if end > held_until.get(consumer, (0, 0))[0]:
                held_until[consumer] = (end, row)
        return FaultExamples(len(examples), tuple(examples.values())[:EXAMPLES_MAX])

    def is_excused(self, ack_grace_ms: int) -> Mask:
        """Mark the repetitions that the kill excuses: the first of the second life, if the first life had no ack."""
        acked_ns = self._acked_in_first_life_ns()
        excused = acked_ns >= self._outage.killed_ns - ack_grace_ms * _NS_PER_MS
        excused &= self._is_first_of_life & ~self.is_first
        return excused

    def acks_undone_ns(self, excused: Mask) -> Int64Array:
        """Give when the messages of these deliveries had been acknowledged before."""
        return self._acked_in_first_life_ns()[excused]

    def all_back_ns(self) -> int:
        rows = self._deliveries
        firsts = [
            rows.received_ns[(rows.consumers == consumer) & (self.lives == 1)].min(initial=NEVER)
            for consumer in np.unique(rows.consumers[self.lives == 0])
        ]
        return max((int(first) for first in firsts if first != NEVER), default=self._outage.restarted_ns)

    def _acked_in_first_life_ns(self) -> Int64Array:
        """Give for each delivery when its message was first acknowledged before the restart, `NEVER` if not."""
        earliest = np.full(int(self._messages.max(initial=-1)) + 1, NEVER, dtype=np.int64)
        in_first = self.lives == 0
        np.minimum.at(earliest, self._messages[in_first], self._deliveries.acked_ns[in_first])
        return earliest[self._messages]

    def _first_of(self, groups: Int64Array) -> Mask:
        """Mark the delivery of each group that was received first."""
        is_first = np.zeros(len(groups), dtype=np.bool_)
        is_first[self._by_time[np.unique(groups[self._by_time], return_index=True)[1]]] = True
        return is_first

    def _comes_after_a_later_one(self, groups: Int64Array, among: Mask) -> Mask:
        """Mark deliveries, among these, received after one of their group with a later (time due, position)."""
        rows = self._deliveries
        rank = np.empty(len(rows), dtype=np.int64)
        rank[np.lexsort((rows.entry_ids, rows.ledger_ids, rows.deliver_at_ms))] = np.arange(len(rows))
        chosen = self._by_time[among[self._by_time]]
        chosen = chosen[np.argsort(groups[chosen], kind="stable")]
        # Each group's ranks are lifted above those of the groups before, so one running maximum serves all.
        lifted = rank[chosen] + np.unique(groups[chosen], return_inverse=True)[1] * len(rows)
        marked = np.zeros(len(rows), dtype=np.bool_)
        marked[chosen[lifted < np.maximum.accumulate(lifted)]] = True
        return marked


def _message_numbers(published: PublishedMessages, deliveries: Deliveries) -> Int64Array:
    """Number the messages: published ones by their row, others after them."""
    numbers = {
        position: row
        for row, position in enumerate(zip(published.ledger_ids.tolist(), published.entry_ids.tolist(), strict=True))
    }
    assert len(numbers) == len(published), "two receipts gave the same position"
    positions = zip(deliveries.ledger_ids.tolist(), deliveries.entry_ids.tolist(), strict=True)
    return np.array([numbers.setdefault(position, len(numbers)) for position in positions], dtype=np.int64)


def _finding(is_fault: Mask, describe: Callable[[int], str]) -> FaultExamples:
    rows = np.flatnonzero(is_fault).tolist()
    return FaultExamples(len(rows), tuple(describe(row) for row in rows[:EXAMPLES_MAX]))


def _lateness(lateness_ms: NDArray[np.float64]) -> Lateness:
    if not len(lateness_ms):
        return Lateness(0, 0.0, 0.0, 0.0)
    p50_ms, p99_ms, max_ms = np.percentile(lateness_ms, (50, 99, 100)).tolist()
    return Lateness(len(lateness_ms), p50_ms, p99_ms, max_ms)


def _time_of_day(time_ns: int) -> str:
    """Write a time as seconds and milliseconds of its minute, which is enough to follow a story of seconds."""
    return "never" if time_ns == NEVER else f"{time_ns / 1e9 % 60:06.3f}"
