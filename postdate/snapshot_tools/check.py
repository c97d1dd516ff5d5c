"""`postdate check`: whether the log and the index are whole, and fit together.

`managed_ledger.repair` reads the files of the log, `postdate.index.checking` the snapshots, and compares both.
"""

import asyncio
import math
import sys
from functools import partial
from pathlib import Path

import click

from managed_ledger.errors import LedgerError, StoreLockedError
from managed_ledger.positions.value_types import Json
from managed_ledger.repair.log_check import check_is_log
from managed_ledger.repair.repairing import LogVerdict
from managed_ledger.repair.repairing import verify as verify_log
from postdate.broker.configuration.config import BrokerConfig
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end
from postdate.command_line.output import json_option, make_console, print_json
from postdate.command_line.progress import Steps
from postdate.command_line.times import TIME
from postdate.index.checking import SECOND_LOOK_AFTER_S, IndexCheck, IndexVerdict
from postdate.index.entry_format import PulsarEntries
from postdate.index.opening import Filter
from postdate.pipeline.cli.common import wall_clock_ms
from postdate.pipeline.cli.ledger import tell_damage
from postdate.snapshot_tools.export import ParquetFile
from postdate.snapshot_tools.json_output import verdict_json
from postdate.snapshot_tools.options import filters, index_named, index_option, log_of, on_config, opened
from postdate.snapshot_tools.report import print_verdict
from snapshot_storage.errors import SnapshotStorageError


def _finite(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds")
    return seconds


@click.command(
    epilog=help_end(
        "postdate check",
        "postdate check --config config/broker.conf --topic orders",
        "postdate check --data /var/lib/postdate || echo 'look at what it says'",
        "postdate check --positions /tmp/faults.parquet",
        wrong="a fault was found",
    ),
)
@on_config
@index_option
@filters
@click.option(
    "--now", "now_ms", type=TIME, default=wall_clock_ms, help="Messages due then need no index. Default: now."
)
@click.option(
    "--second-look",
    "second_look_after_s",
    type=click.FloatRange(min=0),
    callback=_finite,
    default=SECOND_LOOK_AFTER_S,
    show_default=True,
    metavar="SECONDS",
    help="The wait before a fault of the index is looked at again.",
)
@click.option(
    "--positions",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the messages that the index has otherwise than the log to this Parquet file.",
)
@json_option("log and index, each null where it was not checked")
def check(
    config: BrokerConfig,
    *,
    index: str | None,
    which: Filter,
    now_ms: int,
    second_look_after_s: float,
    path: Path | None,
    is_json: bool,
) -> None:
    """Say whether the log and the index are whole: every file of the log, every snapshot, and whether they fit.

    Works beside a running service too, which has the files of the log to itself: these are checked on a stopped one,
    and not where --topic or --subscription narrow the check. Of the index, every checksum is checked, every bitmap
    against its segment, every cursor property against the storage, and the messages against those of the log. Each
    fault is looked at a second time a little later, as the snapshots of a running service come and go.

    Nothing is changed. `postdate ledger repair` mends the log, `postdate pipeline rebuild` the index.
    """
    log = log_of(config)
    is_in_memory = index is None and config.bucket_snapshot_storage == "memory"
    place = None if is_in_memory else index_named(config, index)
    check_is_log(log)
    positions = None if path is None else ParquetFile(path, *_POSITION_COLUMNS)
    verdict, log_verdict = None, None
    unchecked = "it is in the service's memory alone" if is_in_memory else ""
    try:
        with Steps().shown() as steps:
            if which == Filter():
                log_verdict = _checked_log(log, steps)
            if place is not None:
                work = IndexCheck(
                    opened=partial(opened, config, place),
                    log=log,
                    which=which,
                    now_ms=now_ms,
                    on_stage=steps.begin,
                    on_step=steps.advance,
                )
                try:
                    verdict = asyncio.run(work.run(second_look_after_s=second_look_after_s))
                except (LedgerError, SnapshotStorageError) as error:
                    if log_verdict is None:
                        raise
                    unchecked = str(error)
        if positions is not None and verdict is not None:
            _write_positions(positions, verdict)
    finally:
        if positions is not None:
            positions.discard()
    is_index_whole = is_in_memory if verdict is None else verdict.is_whole
    is_whole = is_index_whole and (log_verdict is None or log_verdict.is_whole)
    if is_json:
        print_json(_as_json(log_verdict, verdict) | {"is_whole": is_whole})
    else:
        _tell_log(config, log_verdict, is_meant=which == Filter())
        if verdict is None:
            click.echo(f"Index: not checked: {unchecked}")
        else:
            print_verdict(make_console(), verdict, str(config.data_directory))
    if not is_whole:
        sys.exit(EXIT_CODE_WRONG)


_POSITION_COLUMNS = ("finding", "topic", "cursor"), ("ledger_id", "entry_id", "deliver_at_ms")


def _checked_log(log: Path, steps: Steps) -> LogVerdict | None:
    """Read every file of the log; None where a service has it open."""
    try:
        return verify_log(log, entry_format=PulsarEntries(), on_stage=steps.begin, on_step=steps.advance)
    except StoreLockedError:
        return None


def _write_positions(file: ParquetFile, verdict: IndexVerdict) -> None:
    for one in verdict.compared:
        for finding, rows in one.positions.items():
            file.write((finding.value, one.topic, one.cursor), (rows.ledger_ids, rows.entry_ids, rows.deliver_at_ms))
    file.finish()


def _as_json(log: LogVerdict | None, index: IndexVerdict | None) -> Json:
    return {
        "log": None if log is None else {"is_whole": log.is_whole} | log.as_json(),
        "index": None if index is None else verdict_json(index),
    }


def _tell_log(config: BrokerConfig, verdict: LogVerdict | None, *, is_meant: bool) -> None:
    if verdict is not None:
        click.echo("Log:")
        tell_damage(verdict)
        if not verdict.is_whole:
            click.echo(
                f"`postdate ledger repair {config.data_directory} --yes` keeps what is whole, and the damaged log "
                "beside it"
            )
    elif is_meant:
        click.echo("Log: a service has it open, so its files were not read. Stop it to have them checked.")
