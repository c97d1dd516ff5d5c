"""Parse the text of a `broker.conf`, and find the unknown keys that are mistakes.

The format is Java's properties, as Pulsar reads them: `key=value`, comments on lines of their own with `#` or `!`, a
backslash at the end continues in the next line. Two things are stricter than in Java: a line without `=` or `:` (in
Java a key without a value) is an error, and so is a repeated key (in Java the last one wins).

A real `broker.conf` has some 590 keys, of which this service reads a few, and plugins have keys of their own. So an
unknown key is an error only if it begins like a key of this service, or is similar to a known key. Values are left out:
see `postdate.broker.configuration.config` and `postdate.broker.configuration.unread_keys`.
"""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import NamedTuple

OWN_PREFIXES = (
    "delayeddelivery",
    "isdelayeddelivery",
    "keyshared",
    "subscriptionkeyshared",
    "bucketsnapshot",
    "bundlelease",
    "cachedir",
    "datadir",
    "s3commit",
)
"""In lower case: beginnings of this service's own keys. An unknown key that begins so is a mistake."""

LIKENESS = 0.9
"""The similarity from which a key counts as a misspelling of another: one or two letters differ."""

# Python's own splitlines also ends lines at characters that may stand in a value.
_LINE_END = re.compile(r"\r\n?|\n")
_LINE = re.compile(r"\s*((?:[^\s=:\\]|\\.)+)\s*[=:]\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Mapping[str, str] = MappingProxyType({"t": "\t", "n": "\n", "r": "\r", "f": "\f"})


class ConfigError(ValueError):
    """A value or key that cannot be accepted; the text names its place and the allowed values."""

    def __init__(self, reason: str, *, where: str, key: str, value: str | None = None, line: int | None = None) -> None:
        shown = key if value is None else f"{key}={value}"
        if where.startswith(f"--set {key}=") or where == f"--set {shown}":
            # The place has the key already, and the value if there is one.
            shown = ""
        super().__init__(f"{where}: {shown}: {reason}" if shown else f"{where}: {reason}")
        self.key = key
        self.value = value
        self.line = line


class Given(NamedTuple):
    """A value as text, and its place. The text may be secret."""

    text: str
    where: str
    line: int | None = None

    @property
    def where_shown(self) -> str:
        """The place without the value, which is part of it on the command line."""
        return "--set" if self.where.startswith("--set") else self.where


def may_hold_password(value: str) -> bool:
    """Whether a value looks like a URL or an address with a user, so that it is not to be shown.

    >>> may_hold_password("https://user:pw@host"), may_hold_password("https://host:443")
    (True, False)
    """
    return "@" in value and ":" in value


def parse_config_text(text: str, *, name: str) -> dict[str, tuple[str, int]]:
    r"""Return the keys of a configuration file, with their values and line numbers.

    >>> parse_config_text("# Ports\nbrokerServicePort = 6650\n", name="broker.conf")
    {'brokerServicePort': ('6650', 2)}

    Args:
        text: The file's content.
        name: The file's name in errors.

    Raises:
        ConfigError: A line is neither a comment nor `key=value`, or a key stands there twice.
    """
    found: dict[str, tuple[str, int]] = {}
    for number, line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        if match is None:
            # The line is not shown: it may be a part of a secret.
            raise ConfigError(
                "the line is neither a comment nor key=value", where=f"{name}:{number}", key="", line=number
            )
        key = _unescape(match[1])
        if key in found:
            reason = f"it stands in line {found[key][1]} already; remove one of the two"
            raise ConfigError(reason, where=f"{name}:{number}", key=key, line=number)
        found[key] = (_unescape(match[2]).strip(), number)
    return found


def check_unknown_key(key: str, known: Collection[str], *, where: str, line: int | None = None) -> None:
    """Refuse an unknown key that must be a mistake; accept every other one.

    Raises:
        ConfigError: The key begins like one of this service, or is similar to a known one.
    """
    if key in known:
        return
    is_ours = key.lower().startswith(OWN_PREFIXES)
    by_lower_case = {name.lower(): name for name in known}
    # A key that begins as ours do gets a suggestion even when it is far from every known key.
    likeness = 0.6 if is_ours else LIKENESS
    similar = get_close_matches(key.lower(), by_lower_case, n=1, cutoff=likeness)
    if not is_ours and not similar:
        return
    suggestion = f"; did you mean {by_lower_case[similar[0]]}?" if similar else ""
    raise ConfigError(f"there is no such key{suggestion}", where=where, key=key, line=line)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Join continued lines and leave out blank ones and comments; each with the number of its first line."""
    lines: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip()
        if begun is None and (not line or line[0] in "#!"):
            continue
        first, before = begun if begun is not None else (number, "")
        trailing_backslashes = len(line) - len(line.rstrip("\\"))
        if trailing_backslashes % 2:
            begun = (first, before + line[:-1])
            continue
        lines.append((first, before + line))
        begun = None
    if begun is not None:
        lines.append(begun)
    return lines


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        return _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(plain, text)
