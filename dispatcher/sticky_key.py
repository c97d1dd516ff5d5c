"""The choice of a message's sticky key among the fields of its metadata.

The order of choice is Pulsar's: ordering key, partition key, producer name with sequence id. A message without a key
therefore goes to any consumer, but always to the same one when it is redelivered. A batch has one metadata, so one key:
producers must batch by key or not at all.
"""

from dispatcher.slots import sticky_hash
from managed_ledger.entries.message_metadata import message_key
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata


def sticky_key(metadata: MessageMetadata) -> bytes:
    """Return the sticky key of an entry.

    >>> sticky_key(MessageMetadata(partition_key=b"k", producer_name="p", sequence_id=7))
    b'k'
    >>> sticky_key(MessageMetadata(producer_name="p", sequence_id=7))
    b'p-7'
    """
    key = message_key(metadata)
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode() if key is None else key


def sticky_key_hash(metadata: MessageMetadata) -> int:
    """Return the 31-bit hash of an entry's sticky key, as the log stores it."""
    return sticky_hash(sticky_key(metadata))
