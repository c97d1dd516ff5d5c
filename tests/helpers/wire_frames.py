"""The parts of the protocol's bytes, made by hand: judges of the service's own encoders, which are not used here."""

import struct

import google_crc32c


def varint(value: int) -> bytes:
    """Encode one unsigned number.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def entry_of(metadata: bytes, payload: bytes = b"payload") -> bytes:
    """Return an entry: its checksum, the size of its metadata, the metadata and the payload."""
    covered = struct.pack(">I", len(metadata)) + metadata + payload
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(covered)) + covered


def framed(command: bytes, rest: bytes = b"") -> bytes:
    """Return a frame: its size, the size of the command, the command, and bytes behind it."""
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest
