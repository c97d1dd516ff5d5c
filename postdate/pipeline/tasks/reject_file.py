"""Rows that were set aside, as a Parquet file: their position, their values, and why no index can hold them."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from postdate.pipeline.logs.parquet_log import file_system
from postdate.pipeline.tasks.row_checks import BadRow

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("deliver_at_ms", pa.int64()),
        ("reason", pa.string()),
    ]
)


def write_rejects(rows: Sequence[BadRow], location: str) -> None:
    """Write rows to a file, or to a URI that pyarrow understands."""
    system, path = file_system(location)
    pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema=_SCHEMA), path, filesystem=system)
