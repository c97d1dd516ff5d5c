"""The cost of the dispatcher's core: `python -m benchmarks dispatcher [FILE]`; with FILE, the figures go there too.

Pure decisions, no payloads and no sockets: headers in, assignments out, acknowledgements in. Numbers are microseconds
of processor time a message, best of three, but for joins and leaves (milliseconds each) and bytes. "The longest call"
is what one turn of the event loop takes at most, collections of garbage included. B1 to B10 are the benchmarks that
the Key_Shared reference asks for.
"""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dispatcher.config import DispatcherConfig, SubscriptionType
from dispatcher.core.actions import Action, Deliver
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.draining_hashes import DrainingHashesTracker
from dispatcher.core.items import Key, position_of
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.read_plan import ReadRequest
from dispatcher.core.selectors.auto_split import HashRangeAutoSplitStickyKeyConsumerSelector
from dispatcher.core.selectors.consistent_hashing import ConsistentHashingStickyKeyConsumerSelector
from dispatcher.factory import make_core
from dispatcher.slots import CONSISTENT_HASHING_RANGE, sticky_hash
from managed_ledger.entries.headers import NO_CHUNK, NOT_DELAYED, EntryHeaders
from managed_ledger.positions.position import Position
from snapshot_storage.encoding.columns import DelayedIndexes

_NOW_MS = 1_800_000_000_000
_BATCH = 500
_CONFIG = DispatcherConfig(unacked_per_consumer_max=0, unacked_per_subscription_max=0)


@dataclass
class _Feed:
    """A core that is fed with consecutive entries."""

    core: MultipleConsumersCore
    next_entry: int = 0

    def __post_init__(self) -> None:
        self.core.advance(_NOW_MS)
        self.core.start(Position(1, 0), Position(1, -1))

    def join(self, number: int, permits: int = 10**9) -> ConsumerState:
        consumer = ConsumerState(number, f"consumer-{number}")
        self.core.add_consumer(consumer)
        self.core.flow(consumer, permits)
        return consumer

    def read(self, headers: EntryHeaders) -> list[Action]:
        self.next_entry += len(headers)
        plan = self.core.plan
        assert plan is not None
        first = plan.ranges[0].scanned_to
        request = ReadRequest(plan.ranges[0], first, None, len(headers), takes_immediate=True)
        return self.core.on_headers(request, headers, Position(1, self.next_entry))

    def headers(self, count: int, hashes: np.ndarray, *, deliver_at_ms: int = NOT_DELAYED) -> EntryHeaders:  # type: ignore[type-arg]
        entry_ids = np.arange(self.next_entry, self.next_entry + count, dtype=np.int64)
        return EntryHeaders(
            np.full(count, 1, dtype=np.int64),
            entry_ids,
            np.full(count, deliver_at_ms, dtype=np.int64),
            np.full(count, _NOW_MS, dtype=np.int64),
            hashes[entry_ids % len(hashes)].astype(np.int32),
            np.full(count, 100, dtype=np.int32),
            np.full(count, 1, dtype=np.int32),
            np.full(count, NO_CHUNK, dtype=np.uint32),
        )


def _hashes(keys: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([sticky_hash(b"key-%d" % key) for key in range(keys)], dtype=np.int32)


def _assigned(actions: list[Action]) -> dict[int, list[Key]]:
    assigned: dict[int, list[Key]] = {}
    for action in actions:
        if isinstance(action, Deliver):
            assigned.setdefault(action.consumer.index, []).extend([position_of(item) for item in action.items])
    return assigned


def _best(run: Callable[[], float]) -> float:
    results = []
    for _ in range(3):
        gc.collect()
        results.append(run())
    return min(results)


_reported: list[str] = []


def _report(name: str, value: float, unit: str) -> None:
    _reported.append(f"{name:<74} {value:>10.3f} {unit}\n")
    sys.stdout.write(_reported[-1])
    sys.stdout.flush()


def slots_of_a_batch() -> float:
    """B1: Murmur3 of an 8-byte key, and the slots of a batch of hashes."""
    keys = [b"key-%04d" % number for number in range(10_000)]
    hashes = _hashes(10_000)
    start = time.process_time()
    for key in keys:
        sticky_hash(key)
    for first in range(0, 10_000, _BATCH):
        CONSISTENT_HASHING_RANGE.slots(hashes[first : first + _BATCH])
    return (time.process_time() - start) / 10_000 * 1e6


def selection(consumers: int) -> float:
    """B2: owners of a batch."""
    selector = ConsistentHashingStickyKeyConsumerSelector()
    for number in range(consumers):
        selector.add_consumer(ConsumerState(number, f"consumer-{number}"))
    slots = CONSISTENT_HASHING_RANGE.slots(_hashes(100_000))
    start = time.process_time()
    for first in range(0, 100_000, _BATCH):
        selector.owners.take(slots[first : first + _BATCH]).tolist()
    return (time.process_time() - start) / 100_000 * 1e6


def membership(consumers: int, *, splits: bool) -> float:
    """B3: one join and one leave, milliseconds each."""
    selector = HashRangeAutoSplitStickyKeyConsumerSelector() if splits else ConsistentHashingStickyKeyConsumerSelector()
    for number in range(consumers - 1):
        selector.add_consumer(ConsumerState(number, f"consumer-{number}"))
    last = ConsumerState(consumers, "last")
    start = time.process_time()
    selector.add_consumer(last)
    selector.remove_consumer(last)
    return (time.process_time() - start) / 2 * 1e3


def dispatch_and_acknowledge(core: MultipleConsumersCore, consumers: int, keys: int) -> tuple[float, float]:
    """B4 and B7: headers in and assignments out; acknowledgements in batches."""
    feed = _Feed(core)
    states = {number: feed.join(number) for number in range(consumers)}
    hashes = _hashes(keys)
    dispatching = acknowledging = 0.0
    for _ in range(100):
        headers = feed.headers(_BATCH, hashes)
        start = time.process_time()
        actions = feed.read(headers)
        dispatching += time.process_time() - start
        assigned = _assigned(actions)
        start = time.process_time()
        for index, positions in assigned.items():
            feed.core.acknowledge(states[index], positions, {})
        acknowledging += time.process_time() - start
    return dispatching / (100 * _BATCH) * 1e6, acknowledging / (100 * _BATCH) * 1e6


def through_the_queue() -> float:
    """Entries that had to wait for permits: queued, then given in small portions."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    states = [feed.join(number, permits=0) for number in range(3)]
    hashes = _hashes(1_000)
    start = time.process_time()
    for _ in range(10):
        feed.read(feed.headers(_BATCH, hashes))
    given = 0
    while given < 5_000:
        for state in states:
            given += sum(len(own) for own in _assigned(feed.core.flow(state, 100)).values())
    return (time.process_time() - start) / 5_000 * 1e6


def due_entries() -> float:
    """B10: what the tracker gives becomes ready and is assigned."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    for number in range(3):
        feed.join(number)
    hashes = _hashes(1_000)
    spent = 0.0
    for _ in range(100):
        headers = feed.headers(_BATCH, hashes, deliver_at_ms=_NOW_MS - 1)
        feed.next_entry += _BATCH
        rows = DelayedIndexes(headers.deliver_at_ms, headers.ledger_ids, headers.entry_ids)
        start = time.process_time()
        feed.core.intake.on_popped(headers.ledger_ids, headers.entry_ids)
        feed.core.intake.on_due(headers, rows)
        spent += time.process_time() - start
    return spent / (100 * _BATCH) * 1e6


def future_entries() -> float:
    """Delayed entries on their way to the tracker: columns only."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    feed.join(0)
    hashes = _hashes(1_000)
    spent = 0.0
    for _ in range(100):
        headers = feed.headers(_BATCH, hashes, deliver_at_ms=_NOW_MS + 10**6)
        start = time.process_time()
        feed.read(headers)
        spent += time.process_time() - start
    return spent / (100 * _BATCH) * 1e6


def selection_from_a_full_queue() -> float:
    """B5: 20,000 wait, of which 1 % may go: microseconds to find and give those 200."""
    config = DispatcherConfig(unacked_per_consumer_max=0, unacked_per_subscription_max=0, look_ahead_per_consumer=0)
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, config, has_delays=True))
    states = [feed.join(number, permits=0) for number in range(100)]
    hashes = _hashes(20_000)
    for _ in range(40):
        feed.read(feed.headers(_BATCH, hashes))
    start = time.process_time()
    given = sum(len(own) for own in _assigned(feed.core.flow(states[7], 10**6)).values())
    return (time.process_time() - start) / given * 1e6


def beside_a_stuck_key() -> tuple[float, int]:
    """B9: one key of 1,000 drains for ever and gets every other entry; microseconds a live entry, and how many wait."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    states = {number: feed.join(number) for number in range(3)}
    hashes = np.repeat(_hashes(1_000), 2)
    hashes[::2] = hashes[0]
    slot = CONSISTENT_HASHING_RANGE.slot(int(hashes[0]))
    feed.read(feed.headers(1, hashes[:1]))
    while feed.core.assignor.owner_of_slot(slot) in states:  # type: ignore[attr-defined]
        feed.join(len(feed.core.consumers))
    states = dict(feed.core.consumers)
    return _microseconds_per_live_entry(feed, states, hashes)


def beside_a_stuck_consumer() -> tuple[float, int]:
    """B9: one consumer of three takes nothing; 100,000 of its entries pile up."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    states = {number: feed.join(number, permits=10**9 if number else 0) for number in range(3)}
    return _microseconds_per_live_entry(feed, states, _hashes(10_000))


def _microseconds_per_live_entry(
    feed: _Feed,
    states: dict[int, ConsumerState],
    hashes: np.ndarray,  # type: ignore[type-arg]
) -> tuple[float, int]:
    spent, given = 0.0, 0
    while len(feed.core.replay_queue) < 100_000:
        headers = feed.headers(_BATCH, hashes)
        start = time.process_time()
        actions = feed.read(headers)
        assigned = _assigned(actions)
        for index, positions in assigned.items():
            feed.core.acknowledge(states[index], positions, {})
        spent += time.process_time() - start
        given += sum(map(len, assigned.values()))
    return spent / given * 1e6, len(feed.core.replay_queue)


def queue_of_a_stuck_consumer_is_served() -> float:
    """Entries that had piled up are given when its consumer comes back, in portions of 1,000."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    states = {number: feed.join(number, permits=10**9 if number else 0) for number in range(3)}
    _microseconds_per_live_entry(feed, states, _hashes(10_000))
    waiting = len(feed.core.replay_queue)
    start = time.process_time()
    while len(feed.core.replay_queue):
        feed.core.flow(states[0], 1_000)
    return (time.process_time() - start) / waiting * 1e6


def bytes_per_parked_entry() -> float:
    """The cost of one entry that waits behind a long queue."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    feed.join(0, permits=0)
    feed.join(1)
    hashes = _hashes(10_000)
    for _ in range(100):
        feed.read(feed.headers(_BATCH, hashes))
    tracemalloc.start()
    before, waiting = tracemalloc.get_traced_memory()[0], len(feed.core.replay_queue)
    for consumer in feed.core.consumers.values():
        consumer.permits = 0
    for _ in range(200):
        feed.read(feed.headers(_BATCH, hashes))
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return size / (len(feed.core.replay_queue) - waiting)


def join_with_pending(pending: int) -> float:
    """B6: a join while one consumer holds many entries, milliseconds."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    feed.join(0)
    hashes = _hashes(pending)
    for _ in range(pending // _BATCH):
        feed.read(feed.headers(_BATCH, hashes))
    start = time.process_time()
    feed.join(1)
    return (time.process_time() - start) * 1e3


def leave_with_pending(pending: int) -> float:
    """A leave of a consumer that holds many entries, milliseconds."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    states = [feed.join(number) for number in range(2)]
    hashes = _hashes(pending)
    for _ in range(2 * pending // _BATCH):
        feed.read(feed.headers(_BATCH, hashes))
    start = time.process_time()
    feed.core.remove_consumer(states[0])
    return (time.process_time() - start) * 1e3


def longest_call(pending: int, event: str) -> float:
    """Milliseconds of the longest call until everything is settled after a consumer gave back all, or it expired."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    holder = feed.join(0)
    hashes = _hashes(pending)
    while feed.next_entry < pending:
        feed.read(feed.headers(_BATCH, hashes))
    feed.join(1)
    work: dict[str, Callable[[], object]] = {
        "redelivery": lambda: feed.core.redeliver(holder, None, ()),
        "leave": lambda: feed.core.remove_consumer(holder),
        "mark-delete": lambda: feed.core.mark_deleted(Position(1, pending)),
    }
    longest = _milliseconds(work[event])
    while (wakeup_ms := feed.core.next_wakeup_ms()) is not None:
        feed.core.advance(max(feed.core.now_ms, wakeup_ms))
        longest = max(longest, _milliseconds(feed.core.on_timer))
    return longest


def held_entries_are_drained(entries: int) -> tuple[float, float]:
    """Microseconds an entry, and milliseconds of the longest call, when a consumer takes what is held of 5,000 keys."""
    feed = _Feed(make_core(SubscriptionType.KEY_SHARED, _CONFIG, has_delays=True))
    hashes = _hashes(5_000)
    while feed.next_entry < entries:
        feed.read(feed.headers(_BATCH, hashes, deliver_at_ms=_NOW_MS - 1))
    consumer = feed.join(0, permits=0)
    taken = 0
    calls: list[float] = []
    while taken < entries:
        if consumer.pending.items:
            taken += len(consumer.pending)
            calls.append(_milliseconds(lambda: feed.core.acknowledge(consumer, list(consumer.pending.items), {})))
        calls.append(_milliseconds(lambda: feed.core.flow(consumer, 1_000 - consumer.permits)))
        if feed.core.intake.due_entries_wanted():
            calls.append(_milliseconds(feed.core.intake.admit_held))
    return sum(calls) / entries * 1e3, max(calls)


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def bytes_per_draining_hash() -> float:
    """PIP-379 plans 80."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracker = DrainingHashesTracker()
    tracker.add_entries(1, np.arange(1, 10_001, dtype=np.int32), np.ones(10_000, dtype=np.int32), now_ms=_NOW_MS)
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return size / 10_000


def main(arguments: list[str]) -> None:
    """Print every figure, and write them to a file if there is one to write to."""
    _report("B1 hash and slot of an 8-byte key", _best(slots_of_a_batch), "us")
    for consumers in (10, 1_000):
        _report(f"B2 owner of a slot, {consumers} consumers", _best(lambda n=consumers: selection(n)), "us")
    _report("B3 join or leave, ring, the 1,000th consumer", _best(lambda: membership(1_000, splits=False)), "ms")
    _report("B3 join or leave, auto-split, the 1,000th consumer", _best(lambda: membership(1_000, splits=True)), "ms")
    for kind in (SubscriptionType.KEY_SHARED, SubscriptionType.SHARED):
        for consumers, keys in ((3, 1_000), (10, 1_000), (10, 100_000)):
            runs = [
                dispatch_and_acknowledge(make_core(kind, _CONFIG, has_delays=True), consumers, keys) for _ in range(3)
            ]
            what = f"{kind}, {consumers} consumers, {keys} keys"
            _report(f"B4 dispatch, {what}", min(run[0] for run in runs), "us")
            _report(f"B7 acknowledge, {what}", min(run[1] for run in runs), "us")
    _report("waited for permits: queue and give", _best(through_the_queue), "us")
    _report("B5 20,000 wait and 1 % may go, per entry given", _best(selection_from_a_full_queue), "us")
    for name, run in (("key of 1,000", beside_a_stuck_key), ("consumer of 3", beside_a_stuck_consumer)):
        costs = [run()[0] for _ in range(3)]
        _report(f"B9 beside a stuck {name}, 100,000 wait, per live entry", min(costs), "us")
    _report("B9 the 100,000 are given when the consumer comes back", _best(queue_of_a_stuck_consumer_is_served), "us")
    _report("bytes per entry that waits beyond the limits", bytes_per_parked_entry(), "B")
    _report("B10 due entries become assigned", _best(due_entries), "us")
    drains = [held_entries_are_drained(160_000) for _ in range(3)]
    _report("160,000 held entries are given and acknowledged", min(cost for cost, _ in drains), "us")
    _report("the longest call of that", min(longest for _, longest in drains), "ms")
    _report("delayed entries to the tracker (columns)", _best(future_entries), "us")
    _report("B6 join with 50,000 pending", _best(lambda: join_with_pending(50_000)), "ms")
    _report("leave with 50,000 pending", _best(lambda: leave_with_pending(50_000)), "ms")
    for event, pending in (
        ("redelivery", 50_000),
        ("leave", 50_000),
        ("mark-delete", 50_000),
        ("mark-delete", 115_000),
    ):
        name = f"the longest call of a {event}, {pending:,} pending of as many draining keys"
        _report(name, _best(lambda p=pending, e=event: longest_call(p, e)), "ms")
    _report("bytes per draining hash", bytes_per_draining_hash(), "B")
    if arguments:
        Path(arguments[0]).write_text("".join(_reported), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
