"""The handling of keys that are given and not read: refuse the start, warn, or stay silent.

    a promise of security is asked for    refused, always
    another promise is asked for          refused, or a warning each where `unsupportedConfigIgnored` is true
    another value than Pulsar's           in one warning with all the others
    an unknown key                        in the same one; a misspelled key is refused before (`text`)

This module works on texts; `config` collects the keys, and `pulsar_keys` knows their meaning in Pulsar.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from postdate.broker.configuration.pulsar_keys import KeyClass, PulsarKey, pulsar_key
from postdate.broker.configuration.text import ConfigError, Given, may_hold_password

_SECRET: Final = re.compile(r"password|secret|token|credential|parameters|basicauthconf", re.IGNORECASE)

IGNORE_KEY: Final = "unsupportedConfigIgnored"


class Finding(Enum):
    """The consequence of a key that is not read."""

    SECURITY = "asks for what is not kept here, and is refused"
    PROMISE = f"asks for what is not kept here, and is refused unless {IGNORE_KEY} is true"
    STOCK_PROMISE = "is what a file of Pulsar's has, and is not kept here"
    IGNORED = "is ignored"
    UNKNOWN = "is known neither here nor to Pulsar 4.2"


@dataclass(frozen=True, slots=True)
class UnreadKey:
    """A key that was given with another value than Pulsar's default, and is not read."""

    key: str
    given: Given
    finding: Finding
    advice: str = ""

    @property
    def shown(self) -> str:
        """The key with its value, unless that may be secret."""
        is_hidden = bool(_SECRET.search(self.key)) or may_hold_password(self.given.text)
        return f"{self.key}={'(secret)' if is_hidden else self.given.text}"

    def __str__(self) -> str:
        text = f"{self.given.where_shown}: {self.shown}: {self.finding.value}"
        return f"{text}. {self.advice}." if self.advice else f"{text}."


def unread_keys(given: Mapping[str, Given]) -> list[UnreadKey]:
    """Return the findings about keys that are not read, in the order in which they were given."""
    found = []
    for key, one in given.items():
        known = pulsar_key(key)
        if known is None:
            found.append(UnreadKey(key, one, Finding.UNKNOWN))
        elif not known.is_default(one.text):
            finding = _finding(known, one.text)
            if finding is not None:
                found.append(UnreadKey(key, one, finding, known.advice if known.key_class != KeyClass.HARMLESS else ""))
    return found


def _finding(known: PulsarKey, value: str) -> Finding | None:
    is_stock = known.is_stock(value)
    if known.key_class is KeyClass.HARMLESS:
        return None if is_stock else Finding.IGNORED
    if is_stock:
        return Finding.STOCK_PROMISE
    return Finding.SECURITY if known.key_class is KeyClass.SECURITY else Finding.PROMISE


def check_promises(keys: list[UnreadKey], *, is_unsupported_ignored: bool) -> list[str]:
    """Refuse keys whose promise this service does not keep; return the warnings about the others.

    Raises:
        ConfigError: A key asks for something; the text has the first one's place and what to do, and names the others.
    """
    refused = [one for one in keys if one.finding is Finding.SECURITY]
    if not is_unsupported_ignored:
        refused += [one for one in keys if one.finding is Finding.PROMISE]
    if refused:
        raise _refusal(refused, may_be_ignored=all(one.finding is Finding.PROMISE for one in refused))
    warnings = [
        f"{one.given.where_shown}: {one.shown} is not kept: {one.advice}"
        for one in keys
        if one.finding is Finding.PROMISE
    ]
    return warnings + _one_warning(keys)


def _refusal(refused: list[UnreadKey], *, may_be_ignored: bool) -> ConfigError:
    first, *others = refused
    reason = f"this is not kept here. {first.advice}"
    if may_be_ignored:
        reason += f"; or set {IGNORE_KEY}=true to start all the same"
    if others:
        reason += f". Neither are {', '.join(f'{one.shown} ({one.given.where_shown})' for one in others)}"
    value = first.shown.partition("=")[2]
    return ConfigError(reason, where=first.given.where_shown, key=first.key, value=value, line=first.given.line)


def _one_warning(keys: list[UnreadKey]) -> list[str]:
    ignored = [one.key for one in keys if one.finding is Finding.IGNORED]
    stock = [one.key for one in keys if one.finding is Finding.STOCK_PROMISE]
    unknown = [one.key for one in keys if one.finding is Finding.UNKNOWN]
    parts = [
        f"{text} {', '.join(names)}"
        for text, names in (
            ("without meaning here", ignored),
            ("not kept, as in a stock file of Pulsar's", stock),
            ("unknown to Pulsar 4.2 too", unknown),
        )
        if names
    ]
    return [f"keys that are ignored: {'; '.join(parts)}. See postdate config --ignored"] if parts else []
