"""`postdate snapshots`: look at the index on disk, clean up, move it, hand it to other tools.

This module has the commands and their options. The work is in `postdate.snapshot_tools.drop`, `copy` and `export`, and
in the room `index`; the output is in `report`. Commands that only read work beside a running service.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from rich.markup import escape

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import snapshots_folder
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end, say
from postdate.command_line.options import dry_run_option, yes_option
from postdate.command_line.output import counted, json_option, make_console, print_json, size
from postdate.command_line.progress import Steps, bytes_bar
from postdate.index.opening import Filter, OpenIndex, Summary, readable_segments
from postdate.snapshot_tools.copy import copy_snapshots, make_checkpoint, target_named
from postdate.snapshot_tools.drop import Unused, delete_unused, give_up
from postdate.snapshot_tools.export import export_snapshots
from postdate.snapshot_tools.json_output import (
    checkpoint_json,
    copied_json,
    exported_json,
    snapshot_json,
    summary_json,
    unused_json,
)
from postdate.snapshot_tools.options import filters, index_named, index_option, on_config, opened
from postdate.snapshot_tools.report import (
    print_copied,
    print_exported,
    print_given_up,
    print_histogram,
    print_list,
    print_segments,
    print_snapshot,
    print_unused,
    unused_counts,
)
from snapshot_storage.encoding.codec import decode_metadata, decode_segment
from snapshot_storage.errors import SnapshotUnreadableError
from snapshot_storage.inspection import TimeHistogram

_HISTOGRAM_BINS_MAX = 16


@click.group()
def snapshots() -> None:
    """Look at the snapshots of the delayed index, clean up, copy, back up and export them.

    `list`, `show` and `export` only read, and work beside a running service. `copy` and `checkpoint` write to the place
    that they are given, and `copy --update-cursors` to the log too. `drop` deletes. `postdate check` says whether they
    are whole.
    """


snapshots.epilog = help_end(
    "postdate snapshots list",
    "postdate snapshots drop --dry-run --config config/broker.conf",
    "postdate snapshots copy --to s3://bucket/prefix --data /var/lib/postdate",
)


@snapshots.command(
    "list",
    short_help="List them: owner, size, delivery times.",
    epilog=help_end(
        "postdate snapshots list --data data",
        "postdate snapshots list --topic orders --subscription billing",
        "postdate snapshots list --json | jq '.[] | select(.rows > 100000)'",
        wrong="the header or entry 0 of one is damaged",
    ),
)
@on_config
@filters
@json_option("a list of objects, sizes in bytes")
def list_(config: BrokerConfig, *, which: Filter, is_json: bool) -> None:
    """List snapshots: whose, which ledgers, how many segments, rows and bytes, and when they are due.

    Damaged snapshots are named on stderr.
    """

    async def read() -> tuple[list[Summary], dict[int | None, object]]:
        async with opened(config) as index:
            infos, faults = await index.readable_infos(await index.resolve(which))
            return [summary async for summary in index.summaries(infos)], dict(faults)

    summaries, faults = asyncio.run(read())
    if is_json:
        print_json([summary_json(summary) for summary in summaries])
    else:
        print_list(make_console(), summaries)
    faults.update((one.info.bucket_id, one.problem) for one in summaries if one.problem is not None)
    _tell_faults(faults)


@snapshots.command(
    short_help="Show one: segments, sizes, a histogram.",
    epilog=help_end(
        "postdate snapshots show 1795289849971",
        "postdate snapshots show 1795289849971 --all | less",
        "postdate snapshots show 1795289849971 --data /var/lib/postdate",
        wrong="it is damaged",
    ),
)
@click.argument("bucket_id", metavar="ID", type=click.IntRange(0, 2**63 - 1))
@on_config
@click.option("--all", "is_all", is_flag=True, help="Every segment. Default: the first and the last ten.")
@json_option("one object with all segments")
def show(config: BrokerConfig, *, bucket_id: int, is_all: bool, is_json: bool) -> None:
    """Show one snapshot: its ranges, segments, times and sizes, and when its messages are due."""

    async def read() -> None:
        async with opened(config) as index:
            await _show(index, bucket_id, is_all=is_all, is_json=is_json)

    try:
        asyncio.run(read())
    except SnapshotUnreadableError as error:
        _tell_faults({bucket_id: error})


def _tell_faults(faults: Mapping[int | None, object]) -> None:
    """Report snapshots that could not be read, and end with the exit code of a fault, if there are any."""
    for fault in faults.values():
        say(str(fault))
    if faults:
        sys.exit(EXIT_CODE_WRONG)


async def _show(index: OpenIndex, bucket_id: int, *, is_all: bool, is_json: bool) -> None:
    info = await index.info(bucket_id)
    metadata = await index.storage.get_bucket_snapshot_metadata(bucket_id)
    summary = Summary(info, decode_metadata(metadata))
    properties = await index.properties(Filter())
    named_by = [str(CursorName(one.topic_name, one.cursor_name)) for one in properties if one.bucket_id == bucket_id]
    histogram = None
    if summary.times_ms is not None:
        histogram = TimeHistogram.between(*summary.times_ms, bins_max=_HISTOGRAM_BINS_MAX)
    sizes_bytes: dict[int, int] = {}
    damaged: list[str] = []
    async for number, data in readable_segments(index.storage, info):
        try:
            if isinstance(data, SnapshotUnreadableError):
                raise data
            if histogram is not None:
                histogram.add(decode_segment(data, entry=number).deliver_at_ms)
            sizes_bytes[number] = len(data)
        except SnapshotUnreadableError as error:
            damaged.append(str(error))
    if is_json:
        print_json(snapshot_json(summary, named_by, sizes_bytes, damaged))
    else:
        console = make_console()
        print_snapshot(console, summary, named_by, len(metadata))
        print_segments(console, summary, sizes_bytes, is_all=is_all)
        if histogram is not None:
            print_histogram(console, histogram)
        for reason in damaged:
            console.print(f"[red]Unreadable:[/] {escape(reason)}", soft_wrap=True)
    if damaged:
        sys.exit(EXIT_CODE_WRONG)


@snapshots.command(
    short_help="Delete what no cursor names, or give one up.",
    epilog=help_end(
        "postdate snapshots drop --dry-run",
        "postdate snapshots drop --yes --config config/broker.conf",
        "postdate snapshots drop 1312740393216 --data /var/lib/postdate",
        wrong="the header of a snapshot that a cursor names is damaged; it is left to the service",
    ),
)
@click.argument("bucket_ids", metavar="[ID]...", type=click.IntRange(0, 2**63 - 1), nargs=-1)
@on_config
@filters
@dry_run_option("name what would be deleted, also beside a running service")
@yes_option()
@json_option()
def drop(
    config: BrokerConfig,
    *,
    bucket_ids: tuple[int, ...],
    which: Filter,
    is_dry_run: bool,
    is_sure: bool,
    is_json: bool,
) -> None:
    """Delete what no cursor names: snapshots, and damaged folders that were put aside. With ID: give this one up.

    Shows what it found and asks, unless --yes is given. Snapshots that no cursor names are deleted on a stopped
    service, as a running one does it by itself; beside it, --dry-run may name one that is just being made.

    The messages of a snapshot ID are read from the log again; `/health` names those that cannot be read. One that is
    damaged for certain is given up without a question. Beside a running service this works where the snapshots are on
    S3; an object that the server cannot even delete is given up with the service stopped. A RocksDB folder is opened as
    by a start of the service, which puts a damaged one aside.
    """
    if bucket_ids and which != Filter():
        raise click.UsageError("--topic and --subscription are for what no cursor names, and not for an ID")

    def ask(doubt: str) -> None:
        if not (is_sure or is_dry_run):
            click.confirm(f"{doubt} Give it up?", abort=True, err=True)

    if bucket_ids:
        given_up = [asyncio.run(give_up(config, one, is_dry_run=is_dry_run, on_doubt=ask)) for one in bucket_ids]
        if is_json:
            print_json({"is_dry_run": is_dry_run, "given_up": [one.as_json() for one in given_up]})
        else:
            print_given_up(make_console(), given_up, is_dry_run=is_dry_run)
        return
    unused = Unused(which)

    def on_found(found: Unused) -> None:
        nonlocal unused
        unused = found
        if not is_json:
            print_unused(make_console(), found, is_dry_run=is_dry_run)
        if found.count and not (is_sure or is_dry_run):
            click.confirm(f"{unused_counts(found)}: deleted for good. Go on?", abort=True, err=True)

    with Steps().shown() as steps:
        asyncio.run(
            delete_unused(
                config, which, is_dry_run=is_dry_run, on_found=on_found, on_stage=steps.begin, on_step=steps.advance
            )
        )
    if is_json:
        print_json(unused_json(unused, is_dry_run=is_dry_run))
    elif unused.count and not is_dry_run:
        make_console().print(f"Deleted {unused_counts(unused)}.")
    _tell_faults(unused.damaged)


@snapshots.command(
    short_help="Copy them to another storage.",
    epilog=help_end(
        "postdate snapshots copy --to s3://bucket/prefix",
        "postdate snapshots copy --to /mnt/new-data --topic orders",
        "postdate snapshots copy --index s3://bucket/prefix --to data --update-cursors --delete-source",
        wrong="one that a cursor names is damaged or missing: no cursor was updated, and nothing deleted",
    ),
)
@on_config
@filters
@index_option
@click.option(
    "--to",
    "target",
    metavar="TARGET",
    required=True,
    help="s3://BUCKET/PREFIX, or a data folder, whose `snapshots` they go to, or python://MODULE:NAME (a storage of "
    "yours, which no service reads).",
)
@click.option("--delete-source", is_flag=True, help="After --update-cursors: delete the snapshots that were copied.")
@click.option(
    "--update-cursors",
    is_flag=True,
    help="Let the cursors name the copies, once all are there: one durable write, on a stopped service.",
)
@json_option()
def copy(
    config: BrokerConfig,
    *,
    which: Filter,
    index: str | None,
    target: str,
    update_cursors: bool,
    delete_source: bool,
    is_json: bool,
) -> None:
    """Copy the snapshots that cursors name to another storage, and compare each after writing.

    They get new ids there, which are printed. Copies of an earlier run are found, compared and not made again. A place
    on S3 may have the options endpoint, region and path_style, as in s3://bucket/prefix?region=eu-west-1; otherwise
    those of the configuration count, as its credentials do.
    """
    if delete_source and not update_cursors:
        raise click.UsageError("--delete-source needs --update-cursors: the cursors would name what is gone")
    if update_cursors and which != Filter():
        raise click.UsageError(
            "--update-cursors moves everything, without --topic and --subscription: a service has one storage, "
            "and would find only a part in either"
        )
    source = index_named(config, index)
    where = target_named(config, target, source)
    with bytes_bar("copied") as advance:
        copied = asyncio.run(
            copy_snapshots(
                config,
                where,
                which,
                advance,
                index=source,
                updates_cursors=update_cursors,
                deletes_source=delete_source,
            )
        )
    if is_json:
        print_json(copied_json(copied, target))
    else:
        print_copied(make_console(), copied, target)
    if copied.failed:
        sys.exit(EXIT_CODE_WRONG)


@snapshots.command(
    short_help="Back up the RocksDB folder.",
    epilog=help_end(
        "postdate snapshots checkpoint /backup/snapshots-monday",
        "postdate snapshots checkpoint /backup/monday --data /var/lib/postdate",
        "mv data/snapshots old && cp -r /backup/monday data/snapshots && postdate check",
    ),
)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@on_config
@json_option()
def checkpoint(config: BrokerConfig, *, path: Path, is_json: bool) -> None:
    """Make a backup of the snapshot folder as it is now: DIR, which must not exist, takes its place when it is lost.

    At once, and at the cost of no space while both have the same tables, where DIR is on the same file system. Tables
    are copied as they are, and `postdate check` tells whether one is damaged. For RocksDB, on a stopped service; `copy`
    makes a backup beside a running one, and of snapshots on S3.
    """
    infos = asyncio.run(make_checkpoint(config, path))
    if is_json:
        print_json(checkpoint_json(path, infos))
        return
    length_bytes = sum(info.length_bytes for info in infos)
    make_console().print(
        f"{escape(str(path))} has {counted(len(infos), 'snapshot')}, {size(length_bytes)}. To restore it, put it where "
        f"{escape(str(snapshots_folder(config)))} is.",
        soft_wrap=True,
    )


@snapshots.command(
    short_help="Write every row to a Parquet file.",
    epilog=help_end(
        "postdate snapshots export index.parquet",
        "postdate snapshots export index.parquet --topic orders --data /var/lib/postdate",
        "duckdb -c \"select topic, count(*) from 'index.parquet' group by topic\"  # after postdate snapshots export",
        wrong="some cannot be read: the others are written, and the damaged segments named",
    ),
)
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@on_config
@filters
@json_option()
def export(config: BrokerConfig, *, path: Path, which: Filter, is_json: bool) -> None:
    """Write every row to a Parquet file: topic, cursor, bucket_id, segment, ledger_id, entry_id, deliver_at_ms."""
    with bytes_bar("exported") as advance:
        exported = asyncio.run(export_snapshots(config, path, which, advance))
    if is_json:
        print_json(exported_json(exported, path))
    else:
        print_exported(make_console(), exported, path)
    if exported.failed:
        sys.exit(EXIT_CODE_WRONG)
