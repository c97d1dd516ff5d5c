"""How failures of an S3 server become our errors, each after a single request."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from postdate.demo.process import free_ports
from snapshot_storage.errors import SnapshotStorageError, StorageAccessError, StorageBusyError, StorageUnavailableError
from snapshot_storage.retrying import Retries, RetryingBucketSnapshotStorage
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from tests.helpers.storages.canned_s3 import CannedAnswer, CannedS3, canned_s3, refusal

pytestmark = pytest.mark.slow

_EMPTY_LIST = CannedAnswer(200, b"<ListBucketResult></ListBucketResult>")


def _start_error(config: S3Config) -> SnapshotStorageError:
    with pytest.raises(SnapshotStorageError) as caught:
        asyncio.run(S3BucketSnapshotStorage(config).start())
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", StorageBusyError),
        (429, "AnythingAProxySays", StorageBusyError),
        (500, "InternalError", StorageUnavailableError),
        (503, "ServiceUnavailable", StorageBusyError),
        (400, "RequestTimeout", StorageBusyError),
        (409, "OperationAborted", StorageBusyError),
        (502, "AnythingAProxySays", StorageUnavailableError),
        (408, "AnythingAProxySays", StorageUnavailableError),
        (307, "TemporaryRedirect", StorageUnavailableError),
        (400, "BadDigest", StorageUnavailableError),
        (400, "IncompleteBody", StorageUnavailableError),
        (400, "XAmzContentChecksumMismatch", StorageUnavailableError),
        (400, "XAmzContentSHA256Mismatch", StorageUnavailableError),
    ],
)
def test_what_passes_is_retriable_and_is_asked_once(
    status: int, code: str, kind: type[StorageUnavailableError]
) -> None:
    """A storage does not retry by itself: the tracker knows how patiently. A refusal has had no effect."""
    with canned_s3(lambda _: refusal(status, code)) as server:
        error = _start_error(server.config())

    assert type(error) is kind
    assert str(error) == f"cannot list the bucket bucket: {code}: as told"
    assert len(server.requests) == 1


def test_a_server_that_slows_down_once_ends_no_start() -> None:
    """As a service and the tools open it."""
    answers = iter([refusal(503, "SlowDown"), refusal(503, "SlowDown")])

    async def scenario(config: S3Config) -> None:
        storage = RetryingBucketSnapshotStorage(S3BucketSnapshotStorage(config), Retries(min_ms=1, max_ms=32))
        async with storage:
            assert await storage.list_bucket_snapshots() == []

    with canned_s3(lambda _: next(answers, _EMPTY_LIST)) as server:
        asyncio.run(scenario(server.config()))


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "RequestTimeTooSkewed", "set this machine's clock"),
        (403, "AccessDenied", "allow reading, writing, deleting and listing"),
        (403, "InvalidAccessKeyId", "correct the access key"),
        (403, "SignatureDoesNotMatch", "correct the secret"),
        (400, "ExpiredToken", "renew the credentials"),
        (404, "NoSuchBucket", "create the bucket"),
        (403, "InvalidObjectState", "restore the object from the archive, or drop the snapshot"),
        (400, "AuthorizationHeaderMalformed", "correct bucketSnapshotS3Region"),
        (400, "SomethingNew", "as told"),
    ],
)
def test_what_someone_must_correct_is_not_retriable(status: int, code: str, advice: str) -> None:
    """It says what to do, and is asked once."""
    with canned_s3(lambda _: refusal(status, code)) as server:
        error = _start_error(server.config())

    assert type(error) is StorageAccessError
    assert f"{code}: as told" in str(error)
    assert advice in str(error)
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_unavailable() -> None:
    """No one listens."""
    (port,) = free_ports(1)

    assert type(_start_error(CannedS3(port).config())) is StorageUnavailableError


def test_a_server_that_does_not_answer_in_time_is_unavailable() -> None:
    """It has the request, and says nothing."""
    is_over = threading.Event()

    def wait(_: str) -> CannedAnswer:
        is_over.wait()
        return _EMPTY_LIST

    with canned_s3(wait) as server:
        error = _start_error(server.config(read_timeout_ms=50))
        is_over.set()

    assert type(error) is StorageUnavailableError
    assert len(server.requests) == 1


def test_an_answer_that_is_cut_is_unavailable() -> None:
    """Half an object is no object, and no corruption: the next read may bring it."""

    def answer(request: str) -> CannedAnswer:
        return CannedAnswer(206, b"half", content_length=1_000) if "/p/" in request else _EMPTY_LIST

    async def scenario(config: S3Config) -> None:
        async with S3BucketSnapshotStorage(config) as storage:
            with pytest.raises(StorageUnavailableError):
                await storage.get_bucket_snapshot_head(5)

    with canned_s3(answer) as server:
        asyncio.run(scenario(server.config()))


def test_a_conflict_with_another_writer_never_deletes_what_that_one_wrote() -> None:
    """The key is the other's: a new one is chosen, and nothing is removed."""
    refusals = iter([refusal(409, "ConditionalRequestConflict"), refusal(412, "PreconditionFailed")])

    def answer(request: str) -> CannedAnswer:
        return next(refusals, CannedAnswer(200, b"")) if request.startswith("PUT") else _EMPTY_LIST

    async def scenario(config: S3Config) -> None:
        async with S3BucketSnapshotStorage(config) as storage:
            await storage.create_bucket_snapshot(b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c")

    with canned_s3(answer) as server:
        asyncio.run(scenario(server.config()))

    puts = [request for request in server.requests if request.startswith("PUT")]
    assert len(puts) == len(set(puts)) == 3
    assert not any(request.startswith("DELETE") for request in server.requests)


def test_uploads_that_may_not_be_listed_do_not_stop_the_start() -> None:
    """They cost space, and not every user has the right."""

    async def scenario(config: S3Config) -> None:
        async with S3BucketSnapshotStorage(config) as storage:
            assert await storage.list_bucket_snapshots() == []

    with canned_s3(lambda request: refusal(403, "AccessDenied") if "uploads" in request else _EMPTY_LIST) as server:
        asyncio.run(scenario(server.config()))


def test_recovery_is_parallel_and_never_more_than_allowed() -> None:
    """Three at a time: fewer would never open the gate, more would be seen."""
    gate = threading.Barrier(3)
    lock = threading.Lock()
    inside: list[int] = [0]
    seen: list[int] = []

    def answer(request: str) -> CannedAnswer:
        if "/p/" not in request:
            return _EMPTY_LIST
        with lock:
            inside[0] += 1
            seen.append(inside[0])
        gate.wait(timeout=30)
        with lock:
            inside[0] -= 1
        return refusal(404, "NoSuchKey")

    async def scenario(config: S3Config) -> None:
        async with S3BucketSnapshotStorage(config) as storage:
            heads = [storage.get_bucket_snapshot_head(bucket_id) for bucket_id in range(9)]
            await asyncio.gather(*heads, return_exceptions=True)

    with canned_s3(answer) as server:
        asyncio.run(scenario(server.config(calls_in_flight_max=3)))

    assert len(seen) == 9
    assert max(seen) == 3


def test_credentials_that_expired_are_taken_anew_from_the_file_that_somebody_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a new start; and until then every call says what is wrong."""
    file = tmp_path / "credentials"

    def write(access_key_id: str) -> None:
        file.write_text(f"[default]\naws_access_key_id={access_key_id}\naws_secret_access_key=secret\n")

    def answer(_: str) -> CannedAnswer:
        return refusal(400, "ExpiredToken") if server.access_keys[-1] in expired else _EMPTY_LIST

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    expired: set[str] = set()
    write("first")

    async def scenario() -> None:
        config = replace(server.config(), access_key_id=None, secret_access_key=None)
        async with S3BucketSnapshotStorage(config) as storage:
            assert await storage.list_bucket_snapshots() == []
            expired.add("first")
            for _ in range(3):
                with pytest.raises(StorageAccessError, match="renew the credentials"):
                    await storage.list_bucket_snapshots()
            write("second")
            # Refused for now, so that a caller that tries again tries with the others.
            with pytest.raises(StorageBusyError, match="other credentials"):
                await storage.list_bucket_snapshots()
            assert await storage.list_bucket_snapshots() == []
            expired.add("second")
            write("third")
            async with RetryingBucketSnapshotStorage(storage, Retries(min_ms=1, max_ms=32)) as patient:
                assert await patient.list_bucket_snapshots() == []

    with canned_s3(answer) as server:
        asyncio.run(scenario())
    assert server.access_keys[-1] == "third"
