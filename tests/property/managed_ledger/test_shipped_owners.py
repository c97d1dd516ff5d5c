"""Random stories of several owners of one log on objects, over a storage that answers late, twice or not at all.

Each entry is written behind the last one that its owner reads, so two owners that both believed to serve would write
over each other. Owners act within the requests of others, so that each of these can sleep between any two of them.
"""

import random
from functools import partial
from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.keys import Family
from managed_ledger.errors import LedgerError, LogFencedError
from managed_ledger.objects.shipped_database import ShippedDatabase, open_shipped
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock
from tests.helpers.fakes.memory_objects import FaultyObjects, MemoryObjects
from tests.helpers.seeds import seeds

pytestmark = pytest.mark.slow

OWNERS = 3
ACKNOWLEDGED_MIN = 60
COUNT = b"count"
CONFIG = ManagedLedgerConfig(write_buffer_bytes=2**16)


class OwnersStory:
    """Owners that take over, write, store checkpoints, sleep and die."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.place = MemoryObjects()
        self.folder = folder
        self.ways = [
            FaultyObjects(self.place, self.chance, 0.05, partial(self.meanwhile, owner)) for owner in range(OWNERS)
        ]
        self.open: dict[int, ShippedDatabase] = {}
        self.busy: set[int] = set()
        """Owners that sleep within a call."""
        self.acknowledged: list[bytes] = []
        self.lost: list[int] = []
        self.written = self.takeovers = self.fenced = self.checkpoints = 0

    def meanwhile(self, owner: int) -> None:
        """Another owner does something, now and then."""
        others = [one for one in range(OWNERS) if one not in self.busy]
        if others and self.chance.random() < 0.1:
            self.step(self.chance.choice(others))

    def step(self, owner: int) -> None:
        self.busy.add(owner)
        try:
            self._act(owner)
        finally:
            self.busy.discard(owner)

    def _act(self, owner: int) -> None:
        database = self.open.get(owner)
        if database is None:
            if self.chance.random() < 0.2:
                self.take_over(owner)
        elif self.chance.random() < 0.02:
            # It dies: nothing is stored any more.
            self.open.pop(owner).let_go()
        elif self.chance.random() < 0.15:
            try:
                database.store_checkpoint()
                self.checkpoints += 1
            except LogFencedError:
                self.give_up(owner)
            except TimeoutError:
                pass
        else:
            self.write(owner, database)

    def take_over(self, owner: int) -> None:
        try:
            self.open[owner] = open_shipped(
                self.folder / str(owner),
                CONFIG,
                objects=self.ways[owner],
                now_ms=LedgerClock(),
                on_lost=partial(self.lost.append, owner),
            )
            self.takeovers += 1
        except LedgerError:
            pass

    def write(self, owner: int, database: ShippedDatabase) -> None:
        count = int(database.get(Family.META, COUNT) or b"0") + 1
        self.written += 1
        entry = b"%d of %d" % (self.written, owner)
        batch = database.new_batch()
        batch.put(Family.META, COUNT, b"%d" % count)
        batch.put(Family.META, b"entry %08d" % count, entry)
        try:
            database.write(batch, sync=True)
        except LogFencedError:
            self.give_up(owner)
        else:
            self.acknowledged.append(entry)

    def give_up(self, owner: int) -> None:
        self.fenced += 1
        self.open.pop(owner).let_go()

    def land_all(self) -> None:
        """Have all requests land that are still on their way."""
        for way in self.ways:
            for request in way.late:
                request()


def entries_in(database: ShippedDatabase) -> list[bytes]:
    return [value for _, value in database.scan(Family.META, b"entry", b"entrz")]


@pytest.mark.parametrize("seed", seeds())
def test_nothing_acknowledged_is_lost_and_there_is_one_history(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managed_ledger.objects.bundle_checkpoints._PAUSE_S_MIN", 0.0)
    story = OwnersStory(seed, tmp_path)
    # Requests run in threads, so a seed does not play the same story twice: each goes on until it has met everything.
    while len(story.acknowledged) < ACKNOWLEDGED_MIN or not story.checkpoints or not story.fenced:
        story.step(story.chance.randrange(OWNERS))
    assert story.takeovers > 1
    story.land_all()
    last = open_shipped(tmp_path / "last", CONFIG, objects=story.place, now_ms=LedgerClock(), on_lost=lambda: None)
    found = entries_in(last)
    assert int(last.get(Family.META, COUNT) or b"0") == len(found) == len(set(found))
    # Of what was not acknowledged some are there: their answer was lost, or the owner died.
    acknowledged = set(story.acknowledged)
    assert [entry for entry in found if entry in acknowledged] == story.acknowledged
    last.close()
    for database in story.open.values():
        database.let_go()
    # Each was told once.
    assert len(story.lost) == story.fenced > 0
