"""The output of commands: JSON for programs; times, sizes and numbers for people in one notation."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Command = TypeVar("Command", bound=Callable[..., Any])

WIDTH_MIN: Final = 80
"""Tables are made for so many columns at least."""

_WIDTH_IN_A_PIPE: Final = 1_000
"""So many that no name is folded: what reads a pipe looks for whole ones."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Datetime knows the years 1 to 9999, the years that ISO 8601 writes with four digits.
_ISO_MS_MIN: Final = -62_135_596_800_000
_ISO_MS_MAX: Final = 253_402_300_799_999


def iso(time_ms: int) -> str:
    """Write a time in UTC as ISO 8601 has it.

    >>> iso(1_795_289_849_971)
    '2026-11-21T19:37:29.971Z'
    >>> iso(2**63 - 1)
    'after the year 9999'

    Args:
        time_ms: Milliseconds since 1970.
    """
    if time_ms > _ISO_MS_MAX:
        return "after the year 9999"
    if time_ms < _ISO_MS_MIN:
        return "before the year 1"
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_or_none(time_ms: int | None) -> str | None:
    """Write a time for JSON, where a time that has no ISO form is null."""
    return None if time_ms is None or not _ISO_MS_MIN <= time_ms <= _ISO_MS_MAX else iso(time_ms)


def size(count: int) -> str:
    """Write a number of bytes in the unit that fits.

    >>> size(999), size(1_536), size(5 * 2**30)
    ('999 B', '1.5 KiB', '5.0 GiB')
    """
    if count < 2**10:
        return f"{count} B"
    exponent = min(4, (count.bit_length() - 1) // 10)
    return f"{count / 2 ** (10 * exponent):.1f} {'KMGT'[exponent - 1]}iB"


def counted(count: int, noun: str) -> str:
    """Write a number with its noun.

    >>> counted(1, "snapshot"), counted(2_000, "snapshot")
    ('1 snapshot', '2,000 snapshots')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def output_width() -> int:
    """Return the columns that tables may take: as `COLUMNS` or the terminal says, 80 at least; in a pipe many."""
    if "COLUMNS" not in os.environ and not sys.stdout.isatty():
        return _WIDTH_IN_A_PIPE
    return max(WIDTH_MIN, shutil.get_terminal_size((WIDTH_MIN, 24)).columns)


def make_console() -> "Console":
    """Return a console as wide as `output_width` says."""
    # Rich takes a tenth of a second to import, and help texts need none of it.
    from rich.console import Console

    # Names are printed unchanged: `:name:` is no emoji.
    return Console(highlight=False, emoji=False, width=output_width())


def plain_table(*columns: tuple[str, Any]) -> "Table":
    """Return an empty table in the style of all commands, with names and alignments of columns that are not folded."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)
    return table


def print_json(value: object, *, is_line: bool = False) -> None:
    """Print a value for programs: indented, or on one line where more lines follow."""
    click.echo(json.dumps(value, indent=None if is_line else 2, ensure_ascii=False))


def json_option(what: str = "one object") -> Callable[[Command], Command]:
    """Add `--json`, which a command gets as `is_json`.

    Args:
        what: The content of the JSON, for the help text.
    """
    return click.option("--json", "is_json", is_flag=True, help=f"Print JSON, for programs: {what}.")
