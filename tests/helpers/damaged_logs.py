"""Logs to damage: three topics, half of them in tables and half in the write-ahead log of a process that was killed."""

import asyncio
import random
import shutil
from pathlib import Path

import google_crc32c

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.entries.headers import header_in
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.positions.position import Position
from postdate.index.entry_format import PulsarEntries
from tests.helpers.fakes.life_loop import LifeLoop, LoopExecutor
from tests.helpers.fakes.virtual_time import SimulationLoop
from tests.helpers.log_reading import read_entries

TOPICS = ("persistent://public/default/orders", "persistent://public/default/ü", "persistent://a/b/c")
ENTRIES = 240
CONFIG = ManagedLedgerConfig(entries_per_ledger_max=100, write_buffer_bytes=2**20)
NOW_MS = 1_700_000_000_000
ACKNOWLEDGED = range(3, 50, 3)
ENTRIES_OF_A_RECORD = 80
"""More than RocksDB skips of a write-ahead log for one wrong byte: up to 32 KiB, and the commits that reach beyond."""

Content = dict[str, dict[tuple[int, int], bytes]]


def make_entry(topic: int, number: int) -> bytes:
    """An entry as a client sends it, with its checksum."""
    metadata = MessageMetadata(
        producer_name=f"producer-{topic}",
        sequence_id=number,
        publish_time=NOW_MS + number,
        partition_key=b"key-%d" % (number % 7),
    )
    if number % 3 == 0:
        metadata.deliver_at_time = NOW_MS + 10**7 + number
    packed = metadata.SerializeToString()
    # A mixture of bytes that compress and bytes that do not.
    source = random.Random(number)
    payload = source.randbytes(source.choice((0, 100, 900))) + b"x" * source.choice((0, 1000))
    rest = len(packed).to_bytes(4) + packed + payload
    return b"\x0e\x01" + google_crc32c.value(rest).to_bytes(4) + rest


def _append(ledger: ManagedLedger, topic: int, number: int) -> None:
    entry = make_entry(topic, number)
    row = PulsarEntries().header_row(entry)
    assert row is not None
    header = header_in(row, 0)
    ledger.append_nowait(
        entry,
        publish_time_ms=header.publish_time_ms,
        deliver_at_ms=header.deliver_at_ms,
        sticky_hash=header.sticky_hash,
        flags=header.flags,
    )


async def fill(folder: Path) -> None:
    """Make a log, closed, and beside it one whose process was killed (`-killed`)."""
    opened: list[RocksDatabase] = []

    def open_database(path: Path, config: ManagedLedgerConfig) -> ReopeningDatabase:
        def open_once() -> RocksDatabase:
            opened.append(RocksDatabase.open(path, write_buffer_bytes=config.write_buffer_bytes))
            return opened[-1]

        return ReopeningDatabase(path, open_once)

    store = await LedgerStore.open(folder, CONFIG, now_ms=lambda: NOW_MS, open_database=open_database)
    ledgers = [await store.open_managed_ledger(name) for name in TOPICS]
    await store.put_record("policies", b"{}")
    for start in (0, ENTRIES // 2):
        for topic, ledger in enumerate(ledgers):
            cursor = await ledger.open_cursor("sub", properties={"bucket": "17"})
            for number in range(start, start + ENTRIES // 2):
                _append(ledger, topic, number)
                if number % 20 == 19:
                    await ledger.committed()
            cursor.acknowledge([ledger.first_position.ledger_id] * len(ACKNOWLEDGED), ACKNOWLEDGED)
            await cursor.flush()
        if start == 0:
            opened[0].flush()
    # As a process that is killed a second later: the log stays.
    opened[0].mark_synced()
    shutil.copytree(folder, folder.with_name(folder.name + "-killed"))
    await store.close()


def fill_in_a_burst(folder: Path, *, entries: int, idle_s: float) -> None:
    """Leave a log as a process does that is killed some (virtual) time after one burst of synced writes."""

    def new_executor(loop: SimulationLoop, workers: int) -> LoopExecutor:
        return LoopExecutor(loop, workers, lambda: 0.0001)

    async def burst(loop: LifeLoop) -> None:
        running = folder.with_name("running")
        store = await LedgerStore.open(
            running, CONFIG, now_ms=lambda: NOW_MS, new_executor=lambda workers, _: new_executor(loop, workers)
        )
        ledger = await store.open_managed_ledger(TOPICS[0])
        for number in range(entries):
            _append(ledger, 0, number)
            await ledger.committed()
        await asyncio.sleep(idle_s)
        shutil.copytree(running, folder)
        await store.close()
        shutil.rmtree(running)

    loop = LifeLoop(0.0, new_executor)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(burst(loop))


async def content_of(folder: Path) -> tuple[Content, dict[str, int]]:
    """Return all entries that a service finds in a folder, and the backlog by topic."""
    store = await LedgerStore.open(folder, CONFIG, now_ms=lambda: NOW_MS)
    content: Content = {}
    backlogs = {}
    try:
        for name in store.managed_ledger_names():
            ledger = await store.open_managed_ledger(name)
            read = await read_entries(ledger, Position(0, 0), entries_max=10**6)
            positions = zip(read.headers.ledger_ids.tolist(), read.headers.entry_ids.tolist(), strict=True)
            content[name] = dict(zip(positions, read.payloads, strict=True))
            for index, payload in enumerate(read.payloads):
                row = PulsarEntries().header_row(payload)
                assert row is not None
                assert int.from_bytes(row[:8], "little", signed=True) == read.headers.deliver_at_ms[index]
                assert int.from_bytes(row[16:20], "little") == read.headers.sticky_hashes[index]
            if "sub" in ledger.cursors:
                backlogs[name] = ledger.cursors["sub"].backlog
    finally:
        await store.close()
    return content, backlogs


def flip_type(file: Path, record: int = -1) -> None:
    """Flip the bit of a record's type that makes it one of a recycled log, in a log or list of files of RocksDB."""
    content = bytearray(file.read_bytes())
    headers, at = [], 0
    while at + 7 <= len(content):
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        is_rest_of_block = (not length and not kind) or at % 2**15 > 2**15 - 7
        if not is_rest_of_block:
            headers.append(at)
        at = (at // 2**15 + 1) * 2**15 if is_rest_of_block else at + 7 + length
    content[headers[record] + 6] ^= 4
    file.write_bytes(content)


def harm_an_entry(folder: Path) -> Path:
    """Change one byte in a payload in a table, so that this entry is lost; return the table."""
    # Bytes that do not compress stand in a table as they are.
    payload = next(entry for number in range(ENTRIES // 2) if 900 < len(entry := make_entry(0, number)) < 1_000)[-900:]
    table = next(file for file in folder.glob("*.sst") if payload[:40] in file.read_bytes())
    content = table.read_bytes()
    at = content.index(payload[:40])
    table.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return table


def flip(file: Path, source: random.Random) -> None:
    """Change one byte of a file, at a seeded place."""
    content = bytearray(file.read_bytes())
    if content:
        content[source.randrange(len(content))] ^= source.randrange(1, 256)
        file.write_bytes(content)
