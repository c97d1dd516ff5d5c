"""Cancelling on columns: positions become bitmaps, and a bucket loses rows. Pure; no Spark, no storage.

A bucket's rows stay in the segments that they were in, so nothing of its limits has to be known. Positions travel as
one Roaring bitmap a ledger: a million of them are some 100 kB.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from postdate.index.acknowledged import Acknowledged
from postdate.index.ledger_ranges import MISSING
from snapshot_storage.encoding.codec import (
    decode_metadata,
    decode_segment,
    encode_metadata_of,
    encode_segments,
    merged_bitmaps,
)
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.segment_rows import ENTRY_ID_MAX
from tracker.columns.positions import bitmap_of, is_in, ledger_groups

POSITION_COLUMNS = ("topic", "ledger_id", "entry_id")

GATHERED_SCHEMA = pa.schema(
    [("topic", pa.string()), ("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("entry_ids", pa.binary())]
)
"""`entry_ids` is a bitmap of good positions; where it is null, the row is a single bad position."""
GATHERED_DDL = "topic string, ledger_id bigint, entry_id bigint, entry_ids binary"


class RemainingBucket(NamedTuple):
    """The rest of a bucket; without segments where no row is left."""

    metadata: bytes
    segments: list[bytes]
    row_count: int
    removed_count: int


def gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn a task's positions (`POSITION_COLUMNS`) into a bitmap for each ledger, and set bad ones aside."""
    found: defaultdict[tuple[str, int], BitMap] = defaultdict(BitMap)
    for batch in batches:
        is_good = _good(batch)
        yield from _bad_rows(batch, is_good)
        topics, ledger_ids, entry_ids = batch.filter(is_good).columns
        keys = topics.dictionary_encode()
        codes, ledgers, entries = keys.indices.to_numpy(), ledger_ids.to_numpy(), entry_ids.to_numpy()
        for code, topic in enumerate(keys.dictionary.to_pylist()):
            of_topic = np.flatnonzero(codes == code)
            for ledger_id, rows in ledger_groups(ledgers[of_topic]):
                found[topic, ledger_id] |= bitmap_of(entries[of_topic][rows])
    gathered = [
        {"topic": topic, "ledger_id": ledger_id, "entry_ids": bitmap.serialize()}
        for (topic, ledger_id), bitmap in found.items()
    ]
    yield pa.RecordBatch.from_pylist(gathered, schema=GATHERED_SCHEMA)


def _good(batch: pa.RecordBatch) -> pa.Array:
    topics, ledger_ids, entry_ids = batch.columns
    is_good = np.asarray(pc.is_valid(topics))
    for column, largest in ((ledger_ids, 2**63 - 1), (entry_ids, ENTRY_ID_MAX)):
        numbers = column.fill_null(MISSING).to_numpy()
        is_good = is_good & (numbers >= 0) & (numbers <= largest)
    return pa.array(is_good)


def _bad_rows(batch: pa.RecordBatch, is_good: pa.Array) -> Iterator[pa.RecordBatch]:
    bad = batch.filter(pc.invert(is_good))
    if bad.num_rows:
        yield pa.record_batch([*bad.columns, pa.nulls(bad.num_rows, pa.binary())], schema=GATHERED_SCHEMA)


def existing(asked: Mapping[int, BitMap], entries: Mapping[int, int]) -> dict[int, BitMap]:
    """Return the positions that a topic has, whose ledgers have so many entries each.

    >>> existing({1: BitMap([2, 3, 4]), 9: BitMap([0])}, {1: 4})
    {1: BitMap([2, 3])}
    """
    found = {}
    for ledger_id, bitmap in asked.items():
        count = entries.get(ledger_id, 0)
        known = bitmap & BitMap(range(count))
        if known:
            found[ledger_id] = known
    return found


def unacknowledged(asked: Mapping[int, BitMap], acknowledged: Acknowledged) -> dict[int, BitMap]:
    """Return the positions that a subscription has not acknowledged yet."""
    new = {}
    for ledger_id, bitmap in asked.items():
        left = bitmap - acknowledged.entries_of(ledger_id, bitmap.max() + 1)
        if left:
            new[ledger_id] = left
    return new


def count(positions: Mapping[int, BitMap]) -> int:
    """How many positions these are."""
    return sum(map(len, positions.values()))


def holds_any(metadata: bytes, gone: Mapping[int, BitMap]) -> bool:
    """Whether a bucket has a row at one of these positions; its metadata alone says so."""
    held = merged_bitmaps(decode_metadata(metadata))
    return any(bitmap.intersect(held[ledger_id]) for ledger_id, bitmap in gone.items() if ledger_id in held)


def without(segments: Sequence[bytes], gone: Mapping[int, BitMap]) -> RemainingBucket:
    """Return a bucket without the rows at these positions.

    Raises:
        SnapshotCorruptedError: A segment is damaged.
    """
    kept_parts, removed_count = [], 0
    for number, segment in enumerate(segments, start=1):
        rows = decode_segment(segment, entry=number)
        is_gone = is_in(gone.get, rows.ledger_ids, rows.entry_ids)
        kept = rows.take(~is_gone)
        removed_count += len(rows) - len(kept)
        if len(kept):
            kept_parts.append(kept)
    kept_rows, ends = DelayedIndexes.concatenate(kept_parts), np.cumsum([len(part) for part in kept_parts]).tolist()
    metadata, segments = encode_metadata_of(kept_rows, ends), encode_segments(kept_rows, ends)
    return RemainingBucket(metadata, segments, len(kept_rows), removed_count)
