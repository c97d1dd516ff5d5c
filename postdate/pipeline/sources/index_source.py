"""`postdate_index`: the rows of a delayed index as a DataFrame, to read and to write.

    spark.read.format("postdate_index").load("data").groupBy("topic").count()
    rows.write.format("postdate_index").mode("overwrite").save("data")

    column           meaning
    topic, cursor    the index's owner: a subscription by the name that its users give it; written, also short topics
    bucket_id        the snapshot; when written, any number that tells a cursor's buckets apart
    segment          the entry of the snapshot, from 1; not needed to write, segments are cut anew
    ledger_id, entry_id, deliver_at_ms

    option           meaning
    path             where the index is, on RocksDB, on S3 or elsewhere: see `postdate.index.location`
    <column>, <column>_min, <column>_max    read: only these rows, for any column
    log              write: the log whose cursors own the index (default: the one beside it)
    query_id, batch_id   write: of a stream's batch; one that a cursor's index has already is not written again
    step_ms, rows_max    write: how segments are cut, as in `RebuildRules`

One bucket is one partition to read. All snapshots are read, with rows that are due or acknowledged since, and with
snapshots that a crash left without an owner. Writing is described in `index_writer`.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from managed_ledger.names import subscription_of
from postdate.index.location import Location
from postdate.pipeline.logs.header_log import BATCH_ROWS
from postdate.pipeline.sources.index_writer import WRITTEN_COLUMNS, IndexWriter
from postdate.pipeline.sources.ledger_source import required_path
from postdate.pipeline.sources.number_columns import check_types
from postdate.pipeline.sources.row_limits import RowLimits
from postdate.pipeline.spark.open_index import index_at, with_index
from snapshot_storage.bucket_key import parse_bucket_key
from snapshot_storage.encoding.codec import decode_segment
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage

INDEX_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("cursor", pa.string()),
        ("bucket_id", pa.int64()),
        ("segment", pa.int32()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("deliver_at_ms", pa.int64()),
    ]
)


@dataclass
class IndexPartition(InputPartition):
    """The part that one task reads: a bucket; None stands for an empty index."""

    bucket: BucketSnapshotInfo | None


class IndexDataSource(DataSource):
    """The format `postdate_index`: which options it has, and what reads and writes it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "postdate_index"

    def schema(self) -> str:
        return (
            "topic string, cursor string, bucket_id bigint, segment int, ledger_id bigint, entry_id bigint, "
            "deliver_at_ms bigint"
        )

    def reader(self, schema: StructType) -> "IndexReader":  # noqa: ARG002 - Spark's signature
        location = index_at(required_path(self.options, "postdate_index"), None, is_read_only=True)
        return IndexReader(location, RowLimits.of_options(self.options, INDEX_SCHEMA.names))

    def writer(self, schema: StructType, overwrite: bool) -> IndexWriter:
        location = required_path(self.options, "postdate_index")
        check_types({field.name: field.dataType.simpleString() for field in schema}, WRITTEN_COLUMNS, "an index needs")
        return IndexWriter(location, self.options, schema.names, overwrite=overwrite)


class IndexReader(DataSourceReader):
    """Plans on the driver and reads in tasks."""

    def __init__(self, location: Location, limits: RowLimits) -> None:
        self._location = location
        self._limits = limits
        self._job = uuid4().hex

    def partitions(self) -> Sequence[IndexPartition]:
        infos = with_index(self._location, self._job, lambda storage: storage.list_bucket_snapshots())
        return [IndexPartition(info) for info in infos if self._allows(info)] or [IndexPartition(None)]

    def _allows(self, info: BucketSnapshotInfo) -> bool:
        ledgers = parse_bucket_key(info.bucket_key)
        return self._limits.allow(
            topic=info.topic_name, cursor=subscription_of(info.cursor_name), bucket_id=info.bucket_id
        ) and (ledgers is None or self._limits.allow_up_to(ledger_id=ledgers.last_ledger_id))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, IndexPartition)
        # Spark takes what comes for Arrow batches only if the first thing that comes is one.
        yield pa.RecordBatch.from_pylist([], schema=INDEX_SCHEMA)
        info = partition.bucket
        if info is None:
            return

        async def read(storage: BucketSnapshotStorage) -> list[bytes]:
            return await storage.get_bucket_snapshot_segment(info.bucket_id, 1, max(1, info.segment_count))

        segments = with_index(self._location, self._job, read)
        rows, numbers = decode_numbered(segments)
        for start in range(0, len(rows), BATCH_ROWS):
            end = start + BATCH_ROWS
            yield self._limits.rows_of(index_batch(info, rows.slice(start, end), numbers[start:end]))


def decode_numbered(segments: Sequence[bytes]) -> tuple[DelayedIndexes, NDArray[np.int32]]:
    """Return the rows of a bucket's segments, and of each the number of its segment, from 1.

    Raises:
        SnapshotCorruptedError: A segment is damaged.
    """
    parts = [decode_segment(segment, entry=number) for number, segment in enumerate(segments, start=1)]
    numbers = np.repeat(np.arange(1, len(parts) + 1, dtype=np.int32), [len(part) for part in parts])
    return DelayedIndexes.concatenate(parts), numbers


def index_batch(info: BucketSnapshotInfo, rows: DelayedIndexes, numbers: NDArray[np.int32]) -> pa.RecordBatch:
    """Return rows of a bucket as `INDEX_SCHEMA` has them."""
    count = len(rows)
    return pa.record_batch(
        [
            pa.repeat(info.topic_name, count),
            pa.repeat(subscription_of(info.cursor_name), count),
            pa.array(np.full(count, info.bucket_id, np.int64)),
            pa.array(numbers),
            pa.array(rows.ledger_ids),
            pa.array(rows.entry_ids),
            pa.array(rows.deliver_at_ms),
        ],
        schema=INDEX_SCHEMA,
    )
