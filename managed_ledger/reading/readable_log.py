"""The reading half of a managed ledger: where its entries are, and discontinuous reads of headers and payloads.

Only durable entries are visible here. A read names the position to begin at and the positions to leave out,
or a set of positions. Entries that were trimmed meanwhile or that a repair found lost are left out; other entries that
cannot be read are an error, which names them. Nothing here changes the log.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.entries.headers import EntryHeader, EntryHeaders, Rows, header_in
from managed_ledger.errors import EntriesDamagedError
from managed_ledger.ledgers import LedgerInfo, Ledgers
from managed_ledger.positions.position import Position
from managed_ledger.reading.finding import find_published
from managed_ledger.reading.log_reader import LogReader, Need, Unread
from managed_ledger.reading.selection import HeadersRead, RowsRead, Skip, select
from managed_ledger.reading.unread_entries import UnreadEntries, united

Ids = Sequence[int] | NDArray[np.int64]


class ReadableLog:
    """Ledgers of one topic, and how to read them."""

    def __init__(self, name: str, ledgers: Ledgers, reader: LogReader) -> None:
        self.name = name
        self._ledgers = ledgers
        self._reader = reader

    @property
    def last_confirmed_position(self) -> Position:
        """The last durable entry; entry -1 of the first ledger where there is none."""
        return self._ledgers.last_confirmed

    @property
    def first_position(self) -> Position:
        """The first entry still kept, or the next one to come."""
        return self._ledgers.normalized(Position(self._ledgers.first.ledger_id, 0))

    @property
    def entries_total(self) -> int:
        """Durable entries that are kept."""
        return self._ledgers.end_ordinal - self._ledgers.first.ordinal

    @property
    def size_bytes(self) -> int:
        """Payload bytes of durable entries that are kept."""
        return sum(ledger.durable.bytes for ledger in self._ledgers)

    def entries_from(self, position: Position) -> int:
        """Return how many durable entries lie at a position and behind it."""
        return self._ledgers.end_ordinal - self._ledgers.ordinal(position)

    def bytes_behind(self, position: Position) -> int:
        """Return about how many payload bytes of durable entries lie behind a position."""
        total = 0
        for ledger in self._ledgers:
            if ledger.ledger_id > position.ledger_id:
                total += ledger.durable.bytes
            elif ledger.ledger_id == position.ledger_id and ledger.entries:
                total += ledger.durable.bytes * (ledger.entries - position.entry_id - 1) // ledger.entries
        return total

    def last_due_ms_behind(self, position: Position) -> int | None:
        """Return a time from which on no entry of the ledgers from a position on is to come; None without entries."""
        return max(
            (
                ledger.durable.due_ms_max
                for ledger in self._ledgers
                if ledger.ledger_id >= position.ledger_id and ledger.entries
            ),
            default=None,
        )

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers kept, the open one last."""
        return [ledger.info() for ledger in self._ledgers]

    async def read_headers(
        self, first: Position, *, entries_max: int, skip: Skip | None = None, through: Position | None = None
    ) -> HeadersRead:
        """Headers from `first` on, itself included, without positions that `skip` names for a ledger.

        Stops after `entries_max` entries, behind `through`, or at the last durable entry. Does not suspend when
        everything needed is in memory.
        """
        read = await self.read_rows(first, entries_max=entries_max, skip=skip, through=through)
        return HeadersRead(read.headers(), read.next_position)

    async def read_rows(
        self, first: Position, *, entries_max: int, skip: Skip | None = None, through: Position | None = None
    ) -> RowsRead:
        """Headers as `read_headers` gives them, as they are stored: the caller makes columns of them where it likes."""
        needs, next_position = select(self._ledgers, first, entries_max=entries_max, skip=skip, through=through)
        return RowsRead(await self._read_rows(needs), next_position)

    async def read_headers_at(self, ledger_ids: Ids, entry_ids: Ids) -> EntryHeaders:
        """Headers of these positions in the order given; unknown or trimmed positions are left out."""
        ledger_column, entry_column = np.asarray(ledger_ids, np.int64), np.asarray(entry_ids, np.int64)
        needs = self._needs_at(ledger_column, entry_column)
        asked_by = {need.ledger_id: indices for need, indices in needs}
        found = await self._read_rows([need for need, _ in needs])
        if not found:
            return EntryHeaders.empty()
        indices = np.concatenate([asked_by[need.ledger_id] for need, _ in found])
        rows = np.concatenate(
            [rows[np.searchsorted(need.entry_ids, entry_column[asked_by[need.ledger_id]])] for need, rows in found]
        )
        order = np.argsort(indices)
        kept = indices[order]
        return EntryHeaders.from_rows(ledger_column[kept], entry_column[kept], rows[order])

    async def read_each_header(self, positions: Collection[Position]) -> dict[Position, EntryHeader]:
        """Headers by position; unknown, lost and trimmed ones are left out.

        For one entry in memory this takes a tenth of `read_headers_at`, and does not suspend.
        """
        found: dict[Position, EntryHeader] = {}
        missing: list[Position] = []
        for at in positions:
            ledger = self._ledgers.get(at.ledger_id)
            if ledger is None or not 0 <= at.entry_id < ledger.entries or (ledger.lost and at.entry_id in ledger.lost):
                continue
            block = self._reader.headers.find(at.ledger_id, at.entry_id)
            if block is None:
                missing.append(at)
            else:
                found[at] = header_in(block.rows, at.entry_id - block.first)
        if missing:
            ids = np.array(missing, np.int64)
            for need, rows in await self._read_rows([need for need, _ in self._needs_at(ids[:, 0], ids[:, 1])]):
                stored = rows.tobytes()
                for row, entry_id in enumerate(need.entry_ids.tolist()):
                    found[Position(need.ledger_id, entry_id)] = header_in(stored, row)
        return found

    async def read_payloads(self, ledger_ids: Ids, entry_ids: Ids) -> list[bytes | None]:
        """Payloads of these positions in the order given; None for unknown or trimmed positions.

        Raises:
            EntriesDamagedError: Entries are damaged: all of them among these positions are named.
            EntriesUnreadableError: None is, and some could not be read this time.
        """
        entries = _listed(entry_ids)
        payloads, missing = self._reader.cached_payloads(_listed(ledger_ids), entries)
        if not missing:
            return payloads
        ledger_column, entry_column = np.asarray(ledger_ids, np.int64), np.asarray(entry_ids, np.int64)
        at = np.array(missing, dtype=np.intp)
        needs = self._needs_at(ledger_column[at], entry_column[at])
        read = await self._reader.read_payloads([need for need, _ in needs])
        unread = UnreadEntries(self.name)
        for (need, rows), found in zip(needs, read, strict=True):
            if isinstance(found, Unread):
                self._add_unread(unread, need, found)
                continue
            for index in at[rows].tolist():
                payloads[index] = found[entries[index]]
        unread.raise_if_any()
        return payloads

    async def read_intact_payloads(
        self, ledger_ids: Ids, entry_ids: Ids
    ) -> tuple[list[bytes | None], Mapping[int, BitMap]]:
        """Payloads as `read_payloads` gives them, None also for damaged entries, and which ones those are.

        Raises:
            EntriesUnreadableError: Entries could not be read this time.
        """
        try:
            return await self.read_payloads(ledger_ids, entry_ids), {}
        except EntriesDamagedError as error:
            damaged = error.entries
        columns = zip(_listed(ledger_ids), _listed(entry_ids), strict=True)
        intact = [index for index, at in enumerate(columns) if at[1] not in damaged.get(at[0], ())]
        payloads: list[bytes | None] = [None] * len(entry_ids)
        places = np.array(intact, dtype=np.intp)
        read, also_damaged = await self.read_intact_payloads(
            np.asarray(ledger_ids, np.int64)[places], np.asarray(entry_ids, np.int64)[places]
        )
        for index, payload in zip(intact, read, strict=True):
            payloads[index] = payload
        return payloads, united(damaged, also_damaged)

    async def find_position_at_or_after_publish_time(self, publish_time_ms: int) -> Position:
        """The first entry published at or after a time, or the next one to come."""
        return await find_published(self._ledgers, self.read_headers, publish_time_ms)

    async def _read_rows(self, needs: Sequence[Need]) -> list[tuple[Need, Rows]]:
        """Return the needs with their header rows, without ledgers that were trimmed meanwhile."""
        found = []
        unread = UnreadEntries(self.name)
        for need, rows in zip(needs, await self._reader.read_rows(needs), strict=True):
            if isinstance(rows, Unread):
                self._add_unread(unread, need, rows)
            else:
                found.append((need, rows))
        unread.raise_if_any()
        return found

    def _needs_at(
        self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]
    ) -> list[tuple[Need, NDArray[np.intp]]]:
        """Return the reads for these positions, per ledger, and the positions of each."""
        needs = []
        for ledger_id in _distinct(ledger_ids).tolist():
            ledger = self._ledgers.get(ledger_id)
            if ledger is None:
                continue
            known = (ledger_ids == ledger_id) & (entry_ids >= 0) & (entry_ids < ledger.entries)
            if ledger.lost:
                known &= ~np.isin(entry_ids, np.frombuffer(ledger.lost.to_array(), dtype=np.uint32))
            rows = np.flatnonzero(known)
            if len(rows):
                needs.append((Need(ledger_id, _distinct(entry_ids[rows])), rows))
        return needs

    def _add_unread(self, unread: UnreadEntries, need: Need, found: Unread) -> None:
        """Add the entries of a need that were not read, unless the ledger was trimmed meanwhile."""
        if need.ledger_id in self._ledgers:
            unread.add(need.ledger_id, found.errors)


def _listed(ids: Ids) -> Sequence[int]:
    found: Sequence[int] = ids.tolist() if isinstance(ids, np.ndarray) else ids
    return found


def _distinct(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids without repetitions, ascending; mostly they are in order, or there is one ledger.

    >>> _distinct(np.array([7, 7, 7])).tolist(), _distinct(np.array([1, 2, 5])).tolist()
    ([7], [1, 2, 5])
    >>> _distinct(np.array([5, 1, 5])).tolist(), _distinct(np.array([], np.int64)).tolist()
    ([1, 5], [])
    """
    if (ids[1:] > ids[:-1]).all():
        return ids
    if (ids[1:] == ids[:-1]).all():
        return ids[:1]
    return np.unique(ids)
