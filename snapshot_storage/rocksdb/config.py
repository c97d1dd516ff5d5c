"""How much memory a RocksDB folder of snapshots may take. Knows nothing of rocksdict."""

from dataclasses import dataclass, field
from typing import ClassVar

from managed_ledger.positions.value_types import InvalidValueError

_MIB = 2**20
_BYTES_MIN = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDBMemory:
    """How much memory an open folder takes, in bytes, however many snapshots are in it."""

    write_buffer_bytes: int = field(
        default=4 * _MIB, metadata={"key": "bucketSnapshotRocksDBWriteBufferSizeMB", "factor": _MIB}
    )
    """Writes are collected up to this much before they become a table; there may be two such buffers.

    Larger means fewer tables and compactions. A single larger batch is taken whole. Default 4 MiB.
    """

    block_cache_bytes: int = field(
        default=4 * _MIB, metadata={"key": "bucketSnapshotRocksDBBlockCacheSizeMB", "factor": _MIB}
    )
    """Blocks that were read, uncompressed. Segments are read once, so larger gains little. Default 4 MiB."""

    tables_before_compaction: ClassVar[int] = 4
    """So many tables are made into one larger; RocksDB's own default. Fewer are read faster."""

    def __post_init__(self) -> None:
        for name in ("write_buffer_bytes", "block_cache_bytes"):
            if getattr(self, name) < _BYTES_MIN:
                raise InvalidValueError(name, "{least} or more", value=getattr(self, name), least=_BYTES_MIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDBBulkMemory(RocksDBMemory):
    """For a job, which writes a whole index at once and reads little of it."""

    write_buffer_bytes: int = 32 * _MIB
    """Larger ones take longer at close, when one thread compresses the last of them while all else waits.

    To store 200 buckets of 50,000 rows and close, alone on 2 cores: 64 MiB and compaction of 4 tables 4.4 s, 64 MiB
    and 16 tables 3.4 s, 32 MiB and 16 tables 3.1 s.
    """

    tables_before_compaction: ClassVar[int] = 16
    """A compaction compresses all of it again. Below the 20 at which RocksDB lets writes wait."""
