"""How an entry of a Pulsar client is laid out, and a walk over the fields of its metadata.

    entry:  0x0e01 | checksum u32 | metadata size u32 | metadata (protobuf, Pulsar's `MessageMetadata`) | payload

The log keeps entries as they came and opens none. This is for whoever asks about single messages: a job that wants two
fields of many walks over the bytes, and the broker's wire protocol parses what it must write again. Pure.
"""

import struct
from collections.abc import Iterator
from typing import Final

MAGIC: Final = b"\x0e\x01"
METADATA_START: Final = 10
_METADATA_SIZE: Final = struct.Struct(">I")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def bytes_of(field: int | bytes | None) -> bytes | None:
    """Return the bytes of a field that has some."""
    return field if isinstance(field, bytes) else None


def metadata_of(entry: bytes) -> bytes:
    r"""Return the metadata of an entry as it is stored; nothing where the entry has none.

    >>> metadata_of(b"\x0e\x01" + b"sum!" + (3).to_bytes(4) + b"abc" + b"the payload")
    b'abc'
    """
    end = metadata_end(entry)
    return b"" if end is None else entry[METADATA_START:end]


def metadata_end(entry: bytes) -> int | None:
    """Return where the payload of an entry begins, as its header says; None where it has no metadata."""
    if not entry.startswith(MAGIC) or len(entry) < METADATA_START:
        return None
    (size,) = _METADATA_SIZE.unpack_from(entry, METADATA_START - 4)
    return METADATA_START + int(size)


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give the number and the value of each field; of fixed numbers their bytes.

    Raises:
        ValueError: These are no fields.
        IndexError: They end too early.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"{kind} is no kind of field")
        if at + size > end:
            raise IndexError
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in range(7, 64, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise ValueError("a number of more than 64 bits")
