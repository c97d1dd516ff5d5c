"""`spark.read.format("postdate_ledger")`: the headers of all messages of a log, as a DataFrame.

    spark.read.format("postdate_ledger").option("topic", "persistent://public/default/t").load("data")

    option                  meaning
    path                    a service's data directory, the log in it, or what `postdate ledger export` wrote
    entries_per_partition   messages that one task reads (default 500,000): ledgers are packed up to it, and cut at it
    topic, ledger_id        only this one
    <column>_min, _max      only from here, up to here: ledger_id, entry_id, publish_time_ms, deliver_at_ms

Rows are as they are stored, bad ones too; `deliver_at_ms` is -1 where a message has no delay. The driver plans from the
records of ledgers alone, which know no more than their number of entries and their latest times. Limits leave out
ledgers there, and rows in the tasks.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from postdate.index.ledger_ranges import HeaderRange, LedgerExtent, split_ranges
from postdate.pipeline.logs.header_log import BATCH_ROWS, HEADER_SCHEMA, HeaderLog
from postdate.pipeline.logs.open_logs import open_log, with_log
from postdate.pipeline.sources.row_limits import RowLimits

ENTRIES_PER_PARTITION = 500_000

LIMITED_COLUMNS = ("topic", "ledger_id", "entry_id", "publish_time_ms", "deliver_at_ms")


@dataclass
class LedgerPartition(InputPartition):
    """The part that one task reads: ranges of ledgers of one topic, in order."""

    ranges: tuple[HeaderRange, ...]


class LedgerDataSource(DataSource):
    """The format `postdate_ledger`: which options it has, and what reads it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "postdate_ledger"

    def schema(self) -> str:
        return (
            "topic string, ledger_id bigint, entry_id bigint, publish_time_ms bigint, deliver_at_ms bigint, "
            "sticky_hash int, size int"
        )

    def reader(self, schema: StructType) -> "LedgerReader":  # noqa: ARG002 - Spark's signature
        return LedgerReader(
            required_path(self.options, "postdate_ledger"),
            _entries_per_partition(self.options),
            RowLimits.of_options(self.options, LIMITED_COLUMNS),
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's signature
        """Refuse to write: a log is the service's own.

        Raises:
            ValueError: Always.
        """
        raise ValueError("postdate_ledger cannot be written: a log is the service's own; write to postdate_index")


class LedgerReader(DataSourceReader):
    """Plans on the driver and reads in tasks."""

    def __init__(self, location: str, entries_per_partition: int, limits: RowLimits) -> None:
        self._location = location
        self._entries_per_partition = entries_per_partition
        self._limits = limits
        self._job = uuid4().hex

    def partitions(self) -> Sequence[LedgerPartition]:
        log = open_log(self._location)
        try:
            ledgers = [ledger for ledger in log.ledgers() if self._allows(ledger)]
        finally:
            log.close()
        ranges = split_ranges(ledgers, entries_max=self._entries_per_partition)
        # An empty list would become one partition of Spark's own class.
        return [LedgerPartition(part) for part in ranges] or [LedgerPartition(())]

    def _allows(self, ledger: LedgerExtent) -> bool:
        return self._limits.allow(topic=ledger.topic, ledger_id=ledger.ledger_id) and self._limits.allow_up_to(
            publish_time_ms=ledger.publish_time_ms_max, deliver_at_ms=ledger.due_ms_max
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LedgerPartition)
        # Spark takes what comes for Arrow batches only if the first thing that comes is one.
        yield pa.RecordBatch.from_pylist([], schema=HEADER_SCHEMA)
        for part in partition.ranges:
            yield from self._read(part)

    def _read(self, part: HeaderRange) -> Iterator[pa.RecordBatch]:
        for first in range(part.first, part.end, BATCH_ROWS):
            piece = part._replace(first=first, end=min(part.end, first + BATCH_ROWS))
            yield self._limits.rows_of(with_log(self._location, self._job, partial(_read_batch, part=piece)))


def _read_batch(log: HeaderLog, part: HeaderRange) -> pa.RecordBatch:
    return log.read_batch(part)


def required_path(options: MutableMapping[str, str], source: str) -> str:
    """Return the location that a read or write names.

    Raises:
        ValueError: The options name no path.
    """
    path = options.get("path")
    if not path:
        raise ValueError(f"{source} needs a location: load(location) or option('path', location)")
    return str(path)


def _entries_per_partition(options: MutableMapping[str, str]) -> int:
    text = options.get("entries_per_partition", str(ENTRIES_PER_PARTITION))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"entries_per_partition must be a whole number of at least 1, but is {text!r}")
    return int(text)
