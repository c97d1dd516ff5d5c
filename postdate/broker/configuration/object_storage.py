"""The keys of a log on object storage: the server, the local tables, how often is written, and the leases of bundles.

The snapshots have such keys of their own (`snapshot_storage.s3.config`), which default to these; `data_s3` and
`snapshots_s3` are what holds in the end.
"""

import os
import tempfile
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from managed_ledger.bundle_settings import SNAPSHOTS
from managed_ledger.positions.value_types import InvalidValueError
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import S3Location

LARGE_TEMPORARY: Final = Path("/var/tmp")

_CREDENTIALS: Final = ("access_key_id", "secret_access_key", "session_token")
_ENCRYPTION: Final = ("server_side_encryption", "kms_key_id")
_TIME_LIMITS: Final = ("connect_timeout_ms", "read_timeout_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageConfig:
    """How a bucket is got at, and what a log in it costs and promises. Secrets are not in its `repr`."""

    endpoint: str | None = field(default=None, metadata={"key": "s3Endpoint"})
    region: str | None = field(default=None, metadata={"key": "s3Region"})
    is_path_style: bool = field(default=False, metadata={"key": "s3PathStyle"})
    access_key_id: str | None = field(default=None, metadata={"key": "s3AccessKeyId"})
    secret_access_key: str | None = field(
        default=None, repr=False, metadata={"key": "s3SecretAccessKey", "is_secret": True}
    )
    session_token: str | None = field(default=None, repr=False, metadata={"key": "s3SessionToken", "is_secret": True})
    server_side_encryption: str | None = field(default=None, metadata={"key": "s3ServerSideEncryption"})
    kms_key_id: str | None = field(default=None, metadata={"key": "s3KmsKeyId"})
    connect_timeout_ms: int = field(default=5_000, metadata={"key": "s3ConnectTimeoutMillis"})
    read_timeout_ms: int = field(default=5_000, metadata={"key": "s3ReadTimeoutMillis"})
    """Shorter than that of the snapshots: receipts wait for an answer."""

    commit_interval_ms: int = field(default=50, metadata={"key": "s3CommitIntervalMillis"})
    """The least time between the beginnings of two objects of the log."""

    lease_s: int = field(default=10, metadata={"key": "bundleLeaseSeconds"})
    """How long a service may show no sign of life before others take its bundles."""

    cache_directory: Path | None = field(default=None, metadata={"key": "cacheDirectory"})
    """The folder of local tables; None for one of the process's own in `default_cache_parent()`."""

    def __post_init__(self) -> None:
        for name, least, most in (("commit_interval_ms", 0, 60_000), ("lease_s", 1, 3_600)):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidValueError(name, "from {least} to {most}", value=value, least=least, most=most)
        # The rules of a server are told there, by the same names.
        self.s3_config(None)

    def s3_config(self, place: S3Location | None) -> S3Config:
        """Return how a place is got at; without one, the server alone.

        Raises:
            InvalidValueError: A part of the place is no proper one.
        """
        known = {one.name for one in fields(S3Config)}
        own = S3Config(**{one.name: getattr(self, one.name) for one in fields(self) if one.name in known})
        return own if place is None else place.config(own)

    @property
    def cache_parent(self) -> Path:
        """The folder whose disk the local tables fill."""
        return self.cache_directory or default_cache_parent()


def default_cache_parent() -> Path:
    """Return systemd's folder for the service's cache; else that of large temporary files, as /tmp may be memory."""
    if given := os.environ.get("CACHE_DIRECTORY"):
        # Systemd gives all that the unit names.
        return Path(given.partition(":")[0])
    return LARGE_TEMPORARY if LARGE_TEMPORARY.is_dir() else Path(tempfile.gettempdir())


def snapshots_s3(own: S3Config, data: S3Config, *, is_data_on_s3: bool) -> S3Config:
    """Return where the snapshots are and how that is got at: what their own keys leave open is as for the data.

    On another server than the data's nothing but time limits is: its credentials are nobody else's business.

    Args:
        own: The keys of the snapshots; one that has its default leaves it open.
        data: The data's, in the end.
        is_data_on_s3: Whether the data is there at all; else its keys only say how the server is got at.
    """
    default = S3Config()
    taken = {name for name in _TIME_LIMITS if _is_default(own, name) and getattr(data, name) != _data_default(name)}
    if own.endpoint in (None, data.endpoint):
        taken |= {name for name in ("endpoint", "region", "is_path_style") if _is_default(own, name)}
        for group in (_CREDENTIALS, _ENCRYPTION):
            if getattr(own, group[0]) is None:
                taken |= set(group)
        if is_data_on_s3 and not own.bucket:
            taken.add("bucket")
    changes: dict[str, Any] = {name: getattr(data, name) for name in taken}
    if is_data_on_s3 and own.prefix == default.prefix and changes.get("bucket", own.bucket) == data.bucket:
        changes["prefix"] = f"{data.prefix}/{SNAPSHOTS}"
    return replace(own, **changes)


def _is_default(own: S3Config, name: str) -> bool:
    return bool(getattr(own, name) == getattr(S3Config(), name))


def _data_default(name: str) -> Any:
    return getattr(ObjectStorageConfig(), name)
