"""Objects of the log as bytes, and which of them count."""

from pathlib import Path

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.disk.keys import Family
from managed_ledger.errors import StoreCorruptedError
from managed_ledger.objects.log_object import LogObject, Replay, apply_changes
from managed_ledger.objects.shipped_database import open_shipped
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock, MemoryBatch
from tests.helpers.fakes.memory_objects import MemoryObjects

FIRST, SECOND = "01" * 8, "02" * 8


def test_changes_come_back_in_order(tmp_path: Path) -> None:
    objects = MemoryObjects()
    database = open_shipped(
        tmp_path, ManagedLedgerConfig(), objects=objects, now_ms=LedgerClock(), on_lost=lambda: None
    )
    batch = database.new_batch()
    batch.put(Family.META, b"a", b"1")
    batch.delete_range(Family.HEADERS, b"a", b"b")
    batch.put(Family.PAYLOADS, b"", b"")
    batch.delete(Family.CURSORS, b"c")
    database.write(batch, sync=False)
    database.let_go()
    # After its fence.
    data = objects.objects["log/0000000000000002"]
    found = LogObject.decode(data, 2, "here")
    assert (found.epoch, found.number) == (1, 2)
    again = MemoryBatch()
    apply_changes(found.changes, again)
    assert again.changes == [
        (Family.META, b"a", b"1", None),
        (Family.HEADERS, b"a", None, b"b"),
        (Family.PAYLOADS, b"", b"", None),
        (Family.CURSORS, b"c", None, None),
    ]
    assert found.encode() == data


@pytest.mark.parametrize("at", [0, 5, 14, 22, 29, 31, -1])
def test_a_damaged_byte_is_found(at: int) -> None:
    data = bytearray(LogObject(1, FIRST, 7, b"changes").encode())
    data[at] ^= 1
    with pytest.raises(StoreCorruptedError, match="its checksum is another"):
        LogObject.decode(bytes(data), 7, "here")


def test_an_object_of_another_number_is_refused() -> None:
    with pytest.raises(StoreCorruptedError, match="no object of this log"):
        LogObject.decode(LogObject(1, FIRST, 7, None).encode(), 8, "here")


def test_an_object_behind_the_fence_of_a_later_owner_is_void() -> None:
    applied = []
    replay = Replay(applied.append)
    for one in (
        LogObject(1, FIRST, 1, None),
        LogObject(1, FIRST, 2, b"a"),
        LogObject(2, SECOND, 3, None),
        LogObject(1, FIRST, 4, b"b"),
        LogObject(2, SECOND, 5, b"c"),
    ):
        replay.take(one)
    assert applied == [b"a", b"c"]
    assert replay.fences == [1, 3]
    assert replay.size_bytes == 2
