"""Exports that some other program has changed, or that a log was trimmed under."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from managed_ledger.errors import StoreCorruptedError
from postdate.index.ledger_ranges import MISSING, HeaderRange
from postdate.pipeline.logs.open_logs import HeaderFolder
from postdate.pipeline.logs.parquet_log import ParquetLog, export_ledgers
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import write_log

ALL = HeaderRange("a", 1, 0, 5)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    write_log(tmp_path, {"a": [NOW_MS + 5 + entry for entry in range(5)]})
    log = HeaderFolder(tmp_path / "ledgers")
    export_ledgers(log, str(tmp_path / "export"))
    log.close()
    return tmp_path / "export"


def _change(export: Path, column: str, kind: pa.DataType, change: Callable[[Any], object], odd: object) -> None:
    (path,) = export.glob("*/*.parquet")
    table = pq.read_table(path)
    values = [change(value) for value in table.column(column).to_pylist()]
    values[3] = odd
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, pa.field(column, kind), [pa.array(values, kind)]), path)


@pytest.mark.parametrize(
    ("kind", "change", "odd"),
    [
        (pa.uint64(), int, 2**64 - 1),
        (pa.decimal128(38, 0), Decimal, Decimal(10) ** 30),
        (pa.float64(), float, 7.5),
        (pa.float64(), float, float("nan")),
        (pa.string(), str, "soon"),
        (pa.int64(), int, None),
    ],
    ids=str,
)
def test_a_number_that_is_none_is_one_bad_row(
    export: Path, kind: pa.DataType, change: Callable[[Any], object], odd: object
) -> None:
    """It is null for readers; all other numbers are there, of any type."""
    _change(export, "deliver_at_ms", kind, change, odd)

    times = ParquetLog(str(export)).read_times(ALL).deliver_at_ms.tolist()
    column = ParquetLog(str(export)).read_batch(ALL).column("deliver_at_ms")

    assert times == [NOW_MS + 5, NOW_MS + 6, NOW_MS + 7, MISSING, NOW_MS + 9]
    assert column.null_count == 1


def test_a_column_of_times_is_refused(export: Path) -> None:
    """A timestamp's microseconds would be milliseconds a thousand times as late."""
    _change(export, "deliver_at_ms", pa.timestamp("us"), lambda value: value * 1_000, 0)

    with pytest.raises(StoreCorruptedError, match=r"timestamp\[us\] where int64 must be"):
        ParquetLog(str(export)).read_times(ALL)


def test_a_file_that_is_too_short_is_refused(export: Path) -> None:
    """A rebuild from it would lack messages, and no error would tell."""
    (path,) = export.glob("*/*.parquet")
    pq.write_table(pq.read_table(path).slice(0, 4), path)

    with pytest.raises(StoreCorruptedError, match="4 of the rows 0 to 4 are there"):
        ParquetLog(str(export)).read_times(ALL)
    assert len(ParquetLog(str(export)).read_times(ALL._replace(end=4))) == 4


@dataclass
class _Trimmed:
    """A log whose ledgers are gone when they are read."""

    log: HeaderFolder

    def ledgers(self, topics: Any = None) -> Any:
        return self.log.ledgers(topics)

    def read_batch(self, part: HeaderRange) -> pa.RecordBatch:
        return self.log.read_batch(part).slice(0, 0)

    def read_times(self, part: HeaderRange) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.log.close()


def test_a_ledger_that_is_trimmed_meanwhile_is_not_exported(export: Path, tmp_path: Path) -> None:
    """Neither listed nor left as a file without rows."""
    log = _Trimmed(HeaderFolder(tmp_path / "ledgers"))

    written = export_ledgers(log, str(tmp_path / "other"))

    assert written == ParquetLog(str(tmp_path / "other")).ledgers() == []
    assert list((tmp_path / "other").glob("*/*")) == []
