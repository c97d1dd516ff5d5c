"""`config/broker.conf`, docs/configuration.md and the dataclasses say the same."""

import re
from pathlib import Path

from postdate.broker.configuration.config import BrokerConfig, load_config, settings
from postdate.broker.configuration.table import comments_of, config_lines, config_table
from postdate.broker.configuration.text import OWN_PREFIXES, parse_config_text

REPOSITORY = Path(__file__).parents[4]
FILE = REPOSITORY / "config/broker.conf"
PULSAR_FILE = REPOSITORY / "tests/golden/pulsar_config/broker-4.2.4.conf"
KEYS_OF_THE_TOKEN_PROVIDER = {
    "tokenSecretKey": "",
    "tokenPublicKey": "",
    "tokenPublicAlg": "RS256",
    "tokenAuthClaim": "sub",
    "tokenAudienceClaim": "",
    "tokenAudience": "",
    "tokenAllowedClockSkewSeconds": "0",
}
"""Pulsar's `AuthenticationProviderToken` reads them itself, so they are no fields of `ServiceConfiguration`."""


def test_the_file_lists_every_key_with_its_default() -> None:
    default = BrokerConfig()
    expected = {setting.key: setting.value_in(default) for setting in settings()}

    in_file = {key: value for key, (value, _) in parse_config_text(FILE.read_text(), name="broker.conf").items()}

    assert in_file == expected


def test_the_file_gives_the_defaults() -> None:
    assert load_config(FILE, environment={}, overrides=[]) == BrokerConfig()


def test_no_key_is_read_twice() -> None:
    keys = [setting.key for setting in settings()]

    assert len(keys) == len(set(keys))


def test_every_key_is_explained_in_whole_sentences() -> None:
    comments = comments_of(FILE.read_text())

    for setting in settings():
        assert re.fullmatch(r"[A-Z].{30,}\.", comments[setting.key]), setting.key


def test_keys_that_pulsar_does_not_have_are_said_to_be_ours() -> None:
    of_pulsar = parse_config_text(PULSAR_FILE.read_text(), name="Pulsar's").keys() | KEYS_OF_THE_TOKEN_PROVIDER.keys()

    for key, comment in comments_of(FILE.read_text()).items():
        assert ("Not a key of Pulsar" in comment) == (key not in of_pulsar), key


def test_defaults_that_differ_from_pulsars_are_said_to_differ() -> None:
    of_pulsar = parse_config_text(PULSAR_FILE.read_text(), name="Pulsar's")
    comments = comments_of(FILE.read_text())
    default = BrokerConfig()

    for setting in settings():
        if setting.key in of_pulsar and of_pulsar[setting.key][0] != setting.value_in(default):
            assert re.search(r"Pulsar( 4)?: |Pulsar's default", comments[setting.key]), setting.key


def test_what_begins_like_ours_is_looked_for_in_lower_case() -> None:
    assert all(prefix == prefix.lower() for prefix in OWN_PREFIXES)


def test_what_is_printed_can_be_read_back(tmp_path: Path) -> None:
    overrides = ["ttlDurationDefaultInSeconds=60", "delayedDeliveryEnabled=false", "dataDirectory=elsewhere"]
    config = load_config(None, environment={}, overrides=overrides)
    whole, changed = tmp_path / "whole", tmp_path / "changed"

    whole.write_text(config_lines(config))
    changed.write_text(config_lines(config, changed_only=True))

    assert len(changed.read_text().splitlines()) == len(overrides)
    for path in (whole, changed):
        assert load_config(path, environment={}, overrides=[]) == config


def test_the_table_has_a_row_for_every_key_with_its_default() -> None:
    default = BrokerConfig()

    rows = config_table(FILE.read_text()).splitlines()[2:]

    assert len(rows) == len(settings())
    for setting, row in zip(settings(), rows, strict=True):
        key, value, meaning = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
        assert (key, value.strip("`")) == (f"`{setting.key}`", setting.value_in(default))
        assert meaning.endswith(".")


def test_the_documentation_has_the_table() -> None:
    """Between two markers, as `postdate config --table` prints it."""
    page = (REPOSITORY / "docs/configuration.md").read_text()
    found = re.search(r"<!-- config-table -->\n+(.*?)\n*<!-- /config-table -->", page, re.DOTALL)

    assert found is not None
    assert f"{found[1].strip()}\n" == config_table(FILE.read_text())


def test_the_defaults_of_the_token_provider_are_pulsars() -> None:
    default = BrokerConfig()
    known = {setting.key: setting.value_in(default) for setting in settings()}

    assert {key: known[key] for key in KEYS_OF_THE_TOKEN_PROVIDER} == KEYS_OF_THE_TOKEN_PROVIDER
