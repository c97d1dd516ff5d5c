"""The writing end of a managed ledger: gives positions at once, and fills them into group commits.

Between commits nothing happens per message but one packed row and two appends. When the committer asks, everything
pending becomes blocks of one batch, together with the record of each ledger it touches; so a record never counts
an entry that is not there, and after a crash the records say what is. A failed commit closes its ledger at the last
durable entry, and the next commit, or the one of a clean close, says so: positions that were given out behind it are
never used again. (Should the process die before another commit succeeds, nothing on disk knows of the failed one:
its positions are given out again, or, where the disk kept what it reported as failed, its entries are there after the
restart, as after any lost reply.)
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from managed_ledger.disk import keys
from managed_ledger.disk.database import Batch
from managed_ledger.disk.keys import Family
from managed_ledger.entries.blocks import (
    HEADER_BLOCK_ROWS,
    FreshPayloads,
    HeaderBlock,
    PayloadBlock,
    cut_payloads,
    encode_payloads,
)
from managed_ledger.entries.headers import PACK_ROW, ROW, ROW_BYTES
from managed_ledger.errors import LedgerWriteError, ManagedLedgerClosedError
from managed_ledger.ledgers import Ledger, Ledgers, LedgerTotals
from managed_ledger.positions.position import Position
from managed_ledger.writing.append_stats import AppendStats
from managed_ledger.writing.waiters import Waiters

if TYPE_CHECKING:
    from managed_ledger.ledger_store import LedgerStore
    from managed_ledger.managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)


class Companion(Protocol):
    """Changes that belong to entries: in the batch that has the entries, or nowhere."""

    def put(self, batch: Batch) -> None:
        """Put them into the batch."""

    def settle(self, error: LedgerWriteError | None) -> bool:
        """Both are durable, or neither ever will be; return whether it wants to be in the next commit.

        A disk can keep a write that it reported as failed. The next commit says that the entries are not there, so it
        is the one to say the same of the changes.
        """


@dataclass(slots=True, eq=False)
class _Chunk:
    """Consecutive entries of one ledger, on their way to the disk."""

    ledger: Ledger
    first: int
    rows: bytes
    payloads: list[bytes]


@dataclass(slots=True, eq=False)
class _Round:
    """The part of one commit that is of one managed ledger."""

    recorded: list[tuple[Ledger, LedgerTotals]]
    headers: list[tuple[int, HeaderBlock]]
    payloads: list[tuple[int, PayloadBlock]]
    entries: int
    companions: list[Companion] = field(default_factory=list)
    began_s: float = 0.0


class Appender:
    """Appends to the last of some ledgers, and rolls over to the next."""

    def __init__(self, owner: "ManagedLedger", ledgers: Ledgers, store: "LedgerStore") -> None:
        self._owner: ManagedLedger | None = owner
        self._name, self._owner_id = owner.name, owner.owner_id
        self._ledgers = ledgers
        self._store = store
        self._config = store.config
        self._loop = asyncio.get_running_loop()
        self._waiters = Waiters(self._loop)
        self.stats = AppendStats()
        self._is_requested = False
        self._chunks: list[_Chunk] = []
        self._unrecorded: dict[Ledger, None] = {}
        self._in_flight: list[_Round] = []
        self._companions: list[Companion] = []
        # The open ledger, unpacked: `append` touches nothing else.
        self._ledger_id = self._first = self._next_entry_id = self._ledger_bytes = 0
        self._rows = bytearray()
        self._payloads: list[bytes] = []

    @property
    def next_position(self) -> Position:
        """The position of the next entry."""
        return Position(self._ledger_id, self._next_entry_id)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for a commit or is in one."""
        return not self._is_requested and not self._in_flight

    def append(
        self,
        payload: bytes,
        publish_time_ms: int,
        deliver_at_ms: int,
        sticky_hash: int,
        message_count: int,
        flags: int,
    ) -> Position:
        """Give the entry a position and have it in the next commit.

        Raises:
            AppendRefusedError: There is too little room; nothing was appended.
        """
        if type(payload) is not bytes:
            raise TypeError(f"A payload must be bytes, not {type(payload).__name__}")
        if not self._is_requested:
            # Once for all entries of a commit.
            self._check_owner().check_takes_entries()
            self.request_commit()
        size = len(payload)
        self._rows += PACK_ROW(deliver_at_ms, publish_time_ms, sticky_hash, size, message_count, flags)
        self._payloads.append(payload)
        entry_id = self._next_entry_id
        self._next_entry_id = entry_id + 1
        self._ledger_bytes += size
        position = Position(self._ledger_id, entry_id)
        if entry_id + 1 >= self._config.entries_per_ledger_max or self._ledger_bytes >= self._config.ledger_bytes_max:
            self.roll_over()
        return position

    def accompany(self, companion: Companion) -> None:
        """Have changes in the same commit as the entries that were appended in this turn of the loop."""
        assert self._is_requested
        self._companions.append(companion)

    def let_go(self) -> None:
        """Forget the owner and refuse entries: the ledger is closed and idle."""
        self._owner = None

    def committed(self) -> asyncio.Future[None]:
        """A future of everything appended so far."""
        return self._waiters.add(pending=self._is_requested)

    def request_commit(self) -> None:
        """Put all pending entries and records of ledgers into the next commit."""
        self._check_owner()
        self._store.committer.request(self, sync=True)
        self._is_requested = True

    def request_unrecorded(self) -> None:
        """Have a commit when ledgers changed and none was asked for, such as after one that failed."""
        if self._unrecorded:
            self.request_commit()

    def open(self) -> None:
        """Continue in the last ledger, or in a new one where that was closed or does not exist."""
        if not len(self._ledgers) or not self._ledgers.last.is_open:
            self._add_ledger()
            return
        ledger = self._ledgers.last
        self._ledger_id = ledger.ledger_id
        self._first = self._next_entry_id = ledger.entries
        self._ledger_bytes = ledger.durable.bytes
        if ledger.entries >= self._config.entries_per_ledger_max or self._ledger_bytes >= self._config.ledger_bytes_max:
            self.roll_over()

    def roll_over(self) -> None:
        """Close the open ledger behind its last entry, and go on in a new one."""
        ledger = self._ledgers.last
        self._cut_chunk()
        ledger.appended = self._next_entry_id
        ledger.is_open = False
        self._unrecorded[ledger] = None
        self._add_ledger()

    def roll_over_if_aged(self, now_ms: int) -> bool:
        """Roll over when the open ledger has entries and is old enough."""
        aged = now_ms - self._ledgers.last.created_ms >= self._config.rollover_time_ms
        if not aged or self._next_entry_id == 0:
            return False
        self.request_commit()
        self.roll_over()
        return True

    def fill(self, batch: Batch) -> None:
        """Put everything pending into the batch (committer's `Participant`)."""
        self._is_requested = False
        self._waiters.start()
        self._cut_chunk()
        commit = _Round([], [], [], sum(len(chunk.payloads) for chunk in self._chunks), began_s=self._loop.time())
        for chunk in self._chunks:
            _put_chunk(batch, chunk, commit)
            self.stats.note_sizes(np.frombuffer(chunk.rows, ROW)["size"])
            self._unrecorded[chunk.ledger] = None
        for ledger in self._unrecorded:
            # A ledger may be gone again when the commit that should have recorded it failed.
            if ledger.ledger_id in self._ledgers:
                key = keys.ledger_record_key(self._owner_id, ledger.ledger_id)
                batch.put(Family.META, key, ledger.record())
                commit.recorded.append((ledger, ledger.written))
        # Cursors come last: they take their changes for written from here on.
        for companion in self._companions:
            companion.put(batch)
        commit.companions, self._companions = self._companions, []
        self._chunks, self._unrecorded = [], {}
        self._in_flight.append(commit)

    def settle(self, error: LedgerWriteError | None) -> None:
        """The oldest commit is durable or lost (committer's `Participant`)."""
        if error is not None:
            self._abandon(error)
            self._waiters.settle(error)
            return
        commit = self._in_flight.pop(0)
        for ledger, totals in commit.recorded:
            ledger.settle(totals)
            ledger.is_recorded = True
        for ledger_id, header_block in commit.headers:
            self._store.reader.headers.add_next(ledger_id, header_block)
        for ledger_id, payload_block in commit.payloads:
            self._store.reader.payloads.add_next(ledger_id, payload_block)
        # Cursors learn of the commit before readers do, which would read entries that it acknowledges.
        for companion in commit.companions:
            companion.settle(None)
        self._waiters.settle(None)
        if commit.entries:
            self.stats.note_commit(commit.entries, self._loop.time() - commit.began_s)
            if self._owner is not None:
                self._owner.committed_entries()

    def _check_owner(self) -> "ManagedLedger":
        if self._owner is None or self._owner.is_closed:
            raise ManagedLedgerClosedError(f"The managed ledger {self._name} was closed")
        return self._owner

    def _add_ledger(self) -> None:
        ledger = Ledger(self._store.new_ledger_id(), self._store.now_ms())
        self._ledgers.add(ledger)
        self._unrecorded[ledger] = None
        self._ledger_id = ledger.ledger_id
        self._first = self._next_entry_id = self._ledger_bytes = 0

    def _cut_chunk(self) -> None:
        """Set aside the entries of the open ledger since the last cut."""
        if not self._payloads:
            return
        ledger = self._ledgers.last
        self._chunks.append(_Chunk(ledger, self._first, bytes(self._rows), self._payloads))
        ledger.appended = self._first = self._next_entry_id
        self._rows = bytearray()
        self._payloads = []

    def _abandon(self, error: LedgerWriteError) -> None:
        """Give up everything that is not durable, and go on in a new ledger."""
        self._cut_chunk()
        lost = sum(len(chunk.payloads) for chunk in self._chunks)
        lost += sum(commit.entries for commit in self._in_flight)
        if lost:
            logger.info("%s: %d entries were not confirmed, as a commit failed: %s", self._name, lost, error)
        # Records of ledgers without entries in the lost commit were lost as well, such as that they were closed.
        self._unrecorded.update((ledger, None) for commit in self._in_flight for ledger, _ in commit.recorded)
        companions = [one for commit in self._in_flight for one in commit.companions] + self._companions
        self._chunks.clear()
        self._in_flight.clear()
        self._companions = []
        # The next entry requests a commit again, which asks whether entries are taken.
        self._is_requested = False
        for ledger in list(self._ledgers):
            if ledger.is_open or ledger.appended > ledger.entries or not ledger.is_recorded:
                ledger.abandon()
                if ledger.is_recorded:
                    self._unrecorded[ledger] = None
                else:
                    self._ledgers.remove(ledger.ledger_id)
                    self._unrecorded.pop(ledger, None)
        self._add_ledger()
        self._companions = [companion for companion in companions if companion.settle(error)]
        if self._owner is not None:
            self._owner.abandoned_entries()


def _put_chunk(batch: Batch, chunk: _Chunk, commit: _Round) -> None:
    """Put the blocks of a chunk, and count it into what will have been written of its ledger."""
    ledger_id, first = chunk.ledger.ledger_id, chunk.first
    for start in range(0, len(chunk.payloads), HEADER_BLOCK_ROWS):
        rows = chunk.rows[start * ROW_BYTES : (start + HEADER_BLOCK_ROWS) * ROW_BYTES]
        batch.put(Family.HEADERS, keys.block_key(ledger_id, first + start), rows)
        commit.headers.append((ledger_id, HeaderBlock(first + start, rows)))
    start = 0
    for end in cut_payloads(chunk.payloads):
        payloads = chunk.payloads[start:end]
        value = encode_payloads(payloads)
        batch.put(Family.PAYLOADS, keys.block_key(ledger_id, first + start), value)
        commit.payloads.append((ledger_id, FreshPayloads(first + start, payloads, len(value))))
        start = end
    chunk.ledger.written = _grown(chunk.ledger.written, chunk)


def _grown(totals: LedgerTotals, chunk: _Chunk) -> LedgerTotals:
    rows = np.frombuffer(chunk.rows, ROW)
    publish_time_ms_max = int(rows["publish_time_ms"].max())
    return LedgerTotals(
        totals.entries + len(rows),
        totals.bytes + int(rows["size"].sum()),
        max(totals.publish_time_ms_max, publish_time_ms_max),
        max(totals.due_ms_max, publish_time_ms_max, int(rows["deliver_at_ms"].max())),
    )
