"""Message headers in bulk: their columns, and the interface of the logs that hold them.

A log is a folder of the service (`log_folder`) or the Parquet files of an export (`parquet_log`). Both know their
ledgers without reading them, and read any range of one ledger. Pure: this module opens nothing.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from managed_ledger.entries.headers import EntryHeaders
from snapshot_storage.encoding.columns import DelayedIndexes

HEADER_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("publish_time_ms", pa.int64()),
        ("deliver_at_ms", pa.int64()),
        ("sticky_hash", pa.int32()),
        ("size", pa.int32()),
    ]
)

MISSING = -(2**63)
"""Stands for null in a column of whole numbers."""

BATCH_ROWS = 65_536
"""Rows of one Arrow batch that goes to Spark: some 5 MB."""


class LedgerExtent(NamedTuple):
    """A ledger as its record describes it."""

    topic: str
    ledger_id: int
    entries: int
    is_open: bool
    publish_time_ms_max: int
    due_ms_max: int
    """No entry is published or due later."""


class HeaderRange(NamedTuple):
    """Headers of one ledger, from `first` to before `end`, counted from 0: the unit of reading."""

    topic: str
    ledger_id: int
    first: int
    end: int

    @property
    def entries(self) -> int:
        """How many headers it has."""
        return self.end - self.first


class HeaderLog(Protocol):
    """A source of headers."""

    def topics(self) -> list[str]:
        """All topics, in order of name."""

    def ledgers(self, topics: Collection[str] | None = None) -> list[LedgerExtent]:
        """The ledgers that have entries, of all topics or of these, by topic and then in order."""

    def read_batch(self, part: HeaderRange) -> pa.RecordBatch:
        """The headers of a range, as `HEADER_SCHEMA` has them."""

    def read_times(self, part: HeaderRange) -> DelayedIndexes:
        """When the entries of a range are to be delivered, in the order of the log.

        Rows are as they were found, good or bad: times may be `NOT_DELAYED`, and null is `MISSING`.
        """

    def close(self) -> None:
        """Let go."""


def header_batch(topic: str, headers: EntryHeaders) -> pa.RecordBatch:
    """Return headers of one topic as `HEADER_SCHEMA` has them."""
    columns = (
        headers.ledger_ids,
        headers.entry_ids,
        headers.publish_time_ms,
        headers.deliver_at_ms,
        headers.sticky_hashes,
        headers.sizes,
    )
    return pa.record_batch([pa.repeat(topic, len(headers)), *map(pa.array, columns)], schema=HEADER_SCHEMA)


def split_ranges(
    ledgers: Iterable[LedgerExtent], *, entries_max: int, range_max: int | None = None
) -> Iterator[tuple[HeaderRange, ...]]:
    """Pack ledgers into parts of about `entries_max` entries of one topic, in order; a larger ledger is cut.

    So one ledger with half of all messages is read by many, and a thousand small ledgers are no thousand tasks. No
    range has more than `range_max` entries, where each is read at once.

    >>> small, large = (LedgerExtent("t", k, entries, False, 0, 0) for k, entries in ((1, 3), (2, 7)))
    >>> [[part[1:] for part in parts] for parts in split_ranges([small, large], entries_max=5, range_max=4)]
    [[(1, 0, 3), (2, 0, 2)], [(2, 2, 6), (2, 6, 7)]]
    """
    assert entries_max > 0
    parts: list[HeaderRange] = []
    room = entries_max
    range_max = range_max or entries_max
    for ledger in ledgers:
        if parts and parts[0].topic != ledger.topic:
            yield tuple(parts)
            parts, room = [], entries_max
        first = 0
        while first < ledger.entries:
            end = min(ledger.entries, first + min(room, range_max))
            parts.append(HeaderRange(ledger.topic, ledger.ledger_id, first, end))
            room -= end - first
            first = end
            if not room:
                yield tuple(parts)
                parts, room = [], entries_max
    if parts:
        yield tuple(parts)
