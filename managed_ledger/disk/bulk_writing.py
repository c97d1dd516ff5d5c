"""Rows on their way to a new folder, in batches: what a repair and a division write."""

from typing import Final

from managed_ledger.disk.database import RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.rocksdb_store.store import StoreBatch

_BATCH_BYTES: Final = 4 * 2**20


class BulkWriting:
    """Writes rows of a log that nobody reads yet: nothing is durable before the database is closed."""

    def __init__(self, database: RocksDatabase) -> None:
        self._database = database
        self._batch: StoreBatch = database.new_batch()

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set a key, now or with later ones."""
        self._batch.put(family, key, value)
        if self._batch.size_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is left."""
        self._database.write(self._batch, sync=False)
        self._batch = self._database.new_batch()
