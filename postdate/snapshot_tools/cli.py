"""`postdate snapshots`: look at the index on disk, check it, clean up, move it, hand it to other tools.

This module has the commands and their options. The work is in `postdate.snapshot_tools.check`, `copy` and `export`, the
output in `report`. Commands that only read work beside a running service.
"""

import asyncio
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
from rich.markup import escape

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import retries_of, snapshots_folder
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end, say
from postdate.command_line.options import dry_run_option
from postdate.command_line.output import counted, json_option, print_json, size
from postdate.command_line.progress import Steps, bytes_bar
from postdate.pipeline.cli.common import master_option, new_session
from postdate.pipeline.index.index_copy import CopyWorkers
from postdate.snapshot_tools.check import SECOND_LOOK_AFTER_S, collect_garbage, verify
from postdate.snapshot_tools.copy import LocalCopies, copy_snapshots, make_checkpoint
from postdate.snapshot_tools.drop import drop
from postdate.snapshot_tools.export import export_snapshots
from postdate.snapshot_tools.json_output import (
    checkpoint_json,
    copied_json,
    exported_json,
    garbage_json,
    snapshot_json,
    summary_json,
    verdict_json,
)
from postdate.snapshot_tools.options import filters, make_console, on_config
from postdate.snapshot_tools.place import (
    Filter,
    SnapshotPlace,
    Summary,
    index_place,
    open_place,
    readable_segments,
    target_place,
    task_location,
)
from postdate.snapshot_tools.put_aside import put_aside
from postdate.snapshot_tools.report import (
    print_copied,
    print_exported,
    print_garbage,
    print_histogram,
    print_list,
    print_segments,
    print_snapshot,
    print_verdict,
)
from snapshot_storage.encoding.codec import decode_metadata, decode_segment
from snapshot_storage.errors import SnapshotUnreadableError
from snapshot_storage.inspection import TimeHistogram

_HISTOGRAM_BINS_MAX = 16


@click.group()
def snapshots() -> None:
    """Look at the snapshots of the delayed index, check, clean up, copy, back up and export them.

    `list`, `show`, `verify`, `export` and `put-aside` only read, and work beside a running service. `copy` and
    `checkpoint` write to the place that they are given, and `copy --update-cursors` to the log too. `gc`, `drop` and
    `put-aside --remove` delete.
    """


snapshots.add_command(drop)
snapshots.add_command(put_aside)
snapshots.epilog = help_end(
    "postdate snapshots list",
    "postdate snapshots verify --config config/broker.conf",
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
        async with open_place(config) as place:
            infos, faults = await place.readable_infos(await place.resolve(which))
            return [summary async for summary in place.summaries(infos)], dict(faults)

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
        async with open_place(config) as place:
            await _show(place, bucket_id, is_all=is_all, is_json=is_json)

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


async def _show(place: SnapshotPlace, bucket_id: int, *, is_all: bool, is_json: bool) -> None:
    info = await place.info(bucket_id)
    metadata = await place.storage.get_bucket_snapshot_metadata(bucket_id)
    summary = Summary(info, decode_metadata(metadata))
    properties = await place.properties(Filter())
    named_by = [str(CursorName(one.topic_name, one.cursor_name)) for one in properties if one.bucket_id == bucket_id]
    histogram = None
    if summary.times_ms is not None:
        histogram = TimeHistogram.between(*summary.times_ms, bins_max=_HISTOGRAM_BINS_MAX)
    sizes_bytes: dict[int, int] = {}
    damaged: list[str] = []
    async for number, data in readable_segments(place.storage, info):
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


def _finite(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds")
    return seconds


@snapshots.command(
    "verify",
    short_help="Check everything, and name the faults.",
    epilog=help_end(
        "postdate snapshots verify",
        "postdate snapshots verify --config config/broker.conf --topic orders",
        "postdate snapshots verify --data /var/lib/postdate || echo 'look at the table'",
        wrong="a fault was found: a table names it",
    ),
)
@on_config
@filters
@click.option(
    "--second-look",
    "second_look_after_s",
    type=click.FloatRange(min=0),
    callback=_finite,
    default=SECOND_LOOK_AFTER_S,
    show_default=True,
    metavar="SECONDS",
    help="The wait before a fault is checked again.",
)
@json_option()
def verify_(config: BrokerConfig, *, which: Filter, second_look_after_s: float, is_json: bool) -> None:
    """Check every checksum, every bitmap against its segment, and every cursor property against the storage.

    Each fault is checked a second time a little later, as the
    snapshots of a running service come and go. A snapshot that the storage has lost without a trace is known by the
    property that names it, and by nothing else.
    """
    with bytes_bar("verified") as advance:
        verdict = asyncio.run(verify(config, which, advance, second_look_after_s=second_look_after_s))
    if is_json:
        print_json(verdict_json(verdict))
    else:
        print_verdict(make_console(), verdict)
    if verdict.problems:
        sys.exit(EXIT_CODE_WRONG)


@snapshots.command(
    short_help="Delete those that no cursor names.",
    epilog=help_end(
        "postdate snapshots gc --dry-run",
        "postdate snapshots gc --config config/broker.conf",
        "postdate snapshots gc --data /var/lib/postdate --topic orders",
        wrong="the header of a snapshot that a cursor names is damaged; it is left to the service",
    ),
)
@on_config
@filters
@dry_run_option("name the snapshots to delete, also beside a running service")
@json_option()
def gc(config: BrokerConfig, *, which: Filter, is_dry_run: bool, is_json: bool) -> None:
    """Delete the snapshots that no cursor names. Refuses beside a running service, which cleans up by itself.

    Beside a running service, --dry-run may name a snapshot that is just being made. Without it the folder is opened as
    by a start of the service, which puts a damaged one aside.
    """
    with Steps().shown() as steps:
        garbage = asyncio.run(
            collect_garbage(config, which, is_dry_run=is_dry_run, on_begin=steps.begin, on_step=steps.advance)
        )
    if is_json:
        print_json(garbage_json(garbage, is_dry_run=is_dry_run))
    else:
        print_garbage(make_console(), garbage, is_dry_run=is_dry_run)
    _tell_faults(garbage.damaged)


@snapshots.command(
    short_help="Copy them to another storage.",
    epilog=help_end(
        "postdate snapshots copy --to s3://bucket/prefix",
        "postdate snapshots copy --to s3://bucket/prefix --update-cursors --workers spark --master spark://host:7077",
        "postdate snapshots copy --to /mnt/new-data --topic orders",
        "postdate snapshots copy --index s3://bucket/prefix --to data --update-cursors --delete-source",
        wrong="one that a cursor names is damaged or missing: no cursor was updated, and nothing deleted",
    ),
)
@on_config
@filters
@click.option(
    "--index",
    metavar="INDEX",
    help="Copy from here, and not from where the configuration has them: INDEX is a TARGET, or a checkpoint.",
)
@click.option(
    "--to",
    "target",
    metavar="TARGET",
    required=True,
    help="s3://BUCKET/PREFIX, or a data folder, whose `snapshots` they go to, or a place that no service reads: "
    "file:///FOLDER (plain files, a backup) or python://MODULE:NAME (a storage of yours).",
)
@click.option("--delete-source", is_flag=True, help="After --update-cursors: delete the snapshots that were copied.")
@click.option(
    "--update-cursors",
    is_flag=True,
    help="Let the cursors name the copies, once all are there: one durable write, on a stopped service.",
)
@click.option(
    "--workers",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Where the copy runs: in this process, or on Spark, which needs the extra `spark`.",
)
@master_option
@json_option()
def copy(
    config: BrokerConfig,
    *,
    which: Filter,
    index: str | None,
    target: str,
    update_cursors: bool,
    delete_source: bool,
    workers: str,
    master: str,
    is_json: bool,
) -> None:
    """Copy the snapshots that cursors name to another storage, and compare each after writing.

    They get new ids there, which are printed. Copies of an earlier run are found, compared and not made again. A place
    on S3 may have the options endpoint, region and path_style, as in s3://bucket/prefix?region=eu-west-1; otherwise
    those of the configuration count, as its credentials do.

    On Spark, each machine needs the data folder and credentials for S3 where AWS's own tools find them. With
    spark-submit: spark-submit "$(python -m postdate.snapshot_tools)" snapshots copy --workers spark ...
    """
    if delete_source and not update_cursors:
        raise click.UsageError("--delete-source needs --update-cursors: the cursors would name what is gone")
    if update_cursors and which != Filter():
        raise click.UsageError(
            "--update-cursors moves everything, without --topic and --subscription: a service has one storage, "
            "and would find only a part in either"
        )
    source = None if index is None else index_place(config, index)
    where = target_place(config, target, source)
    copying = partial(
        copy_snapshots,
        config,
        where,
        which,
        index=source,
        updates_cursors=update_cursors,
        deletes_source=delete_source,
    )
    copies: CopyWorkers = LocalCopies(retries_of(config))
    if workers == "spark":
        # Spark is an extra, and slow to import.
        from postdate.pipeline.jobs.copies import SparkCopies

        here, there = task_location(config if source is None else source), task_location(where)
        copies = SparkCopies(partial(new_session, master), here, there, config.data_directory / "ledgers")
    with bytes_bar("copied") as advance:
        copied = asyncio.run(copying(advance, workers=copies))
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
        "mv data/snapshots old && cp -r /backup/monday data/snapshots && postdate snapshots verify",
    ),
)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@on_config
@json_option()
def checkpoint(config: BrokerConfig, *, path: Path, is_json: bool) -> None:
    """Make a backup of the snapshot folder as it is now: DIR, which must not exist, takes its place when it is lost.

    At once, and at the cost of no space while both have the same tables, where DIR is on the same file system. Tables
    are copied as they are, and `verify` tells whether one is damaged. For RocksDB, on a stopped service; `copy` makes a
    backup beside a running one, and of snapshots on S3.
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
