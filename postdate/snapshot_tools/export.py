"""`postdate snapshots export`: write every row of the index to a Parquet file, for other tools.

A row group is a piece of a snapshot, so memory is bounded by the size of a piece. A damaged segment costs its own rows,
and is reported. The file gets its name when all readable rows are in it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from managed_ledger.names import subscription_of
from managed_ledger.positions.value_types import Int64Array
from postdate.broker.configuration.config import BrokerConfig
from postdate.command_line.extras import install_advice
from postdate.command_line.progress import Advance
from postdate.index.opening import Filter, readable_pieces
from postdate.snapshot_tools.options import opened
from snapshot_storage.encoding.codec import decode_segment
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.errors import BucketNotFoundError, SnapshotUnreadableError, StorageAccessError
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    snapshots: int = 0
    """The number of snapshots that are whole in the file."""
    rows: int = 0
    failed: dict[int | None, list[str]] = field(default_factory=dict)
    """Snapshots that could not be read in full and their damage, by id as far as known."""


async def export_snapshots(config: BrokerConfig, path: Path, which: Filter, advance: Advance) -> Exported:
    """Write the rows of all snapshots to a Parquet file, which must not exist.

    Columns: topic, cursor (text), bucket_id, segment, ledger_id, entry_id, deliver_at_ms (int64); rows are in the order
    of topic, cursor, bucket, and time within a bucket.

    Raises:
        StorageAccessError: pyarrow is missing, or the file is there already.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened or does not answer.
    """
    parquet = ParquetFile(path, ("topic", "cursor"), ("bucket_id", "segment", "ledger_id", "entry_id", "deliver_at_ms"))
    exported = Exported()
    try:
        async with opened(config) as place:
            infos, faults = await place.readable_infos(await place.resolve(which))
            exported.failed = {bucket_id: [str(fault)] for bucket_id, fault in faults.items()}
            total, done = sum(info.length_bytes for info in infos), 0
            advance(0, total)
            for info in infos:
                await _export_snapshot(place.storage, info, parquet, exported)
                done += info.length_bytes
                advance(done, total)
        parquet.finish()
    finally:
        parquet.discard()
    return exported


async def _export_snapshot(
    storage: BucketSnapshotStorage, info: BucketSnapshotInfo, parquet: "ParquetFile", exported: Exported
) -> None:
    damage: list[str] = []
    try:
        async for piece in readable_pieces(storage, info):
            parts, found = _decoded(piece)
            damage += found
            rows = DelayedIndexes.concatenate(list(parts.values()))
            ids = np.full(len(rows), info.bucket_id, np.int64)
            segments = np.repeat(np.fromiter(parts, np.int64), [len(part) for part in parts.values()])
            exported.rows += parquet.write(
                (info.topic_name, subscription_of(info.cursor_name)),
                (ids, segments, rows.ledger_ids, rows.entry_ids, rows.deliver_at_ms),
            )
    except BucketNotFoundError as error:
        damage.append(str(error))
    if damage:
        exported.failed[info.bucket_id] = damage
    else:
        exported.snapshots += 1


def _decoded(piece: list[tuple[int, bytes | SnapshotUnreadableError]]) -> tuple[dict[int, DelayedIndexes], list[str]]:
    """Return the rows of each segment by its number, and the faults of the others."""
    parts: dict[int, DelayedIndexes] = {}
    damage: list[str] = []
    for number, data in piece:
        try:
            if isinstance(data, SnapshotUnreadableError):
                raise data
            parts[number] = decode_segment(data, entry=number)
        except SnapshotUnreadableError as error:
            damage.append(str(error))
    return parts, damage


class ParquetFile:
    """A Parquet file beside its place, until it is whole.

    Args:
        path: Its place; nothing may be there.
        texts: The columns of text, each with one value for all rows that are written together.
        numbers: The columns of whole numbers behind them.
    """

    def __init__(self, path: Path, texts: Sequence[str], numbers: Sequence[str]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise StorageAccessError(install_advice(error.name, ["export"]) or str(error)) from error
        if path.exists():
            raise StorageAccessError(f"{path} is there already: name another file")
        if not path.parent.is_dir():
            raise StorageAccessError(f"cannot write {path}: there is no folder {path.parent}")
        self._arrow: Any = pyarrow
        self._path = path
        self._beside = path.with_name(f"{path.name}.{uuid4().hex}.part")
        names = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        columns = [*((name, names) for name in texts), *((name, pyarrow.int64()) for name in numbers)]
        self._schema: Any = pyarrow.schema(columns)
        self._writer: Any = parquet.ParquetWriter(self._beside, self._schema, compression="zstd")

    def write(self, texts: Sequence[str], numbers: Sequence[Int64Array]) -> int:
        """Add rows, and return how many they are."""
        count = len(numbers[0])
        columns = [self._constant(text, count) for text in texts] + [self._arrow.array(column) for column in numbers]
        if count:
            self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        return count

    def _constant(self, value: str, count: int) -> Any:
        indices = self._arrow.array(np.zeros(count, np.int32))
        return self._arrow.DictionaryArray.from_arrays(indices, self._arrow.array([value]))

    def finish(self) -> None:
        """Close the file and give it its name."""
        self._writer.close()
        self._beside.replace(self._path)

    def discard(self) -> None:
        """Remove an unfinished file; after `finish` nothing is done."""
        self._writer.close()
        with suppress(FileNotFoundError):
            self._beside.unlink()
