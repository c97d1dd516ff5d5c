"""The layout of an entry, and the one parser of what stands before its payload.

    entry:  0x0e01 | CRC32C u32 | metadata size u32 | metadata (protobuf, Pulsar's `MessageMetadata`) | payload

The log keeps entries as they came and opens none. The broker parses the metadata of each message that is published, the
bulk jobs that of messages which they search or repair, both with the generated class: a walk in Python over the fields
took four times as long. Bulk work over all messages reads headers, in columns, and needs no metadata. Pure.
"""

import base64
import binascii
import struct
import zlib
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from managed_ledger.entries.headers import CHUNK, LAST_CHUNK, MESSAGE_SHIFT, NO_CHUNK, OWN_ID
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata

MAGIC: Final = b"\x0e\x01"
CHECKSUM_END: Final = 6
"""The end of magic and checksum; all bytes from here are covered by the checksum."""
METADATA_START: Final = 10
_METADATA_SIZE: Final = struct.Struct(">I")
OWN_ID_PROPERTY: Final = "postdate.id"
"""The property with the id that a producer gave its message, by which the message can be replaced and found."""


class MessageMetadataError(ValueError):
    """An entry has no metadata that can be parsed."""


def metadata_end(entry: bytes) -> int:
    """Return where the payload of an entry begins, as its header says.

    Raises:
        MessageMetadataError: The entry has no metadata.
    """
    if not entry.startswith(MAGIC) or len(entry) < METADATA_START:
        raise MessageMetadataError("an entry without metadata")
    (size,) = _METADATA_SIZE.unpack_from(entry, METADATA_START - 4)
    return METADATA_START + int(size)


def metadata_bytes(entry: bytes) -> bytes:
    r"""Return the metadata of an entry as it is stored.

    >>> metadata_bytes(b"\x0e\x01" + b"sum!" + (3).to_bytes(4) + b"abc" + b"the payload")
    b'abc'

    Raises:
        MessageMetadataError: The entry has no metadata.
    """
    return entry[METADATA_START : metadata_end(entry)]


def parse_metadata(data: bytes) -> MessageMetadata:
    """Parse the bytes of metadata; required fields may be missing.

    Raises:
        MessageMetadataError: The bytes are no metadata.
    """
    try:
        return MessageMetadata.FromString(data)
    except DecodeError as error:
        raise MessageMetadataError(f"metadata that cannot be parsed: {error}") from error


def text_bytes(text: str | bytes) -> bytes:
    """Return the bytes of a text field: the parser gives bytes where a client sent no UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


class ChunkedMessage(NamedTuple):
    """A message of several chunks."""

    producer_name: str
    uuid: str


class Chunk(NamedTuple):
    """The metadata by which an entry names the message that it is a chunk of."""

    message: ChunkedMessage
    is_last: bool


def chunk_in(metadata: MessageMetadata) -> Chunk | None:
    """Return of which message an entry with this metadata is a chunk; None for a whole message."""
    if metadata.num_chunks_from_msg <= 1:
        return None
    message = ChunkedMessage(metadata.producer_name, metadata.uuid)
    return Chunk(message, metadata.chunk_id >= metadata.num_chunks_from_msg - 1)


def header_flags(metadata: MessageMetadata) -> int:
    """Return the flags of the header of an entry with this metadata."""
    chunk = chunk_in(metadata)
    if chunk is None:
        return NO_CHUNK | own_id_flags(metadata) if metadata.properties else NO_CHUNK
    producer_name, uuid = map(text_bytes, chunk.message)
    message_id = uuid or b"%s-%d" % (producer_name, metadata.sequence_id)
    return CHUNK | (LAST_CHUNK if chunk.is_last else 0) | (zlib.crc32(message_id) & 0xFFFF) << MESSAGE_SHIFT


def own_id_flags(metadata: MessageMetadata) -> int:
    """Return the flag of a message's own id and the hash of it; 0 without one, and for a batch of several messages."""
    if metadata.num_messages_in_batch > 1:
        return 0
    flags = 0
    for one in metadata.properties:
        if one.key == OWN_ID_PROPERTY:
            # The last one counts, as for Pulsar's clients.
            flags = OWN_ID | id_hash(text_bytes(one.value)) << MESSAGE_SHIFT
    return flags


def id_hash(own_id: bytes) -> int:
    """Return the hash of an own id that headers have, from 1 to 65,535.

    >>> id_hash(b"order-17")
    24831
    """
    return 1 + zlib.crc32(own_id) % 0xFFFF


def message_key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    """Return the key that a producer gave: the ordering key, else the partition key, None without either.

    >>> message_key(MessageMetadata(ordering_key=b"o", partition_key=b"k"))
    b'o'
    >>> message_key(MessageMetadata(partition_key=b"k"))
    b'k'
    """
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    key = text_bytes(metadata.partition_key)
    return _decoded(key) if metadata.partition_key_b64_encoded else key


def _decoded(partition_key: bytes) -> bytes:
    try:
        return base64.b64decode(partition_key, validate=True)
    except (binascii.Error, ValueError):
        # A client that flags a key wrongly must not lose its message; any bytes serve, as long as they are its own.
        return partition_key
