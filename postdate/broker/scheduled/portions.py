"""Divide the entries of a move into portions: each is in memory at a time, and is replaced in one synced write.

A portion is bounded in entries and in bytes. The chunks of a message are in one portion, however large they are
together and however far apart in the log. So a crash leaves all of its old chunks or all of its new ones.

    log              A1  B1  x  A2  y  B2        A and B are of two chunks
    units            x  (A1 A2)  y  (B1 B2)      in the order in which consumers have them complete
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.entries.message_metadata import Chunk, ChunkedMessage
from managed_ledger.positions.position import Position
from managed_ledger.reading.readable_log import ReadableLog
from postdate.broker.scheduled.chunks import chunk_of, is_chunk
from postdate.broker.scheduled.messages import OnDamaged, columns_of, fitting
from postdate.broker.scheduled.selection import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """Entries that are moved together."""

    headers: EntryHeaders
    entries: Sequence[bytes | None]
    """By row; None for an entry that was trimmed meanwhile, or is damaged."""


@dataclass(slots=True)
class _Unit:
    """A message: one entry, or its chunks."""

    positions: list[Position]
    size_bytes: int


async def portions(
    log: ReadableLog, rows: Rows, *, entries_max: int, bytes_max: int, on_damaged: OnDamaged
) -> AsyncIterator[Portion]:
    """Yield the entries of these rows in portions, in the order of the rows; a message of chunks is where its last is.

    Args:
        log: The log.
        rows: The rows.
        entries_max: The most entries of a portion, unless one message has more.
        bytes_max: The most bytes of a portion, unless one message has more.
        on_damaged: Told of damaged entries.

    Raises:
        LedgerError: The log cannot be read.
    """
    waiting: dict[ChunkedMessage, _Unit] = {}
    for begin in range(0, len(rows), entries_max):
        part = rows.take(slice(begin, begin + entries_max))
        headers = await log.read_headers_at(part.ledger_ids, part.entry_ids)
        while len(headers):
            count = fitting(headers, bytes_max)
            read, headers = headers.take(slice(0, count)), headers.take(slice(count, len(headers)))
            entries, damaged = await log.read_intact_payloads(read.ledger_ids, read.entry_ids)
            if damaged:
                on_damaged(damaged)
            are_chunks = is_chunk(read)
            if not are_chunks.any():
                yield Portion(read, entries)
                continue
            chunks = [chunk_of(entry) if one else None for entry, one in zip(entries, are_chunks, strict=True)]
            # Chunks of earlier portions are not kept in memory, so all are read again.
            del entries
            for units in _packed(_units(read, chunks, waiting), entries_max, bytes_max):
                yield await _read(log, units)
    # The last chunks of these messages are not moved, or never came.
    for units in _packed(iter(waiting.values()), entries_max, bytes_max):
        yield await _read(log, units)


def _units(
    headers: EntryHeaders, chunks: Sequence[Chunk | None], waiting: dict[ChunkedMessage, _Unit]
) -> Iterator[_Unit]:
    """Yield the messages whose last chunk is there; chunks of the others stay in `waiting`."""
    columns = zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), headers.sizes.tolist(), strict=True)
    for (ledger_id, entry_id, size), chunk in zip(columns, chunks, strict=True):
        position = Position(ledger_id, entry_id)
        if chunk is None:
            yield _Unit([position], size)
            continue
        unit = waiting.setdefault(chunk.message, _Unit([], 0))
        unit.positions.append(position)
        unit.size_bytes += size
        # Not by their number: a client that connects again may send the first chunks twice.
        if chunk.is_last:
            yield waiting.pop(chunk.message)


def _packed(units: Iterator[_Unit], entries_max: int, bytes_max: int) -> Iterator[list[_Unit]]:
    """Yield as many units together as the limits allow, at least one."""
    together: list[_Unit] = []
    entries = size_bytes = 0
    for unit in units:
        entries += len(unit.positions)
        size_bytes += unit.size_bytes
        if together and (entries > entries_max or size_bytes > bytes_max):
            yield together
            together, entries, size_bytes = [], len(unit.positions), unit.size_bytes
        together.append(unit)
    if together:
        yield together


async def _read(log: ReadableLog, units: Sequence[_Unit]) -> Portion:
    headers = await log.read_headers_at(*columns_of([at for unit in units for at in unit.positions]))
    # The first read of them has told of damage.
    entries, _ = await log.read_intact_payloads(headers.ledger_ids, headers.entry_ids)
    return Portion(headers, entries)
