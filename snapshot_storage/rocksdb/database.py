"""The edge to rocksdict: opening, scanning, and its errors as ours.

Traps of rocksdict 0.3.29 that shape the code: iterators stop silently at a damaged block unless `status()` is
asked; a living iterator keeps the folder locked after `close()`; and every failure is a plain `Exception` with
a text.

Compression was chosen by measurement: `python -m benchmarks snapshots compression --buckets 6`, November 2026, 2 busy
cores, rocksdict 0.3.29, buckets of 50,000 rows. Bytes a row at rest, and milliseconds to read a whole bucket:

                   protobuf         lz4      zstd 1      zstd 3      zstd 9   zstd 3, 16 KiB dictionary
    one instant       14.35   4.02  0.5   1.08  1.0   1.08  1.7   1.08  1.0   1.08  1.2
    fixed delay       14.35   6.96  1.3   2.85  2.8   1.89  3.2   1.89  2.8   1.97  1.6
    exponential 1 h   16.46  12.75  0.8   9.21  3.1   9.40  4.0   8.63  4.3   9.48  3.8
    uniform 7 days    18.67  14.33  2.7  10.95  5.6  10.61  6.7  10.30  6.5  10.96  6.5

Zstd at level 3, RocksDB's own default for it: level 1 takes half as much space again where delays are fixed, which is
the common case; level 9 saves at most 8 % and takes two to five times as long to write; a dictionary saves nothing, as
blocks of 16 KiB are large enough. Lz4 reads faster, but a segment is read once and takes 0.1 ms either way.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
)

from managed_ledger.disk_room import NO_ROOM
from snapshot_storage.errors import (
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageAccessError,
    StorageClosedError,
    StorageCorruptedError,
    StorageLockedError,
    StorageUnavailableError,
)
from snapshot_storage.rocksdb.config import RocksDBMemory

# A block is the unit of compression and of reading: below 16 KiB tiny segments compress worse, above it
# nothing is won.
BLOCK_BYTES = 16 * 2**10

_NOT_COMPACTED = "NOT-COMPACTED"
"""A file that says that a compaction met damage."""

log = logging.getLogger(__name__)

# RocksDB fills one buffer while it flushes another, and no third.
_WRITE_BUFFERS_MAX = 2

# What no further try helps against.
_NEEDS_RIGHTS = tuple(map(os.strerror, (errno.EACCES, errno.EPERM, errno.EROFS)))


def stop_compacting(path: Path) -> None:
    """Let the folder be opened without compaction from now on.

    A compaction that meets a damaged block ends all writes until the folder is opened again, and then the next one
    does. Without any, one flipped bit costs what is in its block, and the space of what is deleted.
    """
    try:
        (path / _NOT_COMPACTED).touch()
    except OSError as error:
        # A full disk, perhaps: then the next compaction meets the damage once more, and this is tried again.
        log.warning("cannot write %s: %s", path / _NOT_COMPACTED, error)


def _is_compacted(path: Path) -> bool:
    if not (path / _NOT_COMPACTED).exists():
        return True
    log.warning(
        "%s has a damaged table, so it is not compacted and deleted snapshots keep their space: `postdate snapshots "
        "verify` says what is lost, and `copy` to another folder leaves the damage behind",
        path,
    )
    return False


class Leniency(StrEnum):
    """With how much damage a folder is opened to write; each is also how to say so."""

    STRICT = "as it is"
    BROKEN_LOG = "without what is damaged of its log"
    BROKEN_TABLES = "with damaged tables"
    REPAIRED = "after a repair"


def open_database(path: Path, index: str, *, memory: RocksDBMemory, leniency: Leniency) -> Rdict:
    """Open the folder's database to write, with a column family of this name."""
    families = _options(memory), _options(memory)
    is_compacted = _is_compacted(path)
    for options in families:
        options.create_missing_column_families(True)
        if leniency is not Leniency.STRICT:
            options.set_wal_recovery_mode(DBRecoveryMode.skip_any_corrupted_record())
        # Without these checks a table that cannot be opened is an error of those who read from it.
        options.set_paranoid_checks(leniency is not Leniency.BROKEN_TABLES)
        options.set_disable_auto_compactions(leniency is Leniency.BROKEN_TABLES or not is_compacted)
    database = Rdict(str(path), families[0], column_families={index: families[1]})
    if leniency is Leniency.BROKEN_TABLES:
        stop_compacting(path)
    return database


def open_database_to_read(path: Path, index: str, *, memory: RocksDBMemory) -> Rdict:
    """Open the folder's database as it is at this moment; beside the data this writes too."""
    try:
        # Named: what rocksdict opens by itself is what a file says that has no checksum.
        families = {index: _options(memory)}
        return Rdict(str(path), _options(memory), column_families=families, access_type=AccessType.read_only(False))
    except Exception as error:
        # Rocksdict raises plain exceptions. A folder of an older layout has no such family.
        if "olumn family not found" not in str(error):
            raise
    return Rdict(str(path), _options(memory), access_type=AccessType.read_only(False))


def repair(path: Path, *, memory: RocksDBMemory) -> None:
    """Make a folder's list of files anew, of the tables and logs that can be read; others go to a folder `lost`."""
    Rdict.repair(str(path), _options(memory))


def column_family(database: Rdict, name: str) -> Rdict | None:
    """Return an open column family, None where there is none of this name."""
    try:
        return database.get_column_family(name)
    except Exception as error:
        # Rocksdict raises plain exceptions.
        if "does not exist" not in str(error):
            raise
        return None


def names_missing_manifest(path: Path) -> bool:
    """Whether the folder says where its list of files is, and there is none.

    Beside a writer this may be so for a moment: then the next look finds another name.
    """
    try:
        name = (path / "CURRENT").read_text()
        is_there = (path / name.strip()).is_file()
        return not is_there and (path / "CURRENT").read_text() == name
    except (OSError, ValueError):
        return False


def _options(memory: RocksDBMemory) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.zstd())
    # A cut last record is what a crash leaves and is dropped; damage before it is an error, not a loss in
    # silence.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_keep_log_file_num(2)
    options.set_write_buffer_size(memory.write_buffer_bytes)
    options.set_max_write_buffer_number(_WRITE_BUFFERS_MAX)
    options.set_level_zero_file_num_compaction_trigger(memory.tables_before_compaction)
    blocks = BlockBasedOptions()
    blocks.set_block_size(BLOCK_BYTES)
    blocks.set_block_cache(Cache(memory.block_cache_bytes))
    options.set_block_based_table_factory(blocks)
    return options


def scan(database: Rdict, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give keys from `begin` to before `end`, with their values; raises rather than stop short."""
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(end)
    iterator = database.iter(bounds)
    try:
        iterator.seek(begin)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        # A damaged block ends the iteration like the end of the range does.
        iterator.status()
    finally:
        # The traceback of an error keeps this frame, and a living iterator keeps the folder locked.
        del iterator


def disk_refused(operation: str, path: Path, error: Exception) -> SnapshotStorageError:
    """Return our error: another try helps where there is no room, and not where rights are missing.

    Args:
        operation: What was being done.
        path: In which folder.
        error: The system's, or what rocksdict made of it: a text, and no number.
    """
    text = f"cannot {operation} in {path}: {error}"
    if any(refusal in str(error) for refusal in _NEEDS_RIGHTS):
        return StorageAccessError(f"{text}: mend that first, whoever opens it must be allowed to write to the folder")
    if any(refusal in str(error) for refusal in NO_ROOM):
        text += ": make room, and it goes on"
    return StorageUnavailableError(text)


@dataclass(slots=True)
class Place:
    """What is being read, for the error that names it; moved on while reading goes on."""

    bucket_id: int | None = None
    entry: int | None = None


@contextmanager
def mapped(
    operation: str,
    path: Path,
    *,
    bucket_id: int | None = None,
    entry: int | None = None,
    is_shared: bool = False,
) -> Iterator[Place]:
    """Turn what rocksdict raises into our errors, with what was being done.

    Args:
        operation: What is being done.
        path: In which folder.
        bucket_id: To which snapshot.
        entry: To which entry of it.
        is_shared: Whether another process may change the folder meanwhile, and remove files that are still looked for.
    """
    place = Place(bucket_id, entry)
    try:
        yield place
    except DbClosedError as error:
        raise StorageClosedError(operation) from error
    except OSError as error:
        # Rocksdict's own, as it writes a file of its own at opening, also to read: without a path.
        raise disk_refused(operation, path, error) from error
    except Exception as error:
        # Rocksdict raises plain exceptions, and only their text tells them apart. Any subclass is not
        # RocksDB's.
        if type(error) is not Exception:
            raise
        reason = str(error)
        if "lock hold by current process" in reason or "Resource temporarily unavailable" in reason:
            raise StorageLockedError(str(path)) from error
        is_missing = "No such file" in reason
        if is_missing and is_shared:
            reason = f"the service that has it open changed it meanwhile: read it again ({reason})"
            raise StorageUnavailableError(f"cannot {operation} in {path}: {reason}") from error
        if not is_missing and not reason.startswith("Corruption"):
            raise disk_refused(operation, path, error) from error
        if place.bucket_id is None:
            raise StorageCorruptedError(str(path), reason) from error
        raise SnapshotCorruptedError(reason, bucket_id=place.bucket_id, entry=place.entry) from error
