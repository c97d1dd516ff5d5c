"""Damaged entries are put aside and reads that fail are tried again; neither holds up more than it must."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from pyroaring import BitMap

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.slots import sticky_hash
from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.errors import EntriesDamagedError, EntriesUnreadableError
from managed_ledger.positions.position import Position
from managed_ledger.reading.selection import HeadersRead
from tests.helpers.fakes.dispatcher_world import FakeConsumer, FakeLog
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

MANY = [SubscriptionType.KEY_SHARED, SubscriptionType.SHARED]
DAMAGED = {(1, 3), (1, 4), (1, 13), (2, 0)}


class _DamagedLog(FakeLog):
    """A log of which some payloads, or headers, cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[tuple[int, int]] = set()
        self.damaged_headers: set[tuple[int, int]] = set()
        self.unreadable: set[tuple[int, int]] = set()
        self.reads = 0

    async def read_payloads(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> list[bytes | None]:
        self.reads += 1
        await asyncio.sleep(0)
        asked = list(zip(ledger_ids, entry_ids, strict=True))
        _raise(EntriesDamagedError, self.damaged.intersection(asked))
        _raise(EntriesUnreadableError, self.unreadable.intersection(asked))
        return await super().read_payloads(ledger_ids, entry_ids)

    async def read_headers(
        self,
        first: Position,
        *,
        entries_max: int,
        skip: Callable[[int], BitMap | None] | None = None,
        through: Position | None = None,
    ) -> HeadersRead:
        read = await super().read_headers(first, entries_max=entries_max, skip=skip, through=through)
        self._check_headers(read.headers)
        return read

    async def read_headers_at(self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> EntryHeaders:
        headers = await super().read_headers_at(ledger_ids, entry_ids)
        self._check_headers(headers)
        return headers

    def _check_headers(self, headers: EntryHeaders) -> None:
        asked = zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True)
        _raise(EntriesDamagedError, self.damaged_headers.intersection(asked))


def _raise(kind: type[EntriesDamagedError] | type[EntriesUnreadableError], positions: set[tuple[int, int]]) -> None:
    entries: dict[int, BitMap] = {}
    for ledger_id, entry_id in positions:
        entries.setdefault(ledger_id, BitMap()).add(entry_id)
    if entries:
        raise kind("the disk says no", entries)


def _intact(count: int) -> list[tuple[int, int]]:
    return [at for at in ((1 + n // 50, n % 50) for n in range(count)) if at not in DAMAGED]


@pytest.mark.parametrize("where", ["damaged", "damaged_headers"])
@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_damaged_entries_are_put_aside_and_all_others_are_delivered(kind: SubscriptionType, where: str) -> None:
    async def scenario() -> None:
        log = _DamagedLog()
        setattr(log, where, DAMAGED)
        world = ShellWorld(kind, log=log)
        world.publish(120)
        consumer = world.join("c", permits=116)
        await settle()

        assert consumer.positions() == _intact(120)
        assert world.dispatcher.damaged() == {1: BitMap([3, 4, 13]), 2: BitMap([0])}
        stats = world.dispatcher.stats()
        assert (stats.damaged_entries, stats.consumers[0].available_permits) == (4, 0)
        assert stats.unacked_messages == (116 if kind in MANY else 0)
        assert not any(world.cursor.is_acknowledged(*at) for at in DAMAGED)
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("where", ["damaged", "damaged_headers"])
@pytest.mark.parametrize("kind", MANY)
def test_damaged_delayed_entries_do_not_hold_up_their_key(kind: SubscriptionType, where: str) -> None:
    async def scenario() -> None:
        log = _DamagedLog()
        world = ShellWorld(kind, log=log)
        consumer = world.join("c")
        world.publish(60, keys=3, delay_ms=5_000)
        await settle()
        setattr(log, where, DAMAGED)
        await settle(6)

        assert sorted(consumer.positions()) == _intact(60)
        assert world.dispatcher.stats().damaged_entries == 4
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("end", ["acknowledged", "expired", "seek"])
@pytest.mark.parametrize("kind", MANY)
def test_what_is_put_aside_ends_with_its_acknowledgement_and_with_a_seek(kind: SubscriptionType, end: str) -> None:
    async def scenario() -> None:
        log = _DamagedLog()
        log.damaged = set(DAMAGED)
        world = ShellWorld(kind, log=log)
        world.publish(60)
        consumer = world.join("c")
        await settle()
        if end == "acknowledged":
            # As cancelling does.
            world.dispatcher.acknowledge(None, sorted(DAMAGED))
        elif end == "expired":
            world.cursor.acknowledge_cumulative(Position(2, 9))
            world.dispatcher.mark_delete_advanced()
        else:
            log.damaged.clear()
            consumer.deliveries.clear()
            await world.dispatcher.reset(Position(1, 0))
        await settle()

        assert world.dispatcher.damaged() == {}
        if end == "seek":
            assert len(consumer.deliveries) == 60
        await world.dispatcher.close()

    run(scenario())


def test_a_damaged_entry_that_is_found_once_is_read_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also when its consumer leaves, and asks for everything again."""

    async def scenario() -> None:
        log = _DamagedLog()
        log.damaged = set(DAMAGED)
        world = ShellWorld(log=log)
        world.publish(60)
        consumer = world.join("c")
        await settle()
        world.dispatcher.redeliver_unacknowledged_messages(consumer)
        await settle()
        world.dispatcher.remove_consumer(consumer)
        other = world.join("d")
        await settle()

        assert sorted(other.positions()) == _intact(60)
        assert sum("damaged" in record.getMessage() for record in caplog.records) == 1
        await world.dispatcher.close()

    run(scenario())


def _keys_of(consumer: FakeConsumer, world: ShellWorld) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for at in consumer.positions():
        found.setdefault(world.log.entry(*at).key_hash, []).append(at)
    return found


def test_a_read_that_fails_holds_up_its_key_alone_and_comes_in_order_later() -> None:
    async def scenario() -> None:
        log = _DamagedLog()
        log.unreadable = {(1, 13)}
        world = ShellWorld(log=log)
        world.publish(60)
        consumer = world.join("c")
        await settle(5)

        # The key of 13, which is also that of 3, 23, 33, ...
        stuck = sticky_hash(b"key-3")
        assert _keys_of(consumer, world)[stuck] == [(1, 3)]
        assert len(consumer.deliveries) == 60 - 5
        # New ones of the other keys come at once, and of this one behind.
        world.publish(10)
        await settle(0.01)
        assert len(consumer.deliveries) == 60 - 5 + 9
        assert world.dispatcher.damaged() == {}

        log.unreadable.clear()
        await settle(61)
        assert _keys_of(consumer, world)[stuck] == [(1, 3), (1, 13), (1, 23), (1, 33), (1, 43), (2, 3), (2, 13)]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize(
    ("kind", "delivered"),
    [(SubscriptionType.SHARED, 59), (SubscriptionType.EXCLUSIVE, 13), (SubscriptionType.FAILOVER, 13)],
)
def test_a_read_that_fails_holds_up_others_only_where_order_asks_for_it(kind: SubscriptionType, delivered: int) -> None:
    async def scenario() -> None:
        log = _DamagedLog()
        log.unreadable = {(1, 13)}
        world = ShellWorld(kind, log=log)
        world.publish(60)
        consumer = world.join("c")
        await settle(5)
        assert len(consumer.deliveries) == delivered

        log.unreadable.clear()
        await settle(61)
        assert len(consumer.deliveries) == 60
        await world.dispatcher.close()

    run(scenario())


def test_a_read_that_keeps_failing_is_tried_ever_more_rarely() -> None:
    async def scenario() -> None:
        log = _DamagedLog()
        log.unreadable = {(1, 0)}
        config = DispatcherConfig(read_failure_backoff_initial_ms=1_000, read_failure_backoff_max_ms=8_000)
        world = ShellWorld(log=log, config=config)
        world.publish(1)
        world.join("c")
        await settle(0.5)
        before = log.reads
        # After 1, 3, 7, 15, 23, 31 s.
        await settle(31)
        assert log.reads - before == 6
        await world.dispatcher.close()

    run(scenario())


def test_what_waits_for_another_read_goes_to_others_when_its_consumer_leaves() -> None:
    async def scenario() -> None:
        log = _DamagedLog()
        log.unreadable = {(1, 3)}
        world = ShellWorld(log=log)
        world.publish(20)
        first = world.join("a")
        await settle()
        assert len(first.deliveries) == 18
        log.unreadable.clear()
        world.dispatcher.remove_consumer(first)
        second = world.join("b")
        await settle()

        assert len(second.deliveries) == 20
        await world.dispatcher.close()

    run(scenario())
