"""The shared options of the commands about an index, and how they open it."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from managed_ledger.bundles import BundleRange
from managed_ledger.objects.moving import move_out, tables_bytes
from postdate.broker.cli.common import config_options, configure_logging, refusing
from postdate.broker.configuration.config import BrokerConfig, load_config
from postdate.broker.service.snapshot_storages import location_of, retries_of, snapshots_folder
from postdate.command_line.output import size
from postdate.command_line.progress import bytes_bar
from postdate.index.bundle_choice import bundle_option, chosen_bundles, refuse_several
from postdate.index.location import Location, location_at
from postdate.index.object_places import objects_at
from postdate.index.opening import Filter, OpenIndex, open_index
from snapshot_storage.errors import StorageAccessError
from snapshot_storage.s3.location import S3Location, is_s3

P = ParamSpec("P")
T = TypeVar("T")


def on_config(command: Callable[Concatenate[BrokerConfig, P], T]) -> Callable[..., T]:
    """Add `--config`, `--set`, `--data` and `--bundle`, and pass the configuration; refuse in one line.

    Where the data folder has several bundles, the configuration's is that of the one that is meant.
    """

    @wraps(command)
    def run(configs: Mapping[BundleRange, BrokerConfig], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if len(configs) > 1:
            refuse_several(configs)
        return command(next(iter(configs.values())), *args, **kwargs)

    return on_bundles(run)


def on_bundles(command: Callable[Concatenate[Mapping[BundleRange, BrokerConfig], P], T]) -> Callable[..., T]:
    """Add the same options, and pass a configuration for each bundle that is meant: of all, or of one.

    A command with a parameter `prefix` can also work on data on S3: its log is read out to a folder, and `prefix` is
    the place that it is from.
    """
    takes_prefixes = "prefix" in signature(command).parameters

    @wraps(command)
    def run(
        config_path: Path | None,
        overrides: tuple[str, ...],
        data: str | None,
        bundle: str | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        configure_logging("error")
        named = (f"dataDirectory={data}",) if data is not None and is_s3(data) else ()
        config = load_config(config_path, environment=os.environ, overrides=(*overrides, *named))
        if data is not None and not named:
            config = replace(config, data_directory=Path(data))
        with _folder_of(config) if takes_prefixes else nullcontext(config) as of_folder:
            topic = kwargs.get("topic")
            folders = chosen_bundles(of_folder.data_folder, bundle, [topic] if isinstance(topic, str) else ())
            configs = {one: replace(of_folder, data_directory=folder) for one, folder in folders.items()}
            if takes_prefixes:
                kwargs["prefix"] = None if of_folder is config else config.data_name
            return command(configs, *args, **kwargs)

    option = click.option(
        "--data",
        metavar="DIR",
        help="The service's data folder. Default: dataDirectory of the configuration.",
    )
    return config_options(option(bundle_option(refusing(run))))


@contextmanager
def _folder_of(config: BrokerConfig) -> Iterator[BrokerConfig]:
    """Give the configuration; where its data is on S3, one of a folder that the log is read out to, and deleted from.

    Raises:
        BackupError: There is no log in the prefix, or it changes all the time.
        LedgerError: It is damaged, or the disk refuses.
        SnapshotStorageError: The storage does not answer or refuses.
    """
    if not isinstance(config.data_directory, S3Location):
        yield config
        return
    with tempfile.TemporaryDirectory(prefix="postdate-read-") as name:
        folder = Path(name) / "data"
        with closing(objects_at(config.data_name, config.data_s3)) as objects:
            click.echo(
                f"{size(tables_bytes(objects))} of tables are read out to {name}, and removed at the end", err=True
            )
            with bytes_bar("read") as advance:
                move_out(objects, folder, on_bytes=advance)
        # The index is elsewhere, and changes while a service runs.
        yield replace(config, data_directory=folder, bucket_snapshot_storage="memory")


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
    if not config.data_folder.is_dir():
        raise StorageAccessError(f"there is no folder {config.data_folder}: name the service's with --data")
    return config.data_folder / "ledgers"


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
        return location_at(index, s3=config.snapshots_s3, data=config.data_folder)
    except ValueError as error:
        raise StorageAccessError(f"{option}: {error}; credentials are those of the configuration") from error


def refuse_inside(config: BrokerConfig, folder: Path, name: str) -> None:
    """Refuse a target folder inside the folder of a database.

    Raises:
        StorageAccessError: It would be inside the service's snapshots or its log.
    """
    for taken in (snapshots_folder(config), config.data_folder / "ledgers"):
        if folder.resolve() != taken.resolve() and folder.resolve().is_relative_to(taken.resolve()):
            raise StorageAccessError(f"{name}: that is inside {taken}, which is the service's own: name another folder")
