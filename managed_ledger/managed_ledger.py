"""One topic's log: a sequence of ledgers, appended at the end, read anywhere, trimmed at the front.

Made by `LedgerStore.open_managed_ledger`. Appending gives a position at once and durability with the next group
commit; only durable entries can be read. Cursors hold the acknowledgements of each subscription; ledgers that every
cursor has wholly passed are trimmed. Belongs to one event loop.

Nothing here runs by itself: the service calls `roll_over_if_aged`, `trim` and `expire` when it finds it is time.
"""

import asyncio
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyroaring import BitMap

from managed_ledger import retention
from managed_ledger.completion import completed
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.cursors.cursor_records import StoredCursor
from managed_ledger.disk import keys
from managed_ledger.disk.database import Batch
from managed_ledger.disk.keys import Family
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.errors import (
    AppendRefusedError,
    CursorExistsError,
    LedgerError,
    LedgerWriteError,
    ManagedLedgerClosedError,
    NameNotFoundError,
)
from managed_ledger.ledgers import Ledgers
from managed_ledger.positions.position import AFTER_EVERYTHING, Position
from managed_ledger.reading.readable_log import ReadableLog
from managed_ledger.replacing import Entries, NewEntry, Replacement, by_ledger
from managed_ledger.writing.append_stats import AppendStats
from managed_ledger.writing.appender import Appender, Companion
from managed_ledger.writing.sequence_ids import LastUse, SequenceIds

if TYPE_CHECKING:
    from managed_ledger.ledger_store import LedgerStore

_OWNER = struct.Struct("<Q")


class ManagedLedger(ReadableLog):
    """The log of one topic: appends, reads by position, cursors, and the ledgers it consists of."""

    def __init__(self, name: str, owner_id: int, ledgers: Ledgers, store: "LedgerStore") -> None:
        super().__init__(name, ledgers, store.reader)
        self.owner_id = owner_id
        self._store = store
        self._cursors: dict[str, Cursor] = {}
        self._admin_lock = asyncio.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._on_abandoned: Callable[[], None] | None = None
        self._untrimmed: list[int] = []
        self._is_closed = False
        self._appender = Appender(self, ledgers, store)
        self._append = self._appender.append
        self.sequence_ids = SequenceIds(owner_id, {}, self._appender.accompany)
        """The highest sequence ids of producers; the owner sets them with the entries that it appends."""

    def open(
        self, stored_cursors: Mapping[str, tuple[int, StoredCursor]], sequence_ids: Mapping[str, LastUse] | None = None
    ) -> None:
        """Continue from the stored state."""
        self._appender.open()
        if sequence_ids:
            self.sequence_ids = SequenceIds(self.owner_id, sequence_ids, self._appender.accompany)
        for name, (cursor_id, stored) in stored_cursors.items():
            self._cursors[name] = self._new_cursor(name, cursor_id)
            self._cursors[name].restore(stored)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or is being closed."""
        return self._is_closed

    # Appending

    def append_nowait(
        self,
        payload: bytes,
        *,
        publish_time_ms: int,
        deliver_at_ms: int = NOT_DELAYED,
        sticky_hash: int = 0,
        message_count: int = 1,
        flags: int = 0,
    ) -> Position:
        """Append an entry: its position now, its durability when `committed()` completes.

        Args:
            payload: The entry.
            publish_time_ms: When it was published.
            deliver_at_ms: When it may be delivered.
            sticky_hash: The hash of its key.
            message_count: How many messages it holds.
            flags: The flags of its header (`managed_ledger.entries.headers`).

        Raises:
            AppendRefusedError: The disk has too little room; nothing was appended.
        """
        return self._append(payload, publish_time_ms, deliver_at_ms, sticky_hash, message_count, flags)

    def committed(self) -> asyncio.Future[None]:
        """A future of everything appended so far being durable; fails with `LedgerWriteError`.

        Each call gives a future of its own.
        """
        return self._appender.committed()

    async def append(
        self,
        payload: bytes,
        *,
        publish_time_ms: int,
        deliver_at_ms: int = NOT_DELAYED,
        sticky_hash: int = 0,
        message_count: int = 1,
    ) -> Position:
        """Append an entry; it is durable on return.

        Raises:
            LedgerWriteError: It is not, and will never be readable.
            AppendRefusedError: The disk has too little room; nothing was appended.
        """
        position = self._append(payload, publish_time_ms, deliver_at_ms, sticky_hash, message_count, 0)
        await self._appender.committed()
        return position

    def replace(
        self,
        entries: Sequence[NewEntry],
        *,
        acknowledged: Mapping[Cursor, Entries],
        hidden: Mapping[Cursor, Sequence[int]],
    ) -> Replacement:
        """Append entries in place of others, which the same synced write acknowledges.

        The old ones are delivered no more. A crash leaves all of the old ones or all of the new ones.

        Args:
            entries: The new entries.
            acknowledged: The entries that give way, by cursor.
            hidden: The new entries that a cursor shall not have, by their place in `entries`.

        Raises:
            AppendRefusedError: The disk has too little room; nothing has changed.
        """
        self._check_open()
        positions = [
            self._append(
                one.payload, one.publish_time_ms, one.deliver_at_ms, one.sticky_hash, one.message_count, one.flags
            )
            for one in entries
        ]
        all_of: dict[Cursor, Entries] = {cursor: dict(gone) for cursor, gone in acknowledged.items()}
        for cursor, places in hidden.items():
            of_cursor = all_of.setdefault(cursor, {})
            for ledger_id, entry_ids in by_ledger(positions[place] for place in places).items():
                of_cursor[ledger_id] = of_cursor.get(ledger_id, BitMap()) | entry_ids
        replacement = Replacement(positions, all_of)
        self._appender.accompany(replacement)
        return replacement

    def remove_producers(self, names: Iterable[str]) -> None:
        """Remove the sequence ids of producers, with the next commit."""
        for name in list(names):
            self._appender.request_commit()
            self.sequence_ids.set(name, None)

    @property
    def last_position(self) -> Position:
        """The last entry appended, durable or not; entry -1 of the first ledger where there is none."""
        ledger_id, entry_id = self._appender.next_position
        if entry_id:
            return Position(ledger_id, entry_id - 1)
        for ledger in reversed(list(self._ledgers)):
            if ledger.appended:
                return Position(ledger.ledger_id, ledger.appended - 1)
        return self.last_confirmed_position

    @property
    def append_stats(self) -> AppendStats:
        """How large entries are and how long they take to be durable."""
        return self._appender.stats

    # Cursors

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """Open cursors by name; a read-only view."""
        return MappingProxyType(self._cursors)

    @completed
    async def open_cursor(
        self,
        name: str,
        *,
        initial_position: Position | None = None,
        durable: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The cursor of this name; a new one starts at `initial_position`, or at the first entry kept.

        Raises:
            CursorExistsError: It exists and is durable where this asks for one that is not, or the other way.
            LedgerWriteError: A new one could not be stored.
        """
        async with self._admin_lock:
            self._check_open()
            cursor = self._cursors.get(name)
            if cursor is not None:
                if cursor.is_durable != durable:
                    kind = "durable" if cursor.is_durable else "not durable"
                    raise CursorExistsError(f"Cursor {name} of {self.name} exists and is {kind}")
                return cursor
            cursor = self._new_cursor(name, self._store.new_owner_id() if durable else None)
            cursor.start_at(self.first_position if initial_position is None else initial_position, properties or {})
            if durable:
                await self._store.committer.write(lambda batch: self._put_cursor(batch, cursor))
            self._cursors[name] = cursor
            return cursor

    @completed
    async def delete_cursor(self, name: str) -> None:
        """Forget a cursor for good.

        Raises:
            NameNotFoundError: There is none of this name.
            LedgerWriteError: It could not be deleted, and is as before.
        """
        async with self._admin_lock:
            self._check_open()
            cursor = self._cursors.get(name)
            if cursor is None:
                raise NameNotFoundError(f"{self.name} has no cursor {name}")
            # The cursor closes before the write, so that no acknowledgement is journalled behind it.
            cursor.close()
            if cursor.is_durable:
                try:
                    await self._store.committer.write(lambda batch: self._put_cursor_deletion(batch, cursor))
                except LedgerWriteError:
                    cursor.reopen()
                    raise
            del self._cursors[name]

    # Housekeeping, called by the owner of the clock

    def add_listener(self, on_committed: Callable[[], None]) -> None:
        """Be called, on the loop, after entries became durable."""
        self._listeners.append(on_committed)

    def remove_listener(self, on_committed: Callable[[], None]) -> None:
        """Be called no more; a closed ledger calls nothing."""
        # One that is closed has let go of its listeners.
        if not self._is_closed:
            self._listeners.remove(on_committed)

    def set_abandoned_listener(self, on_abandoned: Callable[[], None]) -> None:
        """Call this when a commit failed and its entries are given up, before other entries can be appended."""
        self._on_abandoned = on_abandoned

    def roll_over_if_aged(self, now_ms: int) -> bool:
        """Close the open ledger if it has entries and was created long enough ago."""
        self._check_open()
        return self._appender.roll_over_if_aged(now_ms)

    def roll_over_if_passed(self) -> bool:
        """Close the open ledger if it has entries and every cursor has passed them, so that a trim can take it too."""
        self._check_open()
        if not self._appender.next_position.entry_id or any(cursor.backlog for cursor in self._cursors.values()):
            return False
        self._appender.request_commit()
        self._appender.roll_over()
        return True

    @completed
    async def trim(self) -> int:
        """Delete ledgers wholly at or below every cursor's mark-delete; returns how many.

        The open ledger stays. Without a cursor every closed ledger goes.

        Raises:
            LedgerWriteError: They are gone here, and will be again by the next trim after a restart.
        """
        async with self._admin_lock:
            self._check_open()
            unacknowledged = [cursor.next_unacknowledged_position for cursor in self._cursors.values()]
            ledgers = retention.trimmable(self._ledgers, unacknowledged)
            for ledger in ledgers:
                self._ledgers.remove(ledger.ledger_id)
                self._reader.drop_ledger(ledger.ledger_id)
                self._untrimmed.append(ledger.ledger_id)
                for cursor in self._cursors.values():
                    cursor.forget_ledger(ledger.ledger_id)
            if not self._untrimmed:
                return 0
            # The acknowledgements that allow it go into the log before it, or with it.
            for cursor in self._cursors.values():
                if cursor.is_durable:
                    self._store.committer.request(cursor, sync=True)
            doomed = list(self._untrimmed)
            await self._store.committer.write(lambda batch: self._put_deletion(batch, doomed))
            del self._untrimmed[: len(doomed)]
            self._store.trimmed(doomed, sum(ledger.durable.bytes for ledger in ledgers))
            return len(ledgers)

    async def expire(
        self,
        now_ms: int,
        ttl_ms: int,
        *,
        spared: Collection[str] = (),
        on_expired: Callable[[str, Entries], None] | None = None,
    ) -> dict[str, int]:
        """Acknowledge, per cursor, the entries from mark-delete on whose time to live is over.

        It counts from the later of publish and delivery time, and stops at the first entry that still lives.

        Args:
            now_ms: The present time.
            ttl_ms: The time to live.
            spared: Names of cursors that nothing expires for.
            on_expired: Told the name of a cursor and which of its entries expired, in the step in which it moved: a
                dispatcher must not send them in between.

        Returns:
            How many entries expired, by cursor.

        Raises:
            LedgerError: The first that a cursor met; the others had their turn all the same.
        """
        expired, failures = {}, []
        for name, cursor in list(self._cursors.items()):
            if name in spared:
                continue
            try:
                entries = await self._expire(cursor, now_ms - ttl_ms)
            except LedgerError as error:
                failures.append(error)
            else:
                if entries:
                    expired[name] = sum(map(len, entries.values()))
                    if on_expired is not None:
                        on_expired(name, entries)
        if failures:
            raise failures[0]
        return expired

    async def expired_through(self, cursor: Cursor, due_ms_max: int) -> Position | None:
        """The end of a cursor's run of expired entries from mark-delete on, None without one; true until a suspension.

        Args:
            cursor: The cursor.
            due_ms_max: An entry is expired when the later of its publish and delivery times is at or before this.
        """
        while True:
            seeks = cursor.seeks
            last = await retention.last_expired(
                self._ledgers,
                self.read_headers,
                cursor.next_unacknowledged_position,
                due_ms_max=due_ms_max,
                acknowledged_in=cursor.durably_acknowledged_in,
            )
            if last is None or cursor.is_closed:
                return None
            # A seek during the scan wants entries again that the scan passed over: look again.
            if cursor.seeks == seeks:
                return last

    def unacknowledged_through(self, cursor: Cursor, last: Position) -> Entries:
        """The durable entries up to a position that a cursor has not acknowledged."""
        found: Entries = {}
        for ledger in self._ledgers:
            if cursor.mark_delete_position.ledger_id <= ledger.ledger_id <= last.ledger_id:
                end = min(last.entry_id + 1, ledger.entries) if ledger.ledger_id == last.ledger_id else ledger.entries
                entries = BitMap()
                entries.add_range(0, end)
                entries -= cursor.acknowledged_in(ledger.ledger_id)
                if entries:
                    found[ledger.ledger_id] = entries
        return found

    def unacknowledged_at(self, cursor: Cursor, place: int) -> Position | None:
        """The durable entry at a place, from 0 on, among those that a cursor has not acknowledged; None behind them."""
        for ledger_id, entries in self.unacknowledged_through(cursor, AFTER_EVERYTHING).items():
            if place < len(entries):
                return Position(ledger_id, entries[place])
            place -= len(entries)
        return None

    @completed
    async def close(self) -> None:
        """Flush acknowledgements, wait for commits, and refuse more."""
        async with self._admin_lock:
            if self._is_closed:
                return
            self._appender.request_unrecorded()
            self._is_closed = True
            try:
                while not self._appender.is_idle:
                    await self._appender.committed()
                # Together: all of them share a write.
                flushed = await asyncio.gather(
                    *(cursor.flush() for cursor in self._cursors.values()), return_exceptions=True
                )
                for failure in flushed:
                    if failure is not None:
                        raise failure
            finally:
                for cursor in self._cursors.values():
                    cursor.close()
                self._store.closed(self)
                # The memory of a closed ledger goes at once, and not when cycles are looked for.
                self._appender.let_go()
                self._on_abandoned = None
                self._listeners.clear()
                for ledger in self._ledgers:
                    self._reader.drop_ledger(ledger.ledger_id)

    # For the appender.

    def check_takes_entries(self) -> None:
        """Refuse entries where there is no room for them.

        Raises:
            AppendRefusedError: There is none.
            ManagedLedgerClosedError: It was closed.
        """
        self._check_open()
        refusal = self._store.committer.watch.refusal
        if refusal is not None:
            raise AppendRefusedError(refusal)

    def committed_entries(self) -> None:
        """Entries became durable."""
        for listener in tuple(self._listeners):
            listener()

    def abandoned_entries(self) -> None:
        """A commit failed, and its entries are given up."""
        if self._on_abandoned is not None:
            self._on_abandoned()

    # For the store.

    def request_commit(self) -> None:
        """Put all pending entries and records of new ledgers into the next commit."""
        self._appender.request_commit()

    async def create_with(self, row: Companion) -> None:
        """Write the first ledger, and a change that is to be there with it.

        Raises:
            LedgerWriteError: Neither is durable.
        """
        self._appender.request_commit()
        self._appender.accompany(row)
        await self._appender.committed()

    def put_deletion(self, batch: Batch) -> None:
        """Put the deletion of all of it into a batch."""
        self._put_deletion(batch, [*self._untrimmed, *(ledger.ledger_id for ledger in self._ledgers)])
        for cursor in self._cursors.values():
            if cursor.is_durable:
                self._put_cursor_deletion(batch, cursor)
        for producer_name in self.sequence_ids.durable:
            batch.delete(Family.META, keys.sequence_id_key(self.owner_id, producer_name))
        batch.delete(Family.META, keys.managed_ledger_key(self.name))

    async def _expire(self, cursor: Cursor, due_ms_max: int) -> Entries:
        last = await self.expired_through(cursor, due_ms_max)
        if last is None:
            return {}
        entries = self.unacknowledged_through(cursor, last)
        cursor.acknowledge_cumulative(last)
        return entries

    def _put_deletion(self, batch: Batch, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            batch.delete(Family.META, keys.ledger_record_key(self.owner_id, ledger_id))
            batch.delete(Family.META, keys.lost_entries_key(self.owner_id, ledger_id))
            for family in (Family.HEADERS, Family.PAYLOADS):
                batch.delete_range(family, *keys.ledger_range(ledger_id))
            for cursor in self._cursors.values():
                if cursor.cursor_id is not None:
                    base = keys.cursor_state_key(cursor.cursor_id, keys.CURSOR_BASE, ledger_id)
                    batch.delete(Family.CURSORS, base)

    def _put_cursor(self, batch: Batch, cursor: Cursor) -> None:
        assert cursor.cursor_id is not None

        batch.put(Family.META, keys.cursor_key(self.owner_id, cursor.name), _OWNER.pack(cursor.cursor_id))
        cursor.put_new(batch)

    def _put_cursor_deletion(self, batch: Batch, cursor: Cursor) -> None:
        assert cursor.cursor_id is not None

        batch.delete(Family.META, keys.cursor_key(self.owner_id, cursor.name))
        batch.delete_range(Family.CURSORS, *keys.cursor_range(cursor.cursor_id))
        cursor.note_deletion_put()

    def _new_cursor(self, name: str, cursor_id: int | None) -> Cursor:
        return Cursor(name, cursor_id, self._ledgers, self._store.committer, self._store.flush_soon)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ManagedLedgerClosedError(f"The managed ledger {self.name} was closed")
