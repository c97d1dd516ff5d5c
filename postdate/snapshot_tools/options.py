"""The shared options of the commands about an index, and how they open it."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from postdate.broker.cli.common import config_options, configure_logging, refusing
from postdate.broker.configuration.config import BrokerConfig, load_config
from postdate.broker.service.snapshot_storages import location_of, retries_of, snapshots_folder
from postdate.index.location import Location, location_at
from postdate.index.opening import Filter, OpenIndex, open_index
from snapshot_storage.errors import StorageAccessError

P = ParamSpec("P")
T = TypeVar("T")


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

    run = click.option("--subscription", "cursor", help="Only of this subscription.")(run)
    return click.option("--topic", help="Only of this topic, by its whole or short name.")(run)


index_option = click.option(
    "--index",
    metavar="INDEX",
    help="The snapshots are here, and not where the configuration has them: a TARGET of `copy`, or a checkpoint.",
)


@asynccontextmanager
async def opened(
    config: BrokerConfig, index: Location | None = None, *, is_read_only: bool = True
) -> AsyncIterator[OpenIndex]:
    """Open the index and the cursors of a configuration.

    Args:
        config: The configuration.
        index: The place of the snapshots, if it is another one.
        is_read_only: Whether both are opened to read.

    Raises:
        StorageAccessError: There are no snapshots, or no data folder.
        StoreLockedError: It is to be changed, and a service has it open.
        LedgerError: The log cannot be opened.
        SnapshotStorageError: The storage cannot be opened.
    """
    location = location_of(config) if index is None else index
    async with open_index(location, log_of(config), retries=retries_of(config), is_read_only=is_read_only) as found:
        yield found


def log_of(config: BrokerConfig) -> Path:
    """Return the folder of the log.

    Raises:
        StorageAccessError: There is no data folder.
    """
    if not config.data_directory.is_dir():
        raise StorageAccessError(f"there is no folder {config.data_directory}: name the service's with --data")
    return config.data_directory / "ledgers"


def index_named(config: BrokerConfig, index: str | None, *, option: str = "--index") -> Location:
    """Return the location that an option names, or else the configuration's.

    Args:
        config: The settings that a text leaves out, as credentials, and the data folder that owns objects on S3.
        index: The text of the option.
        option: Its name, for errors.

    Raises:
        StorageAccessError: The text names no place, or the configuration's snapshots are in memory.
    """
    if index is None:
        return location_of(config)
    try:
        return location_at(index, s3=config.s3, data=config.data_directory)
    except ValueError as error:
        raise StorageAccessError(f"{option}: {error}; credentials are those of the configuration") from error


def refuse_inside(config: BrokerConfig, folder: Path, name: str) -> None:
    """Refuse a target folder inside the folder of a database.

    Raises:
        StorageAccessError: It would be inside the service's snapshots or its log.
    """
    for taken in (snapshots_folder(config), config.data_directory / "ledgers"):
        if folder.resolve() != taken.resolve() and folder.resolve().is_relative_to(taken.resolve()):
            raise StorageAccessError(f"{name}: that is inside {taken}, which is the service's own: name another folder")
