"""Rows of a segment to bytes and back, a chunk of rows at a time, with numpy alone.

Protobuf writes one row of a `SnapshotSegment` as

    0a length   08 deliver_at_ms   10 ledger_id   18 entry_id

where each number is a varint: seven bits a byte, lowest first, the top bit set on all bytes but the last. Two
facts make this fast without a compiler:

- To write, lay a chunk of rows out as a matrix with one row per byte of the widest row, mark the bytes that
  exist, and keep those.
- To read, the bytes below 0x80 are the ends of varints, and a row is eight of them. So the ends reshape to
  (rows, 8), and tags and lengths are checked by the column.

Segments follow each other without a separator, so thousands of tiny ones cost as much as one.

Only this one spelling is read here, which is what every known writer writes. The `codec` reads the others.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from managed_ledger.positions.value_types import Int64Array
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.varints import PADDING, close_gaps, words_of

ENTRY_ID_MAX = 2**32 - 1
"""The bitmaps of a snapshot hold 32-bit entry ids."""

# 16,384 rows keep a chunk's temporaries in the cache: 3 times the speed of one pass over 500,000 rows.
_CHUNK_ROWS = 1 << 14

_ROW_TAG = 0x0A
_FIELD_TAGS = (0x08, 0x10, 0x18)
_VARINTS_PER_ROW = 8

# The lowest n bytes of a word, for n from 0 to 8.
_LOW_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)


class EncodedRows(NamedTuple):
    """The bytes of all rows, and where each row ends in them (exclusive)."""

    data: bytes
    row_ends: Int64Array


def encode_rows(rows: DelayedIndexes) -> EncodedRows:
    """Return the bytes of the rows in their order.

    Raises:
        ValueError: A time or ledger id is negative, or an entry id is not within 0 and 2^32 - 1.
    """
    _check_ranges(rows)

    chunks: list[bytes] = []
    row_lengths = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _CHUNK_ROWS):
        end = min(start + _CHUNK_ROWS, len(rows))
        chunks.append(_encode_chunk(rows.slice(start, end), row_lengths[start:end]))

    return EncodedRows(b"".join(chunks), np.cumsum(row_lengths))


def _check_ranges(rows: DelayedIndexes) -> None:
    if not len(rows):
        return
    for name, column in (("deliver_at_ms", rows.deliver_at_ms), ("ledger id", rows.ledger_ids)):
        if column.min() < 0:
            raise ValueError(f"a snapshot cannot hold the {name} {column.min()}: it is negative")
    for entry_id in (int(rows.entry_ids.min()), int(rows.entry_ids.max())):
        if not 0 <= entry_id <= ENTRY_ID_MAX:
            raise ValueError(f"a snapshot cannot hold the entry id {entry_id}: it is not within 0 and 2^32 - 1")


def _encode_chunk(rows: DelayedIndexes, row_lengths: Int64Array) -> bytes:
    """Return the bytes of a chunk, and write the length of each row to `row_lengths`."""
    columns = (rows.deliver_at_ms, rows.ledger_ids, rows.entry_ids)
    widths = [(_varint_width(int(c.min())), _varint_width(int(c.max()))) for c in columns]
    matrix = np.empty((2 + sum(1 + widest for _, widest in widths), len(rows)), np.uint8)
    is_present = np.ones(matrix.shape, np.bool_)
    # Behind the length byte come a tag and a varint three times, each varint no shorter than its narrowest.
    body_lengths = np.full(len(rows), sum(1 + narrowest for narrowest, _ in widths), np.uint8)

    byte = 2
    for tag, column, (narrowest, widest) in zip(_FIELD_TAGS, columns, widths, strict=True):
        matrix[byte] = tag
        byte += 1
        rest = column
        for k in range(widest):
            low = rest.astype(np.uint8)
            rest = rest >> 7
            if k < narrowest - 1:
                low |= 0x80
            elif k < widest - 1:
                goes_on = rest > 0
                low &= 0x7F
                low |= goes_on.view(np.uint8) << 7
                is_present[byte + 1] = goes_on
                body_lengths += goes_on
            matrix[byte] = low
            byte += 1
    matrix[0] = _ROW_TAG
    # At most 3 tags, 9 + 9 + 5 bytes: the length itself is always one byte.
    matrix[1] = body_lengths

    row_lengths[:] = body_lengths
    row_lengths += 2
    if all(narrowest == widest for narrowest, widest in widths):
        return matrix.T.tobytes()
    return np.ascontiguousarray(matrix.T)[np.ascontiguousarray(is_present.T)].tobytes()


def _varint_width(value: int) -> int:
    """Return how many bytes the varint of a number takes."""
    return max(1, -(-value.bit_length() // 7))


def decode_rows(data: bytes) -> tuple[DelayedIndexes, Int64Array] | None:
    """Return the rows and where each one ends in `data`, or None if they are not spelled as written here.

    None says nothing about the bytes being wrong: protobuf allows other spellings, and a number of 2^56 or
    more is left to the generated class as well.
    """
    if not data:
        return DelayedIndexes.empty(), np.empty(0, np.int64)
    if data[-1] >= 0x80:
        return None
    padded = np.frombuffer(data + PADDING, np.uint8)
    varint_ends = np.flatnonzero(padded[: len(data)] < 0x80)
    if len(varint_ends) % _VARINTS_PER_ROW:
        return None

    ends = varint_ends.reshape(-1, _VARINTS_PER_ROW)
    row_ends = ends[:, 7] + 1
    row_starts = np.empty_like(row_ends)
    row_starts[0] = 0
    row_starts[1:] = row_ends[:-1]
    table = np.empty((3, len(ends)), np.int64)
    for start in range(0, len(ends), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        if not _decode_chunk(padded, row_starts[chunk], ends[chunk], table[:, chunk]):
            return None
    return DelayedIndexes(table[0], table[1], table[2]), row_ends


def _decode_chunk(padded: NDArray[np.uint8], row_starts: Int64Array, ends: NDArray[np.intp], table: Int64Array) -> bool:
    """Write the columns of a chunk to `table`; False if a row is spelled otherwise."""
    body_starts = row_starts + 2
    is_canonical = (
        (padded[row_starts] == _ROW_TAG)
        & (ends[:, 1] == row_starts + 1)
        & (padded[row_starts + 1] == ends[:, 7] - row_starts - 1)
    )
    field_starts = body_starts
    for field, tag in enumerate(_FIELD_TAGS):
        tag_ends, value_ends = ends[:, 2 + 2 * field], ends[:, 3 + 2 * field]
        value_lengths = value_ends - tag_ends
        is_canonical &= (tag_ends == field_starts) & (padded[tag_ends] == tag) & (value_lengths <= 8)
        if not is_canonical.all():
            return False
        table[field] = _varints_at(padded, tag_ends + 1, value_lengths)
        field_starts = value_ends + 1
    return True


def _varints_at(padded: NDArray[np.uint8], starts: NDArray[np.intp], lengths: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Return the numbers whose varints start here and are at most 8 bytes long."""
    return close_gaps(words_of(padded)[starts] & _LOW_BYTES[lengths], int(lengths.max()))
