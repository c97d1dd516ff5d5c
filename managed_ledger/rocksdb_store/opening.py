"""How a folder is opened: to write, by one process, or to read a view of it, by any number beside.

Strictly: a write-ahead log that ends within a write, as a crash leaves it, is no damage; all other bytes that are not
as they were written refuse the opening. Nothing is repaired here. Two kinds of damage would keep RocksDB for ever, and
are looked for before it opens a folder: a pipe or a device in the place of a file, and a fragment of a recycled log
(`log_format.py`).
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict

from managed_ledger.rocksdb_store.failures import Cause, Errors, Failure, Translated
from managed_ledger.rocksdb_store.files import is_misplaced
from managed_ledger.rocksdb_store.folder_view import FolderView
from managed_ledger.rocksdb_store.log_format import recycled_fragment_in

DEFAULT_FAMILY: Final = "default"

Opened = TypeVar("Opened")

READING_TRIES: Final = 5
"""How often a reader looks at a folder that seems damaged: its writer may be changing it."""
READING_PAUSE_S: Final = 0.1
"""Between two looks; longer than a flush of a writer takes."""
REOPENING_PAUSE_S: Final = 5.0
"""Between two openings of a folder after failed writes."""
_FILES: Final = (
    *("CURRENT", "IDENTITY", "LOCK", "LOG", "rocksdict-config.json"),
    *("*.sst", "*.log", "MANIFEST-*", "OPTIONS-*"),
)
"""The files that RocksDB and rocksdict open; a diary of before (`LOG.old.*`) is not one of them."""
_VIEW_BUFFER_BYTES: Final = 32 * 2**20
"""Memory in which a reader replays the write-ahead log; it writes nothing."""


class ReopeningPace:
    """Bounds how often a folder is opened again after a failed write.

    A disk that goes on refusing would have the folder closed most of the time.

    Args:
        clock_s: A clock that never goes back.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._next_s = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether it may be opened again now."""
        return self._clock_s() >= self._next_s

    def put_off(self) -> None:
        """Begin the pause: an opening was tried."""
        self._next_s = self._clock_s() + REOPENING_PAUSE_S


class Compression(StrEnum):
    """Of tables."""

    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """A room's settings for its folder."""

    noun: str
    """The name of its contents in errors: `the log`."""
    errors: Errors
    compression: Compression
    block_cache_bytes: int
    """One cache for all families."""
    write_buffer_bytes: int
    """Of the default family: memory that is collected before it is written as one table."""
    families: Mapping[str, int] = field(default_factory=dict)
    """Further column families, with their write buffers in bytes."""
    creates: bool = True
    """Whether a folder without a database becomes an empty one."""
    is_compacting: bool = True
    """Whether tables are made into larger ones by themselves."""
    block_bytes: int = 4096
    """The unit of compression and of reading."""
    write_buffers_max: int = 2
    """So many buffers of a family at once."""
    tables_before_compaction: int = 4
    logs_bytes_max: int = 0
    """Families that are written little would hold back the removal of old write-ahead logs for ever; 0 for four times
    their buffers."""
    open_files_max: int = -1
    """-1 for all."""


class OpenFolder(NamedTuple):
    """An open database; its owner closes it, with a `RocksDBStore`."""

    path: Path
    """The folder that was asked for: the open database may be a view of it."""
    database: Rdict
    settings: StoreSettings
    view: FolderView | None


def open_to_write(path: Path, settings: StoreSettings) -> OpenFolder:
    """Open a folder, or make it; raises what `settings.errors` returns."""
    doing = f"open {settings.noun}"
    with Translated(settings.errors, path, doing):
        path.mkdir(parents=True, exist_ok=True)
        damage = _damage_in(path)
        if damage is None and any(path.glob("*.sst")) and not (path / "CURRENT").exists():
            # RocksDB would put an empty database in the place of the one that these tables are of.
            damage = "its file CURRENT is missing, which says which tables count"
    _refuse(damage, path, settings, doing, is_shared=False)
    with Translated(settings.errors, path, doing):
        database = Rdict(
            str(path),
            _options(settings, settings.write_buffer_bytes),
            column_families=_family_options(settings),
            access_type=AccessType.read_write(),
        )
    return OpenFolder(path, database, settings, None)


def open_to_read(path: Path, settings: StoreSettings) -> OpenFolder:
    """Open a view of a folder as it is now; nothing in it changes, and it may be in use."""
    doing = f"read {settings.noun}"
    with Translated(settings.errors, path, doing, is_shared=True):
        damage = _damage_in(path)
    _refuse(damage, path, settings, doing, is_shared=True)
    with Translated(settings.errors, path, f"make a view to read {settings.noun}", is_shared=True):
        view = FolderView(path)
    try:
        with Translated(settings.errors, path, doing, is_shared=True):
            database = Rdict(
                str(view.path),
                _options(settings, _VIEW_BUFFER_BYTES),
                column_families=_family_options(settings),
                access_type=AccessType.read_only(False),
            )
    except BaseException:
        view.close()
        raise
    return OpenFolder(path, database, settings, view)


def _damage_in(folder: Path) -> str | None:
    """Say which damage would have RocksDB wait or read for ever; None if none.

    Raises:
        OSError: The system refuses.
    """
    for place in sorted(folder.iterdir()):
        if any(map(place.match, _FILES)) and is_misplaced(place):
            return f"{place.name} is no file"
    return recycled_fragment_in(folder)


def _refuse(damage: str | None, path: Path, settings: StoreSettings, doing: str, *, is_shared: bool) -> None:
    if damage is not None:
        raise settings.errors(Failure(Cause.DAMAGED, doing, path, damage, is_system=True, is_shared=is_shared))


def looked_at_again(
    open_once: Callable[[], Opened],
    is_worth_it: Callable[[Exception], bool],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> Opened:
    """Open a view, a few times over: a writer removes files between two looks at its folder.

    Args:
        open_once: Opens it and checks its contents.
        is_worth_it: Whether another look may help against this error.
        pause: Waits for so many seconds.
    """
    for _ in range(READING_TRIES - 1):
        try:
            return open_once()
        except Exception as error:
            if not is_worth_it(error):
                raise
        pause(READING_PAUSE_S)
    return open_once()


def _options(settings: StoreSettings, write_buffer_bytes: int, blocks: BlockBasedOptions | None = None) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(settings.creates)
    options.create_missing_column_families(settings.creates)
    # A cut last record is what a crash leaves and is dropped; damage before it is an error, not a loss in silence.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    is_lz4 = settings.compression is Compression.LZ4
    options.set_compression_type(DBCompressionType.lz4() if is_lz4 else DBCompressionType.zstd())
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_disable_auto_compactions(not settings.is_compacting)
    options.set_block_based_table_factory(blocks or _blocks(settings))
    options.set_max_write_buffer_number(settings.write_buffers_max)
    options.set_level_zero_file_num_compaction_trigger(settings.tables_before_compaction)
    options.set_max_total_wal_size(settings.logs_bytes_max)
    options.set_max_open_files(settings.open_files_max)
    return options


def _family_options(settings: StoreSettings) -> dict[str, Options]:
    blocks = _blocks(settings)
    return {name: _options(settings, buffer_bytes, blocks) for name, buffer_bytes in settings.families.items()}


def _blocks(settings: StoreSettings) -> BlockBasedOptions:
    blocks = BlockBasedOptions()
    blocks.set_block_size(settings.block_bytes)
    blocks.set_block_cache(Cache(settings.block_cache_bytes))
    return blocks
