"""A managed-ledger folder as a job sees it: topics, ledgers, cursors, and headers by ledger; read-only.

Any number of processes may read a folder, also one that a service has open: each sees it as it was when it looked.
RocksDB itself is known to `managed_ledger.disk.database`. Headers are a column family of their own; payloads are read
where `entries` is asked for, and nowhere else.

Here are no threads and no event loop, so a task of Spark reads with one seek and a walk over blocks.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from managed_ledger.cursors import cursor_records
from managed_ledger.cursors.cursor_records import StoredCursor
from managed_ledger.disk import keys
from managed_ledger.disk.database import Database, RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.entries.blocks import payload_at, payload_count
from managed_ledger.entries.headers import EntryHeaders, Rows, decode_rows
from managed_ledger.errors import StoreCorruptedError
from managed_ledger.ledgers import Ledger
from managed_ledger.positions.value_types import Int64Array
from managed_ledger.rocksdb_store.files import LOG_MARKER_FILE
from postdate.index.bundle_choice import one_bundle
from postdate.index.ledger_ranges import HeaderRange, LedgerExtent
from snapshot_storage.encoding.columns import DelayedIndexes

_OWNER = struct.Struct("<Q")


def log_folder_of(location: str) -> Path | None:
    """Return the folder of a managed ledger at a location, None where there is none.

    A data directory of the service stands for the log in it.

    Raises:
        BundlesError: It has several bundles, each of which is such a directory.
    """
    if "://" in location:
        return None
    for folder in (Path(location), Path(location) / "ledgers"):
        if (folder / LOG_MARKER_FILE).exists():
            return folder.absolute()
    one_bundle(Path(location), None)
    return None


class LogFolder:
    """A folder that is open to read."""

    def __init__(self, path: Path, database: Database | None = None) -> None:
        """Open the folder, or look into one that is open.

        Raises:
            LedgerError: There is no log, or it cannot be read.
        """
        self._path = path
        self._read_only: RocksDatabase | None = None
        self._database: Database = database or self._opened()
        self._owner_ids: dict[str, int] = {
            key[1:].decode(): _OWNER.unpack(value)[0]
            for key, value in self._database.scan(Family.META, *keys.prefix_range(b"m"))
        }

    def _opened(self) -> RocksDatabase:
        self._read_only = RocksDatabase.open_read_only(self._path)
        return self._read_only

    def close(self) -> None:
        """Let go of the folder; one that the caller opened stays open."""
        if self._read_only is not None:
            self._read_only.release()

    def topics(self) -> list[str]:
        """All topics, in order of name."""
        return sorted(self._owner_ids)

    def ledgers(self, topics: Collection[str] | None = None) -> list[LedgerExtent]:
        """The ledgers that have entries, of all topics or of these, by topic and then in order."""
        return [
            LedgerExtent(
                topic,
                ledger.ledger_id,
                ledger.entries,
                ledger.is_open,
                ledger.durable.publish_time_ms_max,
                ledger.durable.due_ms_max,
            )
            for topic in self.topics()
            if topics is None or topic in topics
            for ledger in self._records(topic)
            if ledger.entries
        ]

    def _records(self, topic: str) -> Iterator[Ledger]:
        for key, value in self._database.scan(Family.META, *keys.prefix_range(b"l", self._owner_ids[topic])):
            try:
                yield Ledger.decode(keys.number_at_end(key), value)
            except struct.error as error:
                raise self._makes_no_sense(topic, error) from error

    def cursors(self, topic: str) -> dict[str, tuple[int, StoredCursor]]:
        """The subscriptions of a topic: the number under which each is stored, and its record."""
        found = {}
        owner_id = self._owner_ids.get(topic)
        if owner_id is None:
            return {}
        for key, value in self._database.scan(Family.META, *keys.prefix_range(b"c", owner_id)):
            (cursor_id,) = _OWNER.unpack(value)
            try:
                stored = cursor_records.decode(self._database.scan(Family.CURSORS, *keys.cursor_range(cursor_id)))
            except (struct.error, ValueError, LookupError) as error:
                raise self._makes_no_sense(topic, error) from error
            if stored is not None:
                found[key[9:].decode()] = (cursor_id, stored)
        return found

    def read(self, part: HeaderRange) -> EntryHeaders:
        """The headers of a range; none where the ledger was trimmed meanwhile.

        Raises:
            StoreCorruptedError: The ledger lacks entries that its record counts.
        """
        rows = self._rows(part)
        return EntryHeaders.from_rows(*_positions(part, len(rows)), rows)

    def read_times(self, part: HeaderRange) -> DelayedIndexes:
        """When the entries of a range are to be delivered; raises what `read` raises."""
        rows = self._rows(part)
        return DelayedIndexes(np.ascontiguousarray(rows[:, 0]), *_positions(part, len(rows)))

    def entries(self, ledger_id: int, entry_ids: Sequence[int]) -> Iterator[bytes]:
        """Give entries of one ledger as they were sent, in order; none for one that is not there.

        Args:
            ledger_id: The ledger.
            entry_ids: Ascending.
        """
        with self._database.rows(Family.PAYLOADS) as rows:
            first, end, block = 0, 0, b""
            for entry_id in entry_ids:
                if entry_id >= end:
                    rows.seek_for_prev(keys.block_key(ledger_id, entry_id))
                    if not rows.valid():
                        return
                    found_ledger_id, first = keys.pair.unpack(rows.key())
                    block = rows.value()
                    end = first + payload_count(block)
                    if found_ledger_id != ledger_id or entry_id >= end:
                        return
                yield payload_at(block, entry_id - first)

    def _rows(self, part: HeaderRange) -> Rows:
        blocks = list(self._blocks(part))
        first = min(blocks[0][0], part.first) if blocks else 0
        rows = decode_rows(b"".join([block for _, block in blocks]))[part.first - first : part.end - first]
        # Blocks have no gaps, so a count says that all is there.
        if len(rows) != part.entries:
            if any(ledger.ledger_id == part.ledger_id for ledger in self._records(part.topic)):
                raise StoreCorruptedError(
                    f"{part.topic}: ledger {part.ledger_id} has {len(rows)} of the entries {part.first} to "
                    f"{part.end - 1} that its record counts. Restore the folder {self._path} from a copy"
                )
            return decode_rows(b"")
        return rows

    def _blocks(self, part: HeaderRange) -> Iterator[tuple[int, bytes]]:
        """The blocks that cover a range, each with its first entry."""
        with self._database.rows(Family.HEADERS) as rows:
            rows.seek_for_prev(keys.block_key(part.ledger_id, part.first))
            while rows.valid():
                ledger_id, first = keys.pair.unpack(rows.key())
                if ledger_id != part.ledger_id or first >= part.end:
                    break
                yield first, rows.value()
                rows.next()

    def _makes_no_sense(self, topic: str, error: Exception) -> StoreCorruptedError:
        return StoreCorruptedError(
            f"The record of {topic} makes no sense ({error}). Restore the folder {self._path} from a copy"
        )


def _positions(part: HeaderRange, count: int) -> tuple[Int64Array, Int64Array]:
    """The ledger and the entries of the first rows of a range."""
    return np.full(count, part.ledger_id, np.int64), np.arange(part.first, part.first + count)
