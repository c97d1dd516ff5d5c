"""The log on objects keeps what the log promises: any steps with a cursor, where a power cut is another's takeover."""

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects.object_store import FolderObjects, ObjectStore
from managed_ledger.objects.shipped_database import ShippedDatabase, open_shipped
from snapshot_storage.s3.objects import S3Objects
from tests.helpers.cursor_world import LIMITS, CursorWorld
from tests.helpers.seeds import seeds
from tests.helpers.storages.s3_servers import REAL_SERVERS, RealServer

pytestmark = pytest.mark.slow

STEPS = 30
CONFIG = ManagedLedgerConfig(write_buffer_bytes=2**16, **LIMITS)


class ShippedWorld(CursorWorld):
    """The same over objects, each opening with the cache of the one before or of none."""

    def __init__(self, objects: ObjectStore, folder: Path, chance: random.Random) -> None:
        super().__init__()
        self._objects = objects
        self._chance = chance
        self._caches = [folder / "cache 0", folder / "cache 1"]
        self._failures = 0
        self.shipped: ShippedDatabase
        self.given_up: threading.Event

    def _opened(self, path: Path, config: ManagedLedgerConfig) -> ShippedDatabase:
        self.given_up = threading.Event()
        self.shipped = database = open_shipped(
            path, config, objects=self._objects, now_ms=self.clock, on_lost=lambda: None, given_up=self.given_up
        )
        write = database.write

        def write_or_fail(batch: object, *, sync: bool) -> None:
            if self._failures:
                self._failures -= 1
                raise StoreUnavailableError("the disk says no")
            write(batch, sync=sync)  # type: ignore[arg-type]  # the batch it made itself

        database.write = write_or_fail  # type: ignore[method-assign]
        return database

    async def open_store(self) -> LedgerStore:
        self._caches.reverse()
        return await LedgerStore.open(self._caches[0], CONFIG, now_ms=self.clock, open_database=self._opened)

    def fail_commits(self, count: int) -> None:
        self._failures = count

    async def cut_power(self) -> None:
        # Nothing of it reaches the storage any more, not even what it would write as it closes.
        self.given_up.set()
        await asyncio.gather(self.store.close(), return_exceptions=True)


def chosen(chance: random.Random) -> Iterator[tuple[str, object]]:
    for _ in range(STEPS):
        name = chance.choice(
            ["append", "acknowledge", "acknowledge in order", "cumulative", "seek", "flush", "trim", "roll"] * 2
            + ["reopen", "power cut", "failing commit", "checkpoint"]
        )
        match name:
            case "append":
                yield name, chance.randint(1, 20)
            case "acknowledge":
                yield name, [chance.randrange(60) for _ in range(chance.randint(1, 12))]
            case "acknowledge in order":
                yield name, chance.randint(1, 15)
            case "cumulative" | "seek":
                yield name, chance.randrange(60)
            case _:
                yield name, None


@pytest.mark.parametrize("seed", seeds())
def test_a_cursor_on_objects_is_a_set_of_positions(seed: int, tmp_path: Path) -> None:
    play(seed, FolderObjects(tmp_path / "place"), tmp_path)


@pytest.fixture(scope="module", params=REAL_SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    server: RealServer = request.param(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.mark.parametrize("seed", range(3))
def test_so_it_is_on_real_servers(seed: int, server: RealServer, tmp_path: Path) -> None:
    objects = S3Objects(server.config(f"contract/{seed}"), lambda _: False)
    play(seed, objects, tmp_path)
    objects.close()


def play(seed: int, objects: ObjectStore, folder: Path) -> None:
    """Take steps that a seed chooses, and check after each of them."""
    chance = random.Random(seed)

    async def scenario() -> None:
        world = ShippedWorld(objects, folder, chance)
        await world.open()
        for name, argument in [("append", 20), *chosen(chance), ("trim", None), ("flush", None), ("power cut", None)]:
            if name == "checkpoint":
                world.shipped.store_checkpoint()
            else:
                await world.step(name, argument)
            world.check()
        await world.store.close()

    asyncio.run(scenario())
