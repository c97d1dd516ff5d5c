"""Write the configuration down for people: as a table for README.md, and as the text of a `broker.conf`.

The meaning of a key is the docstring below its field, read from the source; so the table cannot contradict it.
"""

import ast
import inspect
import textwrap

from broker.config import BrokerConfig, Setting, settings


def config_table() -> str:
    """Return a Markdown table of every key with its default and its meaning."""
    default = BrokerConfig()
    docs = {id(owner): field_docs(owner) for owner in _owners(default).values()}
    owners = _owners(default)
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for setting in settings():
        value = setting.value_in(default)
        meaning = _first_paragraph(docs[id(owners[setting.section])][setting.field.name])
        rows.append(f"| `{setting.key}` | {f'`{value}`' if value else ''} | {meaning} |")
    return "\n".join(rows) + "\n"


def config_text(config: BrokerConfig) -> str:
    """Return a configuration as `key=value` lines, as `load_config` reads them."""
    return "".join(f"{setting.key}={setting.value_in(config)}\n" for setting in settings())


def changed_settings(config: BrokerConfig) -> list[Setting]:
    """List the settings whose value is not the default."""
    default = BrokerConfig()
    return [setting for setting in settings() if setting.value_in(config) != setting.value_in(default)]


def field_docs(owner: type) -> dict[str, str]:
    """Return the docstring below each field of a class.

    >>> field_docs(BrokerConfig)["service_port"]
    'The port for Pulsar clients. Default 6650.'
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            docs[statement.target.id] = inspect.cleandoc(str(below.value.value))
    return docs


def _owners(default: BrokerConfig) -> dict[str | None, type]:
    sections = {setting.section for setting in settings()}
    return {section: type(default) if section is None else type(getattr(default, section)) for section in sections}


def _first_paragraph(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split()).replace("|", "\\|")
