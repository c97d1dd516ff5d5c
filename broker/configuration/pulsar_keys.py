"""The keys that a configuration file of Apache Pulsar may hold, and what they mean here when they are not read.

`pulsar_keys.conf` has the facts: each key's default, its class, and a sentence for whoever sets it. This module reads
them and knows when a value asks for something. What follows from that is `broker.configuration.unread_keys`'.
"""

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_FILE: Final = Path(__file__).with_name("pulsar_keys.conf")
_FAMILY_SIGN: Final = "*"
_KEPT_SIGN: Final = "kept "


class KeyClass(StrEnum):
    """What becomes of a key that is not read, when it asks for something."""

    SECURITY = "security"
    """Who can do what would be another than the file says: the start is refused."""
    PROMISE = "promise"
    """Something would not be kept: the start is refused, unless the operator says otherwise."""
    HARMLESS = "harmless"
    """Nobody who speaks to the service can tell."""


class PulsarKey(NamedTuple):
    """One key of Pulsar's."""

    key: str
    default: str
    stock: tuple[str, ...]
    """What Pulsar's own files have where that is not the default."""
    kept: tuple[str, ...]
    """Values that hold here, although nothing reads them."""
    key_class: KeyClass
    advice: str
    """What is the case here, and what to do."""

    def is_default(self, value: str) -> bool:
        """Whether there is nothing to say of a value: it is what Pulsar's code has, or it holds here."""
        return not value or _meaning(value) in [_meaning(one) for one in (self.default, *self.kept)]

    def is_stock(self, value: str) -> bool:
        """Whether a value is what Pulsar's code or one of its own files has: nobody has asked for it."""
        return self.is_default(value) or _meaning(value) in [_meaning(one) for one in self.stock]


def pulsar_key(name: str) -> PulsarKey | None:
    """Return what is known of a key, None if Pulsar has none of this name.

    >>> pulsar_key("brokerDeduplicationEnabled").key_class.value
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
    """Return something that is equal for texts that mean the same: numbers, and lists in any order."""
    try:
        return float(value)
    except ValueError:
        return frozenset(part.strip().lower() for part in value.split(","))
