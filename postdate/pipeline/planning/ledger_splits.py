"""The cuts of a ledger that is more than one bucket: the entry of its nth row, from a DataFrame in no order.

    rows per block of 1,024 entries ──► the block of each cut (driver) ──► entries of these blocks ──► the nth

So the driver sees a thousandth of the rows' number, and a thousand entries a cut; nothing is sorted.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F

BLOCK_BITS = 10


class RowOfLedger(NamedTuple):
    """A row of a ledger: `nth` rows come before it, in order of their entries."""

    topic: str
    ledger_id: int
    nth: int


class _Cut(NamedTuple):
    """A row of a ledger, by its block and how many rows of the block come before it."""

    row: RowOfLedger
    block: int
    nth: int


def entries_at(headers: DataFrame, rows: Collection[RowOfLedger]) -> dict[RowOfLedger, int]:
    """Return the entry of each of these rows.

    Args:
        headers: With the columns topic, ledger_id and entry_id; read twice.
        rows: They are there.
    """
    if not rows:
        return {}
    spark = headers.sparkSession
    ledgers = spark.createDataFrame(sorted({row[:2] for row in rows}), "topic string, ledger_id bigint")
    blocks = headers.join(F.broadcast(ledgers), ["topic", "ledger_id"]).withColumn(
        "block", F.shiftright("entry_id", BLOCK_BITS)
    )
    counts = blocks.groupBy("topic", "ledger_id", "block").count().collect()
    cuts = list(_cuts([tuple(count) for count in counts], rows))
    wanted = spark.createDataFrame(
        sorted({(*cut.row[:2], cut.block) for cut in cuts}), "topic string, ledger_id bigint, block bigint"
    )
    in_blocks = blocks.join(F.broadcast(wanted), ["topic", "ledger_id", "block"]).groupBy("topic", "ledger_id", "block")
    found = in_blocks.agg(F.sort_array(F.collect_list("entry_id"))).collect()
    entries = {(topic, ledger_id, block): in_order for topic, ledger_id, block, in_order in found}
    return {cut.row: entries[*cut.row[:2], cut.block][cut.nth] for cut in cuts}


def _cuts(counts: Collection[tuple[str, int, int, int]], rows: Collection[RowOfLedger]) -> Iterator[_Cut]:
    """Find the block of each row, by (topic, ledger id, block, rows in it)."""
    of_ledger: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        of_ledger[row[:2]].append(row.nth)
    before: defaultdict[tuple[str, int], int] = defaultdict(int)
    for topic, ledger_id, block, count in sorted(counts):
        first = before[topic, ledger_id]
        before[topic, ledger_id] += count
        for nth in of_ledger[topic, ledger_id]:
            if first <= nth < first + count:
                yield _Cut(RowOfLedger(topic, ledger_id, nth), block, nth - first)
