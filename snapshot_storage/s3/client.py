"""The edge to boto3: the few requests that snapshots need, and their failures as our errors.

Blocking, and safe from any thread. Neither this module nor boto3 retries: the tracker decides how often and how
patiently. A conditional write that is repeated blindly would take its own success for another's.

The meaning of a failure:

    503 SlowDown, 429, 409                                     StorageBusyError: refused, retriable, had no effect
    credentials that the AWS chain has replaced by now         the same: the next request has the new ones
    no connection, a timeout, any other 5xx, a redirect,
    a request that did not arrive whole                        StorageUnavailableError, retriable, may have had one
    wrong credentials, rights, bucket, region or clock         StorageAccessError, which says what to do
    no such key, a condition that fails, no such range         a value: the caller says what it means
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, NamedTuple

from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from snapshot_storage.errors import StorageAccessError, StorageBusyError, StorageUnavailableError
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.connection import S3Connection
from snapshot_storage.s3.requests import RequestOutcome, S3Requests

_UNREACHED = (
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
    exceptions.ResponseStreamingError,
)
# The second code answers one of two writers at one moment: neither its object nor its upload is there.
_KEY_IS_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")

# These refusals pass by themselves.
_BUSY_CODES = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConditionalRequestConflict",
        # Another process took the upload for abandoned and removed it: another writer writes the snapshot again.
        "NoSuchUpload",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
# The request did not arrive as it was sent. S3 names InternalError inside an answer of 200, too.
_DISTURBED_CODES = frozenset(
    {"BadDigest", "IncompleteBody", "InternalError", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)
# 408 is Request Timeout; 307 redirects until the name of a new bucket is known everywhere.
_PASSING_STATUSES = (307, 408)
_NO_RULES = "NoSuchLifecycleConfiguration"
_RULES_UNTOLD = ("AccessDenied", "MethodNotAllowed", "NotImplemented")
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
_DELETED_AT_ONCE = 1_000
"""S3's own limit."""
_NONCE = "postdate-nonce"
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500
_BEFORE_HOST = re.compile(r"//[^/\s\"]*@")
_REFUSED_CREDENTIALS = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_ADVICE = {
    "NoSuchBucket": "create the bucket, or correct its name (bucketSnapshotS3Bucket, or in dataDirectory)",
    "InvalidObjectState": "restore the object from the archive, or drop the snapshot",
    "AccessDenied": "allow reading, writing, deleting and listing under the prefix",
    "InvalidAccessKeyId": "correct the access key",
    "SignatureDoesNotMatch": "correct the secret access key",
    "ExpiredToken": "renew the credentials",
    "RequestTimeTooSkewed": "set this machine's clock: it is too far from the server's",
    "AuthorizationHeaderMalformed": "correct bucketSnapshotS3Region or s3Region",
    "NotImplemented": "use a server that can do this",
    "PermanentRedirect": "correct the region or the endpoint",
}


class ObjectPiece(NamedTuple):
    """A run of bytes out of an object."""

    data: bytes
    object_bytes: int
    """How long all of it is."""


class ExpiringRule(NamedTuple):
    """A rule of a bucket by which objects go by their age: deleted, or to an archive where they cannot be read."""

    name: str
    prefix: str
    """The objects that it is for: those whose keys begin so, all with an empty one."""


class Upload(NamedTuple):
    """An object that is being written in parts."""

    key: str
    upload_id: str


class S3Client:
    """One bucket. Opening it asks nothing of the server."""

    def __init__(self, config: S3Config, requests: S3Requests | None = None) -> None:
        """Find credentials and region.

        Args:
            config: Server and bucket.
            requests: Counts what is asked, also by others; None for counts of its own.

        Raises:
            StorageAccessError: The AWS chain's own files are wrong.
        """
        self._bucket = config.bucket
        self.requests = S3Requests() if requests is None else requests
        """What was asked of the server."""
        self._write_options: dict[str, str] = {}
        if config.server_side_encryption is not None:
            self._write_options["ServerSideEncryption"] = config.server_side_encryption
        if config.kms_key_id is not None:
            self._write_options["SSEKMSKeyId"] = config.kms_key_id
        with self._mapped("open"):
            self._connection = S3Connection(config)

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return self._connection.endpoint

    @property
    def _client(self) -> Any:
        return self._connection.client

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def read(self, key: str, start: int, end: int) -> ObjectPiece | None:
        """Return the bytes from `start` to before `end`, fewer where the object ends; None where there is none."""
        assert start < end
        operation = f"read {key} from"
        answer = self._ask(
            operation,
            self._client.get_object,
            expected=("NoSuchKey", "InvalidRange"),
            Key=key,
            Range=f"bytes={start}-{end - 1}",
        )
        if isinstance(answer, str):
            return None if answer == "NoSuchKey" else ObjectPiece(b"", 0)
        data = self._body(operation, answer)
        span: str | None = answer.get("ContentRange")
        # A server may send the whole object, without this field.
        return (
            ObjectPiece(data[start:end], len(data)) if span is None else ObjectPiece(data, int(span.rpartition("/")[2]))
        )

    def read_tagged(self, key: str) -> tuple[bytes, str] | None:
        """Return all of an object, and its ETag; None where there is none."""
        operation = f"read {key} from"
        answer = self._ask(operation, self._client.get_object, expected=("NoSuchKey",), Key=key)
        if isinstance(answer, str):
            return None
        return self._body(operation, answer), answer["ETag"]

    def _body(self, operation: str, answer: dict[str, Any]) -> bytes:
        with self._mapped(operation):
            data: bytes = answer["Body"].read()
        self.requests.note_received("get_object", len(data))
        return data

    def replace(self, key: str, body: bytes, tag: str | None) -> str | None:
        """Write an object if its ETag is this one, or, with None, if there is none.

        Returns:
            The new ETag; None where the condition does not hold.
        """
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        options = self._write_options | condition
        # A 409 is not expected: the object may be as it was, and the request can be repeated.
        expected = ("PreconditionFailed", "NoSuchKey")
        request = self._client.put_object
        answer = self._ask(f"write {key} to", request, expected=expected, Key=key, Body=body, **options)
        return None if isinstance(answer, str) else answer["ETag"]

    def put(self, key: str, body: BinaryIO) -> None:
        """Write an object, whether there is one or not."""
        self._answer(f"write {key} to", self._client.put_object, Key=key, Body=body, **self._write_options)

    def create(self, key: str, body: bytes, *, nonce: str = "") -> bool:
        """Write an object; False where there is one of this key already.

        Args:
            key: Its key.
            body: All of it.
            nonce: Proves later whose object it is: see `nonce_of`.
        """
        return self._put(key, body, IfNoneMatch="*", Metadata={_NONCE: nonce} if nonce else {})

    def _put(self, key: str, body: bytes, **conditions: Any) -> bool:
        options = self._write_options | conditions
        answer = self._ask(
            f"write {key} to",
            self._client.put_object,
            expected=(*_KEY_IS_TAKEN, "NoSuchKey"),
            Key=key,
            Body=body,
            **options,
        )
        return not isinstance(answer, str)

    def nonce_of(self, key: str) -> str:
        """Return the nonce that the object of this key was written with; empty where there is none."""
        answer = self._ask(f"look at {key} in", self._client.head_object, expected=("404", "NoSuchKey"), Key=key)
        return "" if isinstance(answer, str) else str(answer.get("Metadata", {}).get(_NONCE, ""))

    def delete(self, key: str) -> None:
        """Delete an object if there is one."""
        self._ask(f"delete {key} from", self._client.delete_object, expected=("NoSuchKey",), Key=key)

    def delete_all(self, keys: Sequence[str]) -> None:
        """Delete objects, those of them that there are; after a failure some may be deleted."""
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            named = [{"Key": key} for key in keys[first : first + _DELETED_AT_ONCE]]
            request = self._client.delete_objects
            answer = self._answer("delete from", request, Delete={"Objects": named, "Quiet": True})
            refused = [one for one in answer.get("Errors", ()) if one.get("Code") != "NoSuchKey"]
            if refused:
                with self._mapped(f"delete {refused[0].get('Key')} from", getattr(request, "__self__", None)):
                    raise ClientError({"Error": refused[0]}, "DeleteObjects")

    def list(self, prefix: str, *, count_max: int = 1_000) -> Iterator[str]:
        """Give all keys with a prefix, in order; a page of at most `count_max` at a time."""
        return (key for key, _ in self.list_with_ages(prefix, count_max=count_max))

    def list_with_ages(self, prefix: str, *, count_max: int = 1_000) -> Iterator[tuple[str, float]]:
        """Give the same, and how long ago each was written, in seconds by the server's clock."""
        request: dict[str, Any] = {"Prefix": prefix, "MaxKeys": count_max}
        while True:
            page = self._answer("list", self._client.list_objects_v2, **request)
            for found in page.get("Contents", ()):
                yield found["Key"], _age_s(page, found["LastModified"])
            if not page.get("IsTruncated", False):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the next parts of the keys that begin so, up to a slash: a thousand at most."""
        page = self._answer("list", self._client.list_objects_v2, Prefix=prefix, Delimiter="/")
        return [found["Prefix"].removeprefix(prefix).rstrip("/") for found in page.get("CommonPrefixes", ())]

    def expiring_rules(self) -> Sequence[ExpiringRule] | None:
        """Return the rules of the bucket that take objects without tags away; None where it does not tell."""
        answer = self._ask(
            "read the lifecycle rules of",
            self._client.get_bucket_lifecycle_configuration,
            expected=(_NO_RULES, *_RULES_UNTOLD),
        )
        if isinstance(answer, str):
            return [] if answer == _NO_RULES else None
        return [
            ExpiringRule(one.get("ID", "without a name"), filtered.get("Prefix", one.get("Prefix", "")))
            for one in answer.get("Rules", ())
            if one.get("Status") == "Enabled" and _takes_away(one)
            # Of several conditions all must hold.
            for filtered in [one.get("Filter", {}).get("And", one.get("Filter", {}))]
            if not filtered.get("Tag") and not filtered.get("Tags")
        ]

    def begin_upload(self, key: str, *, nonce: str) -> Upload:
        """Begin an object in parts; nothing is visible of it before `complete_upload`."""
        answer = self._answer(
            f"write {key} to",
            self._client.create_multipart_upload,
            Key=key,
            Metadata={_NONCE: nonce},
            **self._write_options,
        )
        return Upload(key, answer["UploadId"])

    def upload_part(self, upload: Upload, number: int, body: bytes) -> str:
        """Send a part, numbered from 1, and return its tag; all but the last have 5 MiB or more."""
        tag: str = self._answer(
            f"write {upload.key} to",
            self._client.upload_part,
            Key=upload.key,
            UploadId=upload.upload_id,
            PartNumber=number,
            Body=body,
        )["ETag"]
        return tag

    def complete_upload(self, upload: Upload, tags: Sequence[str]) -> bool:
        """Make the object visible; False where there is one of this key already.

        Args:
            upload: The result of `begin_upload`.
            tags: Of all parts, in their order.
        """
        answer = self._ask(
            f"write {upload.key} to",
            self._client.complete_multipart_upload,
            expected=_KEY_IS_TAKEN,
            Key=upload.key,
            UploadId=upload.upload_id,
            MultipartUpload={"Parts": [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]},
            IfNoneMatch="*",
        )
        return not isinstance(answer, str)

    def abort_upload(self, upload: Upload) -> None:
        """Forget an upload and its parts; one that is complete or forgotten stays so."""
        self._ask(
            f"abort the upload of {upload.key} in",
            self._client.abort_multipart_upload,
            expected=("NoSuchUpload",),
            Key=upload.key,
            UploadId=upload.upload_id,
        )

    def uploads(self, key: str) -> Iterator[tuple[Upload, float]]:
        """Give all uploads of a key and how long ago each began, in seconds by the server's clock.

        By the whole key, as MinIO lists them in no other way.
        """
        request: dict[str, Any] = {"Prefix": key}
        while True:
            page = self._answer("list uploads in", self._client.list_multipart_uploads, **request)
            for found in page.get("Uploads", ()):
                yield Upload(found["Key"], found["UploadId"]), _age_s(page, found["Initiated"])
            if not page.get("IsTruncated", False):
                return
            request |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _answer(self, operation: str, request: Callable[..., dict[str, Any]], **arguments: Any) -> dict[str, Any]:
        answer = self._ask(operation, request, **arguments)
        assert not isinstance(answer, str)
        return answer

    def _ask(
        self, operation: str, request: Callable[..., dict[str, Any]], *, expected: Sequence[str] = (), **arguments: Any
    ) -> dict[str, Any] | str:
        """Send a request and return the answer, or the code of a refusal that is expected."""
        outcome, begun_s = RequestOutcome.FAILED, time.perf_counter()
        try:
            with self._mapped(operation, getattr(request, "__self__", None)):
                try:
                    answer = request(Bucket=self._bucket, **arguments)
                except ClientError as error:
                    code = _code(error)
                    if code not in expected:
                        raise
                    outcome = RequestOutcome.CONDITION
                    return code
            outcome = RequestOutcome.DONE
            return answer
        except StorageBusyError:
            outcome = RequestOutcome.BUSY
            raise
        finally:
            seconds = time.perf_counter() - begun_s
            self.requests.note(request.__name__, outcome, seconds, _length(arguments.get("Body")))

    @contextmanager
    def _mapped(self, operation: str, client: Any = None) -> Iterator[None]:
        what = f"cannot {operation} the bucket {self._bucket}"
        try:
            yield
        except ClientError as error:
            code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            reason = error.response.get("Error", {}).get("Message") or "no reason given"
            if code in _BUSY_CODES or status == _TOO_MANY_REQUESTS:
                raise StorageBusyError(f"{what}: {code}: {reason}") from error
            is_passing = status >= _SERVER_ERROR or status in _PASSING_STATUSES or code in _DISTURBED_CODES
            if is_passing and code != "NotImplemented":
                raise StorageUnavailableError(f"{what}: {code}: {reason}") from error
            if code in _REFUSED_CREDENTIALS and self._connection.is_renewed(client):
                raise StorageBusyError(f"{what}: {code}: there are other credentials now: try again") from error
            advice = _ADVICE.get(code, "correct credentials, rights, region and endpoint")
            raise StorageAccessError(f"{what}: {code}: {reason}; {advice}") from error
        except _UNREACHED as error:
            raise StorageUnavailableError(f"{what}: {_shown(error)}") from error
        except (BotoCoreError, ValueError) as error:
            # No credentials, half of them, an unknown profile, a malformed endpoint.
            raise StorageAccessError(f"{what}: {_shown(error)}; correct credentials, region and endpoint") from error


def _takes_away(rule: dict[str, Any]) -> bool:
    expiration = rule.get("Expiration", {})
    if "Days" in expiration or "Date" in expiration:
        return True
    return any(one.get("StorageClass") in _ARCHIVES for one in rule.get("Transitions", ()))


def _length(body: bytes | BinaryIO | None) -> int:
    if body is None:
        return 0
    return len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size


def _age_s(answer: dict[str, Any], began: datetime) -> float:
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    # The age may come out below zero: the server's clock is in seconds, and the beginning in milliseconds.
    return max(0.0, (now - began).total_seconds())


def _code(error: ClientError) -> str:
    code: str = error.response.get("Error", {}).get("Code", "")
    return code


def _shown(error: Exception) -> str:
    """Return what an error says, without what stands before the host in a URL of the AWS chain's own settings."""
    return _BEFORE_HOST.sub("//(secret)@", str(error))
