"""Write entry 0 of a snapshot from columns; `metadata_columns` reads it.

Protobuf writes each segment as

    0a length  [0a length  08 ledger_id  12 length bitmap] * ledgers  10 deliver_at_ms_max  18 deliver_at_ms_min

which, but for the bitmaps, is nothing but tags with a number each. So all tags and numbers of a snapshot are two
columns, written at once, and cut where bitmaps belong. A bucket whose times are spread over a week has two thousand
segments: one by one, they would hold Python's interpreter for 20 ms, which is what an add then has to wait for.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from snapshot_storage.encoding.columns import Int64Array
from snapshot_storage.encoding.metadata_columns import BITMAP_TAG, FIRST_TIME_TAG, LAST_TIME_TAG, LEDGER_TAG, RECORD_TAG
from snapshot_storage.encoding.varints import varint_widths, write_fields

_BITMAP_TAGS = np.array([RECORD_TAG, LEDGER_TAG, BITMAP_TAG], np.uint8)
_TIME_TAGS = np.array([LAST_TIME_TAG, FIRST_TIME_TAG], np.uint8)


def write_columns(
    first_times: Int64Array,
    last_times: Int64Array,
    bitmap_segments: NDArray[np.intp],
    ledger_ids: Int64Array,
    bitmaps: Sequence[bytes],
) -> bytes:
    """Return entry 0.

    Runtime complexity: O(n) for n segments and bitmaps together; some 0.4 us each.

    Args:
        first_times: When each segment begins, in milliseconds.
        last_times: When each segment ends.
        bitmap_segments: The segment of each bitmap, counted from 0, ascending.
        ledger_ids: The ledger of each bitmap.
        bitmaps: Serialised.
    """
    sizes = np.array([len(bitmap) for bitmap in bitmaps], np.int64)
    entry_sizes = _field_sizes(ledger_ids) + _field_sizes(sizes) + sizes
    segment_sizes = _field_sizes(last_times) + _field_sizes(first_times)
    np.add.at(segment_sizes, bitmap_segments, _field_sizes(entry_sizes) + entry_sizes)

    # A segment is one field, three for each bitmap, and two.
    bitmap_counts = np.bincount(bitmap_segments, minlength=len(first_times))
    tail_fields = 1 + 3 * np.cumsum(bitmap_counts) + 3 * np.arange(len(first_times))
    head_fields = tail_fields - 1 - 3 * bitmap_counts
    entry_fields = 1 + 3 * np.arange(len(bitmaps)) + 3 * bitmap_segments
    tags = np.empty(3 * (len(first_times) + len(bitmaps)), np.uint8)
    values = np.empty(len(tags), np.int64)
    tags[head_fields], values[head_fields] = RECORD_TAG, segment_sizes
    _put(tags, values, entry_fields, _BITMAP_TAGS, (entry_sizes, ledger_ids, sizes))
    _put(tags, values, tail_fields, _TIME_TAGS, (last_times, first_times))

    data, field_ends = write_fields(tags, values)
    cuts = field_ends[entry_fields + 2].tolist()
    between = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return b"".join(chain.from_iterable(zip(between, [*bitmaps, b""], strict=True)))


def _put(
    tags: NDArray[np.uint8],
    values: Int64Array,
    fields: NDArray[np.intp],
    own_tags: NDArray[np.uint8],
    columns: Sequence[Int64Array],
) -> None:
    """Put fields that follow each other, the first of them at these places."""
    for k, (tag, column) in enumerate(zip(own_tags, columns, strict=True)):
        tags[fields + k], values[fields + k] = tag, column


def _field_sizes(values: Int64Array) -> Int64Array:
    """Return how many bytes each number takes with its tag."""
    return varint_widths(values) + 1
