"""Rows of a stream against the log: a row that the log has otherwise, or not at all, goes into no index.

The log is the truth. A row with another time than the log's would be delivered late, or read and given back; a row of a
position that the log does not have would be kept for nothing. `compare` is the work of a task; the faults of one
ledger's rows are pure functions over columns.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from managed_ledger.names import match_topic
from postdate.index.ledger_ranges import HeaderRange
from postdate.pipeline.logs.header_log import HeaderLog
from postdate.pipeline.logs.open_logs import with_log
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.positions import ledger_groups

NUMBERS: Final = ("ledger_id of the row", "entry_id of the row", "deliver_at_ms of the row")
"""Columns that `compare` reads and leaves out: the numbers of a row as whole ones."""

NO_TOPIC, NO_LEDGER, NO_ENTRY, IN_SECONDS, MISTIMED = LOG_REASONS = (
    "the log has no such topic",
    "the log has no such ledger of the topic; it may have been trimmed",
    "the ledger has no such entry",
    "deliver_at_ms is the log's in seconds, and must be in milliseconds",
    "deliver_at_ms is not the log's",
)
"""Why a row that an index could hold is refused all the same."""

Reasons = NDArray[np.object_]
"""A reason for each row, None where a row is good."""


def ledger_faults(rows: DelayedIndexes, in_log: DelayedIndexes) -> Reasons:
    """Return why rows of one ledger are refused.

    Args:
        rows: Of positions that an index can hold.
        in_log: Entries of the ledger that follow each other and include all of these that the log has.
    """
    if not len(in_log):
        return np.full(len(rows), NO_ENTRY, np.object_)
    places = rows.entry_ids - in_log.entry_ids[0]
    is_there = (places >= 0) & (places < len(in_log))
    log_times = in_log.deliver_at_ms[np.where(is_there, places, 0)]
    is_mistimed = is_there & (rows.deliver_at_ms != log_times)
    faults: Reasons = np.full(len(rows), None, np.object_)
    faults[~is_there] = NO_ENTRY
    faults[is_mistimed] = MISTIMED
    # Whichever way the seconds were rounded.
    is_in_seconds = (log_times >= 0) & (np.abs(log_times // 1_000 - rows.deliver_at_ms) <= 1)
    faults[is_mistimed & is_in_seconds] = IN_SECONDS
    return faults


def compare(
    batches: Iterable[pa.RecordBatch], *, location: str, job: str, topics: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """Give the rows of a task, with the reason why a row is refused.

    Args:
        batches: With the columns `topic` and `reason`, and those of `NUMBERS`; rows with a reason are left as they are.
        location: The log.
        job: See `with_log`.
        topics: Of the log.
    """
    for batch in batches:
        reasons: Reasons = np.array(batch.column("reason").to_pylist(), np.object_)
        unjudged = np.flatnonzero(batch.column("reason").is_null().to_numpy(zero_copy_only=False))
        chosen = batch.take(pa.array(unjudged))
        ledger_ids, entry_ids, deliver_at_ms = (chosen.column(name).to_numpy() for name in NUMBERS)
        rows = DelayedIndexes(deliver_at_ms, ledger_ids, entry_ids)
        names = chosen.column("topic").dictionary_encode()
        for code, name in enumerate(names.dictionary.to_pylist()):
            of_topic = np.flatnonzero(names.indices.to_numpy() == code)
            reasons[unjudged[of_topic]] = _topic_faults(rows.take(of_topic), match_topic(name, topics), location, job)
        judged = batch.set_column(
            batch.schema.get_field_index("reason"), "reason", pa.array(reasons.tolist(), pa.string())
        )
        yield judged.select([name for name in batch.schema.names if name not in NUMBERS])


def _topic_faults(rows: DelayedIndexes, topic: str | None, location: str, job: str) -> Reasons:
    if topic is None:
        return np.full(len(rows), NO_TOPIC, np.object_)

    def look(log: HeaderLog) -> Reasons:
        entries = {ledger.ledger_id: ledger.entries for ledger in log.ledgers({topic})}
        faults: Reasons = np.full(len(rows), NO_LEDGER, np.object_)
        for ledger_id, group in ledger_groups(rows.ledger_ids):
            if ledger_id in entries:
                of_ledger = DelayedIndexes(rows.deliver_at_ms[group], rows.ledger_ids[group], rows.entry_ids[group])
                first = int(of_ledger.entry_ids.min())
                end = min(int(of_ledger.entry_ids.max()) + 1, entries[ledger_id])
                part = HeaderRange(topic, int(ledger_id), first, max(first, end))
                in_log = log.read_times(part) if part.entries else DelayedIndexes.empty()
                faults[group] = ledger_faults(of_ledger, in_log)
        return faults

    return with_log(location, job, look)
