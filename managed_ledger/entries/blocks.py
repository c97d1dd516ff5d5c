"""Blocks: consecutive entries of one ledger in one value, so that RocksDB keeps one key for many.

Header block: rows of `headers.ROW`, nothing else. Payload block:

    offset u32 x (n + 1) | payload x n            little endian, offsets from the start of the value

The first offset is the length of the offset table and so tells n; any payload is cut out without decoding the
others. A payload block holds at most `PAYLOAD_BLOCK_BYTES`, or one larger payload alone: one random read then costs
one small value, however large its neighbours are. It was measured beside one key per entry and one value per commit.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from managed_ledger.entries.headers import ROW_BYTES, Rows, decode_rows

PAYLOAD_BLOCK_BYTES = 16 * 1024
"""Most payload in one block of more than one entry."""
HEADER_BLOCK_ROWS = 1024
"""Most rows in one header block, so that reading one header of a huge commit stays cheap."""
JOINED_ENTRIES_MAX = 64
"""Most entries of blocks that are joined in memory: a block takes 300 bytes beside its entries."""
JOINED_PAYLOAD_BYTES = 16 * 1024
"""Most payload of such blocks, 64 bytes more for each entry."""
BLOCK_OVERHEAD_BYTES = 200
"""The smallest part of that."""
PAYLOAD_OVERHEAD_BYTES = 48
"""Bytes that Python adds to a `bytes` object in a list."""

_PAIR = struct.Struct("<2I")
_OFFSET = struct.Struct("<I")
_ONE_PAYLOAD = _OFFSET.pack(8)
"""The beginning of a block of one payload."""


class HeaderBlock:
    """Header rows of the entries `first` to `end`, `end` excluded."""

    __slots__ = ("cost", "end", "first", "rows")

    def __init__(self, first: int, rows: bytes) -> None:
        self.first = first
        self.end = first + len(rows) // ROW_BYTES
        self.rows = rows
        self.cost = len(rows) + BLOCK_OVERHEAD_BYTES

    def joined(self, following: "HeaderBlock") -> "HeaderBlock | None":
        """Return one block of this one and the next, None where they are too large for it."""
        if following.end - self.first > JOINED_ENTRIES_MAX:
            return None
        return HeaderBlock(self.first, self.rows + following.rows)


class PayloadBlock(Protocol):
    """Payloads of the entries `first` to `end`, `end` excluded."""

    first: int
    end: int
    cost: int

    def payload(self, entry_id: int) -> bytes:
        """The payload of one of these entries."""

    def joined(self, following: "PayloadBlock") -> "PayloadBlock | None":
        """Return one block of this one and the next, None where they are not joined."""


class FreshPayloads:
    """A block whose payloads are objects of their own: those that were appended, or small ones that were read."""

    __slots__ = ("_payloads", "cost", "end", "first")

    def __init__(self, first: int, payloads: Sequence[bytes], size: int) -> None:
        self.first = first
        self.end = first + len(payloads)
        self.cost = size + PAYLOAD_OVERHEAD_BYTES * len(payloads) + BLOCK_OVERHEAD_BYTES
        self._payloads = payloads

    def joined(self, following: PayloadBlock) -> PayloadBlock | None:
        entries = following.end - self.first
        size = self.cost + following.cost - 2 * BLOCK_OVERHEAD_BYTES - PAYLOAD_OVERHEAD_BYTES * entries
        if not isinstance(following, FreshPayloads) or entries > JOINED_ENTRIES_MAX or size > JOINED_PAYLOAD_BYTES:
            return None
        return FreshPayloads(self.first, [*self._payloads, *following._payloads], size)

    def payload(self, entry_id: int) -> bytes:
        return self._payloads[entry_id - self.first]


class StoredPayloads:
    """A block as it was read; payloads are cut out when asked for."""

    __slots__ = ("_block", "cost", "end", "first")

    def __init__(self, first: int, block: bytes) -> None:
        self.first = first
        self.end = first + payload_count(block)
        self.cost = len(block) + BLOCK_OVERHEAD_BYTES
        self._block = block

    def joined(self, following: PayloadBlock) -> PayloadBlock | None:
        """Return None: blocks of the disk stay as they are there."""
        del following
        return None

    def payload(self, entry_id: int) -> bytes:
        return payload_at(self._block, entry_id - self.first)


def stored_payloads(first: int, values: Sequence[bytes]) -> PayloadBlock:
    """Return one block of stored ones in a row; payloads of several are cut out now."""
    if len(values) == 1:
        return StoredPayloads(first, values[0])
    payloads: list[bytes] = []
    for value in values:
        if value.startswith(_ONE_PAYLOAD):
            payloads.append(value[len(_ONE_PAYLOAD) + _OFFSET.size :])
        else:
            payloads += [payload_at(value, index) for index in range(payload_count(value))]
    return FreshPayloads(first, payloads, sum(map(len, payloads)))


def cut_payloads(payloads: Sequence[bytes]) -> list[int]:
    """Exclusive ends of the blocks that these payloads go into.

    >>> cut_payloads([b"x" * 9000, b"x" * 7000, b"x" * 7000, b"x" * 20000, b""])
    [2, 3, 4, 5]
    """
    ends: list[int] = []
    size = 0
    for index, payload in enumerate(payloads):
        grown = size + len(payload)
        if grown > PAYLOAD_BLOCK_BYTES and size:
            ends.append(index)
            grown = len(payload)
        size = grown
    ends.append(len(payloads))
    return ends


def encode_payloads(payloads: Sequence[bytes]) -> bytes:
    """One payload block.

    >>> block = encode_payloads([b"to be", b"", b"or not"])
    >>> [payload_at(block, index) for index in range(payload_count(block))]
    [b'to be', b'', b'or not']
    """
    assert payloads

    offsets = accumulate(map(len, payloads), initial=4 * (len(payloads) + 1))
    return b"".join((struct.pack(f"<{len(payloads) + 1}I", *offsets), *payloads))


def row_count(block: bytes) -> int:
    """How many headers a block holds."""
    return len(block) // ROW_BYTES


def payload_count(block: bytes) -> int:
    """How many payloads a block holds."""
    offset: int = _OFFSET.unpack_from(block)[0]
    return offset // 4 - 1


def payload_at(block: bytes, index: int) -> bytes:
    """One payload of a block."""
    start, end = _PAIR.unpack_from(block, 4 * index)
    return block[start:end]


def rows_at(blocks: Sequence[HeaderBlock], entry_ids: NDArray[np.int64]) -> Rows:
    """Header rows of ascending entries; `blocks` are those that cover them, ascending, and no others.

    They may overlap: a stored block is read whole, also where the cache has some of it.
    """
    assert blocks
    assert len(entry_ids)

    parts: list[bytes] = []
    begins: list[int] = []
    counts: list[int] = []
    end = 0
    for block in blocks:
        begin = max(block.first, end)
        if begin < block.end:
            parts.append(block.rows[(begin - block.first) * ROW_BYTES :] if begin > block.first else block.rows)
            begins.append(begin)
            counts.append(block.end - begin)
            end = block.end
    rows = decode_rows(b"".join(parts))
    first, last = int(entry_ids[0]), int(entry_ids[-1])
    # Usually the entries have no gap. Then the blocks have none either, and the rows are one slice.
    if last - first + 1 == len(entry_ids):
        return rows[first - begins[0] : last - begins[0] + 1]
    firsts, sizes = np.array(begins, dtype=np.int64), np.array(counts, dtype=np.int64)
    offsets = np.cumsum(sizes) - sizes
    covering = np.searchsorted(firsts, entry_ids, side="right") - 1
    return rows[entry_ids - firsts[covering] + offsets[covering]]
