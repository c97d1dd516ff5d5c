"""A data directory on object storage: how it is written, what the snapshots take from it, and what is refused."""

import re
from pathlib import Path

import pytest

from postdate.broker.cli.service_commands import addresses, warnings_at_start
from postdate.broker.configuration.config import BrokerConfig, ConfigError, load_config
from postdate.broker.configuration.table import config_lines
from postdate.broker.service.snapshot_storages import location_of
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import S3Location

SERVER = ("s3Endpoint=http://127.0.0.1:9000", "s3Region=eu-central-1", "s3PathStyle=true")
KEYS = ("s3AccessKeyId=AKID", "s3SecretAccessKey=tell-no-one")
ON_S3 = ("dataDirectory=s3://bucket/one/two", *SERVER, *KEYS)


def load(*overrides: str) -> BrokerConfig:
    return load_config(None, environment={}, overrides=overrides)


def test_a_prefix_is_a_data_directory_and_its_index_is_beside_it() -> None:
    config = load(*ON_S3)

    assert config.data_directory == S3Location("bucket", "one/two")
    assert config.data_s3 == S3Config(
        bucket="bucket",
        prefix="one/two",
        endpoint="http://127.0.0.1:9000",
        region="eu-central-1",
        is_path_style=True,
        access_key_id="AKID",
        secret_access_key="tell-no-one",
        read_timeout_ms=5_000,
    )
    assert config.snapshot_storage == "s3"
    assert (config.snapshots_s3.bucket, config.snapshots_s3.prefix) == ("bucket", "one/two/snapshots")
    assert config.snapshots_s3.endpoint == "http://127.0.0.1:9000"
    assert config.snapshots_s3.is_path_style
    assert config.snapshots_s3.secret_access_key == "tell-no-one"
    # What waits for receipts is not what waits for snapshots.
    assert config.snapshots_s3.read_timeout_ms == 20_000
    assert addresses(config)["dataDirectory"] == "s3://bucket/one/two"
    assert warnings_at_start(config) == []
    assert (config.object_storage.commit_interval_ms, config.object_storage.lease_s) == (50, 10)


def test_a_place_may_name_its_server_as_locations_do() -> None:
    config = load("dataDirectory=s3://bucket/p?endpoint=http://other:1&path_style=true", "s3Region=eu-central-1")

    assert (config.data_s3.endpoint, config.data_s3.region) == ("http://other:1", "eu-central-1")
    assert config.snapshots_s3.endpoint == "http://other:1"
    assert config.snapshots_s3.is_path_style


def test_snapshots_elsewhere_get_no_credentials_of_the_data() -> None:
    """On another server; on the same one their own keys count before the data's."""
    own = ("bucketSnapshotS3Bucket=mine", "bucketSnapshotS3Prefix=index")
    away = load(*ON_S3, *own, "bucketSnapshotS3Endpoint=http://127.0.0.2:9000", "s3ReadTimeoutMillis=7000").snapshots_s3
    near = load(*ON_S3, *own, "bucketSnapshotS3AccessKeyId=OWN", "bucketSnapshotS3SecretAccessKey=x").snapshots_s3

    assert (away.bucket, away.prefix, away.endpoint) == ("mine", "index", "http://127.0.0.2:9000")
    assert (away.region, away.is_path_style, away.access_key_id, away.secret_access_key) == (None, False, None, None)
    assert away.read_timeout_ms == 7_000
    assert (near.bucket, near.prefix, near.endpoint) == ("mine", "index", "http://127.0.0.1:9000")
    assert (near.access_key_id, near.secret_access_key) == ("OWN", "x")
    assert (near.region, near.is_path_style) == ("eu-central-1", True)


def test_snapshots_of_a_folder_take_the_server_and_no_place() -> None:
    config = load(*SERVER, *KEYS, "bucketSnapshotStorage=s3", "bucketSnapshotS3Bucket=mine")

    assert config.snapshots_s3.prefix == S3Config().prefix
    assert (config.snapshots_s3.endpoint, config.snapshots_s3.access_key_id) == ("http://127.0.0.1:9000", "AKID")
    assert config.data_folder == Path("data")
    assert warnings_at_start(config) == []
    with pytest.raises(ConfigError, match="must be rocksdb or memory where bucketSnapshotS3Bucket is empty"):
        load(*SERVER, "bucketSnapshotStorage=s3")


def test_snapshots_in_memory_stay_there() -> None:
    assert load(*ON_S3, "bucketSnapshotStorage=memory").snapshot_storage == "memory"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://bucket", "must be a folder or s3://BUCKET/PREFIX, with a prefix of its own"),
        ("s3://", "must be a folder or s3://BUCKET/PREFIX: the bucket or the end is none"),
        ("s3://b/p", "and its bucket 3 to 255 letters"),
        ("s3://bucket/a//b", "and its prefix words of letters"),
        ("s3://bucket/p?speed=9", "the option speed is not known"),
        ("gs://bucket/p", "must be a folder or s3://BUCKET/PREFIX"),
    ],
)
def test_what_is_no_place_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        load(f"dataDirectory={text}")
    assert refused.value.key == "dataDirectory"


def test_a_password_in_a_place_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        load("dataDirectory=s3://user:tell-no-one@bucket/p")
    assert "tell-no-one" not in str(refused.value)


def test_what_needs_a_folder_says_so_by_the_key() -> None:
    for use in (lambda: load(*ON_S3).data_folder, lambda: location_of(load(*ON_S3))):
        with pytest.raises(ConfigError, match=r"dataDirectory.*must be a folder for this: `postdate ledger copy`"):
            use()


def test_keys_without_effect_are_named() -> None:
    (of_folder,) = warnings_at_start(load(*SERVER, "bundleLeaseSeconds=2"))
    (of_index,) = warnings_at_start(
        load(*SERVER, "bundleLeaseSeconds=2", "bucketSnapshotStorage=s3", "bucketSnapshotS3Bucket=mine")
    )

    assert of_folder.startswith("s3Endpoint, s3Region, s3PathStyle, bundleLeaseSeconds: without effect")
    assert of_index.startswith("bundleLeaseSeconds: without effect")
    # A whole file of defaults is no reason.
    assert warnings_at_start(load("s3CommitIntervalMillis=50", "s3Endpoint=")) == []


def test_the_disk_that_fills_is_that_of_the_cache(tmp_path: Path) -> None:
    assert load(*ON_S3, f"cacheDirectory={tmp_path}").local_folder == tmp_path
    assert load(f"dataDirectory={tmp_path}").local_folder == tmp_path


def test_what_is_printed_can_be_read_back_and_has_no_secret(tmp_path: Path) -> None:
    config = load(*ON_S3)
    (tmp_path / "printed").write_text(config_lines(config))
    again = load_config(tmp_path / "printed", environment={"s3SecretAccessKey": "tell-no-one"}, overrides=[])

    assert again == config
    assert "tell-no-one" not in f"{config!r} {config_lines(config)}"


def test_workers_on_a_prefix_are_services_of_their_own() -> None:
    said = "must be 1 where dataDirectory is on object storage: start several services on the prefix instead"
    with pytest.raises(ConfigError, match=said) as refused:
        load(*ON_S3, "numberOfWorkers=2")
    assert refused.value.key == "numberOfWorkers"
    assert load("numberOfWorkers=2").worker_count == 2
