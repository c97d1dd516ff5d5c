"""What the commands of `postdate snapshots` have in common: options, a console, a progress bar, a clean end."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from broker.cli_common import EXIT_CODE_REFUSED, config_options, configure_logging, refusing
from broker.config import BrokerConfig, load_config
from broker.snapshots_check import Advance
from broker.snapshots_place import Filter

P = ParamSpec("P")
T = TypeVar("T")

_COLUMNS_WHEN_PIPED = 100


def on_config(command: Callable[Concatenate[BrokerConfig, P], T]) -> Callable[..., T]:
    """Add `--config`, `--set` and `--data`, and pass the configuration; refuse in one line."""

    @wraps(command)
    def run(
        config_path: Path | None, overrides: tuple[str, ...], data: Path | None, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        configure_logging("error")
        config = load_config(config_path, environment=os.environ, overrides=overrides)
        if data is not None:
            config = replace(config, data_directory=data)
        return command(config, *args, **kwargs)

    option = click.option(
        "--data",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="The service's data folder. Default: dataDirectory of the configuration.",
    )
    return config_options(option(refusing(run)))


def filters(command: Callable[..., T]) -> Callable[..., T]:
    """Add `--topic` and `--cursor`."""

    @wraps(command)
    def run(*args: Any, topic: str | None, cursor: str | None, **kwargs: Any) -> T:
        return command(*args, which=Filter(_full_name(topic), cursor), **kwargs)

    for name, what in (("cursor", "subscription"), ("topic", "topic, by full or short name")):
        run = click.option(f"--{name}", help=f"Only of this {what}.")(run)
    return run


def _full_name(topic: str | None) -> str | None:
    """Complete a short name as clients do."""
    if topic is None or "://" in topic:
        return topic
    return f"persistent://public/default/{topic}" if "/" not in topic else f"persistent://{topic}"


def run_command(work: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end; Ctrl-C ends it in order."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        click.echo("postdate: interrupted; what was begun is not visible, and the same command goes on", err=True)
        sys.exit(EXIT_CODE_REFUSED)


def make_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for the tables."""
    # Names are printed as they are: `:name:` is no picture.
    console = Console(highlight=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, emoji=False, width=_COLUMNS_WHEN_PIPED)


@contextmanager
def progress_bar(done: str) -> Iterator[Advance]:
    """Show how far the work is, on a terminal; gone when it is done."""
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
