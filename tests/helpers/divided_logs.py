"""A data folder with topics of all kinds of state, and all that it has, to compare before and after a division."""

import asyncio
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

from managed_ledger.bundle_settings import bundle_folders
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.position import Position
from managed_ledger.writing.sequence_ids import LastUse
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock
from tests.helpers.log_reading import read_entries

CONFIG = ManagedLedgerConfig(entries_per_ledger_max=20)
SHARED = {"permissions public/default": b"{}", "delayedDelivery public/default": b"namespace"}
DISK_BLOCK_BYTES = 1_500


def topic_named(number: int) -> str:
    return f"persistent://public/default/topic-{number}"


async def _opened(folder: Path) -> LedgerStore:
    return await LedgerStore.open(folder, CONFIG, now_ms=LedgerClock())


def fill_data(data: Path, topics: Collection[int], *, seed: int = 1) -> None:
    """Add messages, cursors, acknowledgements, producers and records to the log of a data folder with one bundle."""
    data.mkdir(exist_ok=True)

    async def run() -> None:
        random_ = random.Random(seed)
        store = await _opened(data / "ledgers")
        for number in topics:
            name = topic_named(number)
            ledger = await store.open_managed_ledger(name)
            cursors = [await ledger.open_cursor(f"s{at}", properties={"k": str(number)}) for at in range(number % 3)]
            positions = [
                ledger.append_nowait(
                    random_.randbytes(random_.randrange(DISK_BLOCK_BYTES)),
                    publish_time_ms=1_000 + at,
                    deliver_at_ms=5_000 + at,
                    sticky_hash=at,
                )
                for at in range(random_.randrange(70))
            ]
            if number % 4 == 0:
                ledger.sequence_ids.set("producer", LastUse(number, 1_000))
                ledger.append_nowait(b"", publish_time_ms=1_000)
            await ledger.committed()
            for cursor in cursors:
                some = [one for one in positions if random_.random() < 0.4]
                cursor.acknowledge([one.ledger_id for one in some], [one.entry_id for one in some])
                await cursor.flush()
            await store.put_record(f"topicEpoch {name}", str(number).encode())
            await store.put_record(f"delayedDelivery {name}", b"topic")
            await store.put_record(f"trail {number}", b"entry")
        for record, value in SHARED.items():
            await store.put_record(record, value)
        await store.close()

    asyncio.run(run())


def contents(data: Path) -> dict[str, Any]:
    """Everything of all topics, by name: positions, payloads, headers, cursors and their properties; and records.

    Fails where a topic is in two bundles, or in one that is not its own.
    """

    async def run() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for bundle, folder in bundle_folders(data).items():
            store = await _opened(folder / "ledgers")
            try:
                for name in store.managed_ledger_names():
                    assert bundle.has(name)
                    assert name not in found
                    found[name] = await _topic(store, name)
                for record, value in store.records.items():
                    assert record not in found
                    found[record] = value
            finally:
                await store.close()
        return found

    return asyncio.run(run())


async def _topic(store: LedgerStore, name: str) -> Any:
    ledger = await store.open_managed_ledger(name)
    read = await read_entries(ledger, Position(0, 0), entries_max=100_000)
    headers = read.headers
    at = list(zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True))
    return {
        "entries": list(zip(at, read.payloads, headers.deliver_at_ms.tolist(), strict=True)),
        "cursors": {
            cursor_name: (cursor.cursor_id, dict(cursor.properties), [cursor.is_acknowledged(*one) for one in at])
            for cursor_name, cursor in ledger.cursors.items()
        },
        "producers": dict(ledger.sequence_ids.durable),
    }
