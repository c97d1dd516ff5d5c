"""A managed ledger with one cursor beside the obvious: a set of positions. Steps are the same over any database."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import strategies as st

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerWriteError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock, MemoryDatabase, open_store

LIMITS = {"entries_per_ledger_max": 7, "rollover_time_ms": 1000}


@dataclass
class CursorOracle:
    """The obvious: a list of positions and a set of those acknowledged."""

    positions: list[Position] = field(default_factory=list)
    acknowledged: set[Position] = field(default_factory=set)
    flushed: set[Position] = field(default_factory=set)

    def acknowledge(self, positions: list[Position]) -> int:
        new = {position for position in positions if position in self.positions} - self.acknowledged
        self.acknowledged |= new
        return len(new)

    def through(self, last: Position) -> int:
        return self.acknowledge([position for position in self.positions if position <= last])

    def seek(self, next_position: Position) -> None:
        self.acknowledged = {position for position in self.positions if position < next_position}
        self.flushed = set(self.acknowledged)

    def unacknowledged(self) -> list[Position]:
        return [position for position in self.positions if position not in self.acknowledged]

    def prefix(self) -> list[Position]:
        """All positions before the first one that is not acknowledged."""
        first = next(iter(self.unacknowledged()), None)
        return [position for position in self.positions if first is None or position < first]


picks = st.lists(st.integers(0, 60), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 20)),
        st.tuples(st.just("acknowledge"), picks),
        st.tuples(st.just("acknowledge in order"), st.integers(1, 15)),
        st.tuples(st.just("cumulative"), st.integers(0, 60)),
        st.tuples(st.just("seek"), st.integers(0, 60)),
        *(
            st.tuples(st.just(name), st.none())
            for name in ("flush", "trim", "roll", "reopen", "power cut", "failing commit")
        ),
    ),
    max_size=40,
)


class CursorWorld:
    """A managed ledger with one cursor beside its oracle, in memory; another database overrides what it does itself."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.clock = LedgerClock()
        self.oracle = CursorOracle()
        self.store: LedgerStore
        self.ledger: ManagedLedger
        self.cursor: Cursor

    async def open_store(self) -> LedgerStore:
        """The log, as the next process finds it."""
        return await open_store(self.database, clock=self.clock, **LIMITS)

    def fail_commits(self, count: int) -> None:
        """Have so many of the next commits fail."""
        self.database.failures_to_come = count

    async def cut_power(self) -> None:
        """Lose all that was not synced; the next `open_store` finds the rest."""
        old, self.database = self.store, self.database.after_power_loss()
        await old.close()

    async def open(self) -> None:
        self.store = await self.open_store()
        self.ledger = await self.store.open_managed_ledger("orders")
        self.cursor = await self.ledger.open_cursor("subscription")

    def pick(self, index: int) -> Position:
        """A position that exists, or now and then one that never will or was trimmed."""
        kept = self.oracle.positions
        if index < len(kept):
            return kept[index]
        return (Position(1, index), Position(99, 0), self.ledger.last_position)[index % 3]

    async def step(self, name: str, argument: object) -> None:
        oracle = self.oracle
        match name, argument:
            case "append", int(count):
                positions = [self.ledger.append_nowait(b"x", publish_time_ms=1) for _ in range(count)]
                await self.ledger.committed()
                oracle.positions += positions
            case "failing commit", None:
                # The append and the flush may share a round or not.
                self.fail_commits(2)
                self.ledger.append_nowait(b"lost", publish_time_ms=1)
                outcomes = await asyncio.gather(self.ledger.committed(), self.cursor.flush(), return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [LedgerWriteError, LedgerWriteError]
                self.fail_commits(0)
            case "acknowledge", list(indices):
                chosen = [self.pick(index) for index in indices]
                count = self.cursor.acknowledge([p.ledger_id for p in chosen], [p.entry_id for p in chosen])
                assert count == oracle.acknowledge(chosen)
            case "acknowledge in order", int(count):
                for position in oracle.unacknowledged()[:count]:
                    assert self.cursor.acknowledge([position.ledger_id], [position.entry_id]) == 1
                    oracle.acknowledge([position])
            case "cumulative", int(index):
                last = self.pick(index)
                assert self.cursor.acknowledge_cumulative(last) == oracle.through(last)
            case "seek", int(index):
                position = self.pick(index)
                await self.cursor.seek(position)
                oracle.seek(position)
            case "flush", None:
                await self.cursor.flush()
                oracle.flushed = set(oracle.acknowledged)
            case "trim", None:
                await self.ledger.trim()
                self.forget_trimmed()
            case "roll", None:
                self.clock.now += 1000
                self.ledger.roll_over_if_aged(self.clock.now)
            case "reopen", None:
                await self.store.close()
                await self.open()
            case "power cut", None:
                await self.lose_power()

    def forget_trimmed(self) -> None:
        """Trimmed ledgers held acknowledged entries only, and are a prefix."""
        kept = {ledger.ledger_id for ledger in self.ledger.ledgers()}
        gone = {position for position in self.oracle.positions if position.ledger_id not in kept}
        assert gone <= self.oracle.acknowledged
        self.oracle.positions = [position for position in self.oracle.positions if position not in gone]
        assert all(position < self.oracle.positions[0] for position in gone if self.oracle.positions)
        self.oracle.acknowledged -= gone
        self.oracle.flushed -= gone

    async def lose_power(self) -> None:
        await self.cut_power()
        await self.open()
        found = {position for position in self.oracle.positions if self.cursor.is_acknowledged(*position)}
        assert self.oracle.flushed <= found <= self.oracle.acknowledged
        self.oracle.acknowledged = found

    def check(self) -> None:
        oracle, cursor = self.oracle, self.cursor
        assert cursor.backlog == len(oracle.unacknowledged())
        assert self.ledger.entries_total == len(oracle.positions)
        assert {p for p in oracle.positions if cursor.is_acknowledged(*p)} == oracle.acknowledged
        for ledger in self.ledger.ledgers():
            entries = {p.entry_id for p in oracle.acknowledged if p.ledger_id == ledger.ledger_id}
            assert set(cursor.acknowledged_in(ledger.ledger_id)) == entries
        prefix = oracle.prefix()
        assert all(position <= cursor.mark_delete_position for position in prefix)
        assert all(position > cursor.mark_delete_position for position in oracle.unacknowledged())
        if prefix:
            assert cursor.mark_delete_position == prefix[-1]
        if oracle.unacknowledged():
            assert cursor.next_unacknowledged_position == oracle.unacknowledged()[0]
