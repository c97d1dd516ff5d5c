"""Where an index is, in one notation for configurations, commands, jobs and the tasks of Spark.

    FOLDER                  a data folder, whose index is in `snapshots`, or a folder of RocksDB's own (a checkpoint)
    s3://BUCKET/PREFIX      objects on S3 (`s3_location`), under the id of the data folder (`s3.folder_id`)
    python://MODULE:NAME    any other `BucketSnapshotStorage`: what MODULE.NAME(is_read_only=...) gives each process

A location opens nothing, and travels to other processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Self

from postdate.command_line.extras import install_advice
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.rocksdb.config import RocksDBBulkMemory, RocksDBMemory
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import is_s3, s3_location
from snapshot_storage.storage import BucketSnapshotStorage

if TYPE_CHECKING:
    from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage

_PYTHON = "python://"
_NO_LOCATION = (
    f"the place of an index must be a folder, s3://BUCKET/PREFIX or {_PYTHON}MODULE:NAME, without user or password"
)


class Location(ABC):
    """Where an index is."""

    @abstractmethod
    def storage(self, *, is_read_only: bool = False) -> BucketSnapshotStorage:
        """Return the storage, not started.

        Raises:
            StorageAccessError: It needs a library that is not installed, or there is none of this name.
        """

    def patient_storage(
        self, *, is_read_only: bool = False, retries: Retries | None = None
    ) -> RetryingBucketSnapshotStorage:
        """Return the storage with retries, for a program that has none of its own, as a tracker has; see `Retries`."""
        return RetryingBucketSnapshotStorage(self.storage(is_read_only=is_read_only), retries or Retries())

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that has the snapshots; None where they are elsewhere."""
        return None

    @property
    @abstractmethod
    def identity(self) -> Hashable:
        """The same for two locations at which the same snapshots are."""

    def resolved(self, *, is_read_only: bool) -> "Location":  # noqa: ARG002 - what S3 does with it
        """Return a location that also a machine without the data folder finds.

        Args:
            is_read_only: Whether a data folder without an id on S3 is to get none.

        Raises:
            StorageAccessError: Several data folders have snapshots there, or the one that is known has none.
            SnapshotStorageError: The server does not answer.
        """
        return self

    def check_there(self) -> None:  # noqa: B027 - a server is asked when it is opened
        """Refuse a folder without snapshots, also for writing: opening it would make an empty one.

        Raises:
            StorageAccessError: There are no snapshots.
        """


@dataclass(frozen=True, slots=True)
class RocksDBLocation(Location):
    """A folder of RocksDB's own."""

    path: Path
    memory: RocksDBMemory = field(default_factory=RocksDBBulkMemory)

    def storage(self, *, is_read_only: bool = False) -> BucketSnapshotStorage:
        return RocksDBBucketSnapshotStorage(self.path, is_read_only=is_read_only, memory=self.memory)

    @property
    def folder(self) -> Path:
        return self.path

    @property
    def identity(self) -> Hashable:
        return self.path.resolve()

    def check_there(self) -> None:
        if not is_rocksdb(self.path) and not any(self.path.glob("*.sst")):
            raise StorageAccessError(f"there are no snapshots in {self.path}: name the folder that a service wrote")


@dataclass(frozen=True, slots=True)
class S3FolderLocation(Location):
    """A prefix on S3."""

    config: S3Config
    data: Path | None = None
    """The data folder whose id is the last part of the prefix; None where the prefix has it already."""
    job: str = ""
    """The job whose tasks write there; empty where one process does."""

    def storage(self, *, is_read_only: bool = False) -> "S3BucketSnapshotStorage":
        try:
            # Boto3 is an extra, and slow to import.
            from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
        except ImportError as error:
            advice = install_advice(error.name, ["s3"]) or str(error)
            raise StorageAccessError(f"bucketSnapshotStorage=s3: {advice}") from error
        return S3BucketSnapshotStorage(self.config, is_read_only=is_read_only, folder=self.data, job=self.job)

    @property
    def identity(self) -> Hashable:
        return self.config.endpoint, self.config.bucket, self.config.prefix

    def resolved(self, *, is_read_only: bool) -> Self:
        # Boto3 is an extra, and slow to import.
        from snapshot_storage.s3.folder_id import config_of_folder, config_of_only_folder

        if self.data is None:
            return replace(self, config=config_of_only_folder(self.config))
        return replace(self, config=config_of_folder(self.config, self.data, is_read_only=is_read_only), data=None)


@dataclass(frozen=True, slots=True)
class ProgramLocation(Location):
    """A storage that another program makes."""

    name: str
    """MODULE:NAME."""

    def storage(self, *, is_read_only: bool = False) -> BucketSnapshotStorage:
        module, _, attribute = self.name.partition(":")
        try:
            make = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise StorageAccessError(f"{_PYTHON}{self.name} cannot be found: {error}") from error
        storage = make(is_read_only=is_read_only)
        if not isinstance(storage, BucketSnapshotStorage):
            kind = type(storage).__name__
            raise StorageAccessError(f"{_PYTHON}{self.name} gives a {kind} and no BucketSnapshotStorage")
        return storage

    @property
    def identity(self) -> Hashable:
        return self.name


def is_uri(text: str) -> bool:
    """Whether the text of a location is no folder that RocksDB has, so that no log lies beside it."""
    return "://" in text


def is_rocksdb(folder: Path) -> bool:
    """Whether a database of RocksDB is in a folder."""
    return (folder / "CURRENT").exists()


def location_at(text: str, *, s3: S3Config | None = None, data: Path | None = None) -> Location:
    """Return the location that a text names.

    Args:
        text: In one of the forms above.
        s3: The settings of S3 that the text leaves out, as credentials.
        data: The data folder that owns objects on S3; None where it is not known.

    Raises:
        ValueError: The text names no place. It is not repeated, as it may have a password in it.
    """
    if is_s3(text):
        return S3FolderLocation(s3_location(text).config(s3), data)
    if text.startswith(_PYTHON):
        return ProgramLocation(text.removeprefix(_PYTHON))
    if is_uri(text) or not text.strip():
        raise ValueError(_NO_LOCATION if text.strip() else f"{_NO_LOCATION}, and is empty")
    folder = Path(text).absolute()
    return RocksDBLocation(folder if is_rocksdb(folder) else folder / "snapshots")
