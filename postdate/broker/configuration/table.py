"""Write the configuration down for people: as the lines of a `broker.conf`, and as the table of the docs.

The meaning of a key is the comment above it in `config/broker.conf`, and only there is it written by hand.
"""

from importlib.resources import files
from pathlib import Path
from typing import Final

from postdate.broker.configuration.config import BrokerConfig, settings

_OF_THE_CHECKOUT: Final = Path(__file__).parents[3] / "config/broker.conf"


def commented_config() -> str:
    """Return the text of the commented `broker.conf`: of the wheel, or of the checkout that is installed editable."""
    packaged = files("postdate.broker.configuration") / "broker.conf"
    return (packaged if packaged.is_file() else _OF_THE_CHECKOUT).read_text(encoding="utf-8")


def commented_lines(config: BrokerConfig) -> str:
    """Return the commented `broker.conf` with the values of a configuration, as `load_config` reads it."""
    values = config_values(config)
    lines: list[str] = []
    for line in commented_config().splitlines():
        key = line.partition("=")[0].strip()
        if line.startswith("#") or key not in values:
            lines.append(line)
        else:
            lines.append(_line(key, values[key]))
    return "\n".join(lines) + "\n"


def config_lines(config: BrokerConfig, *, changed_only: bool = False) -> str:
    r"""Return a configuration as `key=value` lines, as `load_config` reads them.

    >>> from dataclasses import replace
    >>> config_lines(replace(BrokerConfig(), ttl_ms=60_000), changed_only=True)
    'ttlDurationDefaultInSeconds=60\n'

    Args:
        config: The configuration.
        changed_only: Leave out keys with their defaults.
    """
    return "".join(f"{_line(key, value)}\n" for key, value in config_values(config, changed_only=changed_only).items())


def _line(key: str, value: str | None) -> str:
    if value is None:
        return f"# {key} is set, and secret"
    # A single backslash would escape what follows it, the end of the line included.
    escaped = value.replace("\\", "\\\\")
    return f"{key}={escaped}"


def config_values(config: BrokerConfig, *, changed_only: bool = False) -> dict[str, str | None]:
    """Return a configuration by key, for programs; null stands for a secret that is set.

    Args:
        config: The configuration.
        changed_only: Leave out keys with their defaults.
    """
    default = BrokerConfig()
    return {
        setting.key: None if setting.is_secret and setting.value_in(config) else setting.value_in(config)
        for setting in settings()
        if not changed_only or setting.value_in(config) != setting.value_in(default)
    }


def config_table(documented: str) -> str:
    """Return a Markdown table of every key with its default and the first sentence of its meaning.

    Args:
        documented: The text of `config/broker.conf`.
    """
    default = BrokerConfig()
    comments = comments_of(documented)
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for setting in settings():
        value = setting.value_in(default)
        shown = f"`{value}`" if value else ""
        meaning = f"{comments[setting.key].split('. ')[0].rstrip('.')}.".replace("|", "\\|")
        rows.append(f"| `{setting.key}` | {shown} | {meaning} |")
    return "\n".join(rows) + "\n"


def comments_of(documented: str) -> dict[str, str]:
    r"""Return the comment that stands directly above each key, its lines joined.

    >>> comments_of("# A title\n\n# The port\n# for clients.\nbrokerServicePort=6650\n")
    {'brokerServicePort': 'The port for clients.'}
    """
    comments: dict[str, str] = {}
    block: list[str] = []
    for line in documented.splitlines():
        if line.startswith("#"):
            block.append(line.lstrip("# "))
            continue
        key, separator, _ = line.partition("=")
        if separator:
            comments[key.strip()] = " ".join(block)
        block = []
    return comments
