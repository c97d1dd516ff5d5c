"""A cursor: the acknowledgements of one subscription, kept across restarts.

Acknowledgements count at once in memory and go to a journal a few milliseconds later, many in one record that holds
only what is new. Now and then the journal is folded into one base bitmap per ledger, in one atomic batch. So the
cost of persisting follows what is acknowledged and not how many holes there are, and `kill -9` loses at most the
last milliseconds (those entries are delivered again). Properties and seeks are durable when their call returns.

A cursor that is not durable does the same in memory alone.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.completion import completed
from managed_ledger.cursors.cursor_records import (
    StoredCursor,
    encode_base,
    encode_journal,
    encode_position,
    encode_properties,
)
from managed_ledger.cursors.cursor_state import CursorState
from managed_ledger.disk import keys
from managed_ledger.disk.database import Batch
from managed_ledger.disk.keys import Family
from managed_ledger.errors import CursorClosedError, LedgerWriteError
from managed_ledger.ledgers import Ledgers
from managed_ledger.positions.position import BEFORE_EVERYTHING, Position
from managed_ledger.writing.committer import Committer
from managed_ledger.writing.waiters import Waiters

JOURNAL_RECORDS_MAX = 256
"""Fold a longer journal: replaying this many records costs about a millisecond."""
JOURNAL_BYTES_MAX = 256 * 1024
"""Fold a larger journal, about the size of the base bitmaps of a million scattered holes."""
RETRY_SECONDS = 1.0
"""After a failed write; until then only a call for durability tries again."""

MarkDeleteListener = Callable[[Position], None]


class Cursor:
    """One subscription's place in a managed ledger; made by `ManagedLedger.open_cursor`.

    Belongs to one event loop.
    """

    def __init__(
        self,
        name: str,
        cursor_id: int | None,
        ledgers: Ledgers,
        committer: Committer,
        flush_soon: Callable[["Cursor"], None],
    ) -> None:
        self.name = name
        self.cursor_id = cursor_id
        self.seeks = 0
        """How often it was sought: facts from before a seek say nothing about entries that the seek took back."""
        self._state = CursorState(ledgers)
        self._committer = committer
        self._flush_soon = flush_soon
        self._properties: dict[str, str] = {}
        self._properties_lock = asyncio.Lock()
        self._listeners: list[MarkDeleteListener] = []
        self._waiters = Waiters(asyncio.get_running_loop())
        self._is_closed = False
        self._is_deletion_put = False
        # Acknowledgements in memory that are not in the journal, and those in the journal that are not in the base.
        self._pending: dict[int, BitMap] = {}
        self._journalled_mark_delete = self._state.mark_delete
        # These are sets of ledger ids, as dicts: an empty set takes three times as much memory.
        self._changed_since_fold: dict[int, None] = {}
        self._base_ledger_ids: dict[int, None] = {}
        self._journal_sequence = self._journal_records = self._journal_bytes = 0
        self._must_rewrite = True
        # Entries that are not delivered while a write that acknowledges them is to come; those of them in a batch.
        self._withheld: dict[int, BitMap] = {}
        self._withheld_in_flight: dict[int, BitMap] = {}
        self._has_withheld_records = False

    def restore(self, stored: StoredCursor) -> None:
        """Continue from the stored state."""
        self._properties = stored.properties
        self._state.restore(stored.mark_delete, stored.bitmaps)
        self._journalled_mark_delete = self._state.mark_delete
        self._base_ledger_ids = dict.fromkeys(stored.base_ledger_ids)
        self._journal_sequence = stored.journal_sequence
        self._journal_records = stored.journal_records
        self._journal_bytes = stored.journal_bytes
        self._changed_since_fold = dict.fromkeys(stored.bitmaps)
        self._must_rewrite = False

    @property
    def is_closed(self) -> bool:
        """Whether it was deleted, or its managed ledger closed."""
        return self._is_closed

    @property
    def is_durable(self) -> bool:
        """Whether a restart knows this cursor."""
        return self.cursor_id is not None

    @property
    def mark_delete_position(self) -> Position:
        """Every entry up to here is acknowledged, and the next one is not."""
        return self._state.mark_delete

    @property
    def next_unacknowledged_position(self) -> Position:
        """The first position beyond mark-delete that exists or is to come."""
        return self._state.next_unacknowledged

    @property
    def properties(self) -> Mapping[str, str]:
        """The durable properties; a read-only view."""
        return MappingProxyType(self._properties)

    @property
    def backlog(self) -> int:
        """Durable entries that are not acknowledged.

        Runtime complexity: O(1).
        """
        return self._state.backlog

    @property
    def has_news(self) -> bool:
        """Whether there is something that no round of the committer has taken."""
        return bool(
            self._pending
            or self._must_rewrite
            or self._has_withheld_records
            or self._state.mark_delete != self._journalled_mark_delete
        )

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Whether this position needs no delivery; trimmed ones do not, nor withheld entries."""
        if self._withheld and entry_id in self._withheld.get(ledger_id, ()):
            return True
        return self._state.is_acknowledged(ledger_id, entry_id)

    def is_durably_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Whether this position is acknowledged; withheld entries are not yet, which may yet be delivered."""
        return self._state.is_acknowledged(ledger_id, entry_id)

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """A copy of all acknowledged entry ids of a ledger, also those at or below mark-delete and withheld ones."""
        acknowledged = self._state.acknowledged_in(ledger_id)
        if self._withheld and ledger_id in self._withheld:
            acknowledged |= self._withheld[ledger_id]
        return acknowledged

    def durably_acknowledged_in(self, ledger_id: int) -> BitMap:
        """All acknowledged entry ids of a ledger but those of withheld entries, which may yet be delivered."""
        return self._state.acknowledged_in(ledger_id)

    def acknowledge(
        self, ledger_ids: Sequence[int] | NDArray[np.int64], entry_ids: Sequence[int] | NDArray[np.int64]
    ) -> int:
        """Acknowledge positions in any order; unknown and trimmed ones are ignored.

        Returns:
            How many were not acknowledged before.
        """
        self._check_open()
        before = self._state.mark_delete
        if len(ledger_ids) == 1:
            new = self._acknowledge_one(int(ledger_ids[0]), int(entry_ids[0]))
        else:
            new = self._acknowledge_many(np.asarray(ledger_ids, np.int64), np.asarray(entry_ids, np.int64))
        if new:
            self._changed(before)
        return new

    def acknowledge_cumulative(self, position: Position) -> int:
        """Acknowledge everything at or before `position`; returns how many were not before."""
        self._check_open()
        before = self._state.mark_delete
        new = self._state.acknowledge_through(position)
        if self._state.mark_delete != before:
            self._changed_since_fold[self._state.mark_delete.ledger_id] = None
            self._changed(before)
        return new

    @completed
    async def update_properties(self, *, put: Mapping[str, str] | None = None, remove: Collection[str] = ()) -> None:
        """Change properties in one synced write; all of the change is there after a crash, or none.

        Raises:
            LedgerWriteError: It did not become durable; the properties are as before.
        """
        # Changes are made one after the other, so that the next one does not carry one that failed.
        async with self._properties_lock:
            self._check_open()
            properties = {name: value for name, value in self._properties.items() if name not in remove}
            properties.update(put or {})
            if self.cursor_id is not None:
                key = keys.cursor_state_key(self.cursor_id, keys.CURSOR_PROPERTIES)
                value = encode_properties(properties)
                await self._committer.write(lambda batch: batch.put(Family.CURSORS, key, value))
            self._properties = properties

    async def seek(self, position: Position) -> None:
        """Make `position` the next entry to read; forgets acknowledgements at and above it. Durable on return."""
        self._check_open()
        before = self._state.mark_delete
        self.seeks += 1
        self._state.seek(position)
        self._pending.clear()
        self._must_rewrite = True
        self._tell(before)
        await self.flush()

    async def flush(self) -> None:
        """Make every acknowledgement so far durable.

        Raises:
            LedgerWriteError: It is not durable yet; a later flush tries again.
            CursorClosedError: The cursor was closed, so the last acknowledgements may not become durable.
        """
        self._check_open()
        if self.cursor_id is None:
            return
        self._committer.request(self, sync=True)
        await self._waiters.add(pending=True)

    # Acknowledgements in a batch of another writer (`replacing`).

    def withhold(self, entries: Mapping[int, BitMap]) -> None:
        """Deliver these entries to no consumer from now on; `settle_withheld` ends it."""
        for ledger_id, entry_ids in entries.items():
            self._withheld[ledger_id] = self._withheld.get(ledger_id, BitMap()) | entry_ids

    def put_withheld(self, batch: Batch, entries: Mapping[int, BitMap]) -> None:
        """Put the acknowledgement of withheld entries into a batch."""
        # A cursor whose deletion is to come needs the record: the deletion may fail, or a crash may come before it.
        if self._is_deletion_put or self.cursor_id is None:
            return
        # The record says nothing of mark-delete, which is computed when the record is read.
        self._put_record(batch, encode_journal(BEFORE_EVERYTHING, entries))
        self._has_withheld_records = True
        for ledger_id, entry_ids in entries.items():
            self._withheld_in_flight[ledger_id] = self._withheld_in_flight.get(ledger_id, BitMap()) | entry_ids

    def settle_withheld(self, entries: Mapping[int, BitMap], *, is_durable: bool) -> None:
        """Acknowledge withheld entries, or let them be delivered again if the write has failed."""
        before = self._state.mark_delete
        for ledger_id, entry_ids in entries.items():
            _remove(self._withheld, ledger_id, entry_ids)
            _remove(self._withheld_in_flight, ledger_id, entry_ids)
            # Also while the cursor is being deleted, which may fail.
            if is_durable:
                ids = np.frombuffer(entry_ids.to_array(), dtype=np.uint32).astype(np.int64)
                if self._state.acknowledge(ledger_id, ids):
                    self._changed_since_fold[ledger_id] = None
        if not is_durable:
            self.note_failed_batch()
        elif self._is_journal_long and not self._is_closed:
            self._flush_soon(self)
        self._tell(before)

    def note_failed_batch(self) -> None:
        """Note that another writer's batch with a record of this cursor failed: the disk may have it or not."""
        self._must_rewrite = True

    def put_without_withheld(self, batch: Batch) -> None:
        """Put all that is acknowledged into a batch, in place of what a failed write may have left."""
        if not self._is_deletion_put and self.cursor_id is not None:
            self._put_everything(batch)

    def add_listener(self, on_mark_delete_moved: MarkDeleteListener) -> None:
        """Be told of the new mark-delete position, on the loop, inside the call that moved it."""
        self._listeners.append(on_mark_delete_moved)

    def remove_listener(self, on_mark_delete_moved: MarkDeleteListener) -> None:
        """Be told no more."""
        self._listeners.remove(on_mark_delete_moved)

    def close(self) -> None:
        """Refuse more; unflushed changes stay unwritten, and flushes that wait for the next round fail."""
        self._is_closed = True
        self._waiters.refuse(self._closed_error())

    def note_deletion_put(self) -> None:
        """Put nothing into batches any more: the batch under way deletes all that is stored."""
        self._is_deletion_put = True

    def reopen(self) -> None:
        """The deletion that this was closed for failed."""
        self._is_closed = self._is_deletion_put = False
        self._must_rewrite = True
        self._flush_soon(self)

    def forget_ledger(self, ledger_id: int) -> None:
        """The managed ledger trimmed this ledger, and removes its base."""
        self._state.forget_ledger(ledger_id)
        self._pending.pop(ledger_id, None)
        self._withheld.pop(ledger_id, None)
        self._withheld_in_flight.pop(ledger_id, None)
        self._changed_since_fold.pop(ledger_id, None)
        self._base_ledger_ids.pop(ledger_id, None)

    def fill(self, batch: Batch) -> None:
        """Put the new acknowledgements into the batch (committer's `Participant`)."""
        self._waiters.start()
        if self._is_closed or self.cursor_id is None:
            return
        if self._must_rewrite:
            self._put_everything(batch)
        elif self.has_news:
            if self._is_journal_long:
                self._fold(batch)
            else:
                self._put_journal(batch)
        else:
            # The flush has no news, but an empty batch would not be synced, so the mark-delete is written.
            self._put_mark_delete(batch)
        self._journalled_mark_delete = self._state.mark_delete
        self._has_withheld_records = False
        self._pending = {}

    def settle(self, error: LedgerWriteError | None) -> None:
        """The batch is durable or lost (committer's `Participant`)."""
        self._waiters.settle(error)
        if error is not None and not self._is_closed:
            # The content of the journal is not known any more.
            self._must_rewrite = True
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._flush_soon, self)

    def put_new(self, batch: Batch) -> None:
        """Put a cursor that was not stored before; its key is the managed ledger's to put."""
        assert self.cursor_id is not None

        key = keys.cursor_state_key(self.cursor_id, keys.CURSOR_PROPERTIES)
        batch.put(Family.CURSORS, key, encode_properties(self._properties))
        self._put_everything(batch)

    def start_at(self, position: Position, properties: Mapping[str, str]) -> None:
        """Begin life with `position` as the next one to read."""
        self._state.seek(position)
        self._properties = dict(properties)

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed_error()

    def _closed_error(self) -> CursorClosedError:
        return CursorClosedError(f"The cursor {self.name} was closed or deleted")

    def _acknowledge_one(self, ledger_id: int, entry_id: int) -> int:
        if not self._state.acknowledge_one(ledger_id, entry_id):
            return 0
        if self.cursor_id is not None:
            self._pending_in(ledger_id).add(entry_id)
        return 1

    def _acknowledge_many(self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> int:
        if not len(ledger_ids):
            return 0
        if ledger_ids[0] == ledger_ids[-1] and (ledger_ids == ledger_ids[0]).all():
            return self._acknowledge_in(int(ledger_ids[0]), entry_ids)
        return sum(
            self._acknowledge_in(ledger_id, entry_ids[ledger_ids == ledger_id])
            for ledger_id in np.unique(ledger_ids).tolist()
        )

    def _acknowledge_in(self, ledger_id: int, entry_ids: NDArray[np.int64]) -> int:
        new = self._state.acknowledge(ledger_id, entry_ids)
        if new and self.cursor_id is not None:
            pending = self._pending_in(ledger_id)
            pending |= new
        return len(new)

    def _pending_in(self, ledger_id: int) -> BitMap:
        pending = self._pending.get(ledger_id)
        if pending is None:
            pending = self._pending[ledger_id] = BitMap()
            self._changed_since_fold[ledger_id] = None
        return pending

    def _changed(self, mark_delete_before: Position) -> None:
        if self.cursor_id is not None:
            self._flush_soon(self)
        self._tell(mark_delete_before)

    def _tell(self, mark_delete_before: Position) -> None:
        mark_delete = self._state.mark_delete
        if mark_delete != mark_delete_before:
            for listener in tuple(self._listeners):
                listener(mark_delete)

    def _put_journal(self, batch: Batch) -> None:
        assert self.cursor_id is not None

        # Positions at or below mark-delete need no bitmap.
        mark_delete = self._state.mark_delete
        beyond = {ledger: new for ledger, new in self._pending.items() if ledger >= mark_delete.ledger_id}
        self._put_record(batch, encode_journal(mark_delete, beyond))

    def _put_record(self, batch: Batch, record: bytes) -> None:
        assert self.cursor_id is not None

        key = keys.cursor_state_key(self.cursor_id, keys.CURSOR_JOURNAL, self._journal_sequence)
        batch.put(Family.CURSORS, key, record)
        self._journal_sequence += 1
        self._journal_records += 1
        self._journal_bytes += len(record)

    @property
    def _is_journal_long(self) -> bool:
        return self._journal_records >= JOURNAL_RECORDS_MAX or self._journal_bytes >= JOURNAL_BYTES_MAX

    def _fold(self, batch: Batch) -> None:
        """Replace the journal by bases of the ledgers that changed, atomically."""
        assert self.cursor_id is not None

        self._delete_kind(batch, keys.CURSOR_JOURNAL)
        self._journal_records = self._journal_bytes = 0
        self._put_mark_delete(batch)
        bitmaps = self._state.bitmaps
        if self._withheld_in_flight:
            # Their records go with the journal, before their acknowledgement counts in memory.
            bitmaps = dict(bitmaps)
            for ledger_id, entry_ids in self._withheld_in_flight.items():
                if ledger_id >= self._state.mark_delete.ledger_id:
                    bitmaps[ledger_id] = bitmaps.get(ledger_id, BitMap()) | entry_ids
                    self._changed_since_fold[ledger_id] = None
        for ledger_id in self._changed_since_fold.keys() & bitmaps.keys():
            base = keys.cursor_state_key(self.cursor_id, keys.CURSOR_BASE, ledger_id)
            batch.put(Family.CURSORS, base, encode_base(bitmaps[ledger_id]))
            self._base_ledger_ids[ledger_id] = None
        for ledger_id in self._base_ledger_ids.keys() - bitmaps.keys():
            batch.delete(Family.CURSORS, keys.cursor_state_key(self.cursor_id, keys.CURSOR_BASE, ledger_id))
            del self._base_ledger_ids[ledger_id]
        self._changed_since_fold = {}

    def _put_everything(self, batch: Batch) -> None:
        """Store the whole state anew, in place of the old records."""
        self._delete_kind(batch, keys.CURSOR_BASE)
        self._base_ledger_ids = {}
        self._changed_since_fold = dict.fromkeys(self._state.bitmaps)
        self._fold(batch)
        self._must_rewrite = False
        self._journalled_mark_delete = self._state.mark_delete
        self._pending = {}

    def _put_mark_delete(self, batch: Batch) -> None:
        assert self.cursor_id is not None

        key = keys.cursor_state_key(self.cursor_id, keys.CURSOR_MARK_DELETE)
        batch.put(Family.CURSORS, key, encode_position(self._state.mark_delete))

    def _delete_kind(self, batch: Batch, kind: int) -> None:
        assert self.cursor_id is not None

        start = keys.cursor_state_key(self.cursor_id, kind)
        batch.delete_range(Family.CURSORS, start, keys.cursor_state_key(self.cursor_id, kind + 1))


def _remove(entries: dict[int, BitMap], ledger_id: int, entry_ids: BitMap) -> None:
    known = entries.get(ledger_id)
    if known is not None:
        known -= entry_ids
        if not known:
            del entries[ledger_id]
