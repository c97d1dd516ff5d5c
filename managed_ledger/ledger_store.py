"""One RocksDB folder for all topics: one write-ahead log, so one group commit for everything.

    store = await LedgerStore.open(Path("data/log"), ManagedLedgerConfig(), now_ms=clock)
    ledger = await store.open_managed_ledger("persistent://public/default/orders")
    position = await ledger.append(b"...", publish_time_ms=clock())

Ledger ids come from one counter for all topics, which every commit stores. The keys are in
`keys`; RocksDB itself is known to `database` alone. Belongs to one event loop; two reader threads, one committer
thread and one for compaction do what would block it.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from weakref import WeakValueDictionary

from pyroaring import BitMap

from managed_ledger.completion import completed
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors import cursor_records
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.cursors.cursor_records import StoredCursor
from managed_ledger.disk import keys
from managed_ledger.disk.database import Batch, RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.errors import LedgerError, LedgerWriteError, StoreClosedError, StoreCorruptedError
from managed_ledger.ledgers import Ledger, Ledgers
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.value_types import Clock
from managed_ledger.reading.log_reader import LogReader
from managed_ledger.reading.shared_calls import SharedCalls
from managed_ledger.writing import sequence_ids
from managed_ledger.writing.committer import Committer

logger = logging.getLogger(__name__)

READER_THREADS = 2
_COUNTERS = struct.Struct("<QQ")
_OWNER = struct.Struct("<Q")

StoredCursors = dict[str, tuple[int, StoredCursor]]
OpenDatabase = Callable[[Path, ManagedLedgerConfig], ReopeningDatabase]
NewExecutor = Callable[[int, str], Executor]
"""Makes what runs blocking work: at most so many calls at a time, in threads of this name."""


def open_rocksdb(path: Path, config: ManagedLedgerConfig) -> ReopeningDatabase:
    """The database of a folder, which is opened again after errors that take that."""
    return ReopeningDatabase(path, partial(RocksDatabase.open, path, write_buffer_bytes=config.write_buffer_bytes))


class LedgerStore:
    """All managed ledgers of a folder; `open` makes one."""

    def __init__(
        self,
        database: ReopeningDatabase,
        config: ManagedLedgerConfig,
        now_ms: Clock,
        new_executor: NewExecutor = ThreadPoolExecutor,
    ) -> None:
        self.committer = Committer(
            database,
            stamp=self._put_counters,
            participants_max=config.round_participants_max,
            synced_interval_s=config.synced_interval_ms / 1000,
            executor=new_executor(1, "ledger-commit"),
        )
        self._database = database
        self.config = config
        self.now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._readers = new_executor(READER_THREADS, "ledger-read")
        self._compactor = new_executor(1, "ledger-compact")
        self._reads = SharedCalls(self._readers, READER_THREADS)
        self.reader = LogReader(database, self._reads, config.cache_bytes_max)
        self._owner_ids: dict[str, int] = {}
        self._records: dict[str, bytes] = {}
        self._managed_ledgers: dict[str, ManagedLedger] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of managed ledgers that are being opened or deleted; those of other names share a synced write."""
        self._next_ledger_id = self._next_owner_id = 1
        self._dirty_cursors: dict[Cursor, None] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._trimmed_ids: list[int] = []
        """The first and the last ledger that were deleted since space was given back; empty without any."""
        self._trimmed_bytes = 0
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        config: ManagedLedgerConfig,
        *,
        now_ms: Clock,
        open_database: OpenDatabase = open_rocksdb,
        new_executor: NewExecutor = ThreadPoolExecutor,
    ) -> "LedgerStore":
        """Open the folder, or create it.

        Args:
            path: The folder; this store's alone.
            config: Limits.
            now_ms: The clock.
            open_database: Opens the database; tests pass one that counts or fails.
            new_executor: Makes what runs blocking work; a simulation passes one without threads.

        Raises:
            StoreLockedError: A process has it open.
            StoreCorruptedError: The folder is damaged.
            StoreVersionError: Its format is another.
            StoreUnavailableError: It cannot be read or written.
        """
        loop = asyncio.get_running_loop()
        database = await loop.run_in_executor(None, open_database, path, config)
        store = cls(database, config, now_ms, new_executor)
        try:
            await loop.run_in_executor(store._readers, store._load)
        except LedgerError:
            await store.close()
            raise
        return store

    @property
    def failed(self) -> LedgerWriteError | None:
        """Why commits fail lastingly, though not for want of room, for the service to watch; None if they do not."""
        return self.committer.watch.failed

    @property
    def damage(self) -> str | None:
        """The damage that reads and writes have met; None while all is well."""
        return self._database.damage

    @property
    def refusal(self) -> str | None:
        """Why new entries are refused, until there is room again; None while they are taken."""
        return self.committer.watch.refusal

    @property
    def is_failing(self) -> bool:
        """Whether the last commit failed, so that it makes no sense to begin work that is not urgent."""
        return self.committer.watch.is_failing

    def managed_ledger_names(self) -> list[str]:
        """All that exist, open or not."""
        return sorted(self._owner_ids)

    @property
    def managed_ledger_count(self) -> int:
        """How many exist, open or not."""
        return len(self._owner_ids)

    def has_managed_ledger(self, name: str) -> bool:
        """Whether one of this name exists, open or not."""
        return name in self._owner_ids

    @completed
    async def open_managed_ledger(self, name: str) -> ManagedLedger:
        """The managed ledger of this name, created where it is missing; the same object while it is open."""
        async with self._lock_of(name):
            self._check_open()
            return await self._opened(name)

    @completed
    async def delete_managed_ledger(self, name: str) -> None:
        """Delete a managed ledger with its cursors for good; nothing happens where it is missing."""
        # Under one lock, so that it is not opened again before it is gone.
        async with self._lock_of(name):
            self._check_open()
            if name not in self._owner_ids:
                return
            ledger = await self._opened(name)
            await ledger.close()
            await self.committer.write(ledger.put_deletion)
            del self._owner_ids[name]
        self.trimmed([info.ledger_id for info in ledger.ledgers()], ledger.size_bytes)

    @property
    def records(self) -> Mapping[str, bytes]:
        """Small values of the store's user, by name; all are in memory."""
        return MappingProxyType(self._records)

    @completed
    async def put_record(self, name: str, value: bytes | None) -> None:
        """Store a small value under a name, or remove it; durable on return.

        Raises:
            LedgerWriteError: It is not durable; the record is as before.
        """
        self._check_open()
        key = keys.record_key(name)
        if value is None:
            await self.committer.write(lambda batch: batch.delete(Family.META, key))
            self._records.pop(name, None)
        else:
            await self.committer.write(lambda batch: batch.put(Family.META, key, value))
            self._records[name] = value

    async def checkpoint(self) -> Path:
        """Make a checkpoint beside the folder: a log of its own, with all that is durable now; the caller removes it.

        Tables are made while commits go on; the rest is done between two commits. A compaction that runs comes first.
        There is one checkpoint at a time.

        Raises:
            StoreFullError: There is no room for it.
            LedgerError: RocksDB or the system refuses.
        """
        self._check_open()
        await self._loop.run_in_executor(self._compactor, self._database.make_tables)
        self._check_open()
        return await self.committer.run(self._database.checkpoint)

    def hurry(self) -> None:
        """Make no pauses between writes from now on: the topics close, and then the log."""
        self.committer.hurry()

    @completed
    async def close(self) -> None:
        """Flush acknowledgements, wait for commits, and release the folder."""
        if self._is_closed:
            return
        self._is_closed = True
        for lock in list(self._locks.values()):
            # Those that wait for it come first.
            async with lock:
                pass
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        # All are closed together, as each waits for a write that they share.
        closed = await asyncio.gather(
            *(ledger.close() for ledger in list(self._managed_ledgers.values())), return_exceptions=True
        )
        await self.committer.close()
        await self._loop.run_in_executor(None, self._release)
        for failure in closed:
            if failure is not None:
                raise failure

    def _release(self) -> None:
        # RocksDB keeps its lock while an iterator of a reader lives, so they end first.
        self._compactor.shutdown(cancel_futures=True)
        self._readers.shutdown()
        self._database.close()

    def _load(self) -> None:
        counters = self._database.get(Family.META, keys.COUNTERS_KEY)
        if counters is not None:
            self._next_ledger_id, self._next_owner_id = _COUNTERS.unpack(counters)
        for key, value in self._database.scan(Family.META, *keys.prefix_range(b"m")):
            self._owner_ids[key[1:].decode()] = _OWNER.unpack(value)[0]
        for key, value in self._database.scan(Family.META, *keys.prefix_range(b"r")):
            self._records[key[1:].decode()] = value

    def _read(self, owner_id: int, name: str) -> tuple[Ledgers, StoredCursors, dict[str, sequence_ids.LastUse]]:
        """Ledgers, cursors and sequence ids of a managed ledger, as stored."""
        try:
            return self._decode(owner_id, name)
        except (struct.error, ValueError, LookupError) as error:
            raise StoreCorruptedError(
                f"The record of {name} makes no sense ({error}). Restore the folder from a copy"
            ) from error

    def _decode(self, owner_id: int, name: str) -> tuple[Ledgers, StoredCursors, dict[str, sequence_ids.LastUse]]:
        ledgers = Ledgers()
        for key, value in self._database.scan(Family.META, *keys.prefix_range(b"l", owner_id)):
            ledgers.add(Ledger.decode(keys.number_at_end(key), value))
        for key, value in self._database.scan(Family.META, *keys.prefix_range(b"h", owner_id)):
            repaired = ledgers.get(keys.number_at_end(key))
            if repaired is not None:
                repaired.lost = BitMap.deserialize(value)
        cursors: StoredCursors = {}
        for key, value in self._database.scan(Family.META, *keys.prefix_range(b"c", owner_id)):
            cursor_name, cursor_id = key[9:].decode(), _OWNER.unpack(value)[0]
            stored = cursor_records.decode(self._database.scan(Family.CURSORS, *keys.cursor_range(cursor_id)))
            if stored is None:
                raise StoreCorruptedError(
                    f"Cursor {cursor_name} of {name} has no state. Restore the folder from a copy"
                )
            cursors[cursor_name] = (cursor_id, stored)
        rows = self._database.scan(Family.META, *keys.prefix_range(b"d", owner_id))
        return ledgers, cursors, sequence_ids.decode(rows)

    async def _opened(self, name: str) -> ManagedLedger:
        known = self._managed_ledgers.get(name)
        if known is not None and not known.is_closed:
            return known
        if known is not None:
            # Its last writes must be there to be read.
            await known.close()
        owner_id = self._owner_ids.get(name)
        if owner_id is None:
            return await self._create(name)
        ledgers, cursors, of_producers = await self._reads.run(partial(self._read, owner_id, name))
        ledger = ManagedLedger(name, owner_id, ledgers, self)
        ledger.open(cursors, of_producers)
        self._managed_ledgers[name] = ledger
        return ledger

    async def _create(self, name: str) -> ManagedLedger:
        owner_id = self.new_owner_id()
        ledger = ManagedLedger(name, owner_id, Ledgers(), self)
        ledger.open({})
        # Of one participant, so that a managed ledger is there with its first ledger or not at all.
        await ledger.create_with(_NameRow(name, owner_id))
        self._owner_ids[name] = owner_id
        self._managed_ledgers[name] = ledger
        return ledger

    # For managed ledgers and their cursors.

    def new_ledger_id(self) -> int:
        """Return an id that no ledger has had; the next commit makes that durable."""
        self._next_ledger_id += 1
        return self._next_ledger_id - 1

    def new_owner_id(self) -> int:
        """Return an id that no managed ledger and no cursor has had; the next commit makes that durable."""
        self._next_owner_id += 1
        return self._next_owner_id - 1

    def closed(self, ledger: ManagedLedger) -> None:
        """A managed ledger was closed."""
        self._managed_ledgers.pop(ledger.name, None)

    def _put_counters(self, batch: Batch) -> None:
        batch.put(Family.META, keys.COUNTERS_KEY, _COUNTERS.pack(self._next_ledger_id, self._next_owner_id))

    def flush_soon(self, cursor: Cursor) -> None:
        """Have the acknowledgements of a cursor in a commit some milliseconds from now."""
        self._dirty_cursors[cursor] = None
        if self._flush_timer is None and not self._is_closed:
            delay = self.config.ack_flush_interval_ms / 1000
            self._flush_timer = self._loop.call_later(delay, self._flush_cursors)

    def _flush_cursors(self) -> None:
        self._flush_timer = None
        cursors, self._dirty_cursors = self._dirty_cursors, {}
        for cursor in cursors:
            # A call for durability may have been earlier.
            if cursor.has_news:
                self.committer.request(cursor, sync=False)

    def trimmed(self, ledger_ids: Sequence[int], size_bytes: int) -> None:
        """Give space back once enough was deleted; RocksDB would leave it until it compacts by itself."""
        self._add_trimmed(ledger_ids, size_bytes)
        if self._trimmed_bytes >= self.config.compact_bytes_min:
            self.compact_trimmed()

    def compact_trimmed(self) -> None:
        """Give back the space of trimmed ledgers now, in a thread, if there are any.

        Where there is no room for it, the next call tries again.
        """
        if self._trimmed_ids and not self._is_closed:
            first, last = self._trimmed_ids
            size_bytes = self._trimmed_bytes
            self._trimmed_ids, self._trimmed_bytes = [], 0
            self._compactor.submit(self._compact, first, last, size_bytes)

    def _compact(self, first: int, last: int, size_bytes: int) -> None:
        start, end = keys.ledger_range(first)[0], keys.ledger_range(last)[1]
        then: Callable[[], None] = self.committer.probe_now
        try:
            for family in (Family.HEADERS, Family.PAYLOADS):
                self._database.compact(family, start, end)
        except LedgerError as error:
            logger.debug("Space of trimmed ledgers %d to %d is given back later: %s", first, last, error)
            then = partial(self._add_trimmed, [first, last], size_bytes)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(then)

    def _add_trimmed(self, ledger_ids: Sequence[int], size_bytes: int) -> None:
        # The ends are enough, as the range between them is compacted. A list would grow for ever where topics without
        # entries are deleted: they have no bytes, and no compaction comes of them.
        known = (*self._trimmed_ids, *ledger_ids)
        self._trimmed_ids = [min(known), max(known)]
        self._trimmed_bytes += size_bytes

    def _lock_of(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError("The log was closed")


class _NameRow:
    """The row by which a managed ledger is found, with the commit of its first ledger."""

    def __init__(self, name: str, owner_id: int) -> None:
        self._key, self._value = keys.managed_ledger_key(name), _OWNER.pack(owner_id)

    def put(self, batch: Batch) -> None:
        batch.put(Family.META, self._key, self._value)

    def settle(self, error: LedgerWriteError | None) -> bool:
        del error
        return False
