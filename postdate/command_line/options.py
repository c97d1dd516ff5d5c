"""Options of several commands, each defined once; `json_option` is beside what prints JSON (`output.py`)."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def in_order(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Apply options in the order in which the help shows them."""

    def apply(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def dry_run_option(what: str) -> Callable[[Command], Command]:
    """Add `--dry-run`, which a command gets as `is_dry_run`.

    Args:
        what: The part of the work that is done all the same, for the help text.
    """
    return click.option("--dry-run", "is_dry_run", is_flag=True, help=f"Only {what}; change nothing.")


def yes_option(what: str = "Do not ask.") -> Callable[[Command], Command]:
    """Add `--yes`, which a command gets as `is_sure`.

    Args:
        what: The help text.
    """
    return click.option("--yes", "is_sure", is_flag=True, help=what)
