"""The message of an entry, and a filter of messages: for the service and for jobs in bulk.

On the way from producer to consumer nothing opens an entry. This module serves requests about scheduled messages. An
entry is whole, also a batch, which Pulsar's clients send without a delay alone: its key and properties are those of its
own metadata. An encrypted payload, or one that is not compressed by zlib, stays closed. Pure.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from managed_ledger.entries.message_metadata import (
    MessageMetadataError,
    message_key,
    metadata_bytes,
    metadata_end,
    parse_metadata,
    text_bytes,
)
from managed_ledger.pb.pulsar_metadata_pb2 import NONE, ZLIB, CompressionType, MessageMetadata


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """The message of an entry; a batch is one."""

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

    def matches(self, entry: bytes) -> bool:
        """Return whether an entry matches; one whose metadata cannot be parsed does not."""
        # To search for bytes costs a tenth of parsing the metadata, and nearly always decides.
        if not all(name in entry and value in entry for name, value in self.properties):
            return False
        try:
            metadata = parse_metadata(metadata_bytes(entry))
        except MessageMetadataError:
            return False
        if self.keys and message_key(metadata) not in self.keys:
            return False
        return self._has_properties({one.key: one.value for one in metadata.properties})

    def _has_properties(self, properties: Mapping[str, str]) -> bool:
        found = {text_bytes(name): text_bytes(value) for name, value in properties.items()} if self.properties else {}
        return all(found.get(name) == value for name, value in self.properties)


def message_of(entry: bytes) -> StoredMessage:
    """Return the message of an entry.

    Raises:
        MessageMetadataError: It has no metadata that makes sense.
    """
    metadata = parse_metadata(metadata_bytes(entry))
    payload, compression = _uncompressed(metadata, entry[metadata_end(entry) :])
    return StoredMessage(
        message_key(metadata),
        {one.key: one.value for one in metadata.properties},
        metadata.producer_name,
        payload,
        compression,
        len(entry),
    )


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
