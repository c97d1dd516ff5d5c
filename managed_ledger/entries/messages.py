"""The messages of an entry, also of a batch, and a filter of them: for the service and for jobs in bulk.

    batch:  payload is, perhaps compressed:  (size u32 | SingleMessageMetadata | payload) x n

On the way from producer to consumer nothing opens an entry. This module serves requests about single messages. An
encrypted payload, or one that is not compressed by zlib, stays closed: its batch counts as one message. Pure.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from managed_ledger.entries.message_metadata import (
    MessageMetadataError,
    message_key,
    metadata_bytes,
    metadata_end,
    parse_metadata,
    parse_single_metadata,
    text_bytes,
)
from managed_ledger.pb.pulsar_metadata_pb2 import NONE, ZLIB, CompressionType, MessageMetadata

_U32: Final = Struct(">I")
# The first byte of the fields `compression` and `num_messages_in_batch`.
_COMPRESSION_TAG: Final = b"\x40"
_BATCH_TAG: Final = b"\x58"


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


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Conditions on the keys and properties of messages."""

    keys: tuple[bytes, ...] = ()
    """One of these, if there are any: an ordering key, or where there is none a partition key."""
    properties: tuple[tuple[bytes, bytes], ...] = ()
    """All of these, by name and value; of a name that comes twice the last value counts, as for Pulsar's clients."""

    @property
    def is_trivial(self) -> bool:
        """Whether every message matches."""
        return not (self.keys or self.properties)

    def chosen(self, entry: bytes) -> bool | frozenset[int]:
        """Return whether an entry matches; of a batch that matches in part, the indexes of the messages that do.

        A message of a batch needs all of the properties, the key of its entry, and its own key where it has one. An
        entry whose metadata cannot be parsed does not match.
        """
        try:
            if not self._may_match(entry):
                return False
            metadata = parse_metadata(metadata_bytes(entry))
            if self.keys and message_key(metadata) not in self.keys:
                return False
            if metadata.HasField("num_messages_in_batch"):
                return self._chosen_of_batch(entry)
            return self._has_properties({one.key: one.value for one in metadata.properties})
        except MessageMetadataError:
            return False

    def _may_match(self, entry: bytes) -> bool:
        """Search for bytes, which costs a tenth of parsing the metadata and nearly always decides."""
        if all(name in entry and value in entry for name, value in self.properties):
            return True
        # A compressed batch does not have the bytes.
        data = metadata_bytes(entry)
        return _COMPRESSION_TAG in data and _BATCH_TAG in data

    def _chosen_of_batch(self, entry: bytes) -> bool | frozenset[int]:
        messages = messages_of(entry)
        found = [
            one
            for one in messages
            if self._has_properties(one.properties) and (not self.keys or one.key is None or one.key in self.keys)
        ]
        if len(found) in (0, len(messages)):
            return bool(found)
        return frozenset(one.batch_index or 0 for one in found)

    def _has_properties(self, properties: Mapping[str, str]) -> bool:
        found = {text_bytes(name): text_bytes(value) for name, value in properties.items()} if self.properties else {}
        return all(found.get(name) == value for name, value in self.properties)


def messages_of(entry: bytes) -> list[StoredMessage]:
    """Return the messages of an entry.

    Raises:
        MessageMetadataError: It has no metadata that makes sense.
    """
    metadata, end = parse_metadata(metadata_bytes(entry)), metadata_end(entry)
    payload, compression = _uncompressed(metadata, entry[end:])
    is_batch = metadata.HasField("num_messages_in_batch")
    if is_batch and compression is None and not metadata.encryption_keys:
        try:
            return _batch(metadata, payload)
        except MessageMetadataError:
            # The batch cannot be opened, and is returned as it is stored.
            pass
    properties = {one.key: one.value for one in metadata.properties}
    return [
        StoredMessage(
            None,
            message_key(metadata),
            properties,
            metadata.producer_name,
            payload,
            compression,
            len(entry),
        )
    ]


def _uncompressed(metadata: MessageMetadata, payload: bytes) -> tuple[bytes, str | None]:
    if metadata.compression == NONE:
        return payload, None
    # A producer compresses first and encrypts then.
    if metadata.compression == ZLIB and not metadata.encryption_keys:
        try:
            plain = zlib.decompressobj().decompress(payload, metadata.uncompressed_size or 1)
        except zlib.error:
            plain = b""
        if len(plain) == metadata.uncompressed_size:
            return plain, None
    return payload, CompressionType.Name(metadata.compression)


def _batch(metadata: MessageMetadata, payload: bytes) -> list[StoredMessage]:
    if metadata.num_messages_in_batch < 1:
        raise MessageMetadataError("a batch of no message")
    messages, at = [], 0
    for index in range(metadata.num_messages_in_batch):
        begin = at
        if at + 4 > len(payload):
            raise MessageMetadataError("a batch that ends too early")
        (size,) = _U32.unpack_from(payload, at)
        single = parse_single_metadata(payload[at + 4 : at + 4 + size])
        at += 4 + size
        end = at + single.payload_size
        if end > len(payload):
            raise MessageMetadataError("a batch that ends too early")
        key = message_key(single)
        properties = {one.key: one.value for one in single.properties}
        messages.append(
            StoredMessage(index, key, properties, metadata.producer_name, payload[at:end], None, end - begin)
        )
        at = end
    return messages
