"""Message headers in bulk: their columns, and the interface of the logs that hold them.

A log is a folder of the service (`log_folder`) or the Parquet files of an export (`parquet_log`). Both know their
ledgers without reading them, and read any range of one ledger. Pure: this module opens nothing.
"""

from collections.abc import Collection
from typing import Protocol

import pyarrow as pa

from managed_ledger.entries.headers import EntryHeaders
from postdate.index.ledger_ranges import HeaderRange, LedgerExtent
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

BATCH_ROWS = 65_536
"""Rows of one Arrow batch that goes to Spark: some 5 MB."""


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
