"""A place on S3 as one URI: of snapshots and of exports, for commands, jobs and the tasks of Spark.

    s3://bucket/prefix
    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true

Secrets are not part of it, as a location ends up in logs and in Spark's plans. On Spark, boto3 (snapshots) and pyarrow
(exports) find credentials where AWS's own tools do (environment, profile, container, machine), on each machine.
"""

from dataclasses import replace
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from snapshot_storage.s3.config import S3Config

_SCHEME = "s3://"
_OPTIONS = ("endpoint", "region", "path_style")
_FORM = f"{_SCHEME}BUCKET/PREFIX, without user or password, with the options {', '.join(_OPTIONS)}"


class S3Location(NamedTuple):
    """A place on S3; None stands for the caller's own setting."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    is_path_style: bool | None = None

    @property
    def uri(self) -> str:
        """The URI that `s3_location` reads.

        >>> S3Location("b", "one/two", endpoint="http://127.0.0.1:9000", is_path_style=True).uri
        's3://b/one/two?endpoint=http://127.0.0.1:9000&path_style=true'
        """
        is_path_style = None if self.is_path_style is None else str(self.is_path_style).lower()
        options = zip(_OPTIONS, (self.endpoint, self.region, is_path_style), strict=True)
        query = urlencode({name: value for name, value in options if value is not None}, safe=":/")
        return f"{_SCHEME}{self.bucket}/{self.prefix}" + (f"?{query}" if query else "")

    def config(self, own: S3Config | None = None) -> S3Config:
        """Return the configuration of a storage of snapshots at this place.

        Args:
            own: The caller's own settings, which count where the location names none.

        Raises:
            ValueError: A part of the location is no proper one.
        """
        own = own or S3Config()
        return replace(
            own,
            bucket=self.bucket,
            prefix=self.prefix or own.prefix,
            endpoint=self.endpoint or own.endpoint,
            region=self.region or own.region,
            is_path_style=own.is_path_style if self.is_path_style is None else self.is_path_style,
        )


def is_s3(location: str) -> bool:
    """Whether a location is on S3."""
    return location.startswith(_SCHEME)


def s3_location(uri: str) -> S3Location:
    """Take a URI apart.

    >>> s3_location("s3://b/one/two?endpoint=http://127.0.0.1:9000&path_style=true")
    S3Location(bucket='b', prefix='one/two', endpoint='http://127.0.0.1:9000', region=None, is_path_style=True)

    Raises:
        ValueError: It names no bucket, has a user, or has an option that is not known.
    """
    assert is_s3(uri)
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown or not parts.netloc or "@" in uri or parts.fragment:
        # Not the URI itself: it may contain a secret.
        fault = f"the option {', '.join(unknown)} is not known" if unknown else "the bucket or the end is none"
        raise ValueError(f"{fault} in an {_SCHEME} location: it is {_FORM}")
    path_style = options.get("path_style")
    return S3Location(
        parts.netloc,
        parts.path.strip("/"),
        options.get("endpoint"),
        options.get("region"),
        None if path_style is None else path_style.lower() == "true",
    )
