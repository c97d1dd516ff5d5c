"""The sources of keys and values: a file, the environment, `--set`. Values are parsed in `broker.configuration.config`.

Every source follows the same rules. A key that this service reads or that Pulsar has is accepted. A misspelling of such
a key is an error. Any other key is accepted too, and reported as unknown. The environment holds variables of other
programs, so there a variable counts only with the exact name of a key, or with Pulsar's prefix.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from postdate.broker.configuration.pulsar_keys import pulsar_key, pulsar_keys
from postdate.broker.configuration.text import ConfigError, Given, check_unknown_key, parse_config_text

ENVIRONMENT_PREFIX: Final = "PULSAR_PREFIX_"
"""Pulsar's images take any key with this before it from the environment."""

_OWN_IN_ENVIRONMENT: Final = ("delayedDelivery", "isDelayedDelivery", "keyShared", "bucketSnapshot")
"""Unknown variables with this beginning are mistakes, even without the prefix."""

_TOO_COMMON_FOR_ENVIRONMENT: Final = frozenset({"properties"})
"""Keys of Pulsar with common names: a variable of that name may be meant for another program."""


def collect(
    path: Path | None, *, environment: Mapping[str, str], overrides: Sequence[str], read: Collection[str]
) -> dict[str, Given]:
    """Return every key that was given, the last source first to be heard; see `config.load_config`.

    Args:
        path: The file, or None for none.
        environment: The environment's variables.
        overrides: Texts `key=value`.
        read: The keys that this service reads.

    Raises:
        ConfigError: The file cannot be read, a text is no `key=value`, or a key is a mistake.
    """
    names = {*read, *pulsar_keys()}
    given: dict[str, Given] = {}
    if path is not None:
        given |= _from_file(path, names)
    return given | _from_environment(environment, names) | _from_overrides(overrides, names)


def misspelt_in_environment(environment: Mapping[str, str], read: Collection[str]) -> list[str]:
    """Return a warning for each variable that is a key in other letters, or nearly one.

    It is no error: variables of other programs come with every container, and Kubernetes makes some of its services'
    names, such as BROKER_SERVICE_PORT. So those that are written with `_` are left out, as no key is.
    """
    names = {*read, *pulsar_keys()}
    found = []
    for name in environment:
        if "_" in name or not any(letter.islower() for letter in name) or name in names:
            continue
        try:
            _check(name, names, where="ignored environment variable")
        except ConfigError as error:
            found.append(str(error))
    return found


def _from_file(path: Path, names: Collection[str]) -> dict[str, Given]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read: {error}", where=str(path), key="") from error
    given: dict[str, Given] = {}
    for key, (value, line) in parse_config_text(text, name=str(path)).items():
        given[key] = Given(value, f"{path}:{line}", line)
        _check(key, names, where=given[key].where, line=line)
    return given


def _from_environment(environment: Mapping[str, str], names: Collection[str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    prefixed: dict[str, Given] = {}
    for name, value in environment.items():
        where = f"environment variable {name}"
        key = name.removeprefix(ENVIRONMENT_PREFIX)
        if key != name:
            prefixed[key] = Given(value, where)
            _check(key, names, where=where)
        elif key in names and key not in _TOO_COMMON_FOR_ENVIRONMENT:
            given[key] = Given(value, where)
        elif key.startswith(_OWN_IN_ENVIRONMENT):
            _check(key, names, where=where)
    return given | prefixed


def _from_overrides(overrides: Sequence[str], names: Collection[str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for override in overrides:
        key, separator, value = (part.strip() for part in override.partition("="))
        if not separator or not key or " " in key:
            # The error names the first word alone: the words behind a key without `=` may be a secret.
            raise ConfigError("must be key=value", where=f"--set {override.partition(' ')[0]}", key="")
        given[key] = Given(value, f"--set {override}")
        # The error does not name the value: under a misspelled key it may be a secret.
        _check(key, names, where=f"--set {key}")
    return given


def _check(key: str, names: Collection[str], *, where: str, line: int | None = None) -> None:
    if pulsar_key(key) is None:
        check_unknown_key(key, names, where=where, line=line)
