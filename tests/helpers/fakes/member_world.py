"""Services that share a prefix in memory, in virtual time: slow, failing and lost calls, deaths, stops and joins."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import Any

from managed_ledger.bundles import BundleRange, even_ranges
from postdate.broker.ownership.leases import LeaseOwners
from postdate.broker.ownership.owners import Addresses
from tests.helpers.fakes.life_loop import LifeLoop, LoopExecutor


class ObjectsOfMembers:
    """An object storage as members need it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def read(self, name: str) -> tuple[bytes, str] | None:
        data = self.objects.get(name)
        return None if data is None else (data, sha256(data).hexdigest())

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        found = self.read(name)
        if (None if found is None else found[1]) != tag:
            return None
        self.objects[name] = data
        return sha256(data).hexdigest()

    def names(self, prefix: str) -> Iterator[str]:
        return iter([name for name in self.objects if name.startswith(prefix)])

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)


class Faults:
    """What goes wrong with calls; all may change while a world lives."""

    def __init__(self) -> None:
        self.latency_s = 0.02
        self.failing_share = 0.0
        """Of the calls, which do nothing and fail, or do it and fail."""
        self.hanging_share = 0.0
        """Of the calls, which are done and answered half a minute later."""
        self.is_gone = False


class FaultyExecutor(Executor):
    """Runs the calls of one service on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: Faults, chance: Random) -> None:
        self._loop = loop
        self._faults = faults
        self._chance = chance
        self.is_dead = False
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.calls += 1
        latency_s = self._faults.latency_s * self._chance.uniform(0.5, 1.5)
        if self._chance.random() < self._faults.hanging_share:
            latency_s = 30.0
        fate = self._chance.random() / self._faults.failing_share if self._faults.failing_share else 1.0
        is_done, is_answered = fate > 0.5 and not self._faults.is_gone, fate >= 1 and not self._faults.is_gone
        result: list[Any] = []

        def do() -> None:
            if is_done and not self.is_dead:
                result.append(fn(*args, **kwargs))

        def answer() -> None:
            if self.is_dead or future.cancelled():
                return
            if is_answered and result:
                future.set_result(result[0])
            else:
                future.set_exception(OSError("the storage does not answer"))

        self._loop.call_later(latency_s / 2, do)
        self._loop.call_later(latency_s, answer)
        return future


class LoggedKeeper:
    """The service of a member: its bundles, and the fence that opening one is to the owner before."""

    def __init__(self, world: "MemberWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.opened: set[BundleRange] = set()
        self.warmed: list[BundleRange] = []
        self.open_s = 0.1
        self.failures = 0
        self.given_up: asyncio.Event | None = None
        """Closing waits for it, as for a write that the storage does not answer."""
        self.is_alive = True

    async def open_bundle(self, bundle: BundleRange) -> None:
        if bundle in self.opened:
            return
        await asyncio.sleep(self.open_s)
        if self.failures:
            self.failures -= 1
            raise OSError("the storage does not open it")
        if not self.is_alive:
            return
        for other in self.world.keepers():
            if other is not self and bundle in other.opened:
                other.opened.discard(bundle)
                self.world.fenced.append((bundle, other.name))
                self.world.services[other.name].note_lost(bundle)
        self.opened.add(bundle)
        self.world.note(bundle, self.name)

    async def close_bundle(self, bundle: BundleRange, *, is_lost: bool = False) -> None:
        if self.given_up is not None:
            await self.given_up.wait()
        await asyncio.sleep(0.05 if is_lost else 0.1)
        if bundle in self.opened:
            self.opened.discard(bundle)
            self.world.note(bundle, None)

    def give_up(self, bundle: BundleRange) -> None:
        if self.given_up is not None:
            self.given_up.set()

    async def warm_bundle(self, bundle: BundleRange) -> None:
        await asyncio.sleep(0.5)
        self.warmed.append(bundle)

    def load_of(self, bundle: BundleRange) -> float:
        return 10.0


class MemberWorld:
    """The services, the prefix, and what happened to each bundle."""

    def __init__(self, *, lease_s: float = 10, bundles: int = 4, seed: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        self.lease_s = lease_s
        self.bundles = even_ranges(bundles)
        self.chance = Random(seed)
        self.faults = Faults()
        self.objects = ObjectsOfMembers()
        self.services: dict[str, LeaseOwners] = {}
        self.executors: dict[str, FaultyExecutor] = {}
        self._keepers: dict[str, LoggedKeeper] = {}
        self.fenced: list[tuple[BundleRange, str]] = []
        self.history: dict[BundleRange, list[tuple[float, str | None]]] = defaultdict(list)

    def keepers(self) -> list[LoggedKeeper]:
        """The services that live."""
        return [one for one in self._keepers.values() if one.is_alive]

    def keeper(self, name: str) -> LoggedKeeper:
        return self._keepers[name]

    def note(self, bundle: BundleRange, owner: str | None) -> None:
        self.history[bundle].append((self.loop.time(), owner))

    def prepare(self, name: str) -> Coroutine[Any, Any, None]:
        """Make a service; what is returned starts it."""
        self.executors[name] = FaultyExecutor(self.loop, self.faults, self.chance)
        self._keepers[name] = LoggedKeeper(self, name)
        self.services[name] = LeaseOwners(
            self.objects,  # type: ignore[arg-type]  # members need four of its calls
            self.bundles,
            name=name,
            addresses=Addresses(f"pulsar://{name}:6650"),
            lease_s=self.lease_s,
            clock_s=self.loop.time,
            executor=self.executors[name],
            new_id=lambda: f"{name}-{self.chance.getrandbits(32):08x}",
        )
        return self.services[name].start(self._keepers[name])

    async def start(self, *names: str) -> None:
        await asyncio.gather(*map(self.prepare, names))

    async def stop(self, name: str) -> None:
        await self.services[name].close()
        self._keepers[name].is_alive = False

    def kill(self, name: str) -> None:
        """From now on none of its calls has an effect or an answer."""
        self.executors[name].is_dead = True
        keeper = self._keepers[name]
        keeper.is_alive = False
        for bundle in keeper.opened:
            self.note(bundle, None)
        keeper.opened = set()

    def owners(self) -> dict[BundleRange, str]:
        """Return who has each bundle that somebody has."""
        found = [(bundle, one.name) for one in self.keepers() for bundle in one.opened]
        assert len(found) == len(dict(found)), "a bundle has two owners"
        return dict(found)

    def shares(self) -> list[int]:
        return sorted(len(one.opened) for one in self.keepers())

    def is_whole(self) -> bool:
        return len(self.owners()) == len(self.bundles)

    async def until(self, is_done: Callable[[], bool], limit_s: float) -> float:
        """Wait for something; return how long it took."""
        began_s = self.loop.time()
        while not is_done():
            waited_s = self.loop.time() - began_s
            assert waited_s <= limit_s, f"not after {waited_s} s: {self.owners()}"
            await asyncio.sleep(0.01)
        return self.loop.time() - began_s

    def moves(self) -> int:
        """How often bundles were opened."""
        return sum(owner is not None for changes in self.history.values() for _, owner in changes)

    def longest_gap_s(self, since_s: float = 0) -> float:
        """The longest time for which a bundle that had an owner had none."""
        gaps = [
            after - before
            for changes in self.history.values()
            for (before, owner), (after, _) in pairwise(changes)
            if owner is None and before >= since_s
        ]
        return max(gaps, default=0.0)


def run_members(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario of members in virtual time."""

    def new_loop() -> LifeLoop:
        return LifeLoop(0.0, lambda loop, workers: LoopExecutor(loop, workers, lambda: 0.0))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
