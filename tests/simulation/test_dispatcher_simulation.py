"""The whole dispatcher by seed: producers, consumers that come, go and stall, slow and failing reads, crashes.

Time is virtual and every choice comes from the seed, so a failing seed fails again. The story is that of the demo, told
faster and more often: keyed messages, part of them delayed, over several ledgers; consumers acknowledge late, one
leaves, one joins; the process dies with acknowledgements of the last moments unwritten, and starts again after an
outage during which messages fell due. Verdicts: nothing lost, nothing early, no key out of order, no key at two
consumers at once.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from dispatcher import Delivery, Dispatcher, DispatcherConfig, SubscriptionType
from dispatcher.core.key_shared import KeySharedCore
from dispatcher.slots import CONSISTENT_HASHING_RANGE, sticky_hash
from managed_ledger.entries.headers import NOT_DELAYED
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeEntry, FakeLog, FakeLogCursor, FakeTracker
from tests.helpers.fakes.virtual_time import now_ms, run
from tests.helpers.seeds import seeds

Key = tuple[int, int]


@dataclass
class SimulationVerdict:
    """Counts of broken promises."""

    lost: int = 0
    early: int = 0
    out_of_order: int = 0
    """How often a key's next message should have come before the one that came."""
    out_of_order_after_one_wait: int = 0
    """The same within one life of the process, among what the tracker recovered, and among what is in ledgers in which
    it recovers nothing. Messages that are read late because of others in their ledger come in order of the
    reads.
    """
    two_owners: int = 0
    duplicates_without_reason: int = 0
    lateness_ms: list[int] = field(default_factory=list)
    deliveries: int = 0


class DispatcherStory:
    """One run of the whole system.

    Args:
        seed: Decides everything.
        crashes: How often the process dies.
        messages: How many are published.
        failures: The share of reads that fail.
        recovery_seconds: How long the tracker may take to recover what was sealed.
    """

    def __init__(
        self,
        seed: int,
        *,
        crashes: int,
        messages: int = 500,
        failures: float = 0.0,
        recovery_seconds: tuple[float, ...] = (0.0, 0.05, 0.5),
    ) -> None:
        self.chance = random.Random(seed)
        self.crashes = crashes
        self.messages = messages
        self.failures = failures
        self.recovery_seconds = recovery_seconds
        self.config = DispatcherConfig(
            look_ahead_per_consumer=self.chance.choice([5, 50, 2000]),
            look_ahead_per_hash=self.chance.choice([1, 3, 500]),
            parked_entries_max=self.chance.choice([0, 20, 1_000_000]),
            read_batch_entries_max=self.chance.choice([3, 20, 500]),
            read_failure_backoff_initial_ms=1,
            read_failure_backoff_max_ms=10,
            unacked_per_consumer_max=self.chance.choice([10, 0]),
        )
        self.log = FakeLog(entries_per_ledger=self.chance.choice([20, 70]))
        self.cursor = FakeLogCursor(self.log)
        self.verdict = SimulationVerdict()
        self.first_deliveries: dict[int, list[Key]] = defaultdict(list)
        self.waited_for: dict[Key, tuple[int, bool]] = {}
        self.recovered: set[tuple[int, int, int]] = set()
        self.delivered: set[Key] = set()
        self.may_repeat: set[Key] = set()
        self.holders: dict[int, Counter[int]] = defaultdict(Counter)
        self.unwritten: list[tuple[int, Key]] = []
        self.sealed: list[tuple[int, int, int]] = []
        self.epoch = 0
        self.names = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.consumers: list[FakeConsumer] = []
        self.dispatcher: Dispatcher | None = None
        self.is_order_of_immediates_promised = True

    async def play(self) -> SimulationVerdict:
        """Tell the story to its end."""
        producer = asyncio.create_task(self._produce())
        await self._start()
        for _ in range(self.crashes):
            await asyncio.sleep(self.chance.uniform(1, 8))
            await self._change_membership()
            await asyncio.sleep(self.chance.uniform(0, 3))
            await self._crash()
            await asyncio.sleep(self.chance.uniform(0, 6))
            await self._start()
        await asyncio.sleep(self.chance.uniform(0, 5))
        await self._change_membership()
        await producer
        async with asyncio.timeout(600):
            # Virtual time: polling costs nothing.
            while any(not self.cursor.is_acknowledged(*e.position) for e in self.log.entries):  # noqa: ASYNC110
                await asyncio.sleep(1)
        self._judge()
        assert self.dispatcher is not None
        self._check_is_empty()
        await self.dispatcher.close()
        return self.verdict

    # Actors: a producer, consumers, crashes.

    async def _produce(self) -> None:
        for number in range(self.messages):
            await asyncio.sleep(self.chance.choice([0, 0, 0, 0.02, 0.1]))
            deliver_at = NOT_DELAYED
            if self.chance.random() < 0.7:
                deliver_at = now_ms() + self.chance.randrange(500, 9_000, self.chance.choice([1, 500]))
            key_hash = sticky_hash(b"key-%d" % self.chance.randrange(25))
            self.log.append(b"%d" % number, key_hash=key_hash, deliver_at_ms=deliver_at)

    async def _start(self) -> None:
        recovery_seconds = self.chance.choice(self.recovery_seconds)
        sealed = list(self.sealed)
        self.recovered = set(sealed)

        def new_tracker(on_available: object) -> FakeTracker:
            return FakeTracker(on_available, sealed, recovery_seconds=recovery_seconds)  # type: ignore[arg-type]

        core = KeySharedCore(self.config, has_delays=True, cursor=self.cursor)
        self.dispatcher = Dispatcher(
            SubscriptionType.KEY_SHARED, core, self.log, self.cursor, new_tracker, self.config, now_ms
        )
        self.log.chance, self.log.failures = self.chance, self.failures
        self.dispatcher.open()
        for _ in range(3):
            await asyncio.sleep(self.chance.choice([0, 0, 0.3, 0.8]))
            self._join()
        if sealed and recovery_seconds:
            self.is_order_of_immediates_promised = False

    def _join(self) -> None:
        assert self.dispatcher is not None
        self.names += 1
        consumer = FakeConsumer(f"consumer-{self.names}", self._on_delivery)
        self.consumers.append(consumer)
        self.dispatcher.add_consumer(consumer)
        self.dispatcher.consumer_flow(consumer, self.chance.choice([1, 10, 1000]))

    async def _change_membership(self) -> None:
        assert self.dispatcher is not None
        if self.chance.random() < 0.7 and len(self.consumers) > 1:
            leaver = self.chance.choice(self.consumers)
            self.consumers.remove(leaver)
            for position in leaver.positions():
                self.may_repeat.add(position)
            for slot in list(self.holders):
                self.holders[slot].pop(id(leaver), None)
            self.dispatcher.remove_consumer(leaver)
        await asyncio.sleep(self.chance.choice([0, 0.5]))
        self._join()

    async def _crash(self) -> None:
        assert self.dispatcher is not None
        tracker = self.dispatcher.tracker
        assert isinstance(tracker, FakeTracker)
        self.epoch += 1
        self.consumers = []
        self.holders.clear()
        # Snapshots cover ledgers that have ended; the rest of the index is gone, and so are the last acknowledgements.
        last = self.log.last_confirmed_position.ledger_id
        known = {*tracker.rows, *tracker.handed_out, *self.sealed}
        self.sealed = sorted(row for row in known if row[1] < last and not self.cursor.is_acknowledged(*row[1:]))
        for at_ms, (ledger_id, entry_id) in self.unwritten:
            if at_ms > now_ms() - 5:
                self.cursor.acknowledged[ledger_id].discard(entry_id)
                self.sealed += [
                    row for row in tracker.handed_out if row[1:] == (ledger_id, entry_id) and ledger_id < last
                ]
        self.sealed = sorted(set(self.sealed))
        self.may_repeat |= self.delivered
        await self.dispatcher.close()

    # Consumers.

    def _on_delivery(self, consumer: FakeConsumer, delivery: Delivery) -> None:
        position = (delivery.ledger_id, delivery.entry_id)
        entry = self.log.entry(*position)
        slot = CONSISTENT_HASHING_RANGE.slot(entry.key_hash)
        self.verdict.deliveries += 1
        self.verdict.early += now_ms() < entry.deliver_at_ms
        self.verdict.two_owners += any(n for owner, n in self.holders[slot].items() if owner != id(consumer))
        self.holders[slot][id(consumer)] += 1
        if position not in self.delivered:
            self.delivered.add(position)
            self.first_deliveries[slot].append(position)
            if (entry.deliver_at_ms, *position) in self.recovered:
                self.waited_for[position] = (self.epoch, True)
            elif all(ledger_id != delivery.ledger_id for _, ledger_id, _ in self.recovered):
                self.waited_for[position] = (self.epoch, False)
        elif position not in self.may_repeat:
            self.verdict.duplicates_without_reason += 1
        task = asyncio.create_task(self._acknowledge(consumer, position, slot, self.epoch))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _acknowledge(self, consumer: FakeConsumer, position: Key, slot: int, epoch: int) -> None:
        await asyncio.sleep(self.chance.choice([0, 0.001, 0.05, 0.2]))
        if epoch != self.epoch or consumer not in self.consumers:
            return
        assert self.dispatcher is not None
        if self.chance.random() < 0.02:
            # Without acknowledgement, and its key loses its promise of order.
            self.may_repeat.add(position)
            self._let_go(consumer, slot)
            self.dispatcher.redeliver_unacknowledged_messages(consumer, [position])
        else:
            self._let_go(consumer, slot)
            self.unwritten.append((now_ms(), position))
            self.dispatcher.acknowledge(consumer, [position])
        self.dispatcher.consumer_flow(consumer, 1)

    def _let_go(self, consumer: FakeConsumer, slot: int) -> None:
        self.holders[slot][id(consumer)] -= 1
        if not self.holders[slot][id(consumer)]:
            del self.holders[slot][id(consumer)]

    # The verdict.

    def _judge(self) -> None:
        self.verdict.lost = len(self.log.entries) - len(self.delivered)
        for positions in self.first_deliveries.values():
            entries = [self.log.entry(*position) for position in positions]
            self.verdict.out_of_order += self._disorder(entries)
            waits = [self.waited_for.get(position) for position in positions]
            for one in {wait for wait in waits if wait is not None}:
                waited = [entry for entry, wait in zip(entries, waits, strict=True) if wait == one]
                self.verdict.out_of_order_after_one_wait += self._disorder(waited)

    def _disorder(self, entries: Sequence[FakeEntry]) -> int:
        delayed = [(e.deliver_at_ms, e.position) for e in entries if e.deliver_at_ms != NOT_DELAYED]
        disorder = sum(a > b for a, b in pairwise(delayed))
        if self.is_order_of_immediates_promised:
            immediate = [e.position for e in entries if e.deliver_at_ms == NOT_DELAYED]
            disorder += sum(a > b for a, b in pairwise(immediate))
        return disorder

    def _check_is_empty(self) -> None:
        assert self.dispatcher is not None
        stats = self.dispatcher.stats()
        assert (stats.msg_in_replay, stats.msg_delayed, stats.unacked_messages) == (0, 0, 0)
        assert stats.draining_hashes_count == 0
        core = self.dispatcher.core
        assert isinstance(core, KeySharedCore)
        core.check()


def _play(story: DispatcherStory) -> SimulationVerdict:
    return run(story.play())


def _assert_clean(verdict: SimulationVerdict, messages: int, *, is_recovery_awaited: bool = True) -> None:
    assert verdict.deliveries >= messages
    assert (verdict.lost, verdict.early, verdict.two_owners) == (0, 0, 0)
    assert verdict.out_of_order_after_one_wait == 0
    assert verdict.out_of_order == 0 or not is_recovery_awaited
    assert verdict.duplicates_without_reason == 0


@pytest.mark.parametrize("seed", seeds())
def test_consumers_come_and_go(seed: int) -> None:
    _assert_clean(_play(DispatcherStory(seed, crashes=0)), 500)


@pytest.mark.parametrize("seed", seeds())
def test_the_process_dies_and_starts_again(seed: int) -> None:
    _assert_clean(_play(DispatcherStory(seed, crashes=2)), 500)


@pytest.mark.parametrize("seed", seeds())
def test_recovery_takes_longer_than_due_messages_wait_for_it(seed: int) -> None:
    """Being on time comes first then.

    Order between what is recovered and what need not be is not promised, everything else is.
    """
    verdict = _play(DispatcherStory(seed, crashes=2, recovery_seconds=(2.0, 5.0)))

    _assert_clean(verdict, 500, is_recovery_awaited=False)


@pytest.mark.parametrize("seed", seeds())
def test_reads_fail_now_and_then(seed: int) -> None:
    _assert_clean(_play(DispatcherStory(seed, crashes=1, failures=0.05)), 500)
