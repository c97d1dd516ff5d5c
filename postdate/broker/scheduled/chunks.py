"""Chunked messages: large messages that a client cut into several entries of the log.

The entries of one message share time, key, producer and the number that the producer gave to it, and say how many they
are. Those of several producers can stand between each other. A consumer drops a message without all of its chunks, so
a change of one chunk must be a change of all.
"""

from typing import Final

from managed_ledger.entries.headers import EntryHeaders
from managed_ledger.entries.message_metadata import (
    Chunk,
    ChunkedMessage,
    MessageMetadataError,
    chunk_in,
    metadata_bytes,
)
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.reading.readable_log import ReadableLog
from postdate.broker.protocol.entries import metadata_of
from postdate.broker.protocol.errors import ProtocolError
from postdate.broker.scheduled.messages import PAGE_BYTES_MAX, fitting

_COUNT_TAG: Final = MessageMetadata(num_chunks_from_msg=1).SerializePartialToString()[:-1]
"""The bytes in front of the number of chunks; nearly no other metadata has them, and a search is cheap."""


def chunk_of(entry: bytes | None) -> Chunk | None:
    """Return of which message an entry is a chunk; None for a whole message, and for an entry without metadata."""
    if entry is None:
        return None
    try:
        if _COUNT_TAG not in metadata_bytes(entry):
            return None
        metadata = metadata_of(entry)
    except (MessageMetadataError, ProtocolError):
        return None
    return chunk_in(metadata)


async def chunked_messages(log: ReadableLog, headers: EntryHeaders) -> list[ChunkedMessage | None]:
    """Return the message that each entry is a chunk of, None for whole messages and for damaged ones.

    Raises:
        LedgerError: The log cannot be read.
    """
    found: list[ChunkedMessage | None] = []
    while len(found) < len(headers):
        rest = headers.take(slice(len(found), len(headers)))
        part = rest.take(slice(0, fitting(rest, PAGE_BYTES_MAX)))
        entries, _ = await log.read_intact_payloads(part.ledger_ids, part.entry_ids)
        chunks = map(chunk_of, entries)
        found += [None if chunk is None else chunk.message for chunk in chunks]
    return found
