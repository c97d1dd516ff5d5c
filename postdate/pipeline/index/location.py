"""URIs of an index that no service has: plain files, and the storages of other programs.

No log and no Arrow is known here, so that tools of a service can open them too.
"""

from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

from snapshot_storage.objects.folder import ObjectFolderBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage

_FILE, _PYTHON = "file://", "python://"
URIS = ("s3://BUCKET/PREFIX", f"{_FILE}/FOLDER", f"{_PYTHON}MODULE:NAME")
"""The forms of a location that is no folder of RocksDB."""


def is_uri(location: str) -> bool:
    """Whether a location is no folder that RocksDB has, so that no log lies beside it."""
    return "://" in location


def is_files(location: str) -> bool:
    """Whether a location is a folder of plain files."""
    return location.startswith(_FILE)


def is_python(location: str) -> bool:
    """Whether a location names a storage of another program."""
    return location.startswith(_PYTHON)


def file_folder(location: str) -> Path:
    """Return the folder that a URI `file://` names.

    Raises:
        ValueError: It names none of this machine.
    """
    parts = urlsplit(location)
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise ValueError(f"{location} names no folder of this machine: it is {_FILE}/FOLDER")
    return Path(unquote(parts.path))


def open_uri(location: str, *, is_read_only: bool) -> BucketSnapshotStorage:
    """Return the storage at a URI `file://` or `python://`, not started.

    Raises:
        ValueError: The URI names none.
    """
    if is_files(location):
        return ObjectFolderBucketSnapshotStorage(file_folder(location), is_read_only=is_read_only)
    return _made_by(location.removeprefix(_PYTHON), is_read_only=is_read_only)


def _made_by(name: str, *, is_read_only: bool) -> BucketSnapshotStorage:
    module, _, attribute = name.partition(":")
    try:
        make = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{_PYTHON}{name} cannot be found: {error}") from error
    storage = make(is_read_only=is_read_only)
    if not isinstance(storage, BucketSnapshotStorage):
        raise ValueError(f"{_PYTHON}{name} gives a {type(storage).__name__} and no BucketSnapshotStorage")
    return storage
