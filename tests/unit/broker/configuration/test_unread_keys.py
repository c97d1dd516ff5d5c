"""A configuration keeps its promises, or the start is refused; each ignored key is named."""

import re

import pytest

from postdate.broker.configuration.config import ConfigError, load_config, settings
from postdate.broker.configuration.pulsar_keys import pulsar_keys
from postdate.broker.configuration.text import Given
from postdate.broker.configuration.unread_keys import Finding, UnreadKey, check_promises, unread_keys


def found(**values: str) -> list[UnreadKey]:
    """Return what is said of keys of a file, each in a line of its own."""
    places = {key: Given(value, f"broker.conf:{line}", line) for line, (key, value) in enumerate(values.items(), 1)}
    return unread_keys(places)


def refusal(*, is_unsupported_ignored: bool = False, **values: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_promises(found(**values), is_unsupported_ignored=is_unsupported_ignored)
    return caught.value


def test_a_promise_that_is_not_kept_is_refused_with_its_line_and_what_to_do() -> None:
    error = refusal(numIOThreads="4", isSchemaValidationEnforced="true")

    assert str(error) == (
        "broker.conf:2: isSchemaValidationEnforced=true: this is not kept here. Schemas are neither stored nor "
        "checked; remove it, and let producers and consumers check them; or set unsupportedConfigIgnored=true to start "
        "all the same"
    )
    assert (error.key, error.value, error.line) == ("isSchemaValidationEnforced", "true", 2)


def test_the_other_promises_are_named_too() -> None:
    error = refusal(
        isSchemaValidationEnforced="true", transactionCoordinatorEnabled="true", tlsKeyStore="k", maxTenants="1"
    )

    assert str(error).startswith("broker.conf:3: tlsKeyStore=k: this is not kept here. ")
    assert str(error).endswith(
        ". Neither are isSchemaValidationEnforced=true (broker.conf:1), transactionCoordinatorEnabled=true "
        "(broker.conf:2), maxTenants=1 (broker.conf:4)"
    )


def test_promises_may_be_ignored_and_each_gives_a_warning() -> None:
    keys = found(isSchemaValidationEnforced="true", defaultRetentionTimeInMinutes="-1", numIOThreads="4", mine="5")

    warnings = check_promises(keys, is_unsupported_ignored=True)

    assert warnings == [
        "broker.conf:1: isSchemaValidationEnforced=true is not kept: Schemas are neither stored nor checked; remove "
        "it, and let producers and consumers check them",
        "broker.conf:2: defaultRetentionTimeInMinutes=-1 is not kept: Messages that every subscription has "
        "acknowledged are deleted; remove it, and keep a subscription for messages that are to stay",
        "keys that are ignored: without meaning here numIOThreads; unknown to Pulsar 4.2 too mine. "
        "See postdate config --ignored",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (one.key, "true" if one.default == "false" else "6651")
        for one in pulsar_keys().values()
        if one.key_class == "security" and one.key not in {setting.key for setting in settings()}
    ],
)
def test_security_is_never_ignored(key: str, value: str) -> None:
    error = refusal(is_unsupported_ignored=True, **{key: value})

    # The value of a key is not shown if its name says that it is a secret.
    shown = "(secret)" if "token" in key.lower() else value
    assert str(error).startswith(f"broker.conf:1: {key}={shown}: this is not kept here. ")
    assert "unsupportedConfigIgnored" not in str(error)


def test_what_pulsars_own_files_have_starts_with_one_warning() -> None:
    """No operator has asked for these keys. With `bindAddress=0.0.0.0`, the refusal is about that alone."""
    stock = {one.key: one.stock[-1] if one.stock else one.default for one in pulsar_keys().values()}

    warnings = check_promises(found(**stock), is_unsupported_ignored=False)

    assert warnings == [
        "keys that are ignored: not kept, as in a stock file of Pulsar's backlogQuotaDefaultLimitGB, "
        "webSocketServiceEnabled. See postdate config --ignored"
    ]


def test_what_comes_after_decides() -> None:
    """An override takes back what a file asks for, and asks for what a file does not."""
    environment = {"PULSAR_PREFIX_isSchemaValidationEnforced": "true"}
    config = load_config(None, environment=environment, overrides=["isSchemaValidationEnforced=false"])
    assert unread_keys(config.unread) == []

    config = load_config(None, environment=environment, overrides=[])
    [key] = unread_keys(config.unread)
    assert (key.finding, key.given.where) == (
        Finding.PROMISE,
        "environment variable PULSAR_PREFIX_isSchemaValidationEnforced",
    )


@pytest.mark.parametrize(
    "key", ["tlsKeyStorePassword", "brokerClientAuthenticationParameters", "saslJaasServerRoleTokenSignerSecretPath"]
)
def test_what_may_be_secret_is_not_shown(key: str) -> None:
    for where in ("broker.conf:1", f"--set {key}=tell-no-one"):
        [one] = unread_keys({key: Given("tell-no-one", where)})

        assert "tell-no-one" not in f"{one} {one.shown}"
        assert f"{key}=(secret)" in str(one)


def test_a_url_with_a_password_is_not_shown() -> None:
    [one] = found(metadataStoreUrl="zk:user:pw@host:2181")

    assert re.search("pw", str(one)) is None
