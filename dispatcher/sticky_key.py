"""The choice of a message's sticky key among the fields of its metadata.

The order of choice is Pulsar's: ordering key, partition key, producer name with sequence id. A message without a key
therefore goes to any consumer, but always to the same one when it is redelivered. A batch has one metadata, so one key:
producers must batch by key or not at all.
"""

import base64
import binascii

from dispatcher.slots import sticky_hash
from managed_ledger.entries.message_metadata import text_bytes
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata


def key_of(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    """Return the key that a producer gave: the ordering key, else the partition key, None without either.

    >>> key_of(MessageMetadata(ordering_key=b"o", partition_key=b"k"))
    b'o'
    >>> key_of(MessageMetadata(partition_key=b"k"))
    b'k'
    """
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    key = text_bytes(metadata.partition_key)
    return _decoded(key) if metadata.partition_key_b64_encoded else key


def sticky_key(metadata: MessageMetadata) -> bytes:
    """Return the sticky key of an entry.

    >>> sticky_key(MessageMetadata(partition_key=b"k", producer_name="p", sequence_id=7))
    b'k'
    >>> sticky_key(MessageMetadata(producer_name="p", sequence_id=7))
    b'p-7'
    """
    key = key_of(metadata)
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode() if key is None else key


def sticky_key_hash(metadata: MessageMetadata) -> int:
    """Return the 31-bit hash of an entry's sticky key, as the log stores it."""
    return sticky_hash(sticky_key(metadata))


def _decoded(partition_key: bytes) -> bytes:
    try:
        return base64.b64decode(partition_key, validate=True)
    except (binascii.Error, ValueError):
        # A client that flags a key wrongly must not lose its message; any bytes serve, as long as they are its own.
        return partition_key
