"""The configuration: where values come from, what is refused, and how that is said."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dispatcher.core.multiple_consumers import MultipleConsumersCore
from postdate.broker.configuration.config import BrokerConfig, ConfigError, load_config, settings
from postdate.broker.configuration.sources import misspelt_in_environment
from postdate.broker.configuration.table import config_lines
from postdate.broker.configuration.text import check_unknown_key, parse_config_text
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from tests.helpers.fakes.service_fakes import Peer, open_service
from tracker.config import BUCKET_FACTORY, IN_MEMORY_FACTORY

REPOSITORY = Path(__file__).parents[4]
PULSAR_FILE = REPOSITORY / "tests/golden/pulsar_config/broker-4.2.4.conf"
JAVA_PACKAGE = "org.apache.pulsar.broker.delayed"

# One value per key that may not be: (text, what the error says is allowed).
REFUSED = {
    "bindAddress": ("a..b", "must be a host name or an address"),
    "insecureBindAllowed": ("yes", "must be true or false"),
    "brokerServicePort": ("65536", "must be from 1 to 65535"),
    "brokerServicePortTls": ("6651", "must be empty where tlsCertificateFilePath and tlsKeyFilePath are"),
    "webServicePort": ("0", "must be from 1 to 65535"),
    "webServicePortTls": ("8443", "must be empty where tlsCertificateFilePath and tlsKeyFilePath are"),
    "tlsCertificateFilePath": ("server.pem", "must be set together with tlsKeyFilePath"),
    "tlsKeyFilePath": ("server.key", "must be set together with tlsCertificateFilePath"),
    "tlsTrustCertsFilePath": ("~nobody-of-this-name/ca.pem", "must be a path"),
    "tlsRequireTrustedClientCertOnConnect": ("true", "must be false while tlsTrustCertsFilePath names no authority"),
    "tlsProtocols": ("TLSv1.1", "must be TLSv1.3 or TLSv1.2 or both"),
    "tlsCertRefreshCheckDurationSec": ("-1", "must be from 0 to 2147483647"),
    "advertisedAddress": ("x" * 70, "must be a host name or an address"),
    "clusterAddress": ("0.0.0.0", "must be one host that clients can connect to"),
    "authenticationEnabled": ("true", "must be set together with a way to authenticate: authenticationProviders="),
    "authenticationProviders": ("com.example.Provider", "must be of org.apache.pulsar.broker.authentication."),
    "tokenSecretKey": ("tell-no-one\0", "must be text without NUL characters"),
    "tokenPublicKey": ("file:///key\0", "must be text without NUL characters"),
    "tokenPublicAlg": ("HS256", "must be one of RS256, "),
    "tokenAuthClaim": ("sub\0", "must be text without NUL characters"),
    "tokenAudienceClaim": ("aud", "must be set together with tokenAudience"),
    "tokenAudience": ("postdate", "must be set together with tokenAudienceClaim"),
    "tokenAllowedClockSkewSeconds": ("-1", "must be from 0 to 86400"),
    "authenticationRefreshCheckSeconds": ("0", "must be from 1 to 86400"),
    "anonymousUserRole": ("guest\0", "must be text without NUL characters"),
    "authenticateMetricsEndpoint": ("yes", "must be true or false"),
    "authorizationEnabled": ("true", "must be set together with authenticationEnabled=true"),
    "superUserRoles": ("admin\0", "must be text without NUL characters"),
    "clusterName": ("a\0b", "must be text without NUL characters"),
    "dataDirectory": ("~nobody-of-this-name/data", "must be a path"),
    "numberOfBundles": ("0", "must be from 1 to 256"),
    "s3Endpoint": ("localhost:9000", "must be a URL that begins with http:// or https://"),
    "s3Region": ("eu central", "must be a name such as eu-central-1"),
    "s3PathStyle": ("yes", "must be true or false"),
    "s3AccessKeyId": ("AKID", "must be set together with s3SecretAccessKey"),
    "s3SecretAccessKey": ("tell-no-one", "must be set together with s3AccessKeyId"),
    "s3SessionToken": ("tell-no-one", "must be set together with s3AccessKeyId"),
    "s3ServerSideEncryption": ("rot13", "must be AES256 or aws:kms or aws:kms:dsse"),
    "s3KmsKeyId": ("key", "must be set together with s3ServerSideEncryption aws:kms"),
    "s3ConnectTimeoutMillis": ("0", "must be from 1 to 3600000"),
    "s3ReadTimeoutMillis": ("0", "must be from 1 to 3600000"),
    "s3CommitIntervalMillis": ("-1", "must be from 0 to 60000"),
    "bundleLeaseSeconds": ("0", "must be from 1 to 3600"),
    "cacheDirectory": ("~nobody-of-this-name/cache", "must be a path"),
    "numberOfWorkers": ("257", "must be from 1 to 256"),
    "bucketSnapshotStorage": ("s4", "must be rocksdb or s3 or memory"),
    "bucketSnapshotS3Bucket": ("a", "must be 3 to 255 letters, digits, "),
    "bucketSnapshotS3Prefix": ("/a/", "must be words of letters, digits"),
    "bucketSnapshotS3Endpoint": ("localhost:9000", "must be a URL that begins with http:// or https://"),
    "bucketSnapshotS3Region": ("eu central", "must be a name such as eu-central-1"),
    "bucketSnapshotS3PathStyle": ("yes", "must be true or false"),
    "bucketSnapshotS3AccessKeyId": ("AKID", "must be set together with bucketSnapshotS3SecretAccessKey"),
    "bucketSnapshotS3SecretAccessKey": ("tell-no-one", "must be set together with bucketSnapshotS3AccessKeyId"),
    "bucketSnapshotS3SessionToken": ("tell-no-one", "must be set together with bucketSnapshotS3AccessKeyId"),
    "bucketSnapshotS3ServerSideEncryption": ("rot13", "must be AES256 or aws:kms or aws:kms:dsse"),
    "bucketSnapshotS3KmsKeyId": ("key", "must be set together with bucketSnapshotS3ServerSideEncryption aws:kms"),
    "bucketSnapshotS3ConnectTimeoutMillis": ("0", "must be from 1 to 3600000"),
    "bucketSnapshotS3ReadTimeoutMillis": ("0", "must be from 1 to 3600000"),
    "bucketSnapshotS3MaxCallsInFlight": ("1001", "must be from 1 to 1000"),
    "bucketSnapshotS3HeadBytes": ("1023", "must be from 1024 to 67108864"),
    "bucketSnapshotRocksDBWriteBufferSizeMB": ("0", "must be 1 or more"),
    "bucketSnapshotRocksDBBlockCacheSizeMB": ("-1", "must be 1 or more"),
    "maxMessageSize": ("0", "must be from 1 to"),
    "maxMessagePublishBufferSizeInMB": ("2147483648", "must be from -2147483648 to 2147483647"),
    "keepAliveIntervalSeconds": ("2147483648", "must be from -2147483648 to 2147483647"),
    "connectionLivenessCheckTimeoutMillis": ("-1", "must be from 0 to 3600000"),
    "ttlDurationDefaultInSeconds": ("9223372036854775807", "must be from -9223372036854775 to 9223372036854775"),
    "messageExpiryCheckIntervalInMinutes": ("2147483648", "must be from -2147483648 to 2147483647"),
    "retentionCheckIntervalInSeconds": ("2147483648", "must be from -2147483648 to 2147483647"),
    "statsUpdateFrequencyInSecs": ("-2147483649", "must be from -2147483648 to 2147483647"),
    "unsupportedConfigIgnored": ("1", "must be true or false"),
    "logFormat": ("xml", "must be text or json"),
    "trailMaxEntries": ("-1", "must be from 0 to 100000"),
    "exposeTopicLevelMetricsInPrometheus": ("yes", "must be true or false"),
    "exposeConsumerLevelMetricsInPrometheus": ("yes", "must be true or false"),
    "brokerMaxConnections": ("-1", "must be from 0 to 2147483647"),
    "brokerMaxConnectionsPerIp": ("2147483648", "must be from 0 to 2147483647"),
    "maxHttpServerConnections": ("-1", "must be from 0 to 2147483647"),
    "connectTimeoutSeconds": ("0", "must be from 1 to 3600"),
    "maxTopicsPerNamespace": ("-1", "must be from 0 to 2147483647"),
    "maxProducersPerTopic": ("-1", "must be from 0 to 2147483647"),
    "maxSubscriptionsPerTopic": ("-1", "must be from 0 to 2147483647"),
    "maxConsumersPerTopic": ("-1", "must be from 0 to 2147483647"),
    "maxConsumersPerSubscription": ("-1", "must be from 0 to 2147483647"),
    "brokerDeduplicationEnabled": ("yes", "must be true or false"),
    "brokerDeduplicationMaxNumberOfProducers": ("0", "must be from 1 to 2147483647"),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": ("0", "must be from 1 to 2147483647"),
    "brokerDeleteInactiveTopicsEnabled": ("yes", "must be true or false"),
    "brokerDeleteInactiveTopicsFrequencySeconds": ("0", "must be from 1 to 2147483647"),
    "brokerDeleteInactiveTopicsMode": ("delete_now", "must be delete_when_no_subscriptions or"),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": ("0", "must be from 1 to 2147483647"),
    "managedLedgerMaxEntriesPerLedger": ("0", "must be at least 1"),
    "managedLedgerMaxSizePerLedgerMbytes": ("0", "must be at least 1"),
    "managedLedgerMaxLedgerRolloverTimeMinutes": ("0", "must be at least 1"),
    "managedLedgerCacheSizeMB": ("-1", "must be at least 0"),
    "delayedDeliveryEnabled": ("yes", "must be true or false"),
    "delayedDeliveryTrackerFactoryClassName": ("com.example.Tracker", "must be one of"),
    "delayedDeliveryTickTimeMillis": ("-1", "must be at least 0"),
    "isDelayedDeliveryDeliverAtTimeStrict": ("1", "must be true or false"),
    "delayedDeliveryMaxDelayInMillis": ("-1", "must be at least 0"),
    "delayedDeliveryFixedDelayDetectionLookahead": ("-1", "must be at least 0"),
    "delayedDeliveryMinIndexCountPerBucket": ("0", "must be at least 1"),
    "delayedDeliveryMaxIndexCountPerBucket": ("0", "must be at least 1, or -1 for no limit"),
    "delayedDeliveryMinIndexCountAtClose": ("-2", "must be at least 0, or -1"),
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": ("-1", "must be at least 0"),
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": ("0", "must be at least 1, or -1 for no limit"),
    "delayedDeliveryMaxNumBuckets": ("many", "must be a whole number"),
    "delayedDeliverySharedIndexEnabled": ("on", "must be true or false"),
    "delayedDeliverySegmentPrefetchMillis": ("-1", "must be at least 0"),
    "delayedDeliveryMaxLoadedIndexes": ("0", "must be at least 1"),
    "delayedDeliveryMaxUnsealedIndexes": ("0", "must be at least 1"),
    "delayedDeliveryMaxOrderWaitMillis": ("-2", "must be at least 0, or -1"),
    "delayedDeliveryRetryBackoffMinMillis": ("0", "must be at least 1"),
    "delayedDeliveryRetryBackoffMaxMillis": ("1", "must be at least delayedDeliveryRetryBackoffMinMillis (100)"),
    "delayedDeliveryOperationTimeoutMillis": ("0", "must be at least 1"),
    "delayedDeliveryMaxOperationsInFlight": ("0", "must be at least 1"),
    "delayedDeliveryCloseTimeoutMillis": ("-1", "must be at least 0"),
    "subscriptionKeySharedOrderingMode": ("classic", "must be draining_hashes or last_sent_position"),
    "subscriptionKeySharedUseClassicPersistentImplementation": ("no", "must be true or false"),
    "keySharedUnblockingIntervalMs": ("-1", "must be at least 0"),
    "subscriptionKeySharedUseConsistentHashing": ("no", "must be true or false"),
    "subscriptionKeySharedConsistentHashingReplicaPoints": ("65536", "must be from 1 to 65535"),
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": ("-1", "must be at least 0"),
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": ("-1", "must be at least 0"),
    "keySharedLookAheadMsgInReplayThresholdPerHash": ("0", "must be at least 1"),
    "keySharedLookAheadMsgParkedThreshold": ("-1", "must be at least 0"),
    "dispatcherMaxReadBatchSize": ("0", "must be at least 1"),
    "dispatcherMaxReadSizeBytes": ("0", "must be at least 1"),
    "dispatcherMaxRoundRobinBatchSize": ("0", "must be at least 1"),
    "dispatcherReadFailureBackoffInitialTimeInMs": ("-1", "must be at least 0"),
    "dispatcherReadFailureBackoffMaxTimeInMs": (
        "99",
        "must be at least dispatcherReadFailureBackoffInitialTimeInMs (100)",
    ),
    "maxUnackedMessagesPerConsumer": ("-1", "must be at least 0"),
    "maxUnackedMessagesPerSubscription": ("-1", "must be at least 0"),
}


def load(
    text: str | None = None,
    *,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> BrokerConfig:
    path = None
    if text is not None:
        assert folder is not None
        path = folder / "broker.conf"
        path.write_text(text)
    return load_config(path, environment=environment or {}, overrides=overrides)


def test_an_advertised_address_is_one_that_clients_can_connect_to(tmp_path: Path) -> None:
    for address in ("0.0.0.0", "::"):
        with pytest.raises(ConfigError, match="must be one host that clients can connect to"):
            load("", folder=tmp_path, overrides=[f"advertisedAddress={address}"])


def test_overrides_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = "brokerServicePort=1001\nwebServicePort=1002\nclusterName=file\nmaxMessageSize=5\n"
    environment = {"webServicePort": "2002", "clusterName": "plain", "PULSAR_PREFIX_clusterName": "prefixed"}

    config = load(file, folder=tmp_path, environment=environment, overrides=["webServicePort=3", "webServicePort=4"])

    assert (config.service_port, config.web_port, config.cluster_name) == (1001, 4, "prefixed")
    assert config.message_size_max == 5


def test_units_are_converted_once_at_reading() -> None:
    config = load(
        overrides=[
            "managedLedgerMaxSizePerLedgerMbytes=3",
            "bucketSnapshotRocksDBBlockCacheSizeMB=5",
            "managedLedgerMaxLedgerRolloverTimeMinutes=2",
            "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=7",
            "ttlDurationDefaultInSeconds=9",
            "messageExpiryCheckIntervalInMinutes=4",
        ]
    )

    assert config.managed_ledger.ledger_bytes_max == 3 * 2**20
    assert config.managed_ledger.rollover_time_ms == 120_000
    assert config.rocksdb.block_cache_bytes == 5 * 2**20
    assert config.tracker.segment_step_ms_max == 7_000
    assert config.ttl_ms == 9_000
    assert config.expiry_check_interval_s == 240


def test_an_empty_value_means_the_default() -> None:
    environment = {"keepAliveIntervalSeconds": "7", "advertisedAddress": ""}

    config = load(environment=environment, overrides=["keepAliveIntervalSeconds="])

    assert config == BrokerConfig()


def test_an_empty_port_is_no_port() -> None:
    certificate = ["tlsCertificateFilePath=a.pem", "tlsKeyFilePath=a.key"]
    ports = ["brokerServicePort=", "brokerServicePortTls=6651", "webServicePort=", "webServicePortTls=8443"]

    config = load(overrides=[*certificate, *ports])

    assert (config.service_port, config.service_port_tls) == (None, 6651)
    assert (config.web_port, config.web_port_tls) == (None, 8443)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["brokerServicePort="], "brokerServicePort=: must be a port where brokerServicePortTls is empty"),
        (["webServicePort="], "webServicePort=: must be a port where webServicePortTls is empty"),
        (
            ["tlsCertificateFilePath=a", "tlsKeyFilePath=b", "webServicePortTls=6650"],
            "webServicePortTls=6650: must be another port than brokerServicePort",
        ),
        (
            ["tlsCertificateFilePath=a", "tlsKeyFilePath=b", "brokerServicePortTls=6650"],
            "brokerServicePortTls=6650: must be another port than brokerServicePort",
        ),
    ],
)
def test_ports_that_do_not_fit_together_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(overrides=overrides)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (f"{JAVA_PACKAGE}.BucketDelayedDeliveryTrackerFactory", BUCKET_FACTORY),
        ("BucketDelayedDeliveryTrackerFactory", BUCKET_FACTORY),
        ("tracker.bucket_tracker.BucketDelayedDeliveryTrackerFactory", BUCKET_FACTORY),
        (f"{JAVA_PACKAGE}.InMemoryDelayedDeliveryTrackerFactory", IN_MEMORY_FACTORY),
        ("InMemoryDelayedDeliveryTrackerFactory", IN_MEMORY_FACTORY),
        ("tracker.in_memory.InMemoryDelayedDeliveryTrackerFactory", IN_MEMORY_FACTORY),
    ],
)
def test_a_tracker_is_named_as_in_java_or_in_python(spelling: str, expected: str) -> None:
    config = load(overrides=[f"delayedDeliveryTrackerFactoryClassName={spelling}"])

    assert config.tracker.factory_class_name == expected


def test_every_field_has_one_bad_value_here() -> None:
    assert list(REFUSED) == [setting.key for setting in settings()]


@pytest.mark.parametrize(("key", "value", "allowed"), [(key, *bad) for key, bad in REFUSED.items()])
def test_a_bad_value_names_the_file_the_line_the_key_and_what_is_allowed(
    key: str, value: str, allowed: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(allowed)) as caught:
        load(f"# A comment.\n\n{key}={value}\n", folder=tmp_path)

    shown = "(secret)" if "tell-no-one" in value else value
    assert str(caught.value).startswith(f"{tmp_path / 'broker.conf'}:3: {key}={shown}: must be ")
    assert len(re.findall(rf"\b{key}\b", str(caught.value))) == 1, "the rule is told by its own key"
    assert (caught.value.key, caught.value.value, caught.value.line) == (key, shown, 3)


def test_a_secret_is_shown_nowhere() -> None:
    """Not in an error, not where it was given, not in what `postdate config` prints, not in a `repr`."""
    secret = {"bucketSnapshotS3SecretAccessKey": "tell-no-one", "bucketSnapshotS3SessionToken": "tell-no-one"}

    for given in ({"overrides": [f"{key}={value}" for key, value in secret.items()]}, {"environment": secret}):
        with pytest.raises(ConfigError) as caught:
            load(**given)  # type: ignore[arg-type]
        assert "tell-no-one" not in f"{caught.value!r} {caught.value}"
    config = load(environment=secret, overrides=["bucketSnapshotS3AccessKeyId=AKID"])

    assert config.s3.secret_access_key == config.s3.session_token == "tell-no-one"
    assert "tell-no-one" not in f"{config!r} {config_lines(config)}"
    assert "# bucketSnapshotS3SecretAccessKey is set, and secret\n" in config_lines(config)


def test_a_secret_of_tokens_is_shown_nowhere(tmp_path: Path) -> None:
    """Not where it is refused, nor where the line itself is wrong."""
    secret = "data:;base64,dGVsbC1uby1vbmU="
    config = load(overrides=[f"tokenSecretKey={secret}"])

    assert config.access.token_secret_key == secret
    shown = [repr(config), config_lines(config), str(config.refusal("tokenSecretKey", "is wrong"))]
    for text in (f"tokenSecretKey {secret}\n", f"tokenSecretKeys={secret}\n", f"tokenSecretKey={secret}\\u0000\n"):
        with pytest.raises(ConfigError) as caught:
            load(text, folder=tmp_path)
        shown.append(f"{caught.value} {caught.value!r}")
    for override in (f"tokenSecretKey {secret}", f"tokenSecretKeys={secret}"):
        with pytest.raises(ConfigError) as caught:
            load(overrides=[override])
        shown.append(f"{caught.value} {caught.value!r}")

    assert not [text for text in shown if "dGVsbC1uby1vbmU" in text]
    assert "# tokenSecretKey is set, and secret\n" in config_lines(config)


def test_s3_needs_a_bucket() -> None:
    with pytest.raises(ConfigError, match="must be rocksdb or memory where bucketSnapshotS3Bucket is empty"):
        load(overrides=["bucketSnapshotStorage=s3"])

    assert load(overrides=["bucketSnapshotStorage=s3", "bucketSnapshotS3Bucket=mine"]).s3.bucket == "mine"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("key", ["clusterName", "superUserRoles", "dataDirectory"])
def test_a_line_end_in_a_text_is_refused_by_name(key: str, end: str, tmp_path: Path) -> None:
    """It would begin a line of its own in the file that `postdate config` prints."""
    escaped = end.replace("\n", "\\n").replace("\r", "\\r")
    sources: list[dict[str, Any]] = [
        {"overrides": [f"{key}=a{end}b"]},
        {"environment": {key: f"a{end}b"}},
        {"environment": {key: f"a{end}"}},
        {"text": f"{key}=a{escaped}b\n", "folder": tmp_path},
    ]
    for source in sources:
        with pytest.raises(ConfigError, match="must be text without NUL characters and line ends") as refused:
            load(**source)
        assert refused.value.key == key


def test_two_values_that_do_not_fit_together_are_named_both(tmp_path: Path) -> None:
    expected = (
        ":1: delayedDeliveryRetryBackoffMinMillis=60000: delayedDeliveryRetryBackoffMaxMillis must be at least "
        "delayedDeliveryRetryBackoffMinMillis (60000), but is 30000"
    )

    with pytest.raises(ConfigError, match=re.escape(expected)):
        load("delayedDeliveryRetryBackoffMinMillis=60000\n", folder=tmp_path)


def test_a_value_that_does_not_fit_a_default_is_named_although_only_the_default_is_complained_of() -> None:
    expected = (
        "dispatcherReadFailureBackoffInitialTimeInMs=15001: dispatcherReadFailureBackoffMaxTimeInMs must be at least "
        "dispatcherReadFailureBackoffInitialTimeInMs (15001), but is 15000"
    )

    with pytest.raises(ConfigError, match=re.escape(expected)):
        load(overrides=["dispatcherMaxReadBatchSize=7", "dispatcherReadFailureBackoffInitialTimeInMs=15001"])


def test_the_key_at_fault_is_named_among_others_that_are_fine() -> None:
    overrides = [
        "delayedDeliveryRetryBackoffMinMillis=60000",
        "delayedDeliveryRetryBackoffMaxMillis=70000",
        "delayedDeliveryTickTimeMillis=-5",
    ]

    with pytest.raises(ConfigError, match=r"delayedDeliveryTickTimeMillis=-5: must be at least 0$"):
        load(overrides=overrides)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("delayedDeliveryTickTimeMilis", "delayedDeliveryTickTimeMillis"),
        ("delayedDeliveryTicktimeMillis", "delayedDeliveryTickTimeMillis"),
        ("keySharedUnblockIntervalMs", "keySharedUnblockingIntervalMs"),
        ("bucketSnapshotStore", "bucketSnapshotStorage"),
        ("dataDir", "dataDirectory"),
        ("brokerServicPort", "brokerServicePort"),
        ("managedLedgerMaxEntrysPerLedger", "managedLedgerMaxEntriesPerLedger"),
        ("managedLedgerMaxSizePerLedgerMBytes", "managedLedgerMaxSizePerLedgerMbytes"),
        ("authenticationEnable", "authenticationEnabled"),
        ("authorisationEnabled", "authorizationEnabled"),
        ("brokerDeduplicationEnable", "brokerDeduplicationEnabled"),
    ],
)
def test_a_misspelled_key_is_an_error_with_a_suggestion(wrong: str, right: str, tmp_path: Path) -> None:
    expected = f"{wrong}: there is no such key; did you mean {right}?"

    with pytest.raises(ConfigError, match=re.escape(f"broker.conf:1: {expected}")):
        load(f"{wrong}=5\n", folder=tmp_path)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load(overrides=[f"{wrong}=5"])
    with pytest.raises(ConfigError, match=re.escape(f"environment variable PULSAR_PREFIX_{wrong}: {expected}")):
        load(environment={f"PULSAR_PREFIX_{wrong}": "5"})


def test_a_key_of_ours_that_is_like_no_other_is_an_error_too() -> None:
    with pytest.raises(ConfigError, match=r"delayedDeliveryZzz: there is no such key$"):
        check_unknown_key("delayedDeliveryZzz", ["brokerServicePort"], where="here")


def test_a_key_that_stands_twice_in_a_file_is_an_error(tmp_path: Path) -> None:
    """Java takes the last one; an operator may read only the first one."""
    for key in ("brokerServicePort", "numIOThreads", "nobodys"):
        with pytest.raises(ConfigError, match=f"broker.conf:4: {key}: it stands in line 2 already; remove one"):
            load(f"# Twice.\n{key}=1\n\n {key} : 1\n", folder=tmp_path)


@pytest.mark.parametrize(
    "value", ["http://host", "host:6650", "10.0.0.1:6650", "a b", "host/path", "[::1]", "256.0.0.1", "-a", "u@h", "0"]
)
def test_a_host_is_a_host(value: str, tmp_path: Path) -> None:
    for key in ("advertisedAddress", "bindAddress"):
        with pytest.raises(ConfigError, match=r":1: .*must be a host name or an address, without scheme and port"):
            load(f"{key}={value}\n", folder=tmp_path)


@pytest.mark.parametrize("value", ["mail.example.org", "a", "under_score", "10.0.0.1", "::1", "fe80::1%eth0", "x.org."])
def test_a_host_may_be_a_name_or_an_address(value: str) -> None:
    assert load(overrides=[f"advertisedAddress={value}"]).advertised_address == value


def test_other_programs_environment_is_left_alone() -> None:
    environment = {"PATH": "/bin", "DATADIR": "/data", "bindAdress": "x", "PULSAR_PREFIX_numIOThreads": "4"}

    assert load(environment=environment) == BrokerConfig()


def test_a_misspelled_variable_is_found_without_the_prefix_where_it_is_clear() -> None:
    with pytest.raises(ConfigError, match="did you mean delayedDeliveryTickTimeMillis"):
        load(environment={"delayedDeliveryTickTimeMilis": "5"})


def test_a_whole_configuration_of_pulsar_loads() -> None:
    """All 569 keys of a real one; only keys that it sets differently differ afterwards."""
    config = load_config(PULSAR_FILE, environment={}, overrides=[])

    assert config.bind_address == "0.0.0.0"
    assert config.tracker.factory_class_name == IN_MEMORY_FACTORY
    assert config.dispatcher.read_failure_backoff_max_ms == 60_000
    assert config.managed_ledger == BrokerConfig().managed_ledger


def test_what_is_not_read_is_kept_with_its_place(tmp_path: Path) -> None:
    """The last source wins, as for keys that are read."""
    config = load(
        "numIOThreads=2\nclusterName=x\nproperties=a\nmaxTenants=5\n",
        folder=tmp_path,
        environment={"PULSAR_PREFIX_mine": "1", "enableBusyWait": "true", "properties": "not ours", "yours": "2"},
        overrides=["numIOThreads=4"],
    )

    path = tmp_path / "broker.conf"
    assert {key: (one.text, one.where_shown) for key, one in config.unread.items()} == {
        "numIOThreads": ("4", "--set"),
        "properties": ("a", f"{path}:3"),
        "maxTenants": ("5", f"{path}:4"),
        "enableBusyWait": ("true", "environment variable enableBusyWait"),
        "mine": ("1", "environment variable PULSAR_PREFIX_mine"),
    }
    assert config.places["clusterName"].where == f"{path}:2"


@pytest.mark.parametrize("override", ["brokerServicePort", "=5", ""])
def test_an_override_must_be_a_key_and_a_value(override: str) -> None:
    with pytest.raises(ConfigError, match="must be key=value"):
        load(overrides=[override])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"clusterName=\xe9\n")

    for name in ("missing", "latin", "."):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(tmp_path / name))}: the file cannot be read: "):
            load_config(tmp_path / name, environment={}, overrides=[])


def test_a_line_that_is_no_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^broker.conf:2: the line is neither a comment nor key=value"):
        parse_config_text("a=b\nbrokerServicePort 6650\n", name="broker.conf")


def test_the_text_is_read_as_java_reads_properties() -> None:
    text = "! note\n  a : 2 \nb=x=y # no comment\nc=one,\\\n   two\\\n\nd=C\\:\\\\dir\\t\\u0041\n\ne=\nf=end\\"

    parsed = parse_config_text(text, name="x")

    assert parsed == {
        "a": ("2", 2),
        "b": ("x=y # no comment", 3),
        "c": ("one,two", 4),
        "d": ("C:\\dir\tA", 7),
        "e": ("", 9),
        "f": ("end", 10),
    }


@pytest.mark.parametrize("text", ["0", "1234", "-1"])
def test_the_bound_of_the_wait_for_order_is_that_of_the_dispatchers_too(tmp_path: Path, text: str) -> None:
    async def scenario() -> None:
        config = load_config(None, environment={}, overrides=[f"delayedDeliveryMaxOrderWaitMillis={text}"])
        service = await open_service(tmp_path, tracker=config.tracker)
        try:
            await Peer(service).request(
                BaseCommand.SUBSCRIBE,
                "subscribe",
                topic="t",
                subscription="s",
                subType=CommandSubscribe.Key_Shared,
                consumer_id=1,
            )
            (topic,) = service.topics.values()
            dispatcher = topic.subscriptions["s"].dispatcher

            assert dispatcher is not None
            assert isinstance(dispatcher.core, MultipleConsumersCore)
            assert dispatcher.core.config.order_wait_ms_max == int(text)
        finally:
            await service.close()

    asyncio.run(scenario())


def test_variables_that_are_nearly_a_key_are_named_and_no_others() -> None:
    """They may be of other programs, so they are no error; Kubernetes makes names such as the fourth."""
    others = {
        "PATH": "/bin",
        "properties": "x",
        "clusterNames_": "x",
        "BROKER_SERVICE_PORT": "6650",
        "homeDirectory": "/",
    }
    keys = {"brokerServicePort": "7650", "PULSAR_PREFIX_clusterName": "c"}
    misspelt = {"brokerServiceport": "7777", "webServicPort": "7778"}

    assert misspelt_in_environment(others | keys | misspelt, {one.key for one in settings()}) == [
        "ignored environment variable: brokerServiceport: there is no such key; did you mean brokerServicePort?",
        "ignored environment variable: webServicPort: there is no such key; did you mean webServicePort?",
    ]
