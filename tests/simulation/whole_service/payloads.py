"""The bytes of an entry: a number that no other message has, behind metadata as producers write them.

A copy with another delivery time has other metadata and the same number. Both are read here without the broker's code.
"""

from struct import Struct
from typing import Final

import google_crc32c

from tests.helpers.wire_frames import varint

_HEAD: Final = Struct(">HII")
_MAGIC: Final = 0x0E01
_SIZE: Final = Struct(">I")


def payload_of(number: int, size: int, *, publish_time_ms: int, own_id: str | None = None) -> bytes:
    """Return an entry with a number and so many bytes more; its id is field 4, the properties."""
    # Producer name, sequence id and publish time: fields 1 to 3 of Pulsar's MessageMetadata.
    metadata = b"\x0a\x01p\x10" + varint(number) + b"\x18" + varint(publish_time_ms)
    if own_id is not None:
        pair = b"\x0a\x0bpostdate.id\x12" + varint(len(own_id)) + own_id.encode()
        metadata += b"\x22" + varint(len(pair)) + pair
    covered = _SIZE.pack(len(metadata)) + metadata + b"%d " % number + b"x" * size
    return _HEAD.pack(_MAGIC, google_crc32c.value(covered), len(metadata)) + covered[_SIZE.size :]


def content_of(payload: bytes) -> bytes:
    """Return what a producer wrote, without its metadata."""
    return payload[_HEAD.size + _HEAD.unpack_from(payload)[2] :]


def number_of(payload: bytes) -> int:
    """Return the number of an entry or of its copy."""
    return int(content_of(payload).partition(b" ")[0])
