"""Which bytes of a message are its sticky key.

The order of choice is Pulsar's: ordering key, partition key, producer name with sequence id, a constant. A message
without a key therefore goes to any consumer, but always to the same one when it is redelivered. A batch has one
metadata, so one key: producers must batch by key or not at all.
"""

import base64
import binascii
from typing import Final

from dispatcher.slots import sticky_hash

NONE_KEY: Final = b"NONE_KEY"


def sticky_key(
    *,
    ordering_key: bytes | None,
    partition_key: bytes | None,
    partition_key_is_base64: bool,
    producer_name: str | None,
    sequence_id: int | None,
) -> bytes:
    """Return the sticky key of an entry.

    >>> rest = {"partition_key_is_base64": False, "producer_name": "p", "sequence_id": 7}
    >>> sticky_key(ordering_key=b"o", partition_key=b"k", **rest)
    b'o'
    >>> sticky_key(ordering_key=None, partition_key=b"k", **rest)
    b'k'
    >>> sticky_key(ordering_key=None, partition_key=None, **rest)
    b'p-7'
    """
    if ordering_key is not None:
        return ordering_key
    if partition_key is not None:
        return _decoded(partition_key) if partition_key_is_base64 else partition_key
    if producer_name is not None and sequence_id is not None:
        return f"{producer_name}-{sequence_id}".encode()
    return NONE_KEY


def sticky_key_hash(
    *,
    ordering_key: bytes | None,
    partition_key: bytes | None,
    partition_key_is_base64: bool,
    producer_name: str | None,
    sequence_id: int | None,
) -> int:
    """Return the 31-bit hash of an entry's sticky key, as the log stores it."""
    return sticky_hash(
        sticky_key(
            ordering_key=ordering_key,
            partition_key=partition_key,
            partition_key_is_base64=partition_key_is_base64,
            producer_name=producer_name,
            sequence_id=sequence_id,
        )
    )


def _decoded(partition_key: bytes) -> bytes:
    try:
        return base64.b64decode(partition_key, validate=True)
    except (binascii.Error, ValueError):
        # A client that flags a key wrongly must not lose its message; any bytes serve, as long as they are its own.
        return partition_key
