"""The configuration of object storage: server, credentials, prefix and timeouts. Knows nothing of boto3."""

import re
from dataclasses import dataclass, field

from managed_ledger.positions.value_types import InvalidValueError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{2,254}")
_REGION = re.compile(r"[A-Za-z0-9-]+")
_PREFIX = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
_PREFIX_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """A bucket, how to get at it, and limits. Secrets are not in its `repr`."""

    bucket: str = field(default="", metadata={"key": "bucketSnapshotS3Bucket"})
    """The bucket, which must exist. Default none."""

    prefix: str = field(default="postdate/snapshots", metadata={"key": "bucketSnapshotS3Prefix"})
    """The beginning of all keys. Default postdate/snapshots.

    Where a storage is given a data folder, as a service's is, the id of the folder follows (`folder_id`). Otherwise the
    snapshots are right under the prefix, and no two programs may share it.
    """

    endpoint: str | None = field(default=None, metadata={"key": "bucketSnapshotS3Endpoint"})
    """The URL of a server other than AWS. Default none: AWS's, by region."""

    region: str | None = field(default=None, metadata={"key": "bucketSnapshotS3Region"})
    """The region. Default none: that of the AWS chain."""

    is_path_style: bool = field(default=False, metadata={"key": "bucketSnapshotS3PathStyle"})
    """Whether the bucket stands in the path of a URL, as most servers other than AWS need it, not in the host name."""

    access_key_id: str | None = field(default=None, metadata={"key": "bucketSnapshotS3AccessKeyId"})
    """The caller's key id. Default none: the AWS chain finds credentials (environment, profile, container, machine)."""

    secret_access_key: str | None = field(
        default=None, repr=False, metadata={"key": "bucketSnapshotS3SecretAccessKey", "is_secret": True}
    )
    """The secret of `access_key_id`; both or neither."""

    session_token: str | None = field(
        default=None, repr=False, metadata={"key": "bucketSnapshotS3SessionToken", "is_secret": True}
    )
    """For credentials that are lent for a time. Nothing renews it: the AWS chain does."""

    server_side_encryption: str | None = field(default=None, metadata={"key": "bucketSnapshotS3ServerSideEncryption"})
    """`AES256`, `aws:kms` or `aws:kms:dsse`. Default none: that of the bucket."""

    kms_key_id: str | None = field(default=None, metadata={"key": "bucketSnapshotS3KmsKeyId"})
    """The key for `aws:kms`. Default none: the account's own."""

    connect_timeout_ms: int = field(default=5_000, metadata={"key": "bucketSnapshotS3ConnectTimeoutMillis"})
    """How long a connection may take to come about. Default 5 s."""

    read_timeout_ms: int = field(default=20_000, metadata={"key": "bucketSnapshotS3ReadTimeoutMillis"})
    """How long an answer may pause. Below the tracker's own operation timeout, or that one hides it. Default 20 s."""

    calls_in_flight_max: int = field(default=16, metadata={"key": "bucketSnapshotS3MaxCallsInFlight"})
    """The most calls at a time, of all subscriptions together: threads and connections. Default 16."""

    head_bytes: int = field(default=128 * 2**10, metadata={"key": "bucketSnapshotS3HeadBytes"})
    """How much of a snapshot is read first.

    Recovery reads this of every snapshot, in one call where header and metadata fit into it. Larger costs
    transfer, smaller a second call. Default 128 KiB.
    """

    abandoned_upload_age_s_min: int = 60 * 60
    """An upload in parts that began this long ago is abandoned, and is removed at start. Default 1 h."""

    table_cache_bytes: int = 4 * 2**20
    """How much is remembered of where segments lie in objects, at 8 bytes a segment. Default 4 MiB.

    Without it a read of a segment takes two calls.
    """

    def __post_init__(self) -> None:
        for name in ("bucket", "endpoint"):
            # The message does not repeat the refused value: a URL may contain a password.
            if "@" in (getattr(self, name) or ""):
                rule = "without a user or password: they are {access_key_id} and {secret_access_key}"
                raise InvalidValueError(name, rule)
        if self.bucket and not _BUCKET.fullmatch(self.bucket):
            rule = "3 to 255 letters, digits, '.', '_', '-', ':' and '/' that begin with a letter or a digit"
            raise InvalidValueError("bucket", rule, value=self.bucket)
        if not _PREFIX.fullmatch(self.prefix) or len(self.prefix) > _PREFIX_LENGTH_MAX:
            rule = (
                "words of letters, digits, '.', '_', '=' and '-' with single slashes between, at most {most} characters"
            )
            raise InvalidValueError("prefix", rule, value=self.prefix, most=_PREFIX_LENGTH_MAX)
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise InvalidValueError("endpoint", "a URL that begins with http:// or https://", value=self.endpoint)
        if self.region is not None and not _REGION.fullmatch(self.region):
            raise InvalidValueError("region", "a name such as eu-central-1", value=self.region)
        if self.access_key_id is not None and self.secret_access_key is None:
            raise InvalidValueError("access_key_id", "set together with {secret_access_key}")
        if self.secret_access_key is not None and self.access_key_id is None:
            raise InvalidValueError("secret_access_key", "set together with {access_key_id}")
        if self.session_token is not None and self.access_key_id is None:
            raise InvalidValueError("session_token", "set together with {access_key_id} and {secret_access_key}")
        encryptions = ("AES256", "aws:kms", "aws:kms:dsse")
        if self.server_side_encryption not in (None, *encryptions):
            found = self.server_side_encryption
            raise InvalidValueError("server_side_encryption", " or ".join(encryptions), value=found)
        if self.kms_key_id is not None and self.server_side_encryption in (None, "AES256"):
            raise InvalidValueError("kms_key_id", "set together with {server_side_encryption} aws:kms")
        for name, least, most in (
            ("connect_timeout_ms", 1, 3_600_000),
            ("read_timeout_ms", 1, 3_600_000),
            ("calls_in_flight_max", 1, 1_000),
            ("head_bytes", 1_024, 64 * 2**20),
        ):
            if not least <= getattr(self, name) <= most:
                value = getattr(self, name)
                raise InvalidValueError(name, "from {least} to {most}", value=value, least=least, most=most)
