"""The shared options and the console of the commands of `postdate snapshots`."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from rich.console import Console

from postdate.broker.cli.common import config_options, configure_logging, refusing
from postdate.broker.configuration.config import BrokerConfig, load_config
from postdate.snapshot_tools.place import Filter

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
    """Add `--topic` and `--subscription`."""

    @wraps(command)
    def run(*args: Any, topic: str | None, cursor: str | None, **kwargs: Any) -> T:
        return command(*args, which=Filter(topic, cursor), **kwargs)

    run = click.option("--subscription", "--cursor", "cursor", help="Only of this subscription.")(run)
    return click.option("--topic", help="Only of this topic, by its whole or short name.")(run)


def make_console() -> Console:
    """Return a console as wide as the terminal or as `COLUMNS` says, else wide enough for the tables."""
    # Names are printed unchanged: `:name:` is no emoji.
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _COLUMNS_WHEN_PIPED
    return console
