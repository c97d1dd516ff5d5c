"""The keys of Apache Pulsar's configuration, and their meaning here when they are not read.

`pulsar_keys.conf` has each key's default, its class, and a sentence for the operator. This module reads the file and
knows whether a value asks for anything beyond the default. The consequences are decided in
`postdate.broker.configuration.unread_keys`.
"""

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_FILE: Final = Path(__file__).with_name("pulsar_keys.conf")
_FAMILY_SIGN: Final = "*"
_KEPT_SIGN: Final = "kept "


class KeyClass(StrEnum):
    """The consequence of a key that is not read and differs from the default."""

    SECURITY = "security"
    """Access would differ from the file: the start is refused."""
    PROMISE = "promise"
    """A promise of the file would be broken: the start is refused, unless the operator says otherwise."""
    HARMLESS = "harmless"
    """No client can notice the difference."""


class PulsarKey(NamedTuple):
    """One key of Pulsar's."""

    key: str
    default: str
    stock: tuple[str, ...]
    """The values in Pulsar's own files that are not the default."""
    kept: tuple[str, ...]
    """Values that hold here, although nothing reads them."""
    key_class: KeyClass
    advice: str
    """The behaviour here, with advice."""

    def is_default(self, value: str) -> bool:
        """Whether a value needs no warning: it is the default of Pulsar's code, or it holds here."""
        return not value or _meaning(value) in [_meaning(one) for one in (self.default, *self.kept)]

    def is_stock(self, value: str) -> bool:
        """Whether a value stands in Pulsar's code or in one of its own files, so that no operator has chosen it."""
        return self.is_default(value) or _meaning(value) in [_meaning(one) for one in self.stock]


def pulsar_key(name: str) -> PulsarKey | None:
    """Return the facts about a key, None if Pulsar has none of this name.

    >>> pulsar_key("isSchemaValidationEnforced").key_class.value
    'promise'
    >>> pulsar_key("bookkeeper_tcpKeepIdle").key_class.value
    'harmless'
    >>> pulsar_key("brokerDedupEnabled")
    """
    named = pulsar_keys().get(name)
    if named is not None:
        return named
    families = (one for one in pulsar_keys().values() if one.key.endswith(_FAMILY_SIGN))
    return next((one for one in families if name.startswith(one.key.removesuffix(_FAMILY_SIGN))), None)


@cache
def pulsar_keys() -> dict[str, PulsarKey]:
    """Return all keys, by name."""
    return read_keys(_FILE.read_text(encoding="utf-8"))


def read_keys(text: str) -> dict[str, PulsarKey]:
    r"""Read the table.

    >>> read_keys("[harmless] It has no meaning here\nnumIOThreads=2 | 8\n")["numIOThreads"].stock
    ('8',)
    """
    found: dict[str, PulsarKey] = {}
    key_class, advice = KeyClass.HARMLESS, ""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            name, _, advice = line.removeprefix("[").partition("] ")
            key_class = KeyClass(name)
            continue
        key, _, values = line.partition("=")
        default, *others = (value.strip() for value in values.split("|"))
        kept = tuple(value.removeprefix(_KEPT_SIGN) for value in others if value.startswith(_KEPT_SIGN))
        stock = tuple(value for value in others if not value.startswith(_KEPT_SIGN))
        assert key not in found, f"{key} stands twice in the table"
        found[key] = PulsarKey(key, default, stock, kept, key_class, advice)
    return found


def _meaning(value: str) -> object:
    """Return a normal form of a text, equal for equal numbers and for lists in any order."""
    try:
        return float(value)
    except ValueError:
        return frozenset(part.strip().lower() for part in value.split(","))
