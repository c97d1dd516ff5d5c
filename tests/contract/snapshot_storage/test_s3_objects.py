"""Objects that are created once and deleted together, on S3 and in a folder: what a log on object storage stands on."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from managed_ledger.objects.object_store import FolderObjects, ObjectsBelow, ObjectStore
from snapshot_storage.errors import StorageAccessError, StorageBusyError, StorageUnavailableError
from snapshot_storage.s3.client import S3Client
from snapshot_storage.s3.objects import S3Objects
from snapshot_storage.s3.requests import SECONDS
from tests.helpers.storages.boto_edge import boto_client
from tests.helpers.storages.canned_s3 import CannedAnswer, canned_s3, refusal
from tests.helpers.storages.s3_servers import REAL_SERVERS, MotoServer, S3Server


def no_wait(_: float) -> bool:
    return False


def objects_on(server: S3Server) -> S3Objects:
    return S3Objects(server.config(f"objects/{uuid4().hex}"), no_wait)


@pytest.fixture(params=["folder", "below", "moto", *REAL_SERVERS])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "folder":
            return FolderObjects(tmp_path / "objects")
        case "below":
            return ObjectsBelow(FolderObjects(tmp_path / "objects"), "bundle/0x00000000_0x40000000")
        case "moto":
            return objects_on(request.getfixturevalue("s3_servers")(MotoServer))
        case kind:
            return objects_on(request.getfixturevalue("s3_servers")(kind))


def test_an_object_is_created_once_and_its_own_bytes_are_success(objects: ObjectStore) -> None:
    assert objects.create("log/1", b"one")
    assert objects.create("log/1", b"one")
    assert not objects.create("log/1", b"other")
    found = objects.read("log/1")
    assert found is not None
    assert found[0] == b"one"
    assert objects.replace("log/1", b"two", found[1]) is not None
    assert not objects.create("log/1", b"one")
    objects.delete("log/1")
    assert objects.create("log/1", b"other")


@pytest.mark.parametrize("kind", REAL_SERVERS)
def test_of_eight_creators_at_once_one_wins(kind: type[S3Server], s3_servers: Callable[[type], S3Server]) -> None:
    objects = objects_on(s3_servers(kind))
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(20):

            def create(number: int, name: str = f"log/{round_}") -> bool:
                return objects.create(name, f"{number}".encode())

            assert sum(pool.map(create, range(8))) == 1


def test_objects_are_deleted_together_also_those_that_are_gone(objects: ObjectStore) -> None:
    """More than S3 takes in one request; the last one is in the second."""
    names = [f"log/{number:05}" for number in range(1_001)]
    for name in (names[0], names[500], names[-1], "log/kept"):
        assert objects.create(name, b"x")

    objects.delete_all(names)
    objects.delete_all([])

    assert list(objects.names("log/")) == ["log/kept"]


def test_an_object_that_was_not_deleted_is_an_error() -> None:
    told = b"<DeleteResult><Error><Key>p/a</Key><Code>%s</Code><Message>as told</Message></Error></DeleteResult>"
    for code, error in ((b"AccessDenied", StorageAccessError), (b"InternalError", StorageUnavailableError)):
        with canned_s3(lambda _, code=code: CannedAnswer(200, told % code)) as server:  # type: ignore[misc]
            with pytest.raises(error, match=r"cannot delete p/a from the bucket bucket: .*as told"):
                S3Objects(server.config(), no_wait).delete_all(["a"])
            # What passes by itself is tried again.
            assert (len(server.requests) > 1) == (code == b"InternalError")


@pytest.mark.parametrize("refused", [refusal(409, "ConditionalRequestConflict"), refusal(412, "PreconditionFailed")])
def test_a_refusal_where_no_object_is_found_is_tried_again(refused: CannedAnswer) -> None:
    """Another write was under way, and came to nothing; or the object was deleted meanwhile."""
    answers = iter([refused, refusal(404, "NoSuchKey"), CannedAnswer(200, b"")])
    with canned_s3(lambda _: next(answers)) as server:
        assert S3Objects(server.config(), no_wait).create("log/1", b"one")
    assert [one.partition(" ")[0] for one in server.requests] == ["PUT", "GET", "PUT"]


@pytest.mark.parametrize("refused", [refusal(409, "ConditionalRequestConflict"), refusal(412, "PreconditionFailed")])
def test_a_refusal_that_stays_without_an_object_is_unknown_and_never_anothers(refused: CannedAnswer) -> None:
    def answer(request: str) -> CannedAnswer:
        return refused if request.startswith("PUT") else refusal(404, "NoSuchKey")

    with canned_s3(answer) as server:
        objects = S3Objects(server.config(), no_wait)
        with pytest.raises(StorageBusyError, match="another write was under way"):
            objects.create("log/1", b"one")
        with pytest.raises(StorageBusyError):
            objects.replace("manifest", b"one", None)


def test_a_creation_whose_answer_is_lost_is_found_to_be_made(
    s3_servers: Callable[[type], S3Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, create, losses = objects_on(s3_servers(MotoServer)), S3Client.create, [True]

    def create_without_answer(*args: Any, **options: Any) -> bool:
        made = create(*args, **options)
        if losses and losses.pop():
            raise StorageUnavailableError("no answer")
        return made

    monkeypatch.setattr(S3Client, "create", create_without_answer)
    assert objects.create("log/1", b"one")
    assert losses == []
    assert not objects.create("log/1", b"two")


def test_small_objects_are_sent_without_asking_first_and_files_with(
    s3_servers: Callable[[type], S3Server], tmp_path: Path
) -> None:
    server = s3_servers(MotoServer)
    client, asked = S3Client(server.config(f"objects/{uuid4().hex}")), []
    boto_client(client).meta.events.register(
        "before-send.s3.PutObject", lambda request, **_: asked.append(request.headers.get("Expect"))
    )
    assert client.create("small", b"x")
    (tmp_path / "file").write_bytes(b"x")
    with (tmp_path / "file").open("rb") as file:
        client.put("large", file)
    assert asked == [None, b"100-continue"]


def test_requests_are_counted_with_their_outcomes_and_bytes(s3_servers: Callable[[type], S3Server]) -> None:
    objects = objects_on(s3_servers(MotoServer))
    assert objects.create("log/1", b"four")
    assert not objects.create("log/1", b"other")
    assert objects.read("log/2") is None
    objects.delete_all(["log/1"])

    counts = objects.requests.counts()
    assert counts.requests == {
        ("put_object", "done"): 1,
        ("put_object", "condition"): 1,
        ("get_object", "done"): 1,
        ("get_object", "condition"): 1,
        ("delete_objects", "done"): 1,
    }
    assert counts.sent_bytes == {"put_object": 9}
    assert counts.received_bytes == {"get_object": 4}
    assert {operation: sum(found) for operation, found in counts.seconds.items()} == {
        "put_object": 2,
        "get_object": 2,
        "delete_objects": 1,
    }
    assert all(len(found) == len(SECONDS) + 1 for found in counts.seconds.values())
    assert min(counts.seconds_sum.values()) > 0

    with canned_s3(lambda _: refusal(503, "SlowDown")) as canned:
        busy = S3Objects(canned.config(), no_wait)
        with pytest.raises(StorageBusyError):
            busy.read("log/1")
    assert busy.requests.counts().requests == {("get_object", "busy"): 6}


def test_credentials_that_expire_while_it_runs_are_taken_anew_and_nothing_is_taken_for_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def write(access_key_id: str) -> None:
        file.write_text(f"[default]\naws_access_key_id={access_key_id}\naws_secret_access_key=secret\n")

    def answer(_: str) -> CannedAnswer:
        return refusal(400, "ExpiredToken") if server.access_keys[-1] == "first" else CannedAnswer(200, b"")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write("first")
    with canned_s3(answer) as server:
        objects = S3Objects(replace(server.config(), access_key_id=None, secret_access_key=None), no_wait)
        with pytest.raises(StorageAccessError, match="renew the credentials"):
            objects.create("log/1", b"one")
        write("second")
        assert objects.create("log/1", b"one")
    assert server.access_keys == ["first", "first", "second"]
