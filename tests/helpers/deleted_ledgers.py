"""A ledger that was deleted from a log, in its tables still."""

from collections.abc import Sequence

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import CURSOR_MARK_DELETE, Family, block_key, cursor_state_key, ledger_range


def write_deleted_ledger(database: RocksDatabase, family: str, ledger_id: int, blocks: Sequence[bytes]) -> None:
    """Leave a table of blocks, one of cursors on both sides of the ledger's keys, and one of the deletion alone."""
    batch = database.new_batch()
    for entry_id, block in enumerate(blocks):
        batch.put(family, block_key(ledger_id, entry_id), block)
    for cursor_id in (1, 9):
        batch.put(Family.CURSORS, cursor_state_key(cursor_id, CURSOR_MARK_DELETE), b"position")
    database.write(batch, sync=True)
    database.flush()
    batch = database.new_batch()
    batch.delete_range(family, *ledger_range(ledger_id))
    database.write(batch, sync=True)
    database.flush()
