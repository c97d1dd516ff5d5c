"""S3 in a location: the settings of boto3 (snapshots) and pyarrow (exports), from one URI.

    s3://bucket/prefix
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true

Secrets are not part of it, as a location ends up in logs and in Spark's plans: both libraries find credentials where
AWS's own tools do (environment, profile, container, machine), on the driver and on each executor.
"""

import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from snapshot_storage.s3.config import S3Config

if TYPE_CHECKING:
    from pyarrow import fs

_SCHEME = "s3://"
_OPTIONS = ("endpoint", "region", "path_style")


class S3Location(NamedTuple):
    """A place on S3."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None
    is_path_style: bool

    @property
    def config(self) -> S3Config:
        """The same for a storage of snapshots."""
        return S3Config(
            bucket=self.bucket,
            prefix=self.prefix or S3Config().prefix,
            endpoint=self.endpoint,
            region=self.region,
            is_path_style=self.is_path_style,
        )

    def file_system(self) -> "tuple[fs.FileSystem, str]":
        """The same for pyarrow: a file system, and the path in it."""
        from pyarrow import fs

        options = {}
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            options = {"endpoint_override": parts.netloc, "scheme": parts.scheme}
            # By default a checksum follows each body in a trailer, which servers other than AWS may not take out of
            # the stream (versitygw 1.8 answers what comes next with 400); pyarrow has no option for it.
            os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        system = fs.S3FileSystem(
            region=self.region,
            force_virtual_addressing=self.endpoint is not None and not self.is_path_style,
            # A small file is then one request and not three; an upload in parts would begin at once.
            allow_delayed_open=True,
            **options,
        )
        return system, f"{self.bucket}/{self.prefix}".rstrip("/")


def is_s3(location: str) -> bool:
    """Whether a location is on S3."""
    return location.startswith(_SCHEME)


def s3_location(uri: str) -> S3Location:
    """Take a URI apart.

    >>> s3_location("s3://b/one/two?endpoint=http://127.0.0.1:9000&path_style=true")[:4]
    ('b', 'one/two', 'http://127.0.0.1:9000', None)

    Raises:
        ValueError: It names no bucket, or an option that is not known.
    """
    assert is_s3(uri)
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown or not parts.netloc:
        # Not the URI itself: it may contain a secret.
        what = f"the option {', '.join(unknown)} is not known" if unknown else "there is no bucket"
        raise ValueError(f"{what} in an {_SCHEME} location: it is s3://BUCKET/PREFIX with {', '.join(_OPTIONS)}")
    is_path_style = options.get("path_style", "false").lower() == "true"
    return S3Location(
        parts.netloc, parts.path.strip("/"), options.get("endpoint"), options.get("region"), is_path_style
    )
