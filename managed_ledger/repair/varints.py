"""Numbers of variable length, as RocksDB stores them: 7 bits a byte, the lowest first."""

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
