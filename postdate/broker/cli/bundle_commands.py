"""`postdate bundles`: how many bundles a stopped data folder has."""

import asyncio
from pathlib import Path

import click

from managed_ledger.bundle_settings import LEDGERS, SNAPSHOTS
from managed_ledger.cursors.cursor_properties import CursorPropertiesFolder
from managed_ledger.dividing import Divided, divide
from postdate.broker.cli.common import configure_logging, refusing
from postdate.broker.service.record_homes import home_of_record
from postdate.command_line.endings import help_end
from postdate.command_line.options import yes_option
from postdate.command_line.output import counted, json_option, print_json
from postdate.command_line.progress import Steps
from postdate.index.index_copy import copy_index
from postdate.index.location import RocksDBLocation, is_rocksdb
from postdate.index.opening import Filter
from snapshot_storage.retrying import Retries

BUNDLES_MAX = 1024


@click.group(epilog=help_end("postdate bundles split data --bundles 4 --yes"))
def bundles() -> None:
    """Divide a data folder into bundles: parts of its topics, each of which a worker can have."""


@bundles.command(
    epilog=help_end(
        "postdate bundles split data --bundles 4 --yes",
        "postdate check --data data && rm -r data/bundles.old  # when all is well",
    )
)
@click.argument("folder", metavar="DATA_FOLDER", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--bundles",
    "count",
    type=click.IntRange(1, BUNDLES_MAX),
    required=True,
    metavar="N",
    help="How many it shall have: a multiple of what it has.",
)
@yes_option("Divide it; without this option nothing is changed.")
@json_option()
@refusing
def split(folder: Path, count: int, is_sure: bool, is_json: bool) -> None:
    """Spread the topics of DATA_FOLDER evenly over N bundles; the service must be stopped.

    Messages keep their ids, and all subscriptions where they were. The new logs are made beside the old one, read again
    and compared, and take its place at once; what is cut off has changed nothing, and is begun anew. The old log stays
    in DATA_FOLDER/bundles.old, until you remove it.
    """
    configure_logging("error")
    if not is_sure:
        raise click.UsageError(f"This puts other logs in the place of the one in {folder}: say --yes")
    indexes = _Indexes()
    with Steps().shown() as steps:
        divided = divide(
            folder, count, home_of=home_of_record, fill=indexes.copy, on_stage=steps.begin, on_step=steps.advance
        )
    if is_json:
        topics = {str(one): number for one, number in divided.bundles.items()}
        print_json(
            {"bundles": topics, "is_divided": divided.old is not None, "old": divided.old and str(divided.old)}
            | {"snapshots": indexes.copied, "index_is_read_again": indexes.is_left_out}
        )
        return
    _tell(folder, divided, indexes)


class _Indexes:
    """Copies the delayed index, where it is in the data folder, as the log has all of it."""

    def __init__(self) -> None:
        self.copied = 0
        self.is_left_out = False

    def copy(self, source: Path, made: Path) -> None:
        """Copy the snapshots that the cursors of a new log name."""
        if not is_rocksdb(source / SNAPSHOTS):
            self.is_left_out = True
            return
        asyncio.run(self._copy(source, made))

    async def _copy(self, source: Path, made: Path) -> None:
        here, there = RocksDBLocation(source / SNAPSHOTS), RocksDBLocation(made / SNAPSHOTS)
        retries = Retries()
        with CursorPropertiesFolder(made / LEDGERS, is_read_only=False) as cursors:
            async with (
                here.patient_storage(is_read_only=True, retries=retries) as old,
                there.patient_storage(retries=retries) as new,
            ):
                done = await copy_index(
                    old,
                    new,
                    cursors,
                    retries=retries,
                    chosen=Filter(),
                    updates_cursors=True,
                    deletes_source=False,
                    advance=lambda _done, _total: None,
                )
        self.copied += len(done.new_ids)
        self.is_left_out |= done.cursors_left


def _tell(folder: Path, divided: Divided, indexes: _Indexes) -> None:
    if divided.old is None:
        names = ", ".join(map(str, divided.bundles))
        click.echo(f"{folder} has {counted(len(divided.bundles), 'bundle')} already, {names}: there is nothing to do")
        return
    for bundle, topics in divided.bundles.items():
        click.echo(f"{bundle}: {counted(topics, 'topic')}")
    click.echo(
        f"{folder} has {len(divided.bundles)} bundles; {divided.rows:,} rows of the log were read again, all whole"
    )
    if indexes.is_left_out:
        click.echo("A start reads the delayed index from the log again, or a part of it, in the background")
    else:
        click.echo(f"{counted(indexes.copied, 'snapshot')} of the delayed index came along")
    click.echo(f"The log of before is in {divided.old}: remove it when all is well")
