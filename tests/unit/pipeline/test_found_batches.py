"""A job that cancels by property takes whole entries, so a batch must match as a whole."""

import asyncio
from pathlib import Path

import pyarrow as pa

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.entries.message_metadata import MAGIC
from managed_ledger.entries.messages import MessageFilter
from managed_ledger.ledger_store import LedgerStore
from pipeline.jobs.find_messages import take_messages
from tests.helpers.send_frames import batch_frame

NOW_MS = 1_700_000_000_000


def test_a_batch_is_found_if_all_of_its_messages_match(tmp_path: Path) -> None:
    """Otherwise a cancel in bulk would take messages along that nothing has selected."""
    batches = [["a", "b"], ["a", "a"], ["b"], ["a"]]

    async def write() -> int:
        store = await LedgerStore.open(tmp_path / "ledgers", ManagedLedgerConfig(), now_ms=lambda: NOW_MS)
        ledger = await store.open_managed_ledger("a")
        for number, names in enumerate(batches):
            frame = batch_frame(names, deliver_at_ms=NOW_MS + 1, is_compressed=number % 2 == 1)
            entry = frame[frame.index(MAGIC) :]
            ledger.append_nowait(entry, publish_time_ms=NOW_MS, deliver_at_ms=NOW_MS + 1, sticky_hash=1)
        await ledger.committed()
        ledger_id = ledger.ledgers()[0].ledger_id
        await store.close()
        return ledger_id

    ledger_id = asyncio.run(write())
    rows = pa.RecordBatch.from_pylist(
        [{"topic": "a", "ledger_id": ledger_id, "entry_id": entry_id} for entry_id in range(len(batches))]
    )
    wanted = MessageFilter(properties=((b"name", b"a"),))

    (found,) = take_messages([rows], location=str(tmp_path / "ledgers"), job="job", wanted=wanted)

    assert found.column("entry_id").to_pylist() == [1, 3]
