"""A tracker that forgets which entries of a ledger it has, before a scan comes by: each entry is delivered once."""

import asyncio
from collections.abc import Callable, Collection, Mapping

import pytest
from pyroaring import BitMap

from dispatcher import DispatcherConfig, SubscriptionType
from tests.helpers.fakes.dispatcher_world import FakeLog, FakeTracker
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import now_ms, run

_MANY = [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]
_SMALL = DispatcherConfig(scan_entries_max=3, held_entries_max=3)


class ForgetfulTracker(FakeTracker):
    """A tracker that reads positions again, once it is told that a ledger is to be read."""

    remembers_after_s = 0.01

    def __init__(
        self,
        on_available: Callable[[], None],
        sealed: Collection[tuple[int, int, int]] = (),
        *,
        recovery_seconds: float = 0.0,
    ) -> None:
        super().__init__(on_available, recovery_seconds=recovery_seconds)
        self._forgotten: set[int] = set()
        self._untracked: dict[int, BitMap] = {}
        for row in sealed:
            self._add(*row)

    def forget(self, ledger_id: int) -> None:
        self._forgotten.add(ledger_id)
        asyncio.get_running_loop().call_later(self.remembers_after_s, self._remember, ledger_id)

    def _remember(self, ledger_id: int) -> None:
        self._forgotten.discard(ledger_id)
        self.on_available()

    def lose(self, ledger_id: int, entry_ids: Collection[int]) -> None:
        """Lose a snapshot, and know what it held."""
        self.remove_acknowledged(ledger_id, BitMap(entry_ids))
        self._untracked = {ledger_id: BitMap(entry_ids)}
        self.on_available()

    def pop_to_read_again(self) -> Mapping[int, BitMap]:
        untracked, self._untracked = self._untracked, {}
        return untracked

    def is_recovering(self, ledger_id: int) -> bool:
        return ledger_id in self._forgotten or super().is_recovering(ledger_id)

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        return None if ledger_id in self._forgotten else super().tracked_in(ledger_id)


def _due(log: FakeLog, count: int) -> None:
    """Publish entries that are due one after another, the earlier ones first."""
    for number in range(count):
        log.append(b"", key_hash=1, deliver_at_ms=now_ms() - 1_000 + number)


@pytest.mark.parametrize("kind", _MANY)
@pytest.mark.parametrize("forgotten", [{2}, {3}, {2, 3}])
def test_a_ledger_that_is_forgotten_before_the_scan_comes_is_scanned_when_it_is_known(
    kind: SubscriptionType, forgotten: set[int]
) -> None:
    """The scan stops at the limit of held entries until a consumer comes; the index is asked for nothing meanwhile."""

    async def scenario() -> None:
        log = FakeLog(entries_per_ledger=4)
        _due(log, 14)
        tracked = [
            (entry.deliver_at_ms, *entry.position) for entry in log.entries if entry.position.ledger_id in (2, 3)
        ]
        # One entry of each is not tracked: the scan has to find it.
        tracked = [row for row in tracked if row[2] != 1]
        world = ShellWorld(kind, config=_SMALL, log=log, sealed=tracked, fake_tracker=ForgetfulTracker)
        await settle()
        tracker = world.dispatcher.tracker
        assert isinstance(tracker, ForgetfulTracker)
        for ledger_id in forgotten:
            tracker.forget(ledger_id)
        consumer = world.join("c")
        await settle(10)

        assert sorted(consumer.positions()) == [tuple(entry.position) for entry in log.entries]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("kind", _MANY)
def test_what_a_snapshot_loses_twice_is_tracked_again_while_an_earlier_ledger_waits(kind: SubscriptionType) -> None:
    """The index does not know the first ledger for long; the second one is scanned before it."""

    async def scenario() -> None:
        log = FakeLog(entries_per_ledger=4)
        for _ in range(8):
            log.append(b"", key_hash=1, deliver_at_ms=now_ms() + 10_000)
        world = ShellWorld(kind, log=log, fake_tracker=ForgetfulTracker)
        tracker = world.dispatcher.tracker
        assert isinstance(tracker, ForgetfulTracker)
        tracker.remembers_after_s = 20
        tracker.forget(1)
        consumer = world.join("c")
        await settle()
        tracker.lose(2, [0, 3])
        await settle()
        tracker.lose(2, range(4))
        await settle(12)
        assert sorted(consumer.positions()) == [(2, 0), (2, 1), (2, 2), (2, 3)]

        await settle(20)
        assert sorted(consumer.positions()) == [tuple(entry.position) for entry in log.entries]
        await world.dispatcher.close()

    run(scenario())
