"""What a job reads of messages beyond their headers: properties and key, from the metadata before the payload.

    entry:  0x0e01 | checksum u32 | metadata size u32 | metadata (protobuf, Pulsar's `MessageMetadata`) | payload

Two fields of many are wanted of one message of many, so the bytes are walked here and not parsed into objects. A batch
has the properties of its messages in its payload, which is not read; Pulsar's clients send no batch with a delay. Pure.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from dispatcher.sticky_key import sticky_key

_MAGIC = b"\x0e\x01"
_METADATA_SIZE = struct.Struct(">I")
_METADATA_START = 10

# Numbers of fields of `MessageMetadata` and of `KeyValue`.
_PROPERTIES, _PARTITION_KEY, _KEY_IS_BASE64, _ORDERING_KEY = 4, 6, 17, 18
_NAME, _VALUE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """Which messages are meant: those with all of these properties, and with one of these keys if there are any."""

    properties: tuple[tuple[bytes, bytes], ...] = ()
    keys: tuple[bytes, ...] = ()

    @property
    def is_trivial(self) -> bool:
        """Whether every message is meant."""
        return not (self.properties or self.keys)

    def takes(self, metadata: bytes) -> bool:
        """Whether a message with this metadata is meant; one whose metadata makes no sense is not."""
        # A search for bytes is a tenth of a walk, and nearly always enough to know.
        if not all(name in metadata and value in metadata for name, value in self.properties):
            return False
        try:
            return self._takes(metadata)
        except (IndexError, ValueError):
            return False

    def _takes(self, metadata: bytes) -> bool:
        properties: dict[bytes, bytes] = {}
        last: dict[int, int | bytes] = {}
        for number, value in fields_of(metadata):
            if number == _PROPERTIES:
                properties.update(_property(value))
            else:
                last[number] = value
        if not all(properties.get(name) == value for name, value in self.properties):
            return False
        if not self.keys:
            return True
        key = sticky_key(
            ordering_key=bytes_of(last.get(_ORDERING_KEY)),
            partition_key=bytes_of(last.get(_PARTITION_KEY)),
            partition_key_is_base64=bool(last.get(_KEY_IS_BASE64)),
            producer_name=None,
            sequence_id=None,
        )
        return key in self.keys


def _property(field: int | bytes) -> Iterator[tuple[bytes, bytes]]:
    parts = dict(fields_of(bytes_of(field) or b""))
    name, value = bytes_of(parts.get(_NAME)), bytes_of(parts.get(_VALUE))
    if name is not None and value is not None:
        yield name, value


def bytes_of(field: int | bytes | None) -> bytes | None:
    """Return the bytes of a field that has some."""
    return field if isinstance(field, bytes) else None


def metadata_of(entry: bytes) -> bytes:
    r"""Return the metadata of an entry as it is stored; nothing where the entry has none.

    >>> metadata_of(b"\x0e\x01" + b"sum!" + (3).to_bytes(4) + b"abc" + b"the payload")
    b'abc'
    """
    if not entry.startswith(_MAGIC) or len(entry) < _METADATA_START:
        return b""
    (size,) = _METADATA_SIZE.unpack_from(entry, _METADATA_START - 4)
    return entry[_METADATA_START : _METADATA_START + size]


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
