"""Chunked messages: large messages that a client cut into several entries of the log.

The entries of one message share time, key, producer and the number that the producer gave to it, and say how many they
are. Those of several producers can stand between each other. A consumer drops a message without all of its chunks, so
a change of one chunk must be a change of all.
"""

from managed_ledger.entries.headers import CHUNK, EntryHeaders
from managed_ledger.entries.message_metadata import Chunk, ChunkedMessage, chunk_in, metadata_bytes, parse_metadata
from managed_ledger.positions.value_types import Mask
from managed_ledger.reading.readable_log import ReadableLog
from postdate.broker.scheduled.messages import PAGE_BYTES_MAX, fitting


def is_chunk(headers: EntryHeaders) -> Mask:
    """Return which entries are chunks, by their flags."""
    found: Mask = headers.flags & CHUNK != 0
    return found


def chunk_of(entry: bytes | None) -> Chunk | None:
    """Return of which message an entry that is a chunk is one; None for a damaged or trimmed one."""
    return None if entry is None else chunk_in(parse_metadata(metadata_bytes(entry)))


async def chunked_messages(log: ReadableLog, chunks: EntryHeaders) -> list[ChunkedMessage | None]:
    """Return the message that each chunk is one of, None for damaged ones.

    Raises:
        LedgerError: The log cannot be read.
    """
    found: list[ChunkedMessage | None] = []
    while len(found) < len(chunks):
        rest = chunks.take(slice(len(found), len(chunks)))
        part = rest.take(slice(0, fitting(rest, PAGE_BYTES_MAX)))
        entries, _ = await log.read_intact_payloads(part.ledger_ids, part.entry_ids)
        found += [None if chunk is None else chunk.message for chunk in map(chunk_of, entries)]
    return found
