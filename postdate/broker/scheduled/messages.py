"""Read the messages behind the rows of a schedule, with their keys, properties and times.

Metadata stands before the payload in each entry, so both are read together, a few hundred entries at a time.
"""

import asyncio
import base64
from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from managed_ledger.entries.headers import NOT_DELAYED, EntryHeaders
from managed_ledger.entries.message_metadata import MessageMetadataError
from managed_ledger.entries.messages import MessageFilter, StoredMessage, message_of
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Mask
from managed_ledger.reading.readable_log import ReadableLog
from postdate.broker.scheduled.answers import MessageAnswer, both
from postdate.broker.scheduled.selection import Rows
from postdate.broker.slices import Turns

READ_ENTRIES: Final = 1_024
"""Entries whose metadata is read in one slice."""
_SORT_IN_THREAD_ROWS: Final = 8_192
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The most bytes of entries behind one page, since an answer is written at once; a larger page ends early."""


def described(entry: bytes, row: int, headers: EntryHeaders, *, has_payload: bool) -> MessageAnswer:
    """Return a message as an answer has it.

    Args:
        entry: Its entry.
        row: Its row in `headers`.
        headers: Headers of some entries.
        has_payload: Whether the payload is wanted, in base64.
    """
    try:
        message = message_of(entry)
    except MessageMetadataError:
        message = StoredMessage(None, {}, "", entry, "UNREADABLE", len(entry))
    answer = described_without_entry(row, headers)
    answer.damaged = False
    answer.key, answer.key_base64 = _texts_of(message.key)
    answer.properties = dict(message.properties)
    answer.size_bytes = message.size
    answer.producer_name = message.producer_name
    if has_payload:
        answer.payload = base64.b64encode(message.payload).decode()
        answer.payload_compression = message.payload_compression
    return answer


def described_without_entry(row: int, headers: EntryHeaders) -> MessageAnswer:
    """Return what the header tells of an entry that is damaged: not its key, nor its properties."""
    deliver_at_ms = int(headers.deliver_at_ms[row])
    return MessageAnswer(
        message_id=str(Position(int(headers.ledger_ids[row]), int(headers.entry_ids[row]))),
        **both("deliver_at", None if deliver_at_ms == NOT_DELAYED else deliver_at_ms),
        **both("publish_time", int(headers.publish_time_ms[row])),
        key=None,
        key_base64=None,
        properties={},
        size_bytes=int(headers.sizes[row]),
        producer_name="",
        damaged=True,
    )


def _texts_of(key: bytes | None) -> tuple[str | None, str | None]:
    """Return a key as text, or one that is no text in base64."""
    if key is None:
        return None, None
    try:
        return key.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(key).decode()


OnSearched = Callable[[int, int], None]
"""Receives the number of entries that were looked at since the last call, and how many of them match."""
OnDamaged = Callable[[Mapping[int, BitMap]], None]
"""Receives damaged entries, by ledger."""


async def matching(
    log: ReadableLog, rows: Rows, wanted: MessageFilter, on_searched: OnSearched, on_damaged: OnDamaged
) -> Mask:
    """Return a mask of the rows that match; computed in slices.

    Damaged entries match nothing: it is not known whether they would. Entries are looked at in the order of the log,
    where neighbours share a block.
    """
    is_meant = np.zeros(len(rows), np.bool_)
    is_small = len(rows) < _SORT_IN_THREAD_ROWS
    order = rows.by_position() if is_small else await asyncio.to_thread(rows.by_position)
    turns = Turns()
    for begin in range(0, len(rows), READ_ENTRIES):
        portion = order[begin : begin + READ_ENTRIES]
        entries, damaged = await log.read_intact_payloads(rows.ledger_ids[portion], rows.entry_ids[portion])
        if damaged:
            on_damaged(damaged)
        matched = 0
        for row, entry in zip(portion.tolist(), entries, strict=True):
            is_meant[row] = entry is not None and wanted.matches(entry)
            matched += int(is_meant[row])
            await turns.give_way()
        on_searched(len(portion), matched)
    return is_meant


def fitting(headers: EntryHeaders, bytes_max: int) -> int:
    """Return how many of the first entries fit into a number of bytes together, but at least one."""
    return max(1, int(np.searchsorted(np.cumsum(headers.sizes, dtype=np.int64), bytes_max, side="right")))


def columns_of(positions: Collection[Position]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ledger ids and entry ids."""
    ids = np.array(list(positions), np.int64).reshape(-1, 2)
    return ids[:, 0], ids[:, 1]
