"""Open an entry of the log: its messages, and a copy with another delivery time.

    entry:  0x0e01 | crc32c u32 | metadata size u32 | metadata | payload
    batch:  payload is, perhaps compressed:  (size u32 | SingleMessageMetadata | payload) x n

On the way from producer to consumer nothing opens an entry (`broker.protocol.frames`). This module serves requests
about single messages. An encrypted payload, or one that is not compressed by zlib, stays closed: its batch counts as
one message.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

import google_crc32c
from google.protobuf.message import DecodeError

from broker.protocol.errors import ProtocolError
from dispatcher.sticky_key import key_of
from managed_ledger.entries.message_metadata import (
    MAGIC,
    MessageMetadataError,
    metadata_bytes,
    metadata_end,
    parse_metadata,
)
from managed_ledger.pb.pulsar_metadata_pb2 import NONE, ZLIB, CompressionType, MessageMetadata, SingleMessageMetadata

_U32: Final = Struct(">I")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of an entry."""

    batch_index: int | None
    """Its index in a batch; None for an entry that is no batch, and for a batch that cannot be opened."""
    key: bytes | None
    """Its ordering key, otherwise its partition key, None without either; Key_Shared orders by it."""
    properties: Mapping[str, str]
    producer_name: str
    payload: bytes
    payload_compression: str | None
    """The compression of the payload as it is here; None for the payload that the producer gave."""
    size: int


def metadata_of(entry: bytes) -> MessageMetadata:
    """Parse the metadata of an entry.

    Raises:
        ProtocolError: The entry has no metadata that can be parsed.
    """
    return _parsed(entry)[0]


def _parsed(entry: bytes) -> tuple[MessageMetadata, int]:
    try:
        return parse_metadata(metadata_bytes(entry)), metadata_end(entry)
    except MessageMetadataError as error:
        raise ProtocolError(str(error)) from error


def messages_of(entry: bytes) -> list[StoredMessage]:
    """Return the messages of an entry.

    Raises:
        ProtocolError: It has no metadata that makes sense.
    """
    metadata, end = _parsed(entry)
    payload, compression = _uncompressed(metadata, entry[end:])
    is_batch = metadata.HasField("num_messages_in_batch")
    if is_batch and compression is None and not metadata.encryption_keys:
        try:
            return _batch(metadata, payload)
        except (DecodeError, ValueError):
            # An entry that is no batch is returned as it is stored.
            pass
    properties = {one.key: one.value for one in metadata.properties}
    return [
        StoredMessage(
            None,
            key_of(metadata),
            properties,
            metadata.producer_name,
            payload,
            compression,
            len(entry),
        )
    ]


def with_delivery_time(
    entry: bytes, *, deliver_at_ms: int, publish_time_ms: int, more_properties: Mapping[str, str]
) -> bytes:
    """Return the entry with another delivery and publish time; payload, key, schema and everything else stay.

    Args:
        entry: The entry as it is stored.
        deliver_at_ms: The new delivery time.
        publish_time_ms: The new publish time.
        more_properties: Properties that it gets if it has none of that name.

    Raises:
        ProtocolError: It has no metadata that makes sense.
    """
    metadata, end = _parsed(entry)
    metadata.deliver_at_time = deliver_at_ms
    metadata.publish_time = publish_time_ms
    present = {one.key for one in metadata.properties}
    for name, value in more_properties.items():
        if name not in present:
            metadata.properties.add(key=name, value=value)
    data = metadata.SerializeToString()
    covered = b"".join((_U32.pack(len(data)), data, entry[end:]))
    return b"".join((MAGIC, _U32.pack(google_crc32c.value(covered)), covered))


def _uncompressed(metadata: MessageMetadata, payload: bytes) -> tuple[bytes, str | None]:
    if metadata.compression == NONE or metadata.encryption_keys:
        return payload, None
    if metadata.compression == ZLIB:
        try:
            plain = zlib.decompressobj().decompress(payload, metadata.uncompressed_size or 1)
        except zlib.error:
            plain = b""
        if len(plain) == metadata.uncompressed_size:
            return plain, None
    return payload, CompressionType.Name(metadata.compression)


def _batch(metadata: MessageMetadata, payload: bytes) -> list[StoredMessage]:
    messages, at = [], 0
    for index in range(metadata.num_messages_in_batch):
        begin = at
        if at + 4 > len(payload):
            raise ValueError
        (size,) = _U32.unpack_from(payload, at)
        single = SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size
        end = at + single.payload_size
        if end > len(payload):
            raise ValueError
        key = key_of(single)
        properties = {one.key: one.value for one in single.properties}
        messages.append(
            StoredMessage(index, key, properties, metadata.producer_name, payload[at:end], None, end - begin)
        )
        at = end
    return messages
