"""A log's headers as Parquet files: written by `postdate ledger export`, read like a folder.

    _ledgers.parquet                    one row a ledger: its topic, and its folder
    <folder>/<ledger id>.parquet        the headers of one ledger, in order

A topic's folder is a hash of its name, as a name may be longer than a file system's names; the list has the names.

A closed ledger never changes, so a ledger that was exported is not written again: repeated exports are an offload. The
list is written last, by a rename or one upload, so a reader sees the old state or the new one. Files lie on a local
disk or, named by a URI that pyarrow understands (`s3://bucket/folder`), elsewhere.

Payloads are not exported.
"""

import os
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from managed_ledger.errors import StoreCorruptedError, StoreUnavailableError
from postdate.index.ledger_ranges import MISSING, HeaderRange, LedgerExtent
from postdate.pipeline.logs.header_log import HEADER_SCHEMA, HeaderLog
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.s3.location import S3Location, is_s3, s3_location

LEDGERS_FILE = "_ledgers.parquet"

_LEDGERS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("ledger_id", pa.int64()),
        ("entries", pa.int64()),
        ("is_open", pa.bool_()),
        ("publish_time_ms_max", pa.int64()),
        ("due_ms_max", pa.int64()),
        ("folder", pa.string()),
    ]
)
_FOLDER_BYTES = 16
ROW_GROUP_ROWS = 2**18
"""The rows of a group, the least that a read takes; statistics are kept for each group."""


def file_system(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the location's path in it."""
    if is_s3(location):
        return _s3_file_system(s3_location(location))
    if "://" in location:
        system, path = fs.FileSystem.from_uri(location)
        return system, path.rstrip("/")
    return fs.LocalFileSystem(), str(Path(location).absolute())


def _s3_file_system(location: S3Location) -> tuple[fs.FileSystem, str]:
    """Return pyarrow's file system for a place on S3, and the path in it."""
    options = {}
    if location.endpoint is not None:
        parts = urlsplit(location.endpoint)
        options = {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        # By default a checksum follows each body in a trailer, which servers other than AWS may not take out of the
        # stream (versitygw 1.8 answers what comes next with 400); pyarrow has no option for it.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    system = fs.S3FileSystem(
        region=location.region,
        force_virtual_addressing=location.endpoint is not None and not location.is_path_style,
        # A small file is then one request and not three; an upload in parts would begin at once.
        allow_delayed_open=True,
        **options,
    )
    return system, f"{location.bucket}/{location.prefix}".rstrip("/")


def is_parquet_log(location: str) -> bool:
    """Whether an export is here."""
    system, path = file_system(location)
    return bool(system.get_file_info(f"{path}/{LEDGERS_FILE}").is_file)


def make_export(location: str) -> None:
    """Make the folder of an export, if there is none.

    Raises:
        OSError: The folder cannot be made.
    """
    system, path = file_system(location)
    system.create_dir(path, recursive=True)


class ParquetLog:
    """An export, open to read."""

    def __init__(self, location: str) -> None:
        """Read the list of ledgers.

        Raises:
            StoreUnavailableError: There is none.
            StoreCorruptedError: The folder is no export.
        """
        self._system, self._path = file_system(location)
        self._location = location
        self._ledgers, self._folders = _read_ledgers(self._system, self._path, location)

    def topics(self) -> list[str]:
        return sorted({ledger.topic for ledger in self._ledgers})

    def close(self) -> None:
        """Nothing stays open between two reads."""

    def ledgers(self, topics: Collection[str] | None = None) -> list[LedgerExtent]:
        return [ledger for ledger in self._ledgers if topics is None or ledger.topic in topics]

    def read_batch(self, part: HeaderRange) -> pa.RecordBatch:
        """Read a range by its place in the file; the ids in the rows do not count."""
        return self._read(part, HEADER_SCHEMA.names)

    def read_times(self, part: HeaderRange) -> DelayedIndexes:
        batch = self._read(part, ["deliver_at_ms", "ledger_id", "entry_id"])
        return DelayedIndexes(*(column.fill_null(MISSING).to_numpy() for column in batch.columns))

    def _read(self, part: HeaderRange, names: list[str]) -> pa.RecordBatch:
        """Read some columns of a range.

        Raises:
            StoreCorruptedError: The file is missing, damaged, too short or has other columns.
        """
        path = f"{self._path}/{self._folders.get(part.topic, '')}/{part.ledger_id}.parquet"
        try:
            with self._system.open_input_file(path) as file:
                table = _read_rows(pq.ParquetFile(file), part, names)
            if table.num_rows != part.entries:
                raise OSError(f"{table.num_rows} of the rows {part.first} to {part.end - 1} are there")
            columns = [as_type(table.column(name), HEADER_SCHEMA.field(name).type) for name in names]
            schema = pa.schema([HEADER_SCHEMA.field(name) for name in names])
            return _one_batch(pa.table(columns, schema=schema))
        except (OSError, pa.ArrowException, KeyError) as error:
            raise StoreCorruptedError(
                f"{path} of the export {self._location} cannot be read ({error}): export the ledger again"
            ) from error


def export_ledgers(
    log: HeaderLog,
    location: str,
    *,
    topics: Collection[str] | None = None,
    with_open: bool = True,
    on_ledger: Callable[[LedgerExtent, bool], None] = lambda _ledger, _is_new: None,
) -> list[LedgerExtent]:
    """Write the headers of ledgers to Parquet files, and return the ledgers that were written.

    Ledgers that are there already, whole, are left alone; so are ledgers of the export that the log has no more.

    Args:
        log: The log to export.
        location: A folder, or a URI; made when it is missing.
        topics: Only these, by the log's own names.
        with_open: Also what the open ledger of each topic has so far; it is written anew each time it has grown.
        on_ledger: Told of each ledger when it is done, and whether it was written.
    """
    make_export(location)
    system, path = file_system(location)
    there, folders = _read_ledgers(system, path, location) if is_parquet_log(location) else ([], {})
    known = {(ledger.topic, ledger.ledger_id): ledger for ledger in there}
    written = []
    for ledger in log.ledgers(topics):
        if ledger.is_open and not with_open:
            continue
        key = (ledger.topic, ledger.ledger_id)
        is_new = key not in known or known[key].entries != ledger.entries
        known[key] = ledger
        folder = folders.setdefault(ledger.topic, folder_of(ledger.topic))
        if is_new and _write_ledger(system, f"{path}/{folder}", log, ledger):
            written.append(ledger)
        elif is_new:
            del known[key]
        on_ledger(ledger, is_new)
    rows = [known[key]._asdict() | {"folder": folders[key[0]]} for key in sorted(known)]
    table = pa.Table.from_pylist(rows, schema=_LEDGERS_SCHEMA)
    _write_whole(system, f"{path}/{LEDGERS_FILE}", [table.combine_chunks()], _LEDGERS_SCHEMA)
    return written


def folder_of(topic: str) -> str:
    """Return the name of a topic's folder: short for any topic, and the same in every run.

    >>> folder_of("orders")
    '44ca0059a7c4a09e661ed10ce6c69e52'
    """
    return blake2b(topic.encode(), digest_size=_FOLDER_BYTES).hexdigest()


def _write_ledger(system: fs.FileSystem, folder: str, log: HeaderLog, ledger: LedgerExtent) -> bool:
    """Write a ledger to its topic's folder, or leave nothing where it was trimmed meanwhile."""
    system.create_dir(folder, recursive=True)
    parts = (
        HeaderRange(ledger.topic, ledger.ledger_id, first, min(ledger.entries, first + ROW_GROUP_ROWS))
        for first in range(0, ledger.entries, ROW_GROUP_ROWS)
    )
    tables = (pa.Table.from_batches([log.read_batch(part)]) for part in parts)
    file = f"{folder}/{ledger.ledger_id}.parquet"
    is_whole = _write_whole(system, file, tables, HEADER_SCHEMA) == ledger.entries
    if not is_whole:
        system.delete_file(file)
    return is_whole


def _write_whole(system: fs.FileSystem, path: str, tables: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Write a file that is there whole or not at all, and return its rows."""
    is_local = isinstance(system, fs.LocalFileSystem)
    # An upload to an object store becomes visible when it ends; a local file would be seen as it grows.
    beside = f"{path}.new" if is_local else path
    with system.open_output_stream(beside) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        rows = 0
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            rows += table.num_rows
    if is_local:
        system.move(beside, path)
    return rows


def _read_ledgers(system: fs.FileSystem, path: str, location: str) -> tuple[list[LedgerExtent], dict[str, str]]:
    """Return the ledgers of an export, and the folder of each topic."""
    try:
        with system.open_input_file(f"{path}/{LEDGERS_FILE}") as file:
            table = pq.read_table(file)
        table = table.select(_LEDGERS_SCHEMA.names)
    except FileNotFoundError as error:
        raise StoreUnavailableError(
            f"There is no export in {location}: {LEDGERS_FILE} is missing. Name what `postdate ledger export` wrote"
        ) from error
    except (OSError, pa.ArrowException, KeyError) as error:
        raise StoreCorruptedError(f"The list of ledgers in {location} cannot be read ({error})") from error
    folders = dict(zip(table["topic"].to_pylist(), table["folder"].to_pylist(), strict=True))
    return [LedgerExtent(**row) for row in table.drop_columns("folder").to_pylist()], folders


def _read_rows(file: pq.ParquetFile, part: HeaderRange, names: list[str]) -> pa.Table:
    """Read the row groups that hold a range, and cut it out."""
    groups, first, skipped = [], 0, 0
    for group in range(file.num_row_groups):
        end = first + file.metadata.row_group(group).num_rows
        if end <= part.first:
            skipped = end
        elif first < part.end:
            groups.append(group)
        first = end
    return file.read_row_groups(groups, columns=names).slice(part.first - skipped, part.entries)


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column as an export has it; other values are null, and so bad rows.

    >>> as_type(pa.chunked_array([pa.array([1, 2**64 - 1], pa.uint64())]), pa.int64()).to_pylist()
    [1, None]

    Raises:
        ArrowException: It is something else altogether; a time, too, as its unit is unknown.
    """
    if column.type == kind:
        return column
    if pa.types.is_temporal(column.type):
        raise pa.ArrowTypeError(f"it has {column.type} where {kind} must be")
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_integer(kind):
            raise
        largest = 2 ** (kind.bit_width - 1) - 1
        # A column with bad values is rare, so it is read value by value.
        values = [_whole_or_none(value, largest) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(values, kind)])


def _whole_or_none(value: object, largest: int) -> int | None:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    is_whole = isinstance(value, str) or number == value
    return number if is_whole and -largest <= number <= largest else None


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
