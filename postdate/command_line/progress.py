"""The progress of long work, on stderr: a bar on a terminal, otherwise one line for each stage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from postdate.command_line.output import counted

if TYPE_CHECKING:
    from rich.progress import TaskID

Advance = Callable[[int, int], None]
"""Receives the number of bytes done, and of all bytes."""


_UNITS: Final = {
    **dict.fromkeys(("read", "export", "divide"), "ledger"),
    **dict.fromkeys(("snapshots", "delete"), "snapshot"),
    **dict.fromkeys(("searched", "cancelled", "rescheduled", "delivered"), "message"),
    "compare": "subscription",
    "verify": "bundle",
    "index": "bucket",
}
"""What a step of a stage is; of the other stages a part of the work, as Spark shares it out."""


class Steps:
    """The stages of a job, each with so many steps."""

    def __init__(self) -> None:
        # Imported late: rich takes a tenth of a second, and help texts need none of it.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        text, unit = TextColumn("{task.description:<8}"), TextColumn("{task.fields[unit]}s")
        columns = (text, BarColumn(), MofNCompleteColumn(), unit, TimeElapsedColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._is_shown = console.is_terminal
        self._task: TaskID | None = None

    def begin(self, name: str, steps: int | None) -> None:
        """Begin a stage; None for an unknown length."""
        unit = _UNITS.get(name, "part")
        if not self._is_shown and steps is not None:
            click.echo(f"{name}: {counted(steps, unit)}", err=True)
        self._task = self._progress.add_task(name, total=steps, unit=unit)

    def advance(self, steps: int) -> None:
        """Count finished steps."""
        if self._task is not None:
            self._progress.advance(self._task, steps)

    @contextmanager
    def shown(self) -> Iterator["Steps"]:
        """Show the bar while the body runs."""
        with self._progress:
            yield self


@contextmanager
def bytes_bar(done: str) -> Iterator[Advance]:
    """Show a bar of bytes on a terminal; it disappears at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    progress = Progress(
        TextColumn(" "),
        BarColumn(bar_width=40),
        DownloadColumn(binary_units=True),
        TextColumn(done),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task("", total=None)
    with progress:
        yield lambda completed, total: progress.update(task, completed=completed, total=total)
