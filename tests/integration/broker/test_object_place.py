"""A prefix of a bucket as a service opens it: on servers, and what is said where it cannot be used."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from managed_ledger.bundle_settings import SETTINGS
from managed_ledger.bundles import even_ranges
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import LedgerError, LedgerWriteError, LogFencedError
from postdate.broker.configuration.config import BrokerConfig, load_config
from postdate.broker.errors import ServiceStartError
from postdate.broker.service.object_place import ObjectPlace
from postdate.broker.service.place_check import SECRET
from postdate.demo.process import free_ports
from postdate.index.prefix_place import place_id
from snapshot_storage.s3.objects import S3Objects
from tests.helpers.storages.canned_s3 import CannedAnswer, CannedS3, canned_s3, refusal
from tests.helpers.storages.s3_servers import (
    ACCESS_KEY_ID,
    BUCKET,
    REAL_SERVERS,
    SECRET_ACCESS_KEY,
    MinioServer,
    MotoServer,
    RealServer,
    S3Server,
    keys_under,
)

NOW_MS = 1_000_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[type[S3Server]], S3Server]]:
    running: dict[type[S3Server], S3Server] = {}

    def of(kind: type[S3Server]) -> S3Server:
        if kind not in running:
            folder = tmp_path_factory.mktemp(kind.__name__)
            running[kind] = kind(folder) if issubclass(kind, RealServer) else MotoServer()
        return running[kind]

    yield of
    for server in running.values():
        server.stop()


@pytest.fixture(params=[pytest.param(MotoServer, id="MotoServer"), *REAL_SERVERS])
def server(request: pytest.FixtureRequest, servers: Callable[[type[S3Server]], S3Server]) -> S3Server:
    return servers(request.param)


def config_on(endpoint: str, prefix: str, cache: Path, **changes: str) -> BrokerConfig:
    keys = {
        "dataDirectory": f"s3://{BUCKET}/{prefix}",
        "s3Endpoint": endpoint,
        "s3Region": "us-east-1",
        "s3PathStyle": "true",
        "s3AccessKeyId": ACCESS_KEY_ID,
        "s3SecretAccessKey": SECRET_ACCESS_KEY,
        "cacheDirectory": str(cache),
        **changes,
    }
    return load_config(None, environment={}, overrides=[f"{key}={value}" for key, value in keys.items()])


def test_services_share_a_prefix_each_with_tables_of_its_own(server: S3Server, tmp_path: Path) -> None:
    prefix = f"place/{uuid4().hex}"
    config = config_on(server.endpoint, prefix, tmp_path / "a", s3CommitIntervalMillis="20")

    async def scenario() -> None:
        first = await ObjectPlace.open(config)
        second = await ObjectPlace.open(config_on(server.endpoint, prefix, tmp_path / "b", numberOfBundles="4"))
        assert first.ranges == second.ranges == even_ranges(4)
        bundle = first.ranges[1]
        lost: list[str] = []

        def note_lost() -> None:
            lost.append(threading.current_thread().name)

        log = await first.open_log(bundle, ManagedLedgerConfig(), lambda: NOW_MS, note_lost)
        ledger = await log.open_managed_ledger("t")
        position = await ledger.append(b"x", publish_time_ms=NOW_MS)
        of_log = first.request_counts().sent_bytes["put_object"]
        async with first.snapshots(bundle).storage as snapshots:
            await snapshots.create_bucket_snapshot(b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c")
        assert first.request_counts().sent_bytes["put_object"] > of_log > 0
        assert not lost

        # It cannot write any more, and hears of it.
        first.give_up(bundle)
        with pytest.raises(LedgerWriteError) as caught:
            await ledger.append(b"y", publish_time_ms=NOW_MS)
        assert isinstance(caught.value.__cause__, LogFencedError)
        await asyncio.sleep(0)
        assert lost == [threading.current_thread().name], "on the event loop"
        with suppress(LedgerError):
            await log.close()

        await second.warm(bundle)
        log = await second.open_log(bundle, ManagedLedgerConfig(), lambda: NOW_MS, note_lost)
        assert (await log.open_managed_ledger("t")).last_position == position
        await log.close()
        await first.close()
        await second.close()

        assert (tmp_path / "a" / place_id(config.data_s3) / str(bundle)).is_dir()
        assert (tmp_path / "b" / place_id(config.data_s3) / str(bundle)).is_dir()
        rest = [key.removeprefix(f"{prefix}/") for key in keys_under(server, prefix)]
        assert {SETTINGS, f"bundle/{bundle}/manifest"} < {*rest}
        assert first.secret == second.secret
        assert all(
            one in (SETTINGS, SECRET) or one.startswith((f"bundle/{bundle}/", f"snapshots/{bundle}/")) for one in rest
        )
        assert any(one.startswith("snapshots/") for one in rest)

    asyncio.run(scenario())


def refused(config: BrokerConfig) -> str:
    with pytest.raises(ServiceStartError) as caught:
        asyncio.run(ObjectPlace.open(config))
    assert SECRET_ACCESS_KEY not in str(caught.value)
    return str(caught.value)


def test_what_is_configured_wrongly_is_said_by_name(server: S3Server, tmp_path: Path) -> None:
    prefix = f"place/{uuid4().hex}"
    config = config_on(server.endpoint, prefix, tmp_path / "cache")
    asyncio.run(ObjectPlace.open(config)).objects.close()
    found = keys_under(server, prefix)

    other = config_on(server.endpoint, prefix, tmp_path / "other", clusterName="other")
    assert "belongs to the cluster 'standalone', and clusterName is 'other'" in refused(other)
    above = config_on(server.endpoint, "place", tmp_path / "other")
    assert "has no bundles.json, and other files, such as " in refused(above)
    bucket = config_on(server.endpoint, prefix, tmp_path / "other", dataDirectory="s3://no-such-bucket/p")
    assert "NoSuchBucket" in refused(bucket)
    assert "create the bucket, or correct its name (bucketSnapshotS3Bucket, or in dataDirectory)" in refused(bucket)
    assert "cacheDirectory=" in refused(config), "the first one still has it"
    (tmp_path / "file").touch()
    assert "Set cacheDirectory to" in refused(config_on(server.endpoint, prefix, tmp_path / "file"))
    if not isinstance(server, MotoServer):
        wrong = config_on(server.endpoint, prefix, tmp_path / "other", s3SecretAccessKey="wrong-secret")
        assert "correct the secret access key" in refused(wrong)
    assert keys_under(server, prefix) == found


RULES: dict[str, tuple[dict[str, Any], bool]] = {
    "all": ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 3}}, True),
    "above": ({"Filter": {"Prefix": "place/"}, "Expiration": {"Days": 3}}, True),
    "below": ({"Filter": {"Prefix": "place/mine/bundle/"}, "Expiration": {"Days": 3}}, True),
    "of-old-form": ({"Prefix": "place", "Expiration": {"Days": 3}}, True),
    "off": ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 3}, "Status": "Disabled"}, False),
    "beside": ({"Filter": {"Prefix": "place/mine2"}, "Expiration": {"Days": 3}}, False),
    "tagged": (
        {"Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}, "Expiration": {"Days": 3}},
        False,
    ),
    "versions": ({"Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": {"NoncurrentDays": 3}}, False),
    "archive": ({"Filter": {"Prefix": ""}, "Transitions": [{"Days": 3, "StorageClass": "GLACIER"}]}, True),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_takes_objects_away_is_refused(
    name: str, servers: Callable[[type[S3Server]], S3Server], tmp_path: Path
) -> None:
    rule, is_refused = RULES[name]
    server = servers(MotoServer)
    server.client.put_bucket_lifecycle_configuration(
        Bucket=BUCKET, LifecycleConfiguration={"Rules": [{"ID": name, "Status": "Enabled", **rule}]}
    )
    try:
        objects = S3Objects(server.config("place/mine"), lambda _: True)
        assert objects.expiring_rules() == ([name] if is_refused else [])
        if is_refused:
            assert f"The lifecycle rule {name} of the bucket" in refused(
                config_on(server.endpoint, "place/mine", tmp_path)
            )
    finally:
        server.client.delete_bucket_lifecycle(Bucket=BUCKET)


@pytest.mark.s3_server
def test_minio_tells_its_rules(servers: Callable[[type[S3Server]], S3Server], tmp_path: Path) -> None:
    server = servers(MinioServer)
    rule = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "ruled/"}, "Expiration": {"Days": 3}}
    server.client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]})

    assert "The lifecycle rule old of the bucket" in refused(config_on(server.endpoint, "ruled/mine", tmp_path))


def test_a_server_that_ignores_or_does_not_know_conditions_is_refused(tmp_path: Path) -> None:
    def unconditional(request: str) -> CannedAnswer:
        return refusal(404, "NoSuchLifecycleConfiguration") if "lifecycle" in request else CannedAnswer(200, b"")

    def unknowing(request: str) -> CannedAnswer:
        return refusal(501, "NotImplemented") if request.startswith("PUT") else unconditional(request)

    for answer, said in ((unconditional, "does not keep the condition If-None-Match"), (unknowing, "NotImplemented")):
        with canned_s3(answer) as server:
            assert said in refused(_canned(server, tmp_path))


def test_a_server_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapshot_storage.s3.objects._PAUSE_MS_MIN", 1)
    monkeypatch.setattr("snapshot_storage.s3.objects._PAUSE_MS_MAX", 1)
    (port,) = free_ports(1)
    text = refused(config_on(f"http://127.0.0.1:{port}", "p", tmp_path))
    assert text.startswith(f"dataDirectory=s3://{BUCKET}/p cannot be used: ")


def _canned(server: CannedS3, cache: Path) -> BrokerConfig:
    return config_on(f"http://127.0.0.1:{server.port}", "p", cache)
