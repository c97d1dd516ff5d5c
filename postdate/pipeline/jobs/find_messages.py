"""Find scheduled messages of a log, as positions: by topic, time, key and property, or in a file.

    headers (filters on topic, time and the key's hash) ──► metadata of the rest (key, properties) ──► positions

The metadata of a message stands before its payload, in the same block of the log; a block with such a message is read
whole, and metadata is parsed (`MessageFilter`). So a search by property alone reads the whole log, one by time or key
as well reads little.

A position is a whole entry, also that of a batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

from dispatcher.slots import sticky_hash
from managed_ledger.entries.messages import MessageFilter
from managed_ledger.names import find_topic
from postdate.index.log_folder import LogFolder, log_folder_of
from postdate.pipeline.logs.header_log import HeaderLog
from postdate.pipeline.logs.open_logs import topics_of_log, with_log
from postdate.pipeline.tasks.cancel_rows import POSITION_COLUMNS
from tracker.columns.positions import ledger_groups

CSV_OPTIONS = {
    "header": "true",
    # A quote within quotes is doubled, as RFC 4180 says; Spark's own default is a backslash before it.
    "quote": '"',
    "escape": '"',
    "ignoreLeadingWhiteSpace": "true",
    "ignoreTrailingWhiteSpace": "true",
}
"""How CSV files are read, by every job."""


def find_messages(
    spark: SparkSession,
    location: str,
    *,
    topics: Sequence[str] | None = None,
    deliver_at_ms: tuple[int | None, int | None] = (None, None),
    publish_time_ms: tuple[int | None, int | None] = (None, None),
    keys: Sequence[bytes] = (),
    properties: Sequence[tuple[bytes, bytes]] = (),
) -> DataFrame:
    """Return the positions of the messages of a log that have a delay and for which all of this holds.

    Args:
        spark: The session, prepared by `session.register`.
        location: A data directory, a log's folder, or an export.
        topics: Only these, by their short or whole names.
        deliver_at_ms: From here, to before here; None for no limit.
        publish_time_ms: The same of the time of publishing.
        keys: Only these: an ordering key, or where there is none a partition key.
        properties: Only with all of these, by name and value. Properties and keys need a log that has messages: an
            export has headers only.

    Raises:
        ValueError: The log has no messages.
        LedgerError: There is no such log, or no such topic in it.
    """
    wanted = MessageFilter(tuple(keys), tuple(properties))
    folder = log_folder_of(location)
    if folder is None and not wanted.is_trivial:
        raise ValueError(f"keys and properties are not in {location}: name the data directory of a service")
    if topics is not None:
        topics = topics_in(location, topics)
    headers = spark.read.format("postdate_ledger")
    # As options, ledgers that cannot have such a message are not read.
    for column, (first, _) in (("deliver_at_ms", deliver_at_ms), ("publish_time_ms", publish_time_ms)):
        if first is not None:
            headers = headers.option(f"{column}_min", str(first))
    if topics is not None and len(topics) == 1:
        headers = headers.option("topic", topics[0])
    found = headers.load(location).where(F.col("deliver_at_ms") >= 0)
    for column, (_, end) in (("deliver_at_ms", deliver_at_ms), ("publish_time_ms", publish_time_ms)):
        if end is not None:
            found = found.where(F.col(column) < end)
    if topics is not None:
        found = found.where(F.col("topic").isin(list(topics)))
    if keys:
        # Few messages have another key of the same hash; only those of the hash are looked into.
        found = found.where(F.col("sticky_hash").isin([sticky_hash(key) for key in keys]))
    positions = found.select(*POSITION_COLUMNS)
    if wanted.is_trivial:
        return positions
    take = partial(take_messages, location=str(folder), job=uuid4().hex, wanted=wanted)
    return positions.mapInArrow(take, "topic string, ledger_id bigint, entry_id bigint")


def topics_in(location: str, topics: Sequence[str]) -> list[str]:
    """Return the topics of a log that have these names, whole or short.

    Raises:
        LedgerError: There is no such log, or no such topic in it.
    """
    known = topics_of_log(location)
    return [find_topic(topic, known) for topic in topics]


def read_positions(spark: SparkSession, path: str) -> DataFrame:
    """Return the positions in Parquet files, or in CSV files with a header if the name ends so.

    A value of a CSV file that is no number is null.

    Raises:
        ValueError: They cannot be read.
    """
    try:
        if path.endswith(".csv"):
            # Spark would guess the types from the rows: of a file without any, or with one bad one, text.
            texts = spark.read.options(**CSV_OPTIONS).csv(path)
            numbers = [name for name in POSITION_COLUMNS if name in texts.columns and name != "topic"]
            return texts.withColumns({name: F.col(name).try_cast("bigint") for name in numbers})
        return spark.read.parquet(path)
    except AnalysisException as error:
        raise ValueError(f"The positions in {path} cannot be read: {error}") from error


def take_messages(
    batches: Iterable[pa.RecordBatch], *, location: str, job: str, wanted: MessageFilter
) -> Iterator[pa.RecordBatch]:
    """Give the positions (`POSITION_COLUMNS`) whose messages are meant; the work of a task."""
    for batch in batches:
        ledger_ids, entry_ids = (batch.column(name).to_numpy() for name in ("ledger_id", "entry_id"))
        is_meant = np.zeros(batch.num_rows, np.bool_)
        for ledger_id, rows in ledger_groups(ledger_ids):
            in_order = np.sort(entry_ids[rows])
            look = partial(_meant, ledger_id=int(ledger_id), entry_ids=in_order.tolist(), wanted=wanted)
            is_meant[rows] = np.isin(entry_ids[rows], in_order[with_log(location, job, look)])
        yield batch.filter(pa.array(is_meant))


def _meant(log: HeaderLog, *, ledger_id: int, entry_ids: list[int], wanted: MessageFilter) -> list[bool]:
    assert isinstance(log, LogFolder)
    meant = [wanted.matches(entry) for entry in log.entries(ledger_id, entry_ids)]
    # A ledger that was trimmed meanwhile gives fewer entries.
    return meant + [False] * (len(entry_ids) - len(meant))
