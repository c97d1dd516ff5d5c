"""The table of Pulsar's keys says what Pulsar has, and has a sentence for each that promises something."""

import re
from pathlib import Path

import pytest

from postdate.broker.configuration.config import settings
from postdate.broker.configuration.pulsar_keys import KeyClass, pulsar_key, pulsar_keys, read_keys
from postdate.broker.configuration.text import parse_config_text

PULSAR_FILE = Path(__file__).parents[4] / "tests/golden/pulsar_config/broker-4.2.4.conf"
OF_PULSAR = {key: value for key, (value, _) in parse_config_text(PULSAR_FILE.read_text(), name="Pulsar's").items()}


def test_every_field_of_pulsars_configuration_is_there_with_its_default() -> None:
    assert {key: one.default for key, one in pulsar_keys().items() if key in OF_PULSAR} == OF_PULSAR


def test_every_key_of_pulsars_that_is_read_is_there() -> None:
    """The nearest known key can then be suggested for each misspelled one."""
    ours = {setting.key for setting in settings()}

    assert ours & OF_PULSAR.keys() <= pulsar_keys().keys()


def test_advice_is_given_about_keys_that_are_not_read_alone() -> None:
    """Advice about a key that has come to be read since would be false."""
    ours = {setting.key for setting in settings()}

    assert {key for key, one in pulsar_keys().items() if one.advice.startswith("It is read here")} == (
        ours & pulsar_keys().keys()
    )


def test_every_promise_says_what_is_the_case_and_what_to_do() -> None:
    for one in pulsar_keys().values():
        if one.key_class is not KeyClass.HARMLESS:
            assert re.fullmatch(r"[A-Z].{10,}(; |, ).*\b(remove|set|run|put)\b.*[^.]", one.advice), one


@pytest.mark.parametrize(
    ("key", "value", "key_class"),
    [
        ("proxyRoles", "proxy", KeyClass.SECURITY),
        ("authorizationProvider", "com.example.Own", KeyClass.SECURITY),
        ("tlsEnabledWithKeyStore", "true", KeyClass.SECURITY),
        ("tlsCiphers", "TLS_AES_256_GCM_SHA384", KeyClass.SECURITY),
        ("encryptionRequireOnProducer", "true", KeyClass.SECURITY),
        ("isSchemaValidationEnforced", "true", KeyClass.PROMISE),
        ("defaultRetentionTimeInMinutes", "-1", KeyClass.PROMISE),
        ("defaultRetentionSizeInMB", "100", KeyClass.PROMISE),
        ("backlogQuotaDefaultLimitBytes", "1", KeyClass.PROMISE),
        ("backlogQuotaDefaultLimitGB", "50", KeyClass.PROMISE),
        ("transactionCoordinatorEnabled", "true", KeyClass.PROMISE),
        ("functionsWorkerEnabled", "true", KeyClass.PROMISE),
        ("managedLedgerOffloadDriver", "aws-s3", KeyClass.PROMISE),
        ("maxPublishRatePerTopicInMessages", "5", KeyClass.PROMISE),
        ("managedLedgerDefaultWriteQuorum", "3", KeyClass.PROMISE),
        ("allowAutoTopicCreation", "false", KeyClass.PROMISE),
        ("subscriptionTypesEnabled", "Shared", KeyClass.PROMISE),
        ("bindAddresses", "external:pulsar://0.0.0.0:6652", KeyClass.PROMISE),
        ("numIOThreads", "32", KeyClass.HARMLESS),
        ("metadataStoreUrl", "zk:a:2181", KeyClass.HARMLESS),
        ("bookkeeper_tcpKeepIdle", "300", KeyClass.HARMLESS),
    ],
)
def test_a_key_is_of_its_class_when_it_asks_for_something(key: str, value: str, key_class: KeyClass) -> None:
    known = pulsar_key(key)

    assert known is not None
    assert known.key_class is key_class
    assert not known.is_stock(value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("backlogQuotaDefaultLimitGB", "-1"),
        ("backlogQuotaDefaultLimitGB", ""),
        ("maxUnloadPercentage", "0.20"),
        ("isSchemaValidationEnforced", "FALSE"),
        ("subscriptionTypesEnabled", "Exclusive,Shared,Failover,Key_Shared"),
        ("managedLedgerDefaultWriteQuorum", "1"),
    ],
)
def test_a_default_is_one_however_it_is_written(key: str, value: str) -> None:
    known = pulsar_key(key)

    assert known is not None
    assert known.is_default(value)


def test_what_a_stock_file_has_is_no_default_but_asked_for_by_nobody() -> None:
    known = pulsar_key("backlogQuotaDefaultLimitGB")

    assert known is not None
    assert (known.is_default("10"), known.is_stock("10"), known.is_stock("11")) == (False, True, False)


def test_a_key_stands_once_in_the_table() -> None:
    with pytest.raises(AssertionError, match="numIOThreads stands twice"):
        read_keys("[harmless] x\nnumIOThreads=\n\nnumIOThreads=1\n")
