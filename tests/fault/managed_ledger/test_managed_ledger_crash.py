"""`kill -9` of a real process at random points, again and again on one folder.

The child appends, acknowledges and trims as fast as it can, and says on its standard output what became durable:
an append when `committed()` completed, an acknowledgement when `flush()` did. The parent kills it at a random moment,
opens the folder itself and checks: reported entries are there, all entries are whole, and there are no others.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from tests.helpers.log_reading import read_entries

KILLS = 6
CONFIG = ManagedLedgerConfig(entries_per_ledger_max=700, write_buffer_bytes=2**18)
TOPICS = ("orders", "refunds")


def _payload(sequence: int) -> bytes:
    """The payload of entry number `sequence` of a topic; now and then larger than a block."""
    source = random.Random(sequence)
    return source.randbytes(source.choice((0, 10, 100, 1000, 1000, 20_000)))


def _now_ms() -> int:
    return time.time_ns() // 10**6


async def _child(folder: Path, seed: int) -> None:
    source = random.Random(seed)
    store = await LedgerStore.open(folder, CONFIG, now_ms=_now_ms)
    ledgers = [await store.open_managed_ledger(name) for name in TOPICS]
    for ledger in ledgers:
        await ledger.open_cursor("subscription")
    await asyncio.gather(*(_append_and_acknowledge(ledger, source) for ledger in ledgers))


async def _append_and_acknowledge(ledger: ManagedLedger, source: random.Random) -> None:
    """Work until killed; `publish_time_ms` is the number of the entry in its topic."""
    cursor = ledger.cursors["subscription"]
    sequence = await _next_sequence(ledger)
    while True:
        for _ in range(source.choice((1, 3, 30, 300))):
            ledger.append_nowait(_payload(sequence), publish_time_ms=sequence)
            sequence += 1
        last = ledger.last_position
        await ledger.committed()
        _say("durable", ledger.name, *last)
        read = await ledger.read_headers(
            cursor.next_unacknowledged_position, entries_max=400, skip=cursor.acknowledged_in
        )
        pairs = list(zip(read.headers.ledger_ids.tolist(), read.headers.entry_ids.tolist(), strict=True))
        chosen = source.sample(pairs, min(len(pairs), source.choice((1, 20, 300))))
        # The child says which entries it will acknowledge, so that the parent knows of those done just before a kill.
        _say("trying", ledger.name, *(f"{pair[0]}:{pair[1]}" for pair in chosen))
        cursor.acknowledge([pair[0] for pair in chosen], [pair[1] for pair in chosen])
        if source.random() < 0.3:
            await cursor.flush()
            _say("flushed", ledger.name)
        if source.random() < 0.1:
            await ledger.trim()


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def _next_sequence(ledger: ManagedLedger) -> int:
    last = ledger.last_confirmed_position
    if last.entry_id < 0:
        return 0
    headers = await ledger.read_headers_at([last.ledger_id], [last.entry_id])
    return int(headers.publish_time_ms[0]) + 1


class Told:
    """The reports of the child on one topic, over all its lives."""

    def __init__(self) -> None:
        self.last_durable = Position(-1, -1)
        self.tried: set[Position] = set()
        self.flushed: set[Position] = set()
        self.found: set[Position] = set()
        """Entries at the last check."""

    def hear(self, verb: str, words: list[str]) -> None:
        match verb:
            case "durable":
                self.last_durable = Position(int(words[0]), int(words[1]))
            case "trying":
                self.tried |= {Position(*map(int, word.split(":"))) for word in words}
            case "flushed":
                self.flushed = set(self.tried)


def _kill_at_random(folder: Path, seed: int, told: dict[str, Told]) -> None:
    with subprocess.Popen(
        [sys.executable, __file__, str(folder), str(seed)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        lines: Iterator[str] = child.stdout
        # A number of lines rather than a time: so the child has always done something, on any machine.
        for _, line in zip(range(random.Random(seed).randint(1, 150)), lines, strict=False):
            _hear(line, told)
        child.kill()
        for line in lines:
            _hear(line, told)
    assert child.returncode == -9


def _hear(line: str, told: dict[str, Told]) -> None:
    """A line that the kill cut short was not said."""
    if line.endswith("\n"):
        verb, name, *words = line.split()
        told[name].hear(verb, words)


async def _check(folder: Path, told: dict[str, Told]) -> None:
    store = await LedgerStore.open(folder, CONFIG, now_ms=_now_ms)
    for name in store.managed_ledger_names():
        ledger = await store.open_managed_ledger(name)
        heard = told[name]
        assert ledger.last_confirmed_position >= heard.last_durable
        positions = await _check_entries(ledger)
        cursor = ledger.cursors.get("subscription")
        acknowledged = {p for p in positions if cursor is not None and cursor.is_acknowledged(*p)}
        # A trim takes acknowledged entries only, so flushed acknowledgements are there, or their entries are gone.
        assert heard.flushed & positions <= acknowledged
        assert acknowledged <= heard.tried
        assert heard.found - positions <= heard.tried
        if cursor is not None:
            assert cursor.backlog == len(positions) - len(acknowledged)
        heard.found = positions
        # Acknowledgements without a flush may be lost; the next life starts from those that were found.
        heard.tried, heard.flushed = acknowledged, set(acknowledged)
    await store.close()


async def _check_entries(ledger: ManagedLedger) -> set[Position]:
    """Every entry is whole and follows the one before."""
    positions: set[Position] = set()
    expected: int | None = None
    position = ledger.first_position
    while True:
        read = await read_entries(ledger, position, entries_max=500)
        if not len(read.headers):
            break
        sequences = read.headers.publish_time_ms.tolist()
        first = sequences[0] if expected is None else expected
        assert sequences == list(range(first, first + len(sequences)))
        assert read.payloads == [_payload(sequence) for sequence in sequences]
        pairs = zip(read.headers.ledger_ids.tolist(), read.headers.entry_ids.tolist(), strict=True)
        positions |= {Position(*pair) for pair in pairs}
        expected = first + len(sequences)
        position = read.next_position
    assert len(positions) == ledger.entries_total
    return positions


def test_what_was_durable_survives_every_kill(tmp_path: Path) -> None:
    """No durable entry lost, none torn, flushed acknowledgements there, none invented."""
    told = {name: Told() for name in TOPICS}
    for seed in range(KILLS):
        _kill_at_random(tmp_path, seed, told)
        asyncio.run(_check(tmp_path, told))
    assert all(heard.flushed and heard.last_durable.ledger_id > 2 for heard in told.values()), "did nothing"


if __name__ == "__main__":
    asyncio.run(_child(Path(sys.argv[1]), int(sys.argv[2])))
