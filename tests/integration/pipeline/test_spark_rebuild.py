"""The rebuild on a real Spark: the bytes of the live tracker, an old index that survives, and errors in one line."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.broker.topics.topic_index import INDEX_CURSOR_NAME
from postdate.index.comparing import IndexFinding
from postdate.pipeline.jobs.log_rebuild import rebuild_log
from postdate.pipeline.jobs.rebuild import rebuild, set_aside
from postdate.pipeline.logs.open_logs import HeaderFolder
from postdate.pipeline.logs.parquet_log import export_ledgers
from postdate.pipeline.tasks.row_checks import REASONS
from tests.helpers.index_tools import checked
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import RULES, live, some_times, stored, without, write_log

pytestmark = [
    pytest.mark.java,
    # PySpark 4.3 warns of every pandas from 3 on; the rebuild does not use pandas.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

_SCHEMA = "topic string, ledger_id bigint, entry_id bigint, deliver_at_ms bigint"
SUB = CursorName("a", "sub")


def test_the_index_of_every_subscription_equals_the_live_one(spark: SparkSession, tmp_path: Path) -> None:
    """Byte for byte, without what each has acknowledged; again changes nothing, later replaces what has become due."""
    gone = [(nth, entry) for nth in (0, 1, 3) for entry in range(0, 100, 3)] + [(0, entry) for entry in range(100)]
    slow = CursorName("persistent://t/n/ä", "slow")
    headers = write_log(tmp_path, {"a": some_times(1, 930), slow.topic: some_times(2, 330)}, {slow: gone[:90]})
    of_slow = without(headers[slow.topic], gone[:90])

    report = rebuild_log(spark, str(tmp_path), rules=RULES)
    again = rebuild_log(spark, str(tmp_path), rules=RULES)

    assert stored(tmp_path, SUB) == live(headers["a"])
    assert stored(tmp_path, CursorName(slow.topic, "sub")) == live(headers[slow.topic])
    assert stored(tmp_path, slow) == live(of_slow)
    assert report.entries_read == 930 + 330
    assert report.published.created_count == len(report.published.buckets) > 6
    assert (again.published.created_count, again.published.removed_ids) == (0, [])
    assert (
        again.rows
        == report.rows
        == sum(h.deliver_at_ms > NOW_MS for h in [*headers["a"], *headers[slow.topic], *of_slow])
    )

    later = rebuild_log(spark, str(tmp_path), rules=replace(RULES, now_ms=NOW_MS + 3_600_000), cursors=["slow"])

    assert later.rows == 0
    assert stored(tmp_path, slow) == []
    assert len(later.published.removed_ids) == len(live(of_slow))
    assert stored(tmp_path, SUB) == live(headers["a"])
    assert list(tmp_path.glob("*.staging")) == []


def test_an_index_that_subscriptions_share_is_made_once(spark: SparkSession, tmp_path: Path) -> None:
    """Without what all of them have acknowledged, and none for each, which a service would delete; nothing is amiss."""
    index, two = CursorName("a", INDEX_CURSOR_NAME), CursorName("a", "two")
    both = [(nth, entry) for nth in (0, 2) for entry in range(3, 90, 7)]
    acknowledged = {SUB: [*both, (1, 4)], two: [*both, (1, 5)], index: []}
    headers = write_log(tmp_path, {"a": some_times(3, 330)}, acknowledged)["a"]

    rebuild_log(spark, str(tmp_path), rules=RULES)
    verdict = checked(tmp_path)

    assert stored(tmp_path, index) == live(without(headers, both))
    assert stored(tmp_path, SUB) == stored(tmp_path, two) == []
    assert verdict.is_whole
    assert verdict.counts[index][IndexFinding.ACKNOWLEDGED] == 0


def _change_row(export: Path, row: int, column: str, value: object) -> None:
    """Write an export's only ledger file again, with one value changed."""
    (path,) = export.glob("*/*.parquet")
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    values[row] = value
    field = table.schema.field(column)
    pq.write_table(table.set_column(table.schema.get_field_index(column), field, [values]), path)


def test_bad_rows_are_reported_and_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """Null, negative, beyond the range: each with its position; all others are indexed."""
    write_log(tmp_path, {"a": [NOW_MS + 5 + entry for entry in range(50)]})
    log = HeaderFolder(tmp_path / "ledgers")
    export_ledgers(log, str(tmp_path / "export"))
    log.close()
    for row, column, value in ((3, "deliver_at_ms", None), (4, "deliver_at_ms", -2), (5, "entry_id", 2**32)):
        _change_row(tmp_path / "export", row, column, value)

    report = rebuild_log(spark, str(tmp_path / "export"), str(tmp_path), rules=RULES)

    assert [(row.topic, row.ledger_id, row.entry_id, row.deliver_at_ms, row.reason) for row in report.bad_rows] == [
        ("a", 1, 3, None, REASONS[0]),
        ("a", 1, 4, -2, REASONS[4]),
        ("a", 1, 2**32, NOW_MS + 10, REASONS[3]),
    ]
    assert (report.entries_read, report.rows) == (50, 47)


def test_an_empty_log_is_fine(spark: SparkSession, tmp_path: Path) -> None:
    """No topics at all, and one without messages."""
    write_log(tmp_path, {})
    assert rebuild_log(spark, str(tmp_path), rules=RULES).rows == 0
    write_log(tmp_path, {"a": []})
    assert rebuild_log(spark, str(tmp_path), rules=RULES).rows == 0
    assert stored(tmp_path, SUB) == []


def _frame(spark: SparkSession, headers: list[tuple[str | None, int | None, int | None, int | None]]) -> DataFrame:
    return spark.createDataFrame(headers, _SCHEMA)


def test_rows_that_no_index_can_hold_are_set_aside(spark: SparkSession) -> None:
    """From any DataFrame, each with its reason; one that is not delayed is no bad row; twice is once later."""
    good = [("t", 1, 0, NOW_MS + 5), ("t", 1, 2**32 - 1, NOW_MS + 6), ("t", 1, 2, -1)]
    bad = [
        ((None, 1, 3, NOW_MS + 5), "a column is null"),
        (("t", 1, 3, None), "a column is null"),
        (("t", -1, 4, NOW_MS + 5), "ledger_id is negative"),
        (("t", 1, -4, NOW_MS + 5), "entry_id is not within 0 and 2^32 - 1"),
        (("t", 1, 2**32, NOW_MS + 5), "entry_id is not within 0 and 2^32 - 1"),
        (("t", 1, 5, -2), "deliver_at_ms is below -1"),
    ]
    rows = good + [row for row, _ in bad]
    Random(1).shuffle(rows)
    headers = _frame(spark, rows)

    reasons = {tuple(row)[:4]: row.reason for row in set_aside(headers).collect()}
    index = rebuild(headers, RULES, cursor="c").select("ledger_id", "entry_id", "deliver_at_ms").collect()

    assert reasons == dict(bad)
    assert sorted(map(tuple, index)) == [(1, 0, NOW_MS + 5), (1, 2**32 - 1, NOW_MS + 6)]


def test_decimals_of_a_database_are_whole_numbers_or_bad_rows(spark: SparkSession) -> None:
    """Fractions and numbers of more than 64 bits are set aside, and fail nothing."""
    numbers = [("1", "0", NOW_MS + 5), ("1", "1.5", NOW_MS + 5), (str(2**63), "2", NOW_MS + 5), ("-1", "3", NOW_MS + 5)]
    headers = _frame(spark, []).union(
        spark.createDataFrame(numbers, "ledger_id string, entry_id string, deliver_at_ms bigint").selectExpr(
            "'t'", "cast(ledger_id as decimal(38,0))", "cast(entry_id as decimal(10,2))", "deliver_at_ms"
        )
    )

    reasons = {str(row.entry_id): row.reason for row in set_aside(headers).collect()}
    index = rebuild(headers, RULES, cursor="c").select("ledger_id", "entry_id", "deliver_at_ms")

    assert headers.dtypes[1][1].startswith("decimal")
    odd = "a number is not whole or needs more than 64 bits"
    assert reasons == {"1.50": odd, "2.00": odd, "3.00": "ledger_id is negative"}
    assert [tuple(row) for row in index.collect()] == [(1, 0, NOW_MS + 5)]
    assert {type_name for _, type_name in index.dtypes} == {"bigint"}


def test_headers_of_another_form_are_refused(spark: SparkSession) -> None:
    """Before anything runs, with the column."""
    headers = _frame(spark, [])

    with pytest.raises(ValueError, match="missing: entry_id"):
        rebuild(headers.drop("entry_id"), RULES, cursor="c")
    with pytest.raises(ValueError, match="the column ledger_id must be bigint, but is string"):
        set_aside(headers.selectExpr("topic", "cast(ledger_id as string)", "entry_id", "deliver_at_ms"))
