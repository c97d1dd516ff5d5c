"""What the commands of `cli` share: errors in one line, examples in the help, progress, and a session."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from managed_ledger.errors import LedgerError
from snapshot_storage.errors import SnapshotStorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import TaskID

P = ParamSpec("P")
R = TypeVar("R")

EXIT_CODE_REFUSED = 2


def refusing(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors that an operator can do something about into one line and exit code 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ModuleNotFoundError as error:
            text = f"{error.name} is not installed: pip install 'postdate[spark]'"
        except (LedgerError, SnapshotStorageError, OSError, ValueError, RuntimeError) as error:
            text = str(error)
        click.echo(f"postdate: {' '.join(text.split())}", err=True)
        sys.exit(EXIT_CODE_REFUSED)

    return run


def examples(*commands: str) -> str:
    """Write commands as the end of a help text, in a paragraph that click does not fill."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


class Steps:
    """A progress bar of a job's stages on stderr; where that is no terminal, a line a stage."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._is_shown = console.is_terminal
        self._task: TaskID | None = None

    def begin(self, name: str, steps: int | None) -> None:
        """Begin a stage; None where nobody knows how long it is."""
        if not self._is_shown and steps is not None:
            click.echo(f"{name}: {steps}", err=True)
        self._task = self._progress.add_task(name, total=steps)

    def advance(self, steps: int) -> None:
        """Tell of steps that are done."""
        if self._task is not None:
            self._progress.advance(self._task, steps)

    @contextmanager
    def shown(self) -> Iterator["Steps"]:
        """Show the bar meanwhile."""
        with self._progress:
            yield self


def new_session(master: str) -> "SparkSession":
    """Return the session that `spark-submit` has prepared, or one of our own, without the noise of its gateway."""
    from pipeline.session import any_session

    logging.getLogger("py4j").setLevel(logging.ERROR)
    return any_session(master)
