"""Numbers as RocksDB stores them, 7 bits a byte, the lowest first; and byte strings behind their lengths."""

_BYTES_MAX = 10


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next thing is.

    >>> read_varint(bytes([0xAC, 0x02, 7]), 0)
    (300, 2)

    Raises:
        ValueError: There is none.
    """
    number = shift = 0
    for end in range(at, min(at + _BYTES_MAX, len(data))):
        number |= (data[end] & 0x7F) << shift
        if data[end] < 0x80:
            return number, end + 1
        shift += 7
    raise ValueError("no number ends here")


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """A byte string behind its length, and where the next thing is.

    >>> read_bytes(bytes([2]) + b"abc", 0)
    (b'ab', 3)

    Raises:
        ValueError: It is cut off.
    """
    length, at = read_varint(data, at)
    if at + length > len(data):
        raise ValueError("a change that is cut off")
    return data[at : at + length], at + length
