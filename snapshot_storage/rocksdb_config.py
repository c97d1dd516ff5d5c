"""How much memory a RocksDB folder of snapshots may take. Knows nothing of rocksdict."""

from dataclasses import dataclass, field

_MIB = 2**20
_BYTES_MIN = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDBMemory:
    """How much memory an open folder takes, in bytes, however many snapshots are in it."""

    write_buffer_bytes: int = field(
        default=8 * _MIB, metadata={"key": "bucketSnapshotRocksDBWriteBufferSizeMB", "factor": _MIB}
    )
    """Writes are collected up to this much before they become a table; there may be two such buffers.

    Larger means fewer tables and compactions. A single larger batch is taken whole. Default 8 MiB.
    """

    block_cache_bytes: int = field(
        default=8 * _MIB, metadata={"key": "bucketSnapshotRocksDBBlockCacheSizeMB", "factor": _MIB}
    )
    """Blocks that were read, uncompressed. Segments are read once, so larger gains little. Default 8 MiB."""

    def __post_init__(self) -> None:
        for name in ("write_buffer_bytes", "block_cache_bytes"):
            if getattr(self, name) < _BYTES_MIN:
                raise ValueError(f"{name} must be {_BYTES_MIN} or more, but is {getattr(self, name)}")
