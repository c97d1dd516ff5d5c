"""Troubles of object storage alone: races of writers, servers that die, damage in objects, keys of other programs."""

import asyncio
import io
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    StorageAccessError,
    StorageBusyError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from snapshot_storage.objects.format import SnapshotNames
from snapshot_storage.objects.keys import Serials, bucket_id_for
from snapshot_storage.s3.client import S3Client, Upload
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.folder_id import config_of_only_folder
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from snapshot_storage.s3.writing import S3Writing
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.storages.boto_edge import boto_client
from tests.helpers.storages.s3_servers import (
    BUCKET,
    KMS_KEY_ID,
    REAL_SERVERS,
    SECRET_ACCESS_KEY,
    MinioServer,
    MotoServer,
    RealServer,
    S3Server,
    VersityServer,
)
from tests.helpers.storages.snapshot_backends import S3Backend

pytestmark = pytest.mark.slow

_NAMES = SnapshotNames("k", "t", "c")
_LARGE = [b"%d" % k * 3_000_000 for k in range(6)]


async def _create(storage: BucketSnapshotStorage, segments: list[bytes] | None = None) -> int:
    return await storage.create_bucket_snapshot(b"metadata", segments or [b"one", b"two"], **_NAMES._asdict())


class _CountingSerials(Serials):
    """Gives 1, 2, 3, ... to each of its owners alike, as two clocks might."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> int:
        self._count += 1
        return self._count


def _writing(server: S3Server, prefix: str, *, connect: Callable[[S3Config], S3Client] = S3Client) -> S3Writing:
    return S3Writing(connect(server.config(prefix)), prefix, _CountingSerials(), _NAMES)


# Not on moto, which looks whether there is an object of the key and then writes it, in two steps.
@pytest.mark.parametrize("s3_server", REAL_SERVERS, indirect=True)
def test_two_writers_never_share_an_id(s3_server: S3Server) -> None:
    """Six at a time that choose the same ids in the same order: each gets one for itself, three times over."""
    for _ in range(3):
        backend = S3Backend(s3_server)
        writings = [_writing(s3_server, backend.prefix) for _ in range(6)]
        together = threading.Barrier(len(writings))

        def write(number: int, writing: S3Writing, together: threading.Barrier = together) -> int:
            together.wait()
            return writing.write(b"", [b"%d" % number])[0]

        with ThreadPoolExecutor(len(writings)) as threads:
            ids = list(threads.map(write, range(6), writings))

        assert sorted(ids) == [bucket_id_for("t", "c", serial=serial) for serial in range(1, 7)]
        for number, bucket_id in enumerate(ids):
            assert backend.entries(bucket_id) == [b"", b"%d" % number]


def test_a_snapshot_in_parts_takes_no_id_from_another(s3_server: S3Server) -> None:
    """Its id was free when it began. The other one stays what it is; the caller is told to write it again."""
    backend = S3Backend(s3_server)
    made: list[int] = []

    class LateClient(S3Client):
        def begin_upload(self, key: str, *, nonce: str) -> Upload:
            upload = super().begin_upload(key, nonce=nonce)
            made.append(_writing(s3_server, backend.prefix).write(b"", [b"first"])[0])
            return upload

    with pytest.raises(StorageUnavailableError, match=r"another writer made .* first"):
        _writing(s3_server, backend.prefix, connect=LateClient).write(b"metadata", _LARGE)

    assert backend.entries(made[0]) == [b"", b"first"]
    assert backend.ids() == set(made)


def test_the_answer_of_a_write_that_was_lost_costs_no_other_writer(s3_server: S3Server) -> None:
    """Of two that chose the same id: the one whose answer was lost removes what is its own, and only that."""
    for is_lost_before, segments in ((True, [b"small"]), (False, [b"small"]), (True, _LARGE), (False, _LARGE)):
        backend = S3Backend(s3_server)
        unlucky = _writing(s3_server, backend.prefix, connect=partial(_LosingAnswers, is_lost_before=is_lost_before))
        kept = _writing(s3_server, backend.prefix).write(b"", [b"other"])[0] if is_lost_before else None

        with pytest.raises(StorageUnavailableError, match="no answer came"):
            unlucky.write(b"", segments)

        if kept is None:
            assert backend.ids() == set()
        else:
            assert backend.entries(kept) == [b"", b"other"]
            assert backend.ids() == {kept}


class _LosingAnswers(S3Client):
    """Gets no answer when an object becomes visible, before it does or after."""

    def __init__(self, config: S3Config, *, is_lost_before: bool) -> None:
        super().__init__(config)
        self.is_lost_before = is_lost_before

    def create(self, key: str, body: bytes, *, nonce: str = "") -> bool:
        return self._lose(
            lambda: super(_LosingAnswers, self).create(key, body, nonce=nonce), is_of_mark="/uploads/" in key
        )

    def complete_upload(self, upload: Upload, tags: Sequence[str]) -> bool:
        return self._lose(lambda: super(_LosingAnswers, self).complete_upload(upload, tags), is_of_mark=False)

    def _lose(self, make: Callable[[], bool], *, is_of_mark: bool) -> bool:
        if is_of_mark:
            return make()
        if not self.is_lost_before:
            make()
        raise StorageUnavailableError("no answer came")


def test_a_write_that_was_refused_for_now_leaves_nothing_to_remove(moto: S3Server) -> None:
    """503 SlowDown is an answer: the write had no effect, so an abort asks nothing and deletes nothing."""
    backend = S3Backend(moto)
    client = S3Client(moto.config(backend.prefix))
    writing = _writing(moto, backend.prefix, connect=lambda _: client)
    events = boto_client(client).meta.events
    sent: list[str] = []

    def refuse(request: Any, **_: object) -> AWSResponse:
        sent.append(request.method)
        body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
        return AWSResponse(request.url, 503, {}, _Raw(body))

    events.register("before-send.s3.*", refuse)
    with pytest.raises(StorageBusyError, match="SlowDown: Please reduce"):
        writing.write(b"", [b"one"])

    assert sent == ["PUT"]


class _Raw(io.BytesIO):
    """A body as botocore reads one."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.read()


@pytest.mark.parametrize("kind", REAL_SERVERS)
def test_abandoned_uploads_are_removed_at_start_when_they_are_old(kind: type[RealServer], s3_servers: object) -> None:
    """Not those that another one may still be writing, and not by one that only reads."""
    server: S3Server = s3_servers(kind)  # type: ignore[operator]
    backend = S3Backend(server)
    bucket_id = bucket_id_for("t", "c", serial=1)

    class UploadKilled(S3Client):
        """Its process ends before the last call, and so removes nothing."""

        def complete_upload(self, upload: Upload, tags: Sequence[str]) -> bool:
            raise StorageUnavailableError("killed")

        def abort_upload(self, upload: Upload) -> None:
            raise StorageUnavailableError("killed")

    with pytest.raises(StorageUnavailableError, match="killed"):
        _writing(server, backend.prefix, connect=UploadKilled).write(b"", _LARGE)

    async def start(age_s_min: int, *, is_read_only: bool = False) -> int:
        config = server.config(backend.prefix, abandoned_upload_age_s_min=age_s_min)
        async with S3BucketSnapshotStorage(config, is_read_only=is_read_only) as storage:
            assert await storage.list_bucket_snapshots() == []
        return len(backend.uploads_of(bucket_id))

    assert asyncio.run(start(3600)) == 1
    assert asyncio.run(start(0, is_read_only=True)) == 1
    assert asyncio.run(start(0)) == 0
    assert backend.uploads() == []


def test_an_upload_whose_beginning_was_not_answered_is_removed_at_a_later_start(s3_server: S3Server) -> None:
    """No caller knows the id of the upload, so its mark stays after an abort and leads the next start to it."""
    backend = S3Backend(s3_server)

    class Client(S3Client):
        def begin_upload(self, key: str, *, nonce: str) -> Upload:
            super().begin_upload(key, nonce=nonce)
            raise StorageUnavailableError("no answer came")

    writing = _writing(s3_server, backend.prefix, connect=Client)
    with pytest.raises(StorageUnavailableError, match="no answer came"):
        writing.write(b"", _LARGE)
    bucket_id = bucket_id_for("t", "c", serial=1)
    assert len(backend.uploads_of(bucket_id)) == 1

    async def start() -> None:
        async with S3BucketSnapshotStorage(s3_server.config(backend.prefix, abandoned_upload_age_s_min=0)):
            pass

    asyncio.run(start())

    assert backend.uploads_of(bucket_id) == []
    assert backend.uploads() == []


def test_a_read_only_storage_writes_nothing(moto: S3Server) -> None:
    backend = S3Backend(moto)

    async def scenario() -> None:
        async with backend.storage() as storage:
            bucket_id = await _create(storage)
        async with S3BucketSnapshotStorage(moto.config(backend.prefix), is_read_only=True) as storage:
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 9) == [b"one", b"two"]
            with pytest.raises(StorageReadOnlyError):
                await _create(storage)
            with pytest.raises(StorageReadOnlyError):
                await storage.delete_bucket_snapshot(bucket_id)
        assert backend.ids() == {bucket_id}

    asyncio.run(scenario())


def _at(server: S3Server, prefix: str, folder: Path, *, is_read_only: bool = False) -> S3BucketSnapshotStorage:
    return S3BucketSnapshotStorage(server.config(prefix), folder=folder, is_read_only=is_read_only)


def test_no_two_folders_meet_under_a_prefix(s3_server: S3Server, tmp_path: Path) -> None:
    """Each lists, reads and deletes its own; a reader of a folder without snapshots is told so, and makes no id."""
    prefix = S3Backend(s3_server).prefix

    async def scenario() -> None:
        ids = {}
        for name in ("mine", "yours"):
            async with _at(s3_server, prefix, tmp_path / name) as storage:
                ids[name] = await storage.create_bucket_snapshot(
                    name.encode(), [], bucket_key="k", topic_name="t", cursor_name="c"
                )
        for name, bucket_id in ids.items():
            async with _at(s3_server, prefix, tmp_path / name, is_read_only=True) as storage:
                assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [bucket_id]
                assert await storage.get_bucket_snapshot_metadata(bucket_id) == name.encode()
        async with _at(s3_server, prefix, tmp_path / "mine") as storage:
            with pytest.raises(BucketNotFoundError):
                await storage.get_bucket_snapshot_metadata(ids["yours"])
            await storage.delete_bucket_snapshot(ids["yours"])
        async with _at(s3_server, prefix, tmp_path / "yours") as storage:
            assert await storage.get_bucket_snapshot_metadata(ids["yours"]) == b"yours"
        with pytest.raises(StorageAccessError, match="has no snapshots on S3: there is no id in its file snapshots-id"):
            await _at(s3_server, prefix, tmp_path / "new", is_read_only=True).start()
        assert not (tmp_path / "new").exists()

    asyncio.run(scenario())
    with pytest.raises(StorageAccessError, match=r"2 data folders have snapshots under .*: name one of them, as"):
        config_of_only_folder(s3_server.config(prefix))
    found = (tmp_path / "mine" / "snapshots-id").read_text().strip()
    assert config_of_only_folder(s3_server.config(f"{prefix}/{found}")).prefix == f"{prefix}/{found}"


def test_a_copied_folder_has_the_snapshots_of_the_original_until_it_gets_an_id_of_its_own(
    moto: S3Server, tmp_path: Path
) -> None:
    """By removing the file; a damaged one is as good as none, and says so."""
    prefix = S3Backend(moto).prefix

    async def listed(name: str) -> int:
        async with _at(moto, prefix, tmp_path / name) as storage:
            return len(await storage.list_bucket_snapshots())

    async def scenario() -> None:
        async with _at(moto, prefix, tmp_path / "one") as storage:
            await storage.create_bucket_snapshot(b"", [], bucket_key="k", topic_name="t", cursor_name="c")
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        assert await listed("two") == 1
        (tmp_path / "two" / "snapshots-id").unlink()
        assert await listed("two") == 0
        (tmp_path / "two" / "snapshots-id").write_bytes(b"\xff\xfe damaged")
        assert await listed("two") == 0
        assert await listed("one") == 1

    asyncio.run(scenario())
    ids = {(tmp_path / name / "snapshots-id").read_text().strip() for name in ("one", "two")}
    assert len(ids) == 2
    assert all(len(one) == 32 for one in ids)


def test_an_id_that_cannot_be_made_is_an_error_with_the_path(moto: S3Server, tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnavailableError, match=r"cannot use .*snapshots-id"):
        asyncio.run(_at(moto, S3Backend(moto).prefix, tmp_path / "file" / "data").start())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param(MotoServer, {"server_side_encryption": "AES256"}, id="moto-AES256"),
        pytest.param(MotoServer, {"server_side_encryption": "aws:kms", "kms_key_id": KMS_KEY_ID}, id="moto-kms"),
        pytest.param(MinioServer, {"server_side_encryption": "AES256"}, id="MinIO-AES256", marks=pytest.mark.s3_server),
        pytest.param(
            MinioServer,
            {"server_side_encryption": "aws:kms", "kms_key_id": KMS_KEY_ID},
            id="MinIO-kms",
            marks=pytest.mark.s3_server,
        ),
    ],
)
def test_what_is_to_be_encrypted_reaches_the_server_so(
    kind: type[S3Server], settings: dict[str, str], s3_servers: object
) -> None:
    """In the headers of every request that makes an object, at once or in parts, and as the server keeps it."""
    server: S3Server = s3_servers(kind)  # type: ignore[operator]
    backend = S3Backend(server)
    asked: list[tuple[str | None, str | None]] = []

    async def scenario() -> list[int]:
        async with backend.storage(**settings) as storage:

            def note(request: Any, **_: object) -> None:
                names = ("x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id")
                found = [request.headers.get(name) for name in names]
                asked.append(tuple(one.decode() if isinstance(one, bytes) else one for one in found))

            for operation in ("PutObject", "CreateMultipartUpload"):
                boto_client(storage).meta.events.register(f"before-send.s3.{operation}", note)
            ids = [await _create(storage), await _create(storage, _LARGE)]
            assert await storage.get_bucket_snapshot_segment(ids[1], 1, 9) == _LARGE
            return ids

    ids = asyncio.run(scenario())
    # One object at once; the mark of an upload, and the upload.
    assert asked == [(settings["server_side_encryption"], settings.get("kms_key_id"))] * 3
    for bucket_id in ids:
        head = server.client.head_object(Bucket=BUCKET, Key=backend.keys()[bucket_id])
        assert head["ServerSideEncryption"] == settings["server_side_encryption"]


@pytest.mark.parametrize("kind", REAL_SERVERS)
@pytest.mark.parametrize("wait_s", [0, 0.02, 0.05])
def test_kill_9_of_the_server_amid_an_upload_leaves_nothing(
    kind: type[RealServer], wait_s: float, tmp_path: Path
) -> None:
    """Before the first part and amid them: nothing is visible, nothing is half, and the next snapshot is stored."""
    server = kind(tmp_path)
    backend = S3Backend(server)

    async def scenario() -> None:
        async with backend.storage() as storage:
            kept = await _create(storage)
            sending = asyncio.ensure_future(_create(storage, _LARGE * 8))
            await asyncio.sleep(wait_s)
            server.kill()
            await asyncio.gather(sending, return_exceptions=True)
            assert isinstance(sending.exception(), StorageUnavailableError)
            with pytest.raises(StorageUnavailableError):
                await storage.list_bucket_snapshots()

            server.start()
            assert [info.bucket_id for info in await storage.list_bucket_snapshots("t", "c")] == [kept]
            after = await _create(storage, _LARGE)
            assert await storage.get_bucket_snapshot_segment(after, 1, 99) == _LARGE
        async with backend.storage() as storage:
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [kept, after]
        assert backend.ids() == {kept, after}
        assert backend.entries(kept) == [b"metadata", b"one", b"two"]

    try:
        asyncio.run(scenario())
    finally:
        server.stop()


@pytest.fixture
def moto(s3_servers: object) -> S3Server:
    return s3_servers(MotoServer)  # type: ignore[operator, no-any-return]


async def _damage_seen(storage: S3BucketSnapshotStorage, bucket_id: int) -> set[tuple[int | None, int | None]]:
    """Return where what all reads together report lies: bucket and entry."""
    places: set[tuple[int | None, int | None]] = set()
    for read in (
        storage.get_bucket_snapshot_segment(bucket_id, 1, 9),
        storage.get_bucket_snapshot_head(bucket_id),
    ):
        try:
            await read
        except SnapshotCorruptedError as error:
            places.add((error.bucket_id, error.entry))
    return places


def test_any_damage_to_an_object_is_corruption(moto: S3Server) -> None:
    """A flipped bit in every byte, a cut, an appendix: reported with the bucket, and with the entry if it is in one."""
    backend = S3Backend(moto)

    async def scenario() -> None:
        async with backend.storage() as storage:
            bucket_id = await _create(storage)
        key = backend.keys()[bucket_id]
        whole = moto.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        starts = [len(whole) - 14, len(whole) - 6, len(whole) - 3]
        # No head of the object is kept: it would hide the damage from the next round.
        async with backend.storage(table_cache_bytes=0) as storage:
            for offset in range(len(whole)):
                flipped = bytearray(whole)
                flipped[offset] ^= 1 << offset % 8
                moto.client.put_object(Bucket=BUCKET, Key=key, Body=bytes(flipped))
                entry = max((k for k, start in enumerate(starts) if start <= offset), default=None)
                assert await _damage_seen(storage, bucket_id) == {(bucket_id, entry)}
            for damaged in (b"", whole[:10], whole[:-1], whole + b"\0"):
                moto.client.put_object(Bucket=BUCKET, Key=key, Body=damaged)
                assert await _damage_seen(storage, bucket_id) == {(bucket_id, None)}
                with pytest.raises(SnapshotCorruptedError):
                    await storage.get_bucket_snapshot_length(bucket_id)
            moto.client.put_object(Bucket=BUCKET, Key=key, Body=whole)
            assert (await storage.get_bucket_snapshot_head(bucket_id)).metadata == b"metadata"
        async with backend.storage() as storage:
            await storage.get_bucket_snapshot_head(bucket_id)
            # Damaged since its head was read.
            moto.client.put_object(Bucket=BUCKET, Key=key, Body=whole[:-1])
            with pytest.raises(SnapshotCorruptedError, match="entry 2 of"):
                await storage.get_bucket_snapshot_segment(bucket_id, 2, 2)

    asyncio.run(scenario())


@pytest.mark.s3_server
def test_a_flipped_bit_on_the_disk_of_the_server_is_corruption(s3_servers: object) -> None:
    """In the file of an object that the server keeps a checksum of, which does not fit any more; each byte in turn."""
    server: VersityServer = s3_servers(VersityServer)  # type: ignore[operator]
    backend = S3Backend(server)

    async def scenario() -> None:
        async with backend.storage() as storage:
            bucket_id = await _create(storage)
        file = server.file_of(backend.keys()[bucket_id])
        whole = file.read_bytes()
        starts = [len(whole) - 14, len(whole) - 6, len(whole) - 3]
        async with backend.storage(table_cache_bytes=0) as storage:
            for offset in range(len(whole)):
                flipped = bytearray(whole)
                flipped[offset] ^= 1 << offset % 8
                file.write_bytes(flipped)
                entry = max((k for k, start in enumerate(starts) if start <= offset), default=None)
                assert await _damage_seen(storage, bucket_id) == {(bucket_id, entry)}
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        async with backend.storage() as storage:
            assert [type(error) for error in await storage.find_damage()] == [SnapshotCorruptedError]

    asyncio.run(scenario())


def test_a_list_goes_on_where_headers_are_damaged_and_all_of_them_are_named(
    moto: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    backend = S3Backend(moto)

    async def scenario() -> None:
        async with backend.storage() as storage:
            ids = [await _create(storage) for _ in range(4)]
        keys = backend.keys()
        for bucket_id in ids[1:3]:
            moto.client.put_object(Bucket=BUCKET, Key=keys[bucket_id], Body=b"POSTDATE and nothing else")
        async with backend.storage() as storage:
            found = [getattr(error, "bucket_id", None) for error in await storage.find_damage()]
            assert found == ids[1:3]
            for names in ((), ("t",), ("t", "c")):
                assert [info.bucket_id for info in await storage.list_bucket_snapshots(*names)] == [ids[0], ids[3]]
        assert f"left out of a list of snapshots: snapshot of bucket {ids[1]} is corrupt" in caplog.text

    asyncio.run(scenario())


def test_other_peoples_keys_are_left_alone(moto: S3Server) -> None:
    """Keys of other programs are not listed, read or deleted, even if they look like snapshots."""
    backend = S3Backend(moto)
    strange = ["README", "1234/5/00000000abc.bak", "1234/5/0", "8234/5/00000000abc", "snapshots/1234/5/00000000abc"]
    for key in strange:
        moto.client.put_object(Bucket=BUCKET, Key=f"{backend.prefix}/{key}", Body=b"mine")

    async def scenario() -> None:
        async with backend.storage() as storage:
            bucket_id = await _create(storage)
            assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [bucket_id]
            await storage.delete_bucket_snapshot(bucket_id)

    asyncio.run(scenario())
    found = moto.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{backend.prefix}/")["Contents"]
    assert sorted(one["Key"] for one in found) == sorted(f"{backend.prefix}/{key}" for key in strange)


def test_a_list_is_read_page_by_page(s3_server: S3Server) -> None:
    """All keys, in order, with pages of any size."""
    backend = S3Backend(s3_server)
    client = S3Client(s3_server.config(backend.prefix))
    keys = [f"{backend.prefix}/{number:03}" for number in range(10)]
    for key in keys:
        assert client.create(key, b"")

    for count_max in (1, 3, 5, 10, 1_000):
        assert list(client.list(f"{backend.prefix}/", count_max=count_max)) == keys


def _count_calls(storage: S3BucketSnapshotStorage, calls: list[str]) -> None:
    boto_client(storage).meta.events.register("before-send.s3.*", lambda **_: calls.append("call"))


def test_each_read_is_one_call(moto: S3Server) -> None:
    """A head; a segment whose head was read; a create; a list of what is known. Of an unread one it is two."""
    backend = S3Backend(moto)
    calls: list[str] = []

    async def counted(storage: S3BucketSnapshotStorage, call: str, *arguments: object) -> int:
        calls.clear()
        await getattr(storage, call)(*arguments)
        return len(calls)

    async def scenario() -> None:
        async with backend.storage() as storage:
            _count_calls(storage, calls)
            bucket_id = await _create(storage, [b"x" * 100_000] * 3)
            assert len(calls) == 1
            assert await counted(storage, "get_bucket_snapshot_segment", bucket_id, 2, 2) == 1
            large = await _create(storage, [b"%d" % k * 100 for k in range(20_000)])
        async with backend.storage() as storage:
            _count_calls(storage, calls)
            assert await counted(storage, "get_bucket_snapshot_segment", bucket_id, 2, 2) == 2
            assert await counted(storage, "get_bucket_snapshot_segment", bucket_id, 3, 3) == 1
        async with backend.storage() as storage:
            _count_calls(storage, calls)
            assert await counted(storage, "get_bucket_snapshot_head", bucket_id) == 1
            assert await counted(storage, "get_bucket_snapshot_segment", bucket_id, 1, 3) == 1
            # Where each of 20,000 segments lies does not fit into what is read first.
            assert await counted(storage, "get_bucket_snapshot_head", large) == 2 + 1
            assert await counted(storage, "get_bucket_snapshot_segment", large, 5, 500) == 1
            assert await counted(storage, "list_bucket_snapshots") == 1
            assert await counted(storage, "delete_bucket_snapshot", bucket_id) == 1

    asyncio.run(scenario())


def test_what_is_remembered_of_objects_is_bounded(moto: S3Server) -> None:
    """Reads go on when it is forgotten, with one call more."""
    backend = S3Backend(moto)

    async def scenario() -> None:
        async with backend.storage(table_cache_bytes=3_000) as storage:
            ids = [await _create(storage, [b"%d" % k for k in range(100)]) for _ in range(10)]
            for bucket_id in ids * 2:
                assert await storage.get_bucket_snapshot_segment(bucket_id, 7, 8) == [b"6", b"7"]
            calls: list[str] = []
            _count_calls(storage, calls)
            costs = []
            for bucket_id in reversed(ids):
                calls.clear()
                await storage.get_bucket_snapshot_segment(bucket_id, 7, 8)
                costs.append(len(calls))
            assert costs == [1] * 2 + [2] * 8

    asyncio.run(scenario())


def test_no_secret_is_logged(moto: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """At any level, also by boto3, also in errors; a token neither."""
    caplog.set_level(logging.DEBUG)
    backend = S3Backend(moto)
    said: list[str] = []

    async def scenario() -> None:
        async with backend.storage(session_token="lent-for-a-time") as storage:
            bucket_id = await _create(storage, _LARGE)
            await storage.get_bucket_snapshot_head(bucket_id)
            said.append(repr(moto.config(backend.prefix, session_token="lent-for-a-time")))
        with pytest.raises(SnapshotStorageError) as caught:
            await backend.storage(bucket="no-such-bucket").start()
        said.append(f"{caught.value!r} {caught.value.__cause__!r}")

    asyncio.run(scenario())
    assert "lent-for-a-time" not in caplog.text + "".join(said)
    assert SECRET_ACCESS_KEY not in caplog.text + "".join(said)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"secret_access_key": "wrong-secret"}, "correct the secret access key"),
        ({"access_key_id": "nobody-knows-me"}, r"correct (the access key|credentials)"),
        ({"bucket": "no-such-bucket"}, "create the bucket, or correct its name"),
    ],
)
@pytest.mark.parametrize("kind", REAL_SERVERS)
def test_what_is_configured_wrongly_is_said_at_start(
    kind: type[RealServer], changes: dict[str, str], reason: str, s3_servers: object
) -> None:
    """By the server, in our words, and without the secret."""
    server: S3Server = s3_servers(kind)  # type: ignore[operator]

    with pytest.raises(StorageAccessError, match=reason) as caught:
        asyncio.run(S3BucketSnapshotStorage(server.config("p", **changes)).start())

    assert "wrong-secret" not in str(caught.value)
    assert not caught.value.retriable


def test_a_password_in_the_chains_own_endpoint_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boto3 takes it from the environment, and names it when no server answers."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hush@127.0.0.1:1")
    config = S3Config(bucket=BUCKET, region="us-east-1", access_key_id="a", secret_access_key="b")

    with pytest.raises(StorageUnavailableError, match=r"127\.0\.0\.1:1") as raised:
        asyncio.run(S3BucketSnapshotStorage(config).start())

    assert "hush" not in str(raised.value)
